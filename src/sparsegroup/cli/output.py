"""Results go to stdout, everything else to stderr; `--json`, `--quiet` and `--verbose` of every command."""

import errno
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from time import strftime
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from sparsegroup.errors import UserError

console = Console(markup=False, emoji=False, highlight=False)
"""For results, on stdout; silent with `--json` and `--quiet`."""

messages = Console(stderr=True, markup=False, emoji=False, highlight=False)
"""For progress and log records, on stderr."""

_with_place = warnings.formatwarning


class _Choices:
    """The options of this call; `of_rank` begins the messages of any rank but the first."""

    json = quiet = verbose = False
    of_rank = ""

    def set(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)
        if self.quiet and self.verbose:
            raise UserError("--quiet and --verbose cannot both be given")
        console.quiet = self.json or self.quiet

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
    level, as_usual = logger.level, warnings.formatwarning
    _choices.set(json=False, quiet=False, verbose=False, of_rank="")
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
    """Print the result of a command: with `--json` as one object on one line, else the parts, which are for people."""
    if _choices.json:
        import json

        from sparsegroup.artifact.validation import finite

        with to_stdout():
            print(json.dumps(finite(dict(result)), ensure_ascii=False, default=str))
    for part in parts:
        with to_stdout():
            console.print(part, soft_wrap=isinstance(part, str))


def tell(*parts: RenderableType) -> None:
    """Print what belongs to the result on stderr; nothing with `--quiet`."""
    for part in parts if not _choices.quiet else ():
        _say(part)


def fail(message: str) -> None:
    """Print an error on stderr."""
    _say(f"error: {_choices.of_rank}{message}")


def speak_as(rank: int) -> None:
    """Let a rank report its own errors only; the first rank reports the rest."""
    _choices.set(json=False, quiet=True, verbose=False, of_rank=f"rank {rank}: ")


def _say(part: RenderableType, style: str | None = None) -> None:
    with suppress(OSError):  # nobody reads stderr
        messages.print(part, style=style, soft_wrap=isinstance(part, str))


def _flag(help: str, name: str, *short: str) -> Any:
    def choose(given: bool) -> None:
        _choices.set(**{name: given})

    return typer.Option(f"--{name}", *short, callback=choose, expose_value=False, rich_help_panel="Output", help=help)


def _options(
    json: Annotated[
        bool, _flag("Print the result as one JSON object on stdout, and nothing else there.", "json")
    ] = False,
    quiet: Annotated[bool, _flag("Print warnings and errors only, and the result of --json.", "quiet", "-q")] = False,
    verbose: Annotated[
        bool, _flag("Print debug messages, too, each with its time and logger.", "verbose", "-v")
    ] = False,
) -> None:
    pass


def output_options() -> list[Any]:
    """The options that every command has."""
    alone = typer.Typer(add_completion=False)
    alone.command()(_options)
    return list(typer.main.get_command(alone).params)


# Standard streams that are closed, full, or no longer read

_STDOUT = "standard output"


def mend_streams() -> None:
    """Let no character be a reason to fail, and no file take the place of a stream that is closed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # the lowest free one is given out next
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def to_stdout() -> Iterator[None]:
    """Write to stdout: errors of the system name it, and it is flushed in the end."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        error.filename = error.filename or _STDOUT
        raise


def is_unread(error: OSError) -> bool:
    """Whether the reader of stdout has seen enough, which is not reported."""
    return error.errno == errno.EPIPE and error.filename in (None, _STDOUT)


def flush_streams() -> OSError | None:
    """Flush stdout and stderr, and give up one that cannot be written; the error of stdout, or None."""
    problem = None
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            if stream is sys.stdout:
                problem = OSError(error.errno, error.strerror, _STDOUT)
            with suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
    return problem
