"""The command line's own entry point, called in this process: importing torch anew each time would take seconds."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sparsegroup_paper.command_line import main


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


def call(patch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit status of `sparsegroup-paper` with these arguments."""
    patch.setattr(sys, "argv", ["sparsegroup-paper", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)
