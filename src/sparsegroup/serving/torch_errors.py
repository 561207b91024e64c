"""What torch's exporters mean by their errors, which fill pages."""

import re
import traceback
from pathlib import Path

import torch

_LIBRARIES = (Path(torch.__file__).parent, Path(__file__).parents[1])
_IN_TEXT = re.compile(r'^ *File "(.+?)", line (\d+), in \S+\n +(.+)$', re.MULTILINE)


def reason(error: BaseException) -> str:
    """The first paragraph of the text of an error's cause, and the line of the model's own code that it is about.

    Args:
        error: As it was caught, not further out than where the model's code was called.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    told = " ".join(str(error).strip().split("\n\n")[0].split()) or type(error).__name__
    place = _place_in_text(str(error)) or _place_in_trace(error)
    return told if place is None else f"{told}; at {place}"


def _place_in_text(text: str) -> str | None:
    places = [f"{file}:{line}, {code}" for file, line, code in _IN_TEXT.findall(text) if _is_own_code(file)]
    return places[-1] if places else None


def _place_in_trace(error: BaseException) -> str | None:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own_code(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}, {frames[-1].line}" if frames else None


def _is_own_code(file: str) -> bool:
    path = Path(file)
    return path.is_file() and not any(library in path.parents for library in _LIBRARIES)
