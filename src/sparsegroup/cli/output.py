"""Results go to stdout, everything else to stderr; `--json`, `--quiet` and `--verbose` of every command."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from time import strftime
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from sparsegroup.cli.streams import to_stdout
from sparsegroup.errors import UserError

console = Console(markup=False, emoji=False, highlight=False)
"""For results, on stdout; silent with `--json` and `--quiet`."""

messages = Console(stderr=True, markup=False, emoji=False, highlight=False)
"""For progress and log records, on stderr."""

_with_place = warnings.formatwarning


class _Choices:
    """What the options of this call say."""

    json = quiet = verbose = False
    of_rank = ""

    def reset(self) -> None:
        self.of_rank = ""
        self.json = self.quiet = self.verbose = console.quiet = False

    @property
    def level(self) -> int:
        if self.of_rank:
            return logging.ERROR
        if self.quiet:
            return logging.WARNING
        return logging.DEBUG if self.verbose else logging.INFO


_choices = _Choices()


class _MessageHandler(logging.Handler):
    """Prints log records; with `--verbose`, with time and logger."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < _choices.level:
            return
        text = record.getMessage()
        if _choices.verbose:
            text = f"{strftime('%H:%M:%S')} {record.name}: {text}"
        style = "yellow" if record.levelno >= logging.WARNING else "dim" if record.levelno < logging.INFO else None
        _say(text, style)


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return _with_place(message, category, filename, lineno, line) if _choices.verbose else f"{message}\n"


@contextmanager
def logged() -> Iterator[None]:
    """Print what the package logs while a command runs, as its options say."""
    logger, handler = logging.getLogger("sparsegroup"), _MessageHandler()
    level = logger.level
    as_usual = warnings.formatwarning
    _choices.reset()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    warnings.formatwarning = _warning
    try:
        yield
    finally:
        warnings.formatwarning = as_usual
        logger.removeHandler(handler)
        logger.setLevel(level)


def is_json() -> bool:
    """Whether `--json` was given."""
    return _choices.json


def has_bars() -> bool:
    """Whether progress bars are shown: stderr is a terminal that can draw them, and `--quiet` was not given."""
    return messages.is_interactive and messages.file.isatty() and not _choices.quiet


def show(result: Mapping[str, Any], *parts: RenderableType) -> None:
    """Print what a command came to.

    Args:
        result: For `--json`: one object on one line; null stands for numbers that JSON does not have.
        *parts: For people.
    """
    if _choices.json:
        import json

        from sparsegroup.artifact.validation import finite

        with to_stdout():
            print(json.dumps(finite(dict(result)), ensure_ascii=False, default=str))
    for part in parts:
        with to_stdout():
            console.print(part, soft_wrap=isinstance(part, str))


def tell(*parts: RenderableType) -> None:
    """Print what a user should see beside the result, on stderr; nothing with `--quiet`."""
    for part in parts if not _choices.quiet else ():
        _say(part)


def fail(message: str) -> None:
    """Print what is wrong, on stderr."""
    _say(f"error: {_choices.of_rank}{message}")


def speak_as(rank: int) -> None:
    """Let one of several ranks that carry out a command tell what is wrong with it alone; the first tells the rest."""
    _choices.of_rank = f"rank {rank}: "
    _choices.verbose = _choices.json = False
    _choices.quiet = console.quiet = True


def _say(part: RenderableType, style: str | None = None) -> None:
    with suppress(OSError):  # what cannot be said is no reason to stop
        messages.print(part, style=style, soft_wrap=isinstance(part, str))


def _set_json(given: bool) -> None:
    _choices.json = given
    console.quiet = _choices.json or _choices.quiet


def _set_quiet(given: bool) -> None:
    _choices.quiet = given
    _check_level()
    console.quiet = _choices.json or _choices.quiet


def _set_verbose(given: bool) -> None:
    _choices.verbose = given
    _check_level()


def _check_level() -> None:
    if _choices.quiet and _choices.verbose:
        raise UserError("--quiet and --verbose cannot both be given")


_PANEL = "Output"

Json = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=_set_json,
        expose_value=False,
        rich_help_panel=_PANEL,
        help="Print the result as one JSON object on stdout, and nothing else there.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        callback=_set_quiet,
        expose_value=False,
        rich_help_panel=_PANEL,
        help="Print warnings and errors only, and the result of --json.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        callback=_set_verbose,
        expose_value=False,
        rich_help_panel=_PANEL,
        help="Print debug messages, too, each with its time and logger.",
    ),
]
