"""Results go to stdout; log records and progress to stderr; `--json`, `--quiet` and `--verbose` of every command."""

import errno
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from sparsegroup.errors import UserError, readable

if TYPE_CHECKING:
    from rich.progress import Task
    from rich.text import Text

    from sparsegroup.reporting.progress import Unit
    from sparsegroup.training import Callback

_logger = logging.getLogger(__name__)

console = Console(markup=False, emoji=False, highlight=False)
"""For results, on stdout; silent with `--json` and `--quiet`."""

messages = Console(stderr=True, markup=False, emoji=False, highlight=False)
"""For progress and log records, on stderr."""


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
            text = f"{time.strftime('%H:%M:%S')} {record.name}: {text}"
        style = "yellow" if record.levelno >= logging.WARNING else "dim" if record.levelno < logging.INFO else None
        _say(text, style)


@contextmanager
def logged() -> Iterator[None]:
    """Print what the package logs while a command runs, as its options say."""
    logger, handler = logging.getLogger("sparsegroup"), _MessageHandler()
    level, with_place = logger.level, warnings.formatwarning

    def formatted(message: Warning | str, *place: Any, **line: Any) -> str:
        return with_place(message, *place, **line) if _choices.verbose else f"{message}\n"

    _choices.set(json=False, quiet=False, verbose=False, of_rank="")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    warnings.formatwarning = formatted
    try:
        yield
    finally:
        warnings.formatwarning = with_place
        logger.removeHandler(handler)
        logger.setLevel(level)


def is_json() -> bool:
    """Whether `--json` was given."""
    return _choices.json


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


def plain(text: str) -> str:
    """Return `text` for a table, with long words cut and without control characters."""
    return readable("".join(char if char.isprintable() else "�" for char in text))


def table(*columns: str, rows: Iterable[Iterable[RenderableType]] = (), left: int = 1, **options: Any) -> Table:
    """A table with a header, of columns that are aligned to the right, except the first `left`."""
    made = Table(**options)
    for number, name in enumerate(columns):
        made.add_column(name, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def figures(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values."""
    return table("", "", rows=rows, left=2, show_header=False, box=None)


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
        messages.print(readable(part) if isinstance(part, str) else part, style=style, soft_wrap=isinstance(part, str))


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


# Progress: a bar where stderr is a terminal, otherwise a line about once a minute

Update = Callable[[int, int | None, str], None]
"""Called with how much is done, how much there is (None if unknown), and details to show."""

HEARTBEAT = 60.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def progress(name: str, unit: "Unit", total: int | None = None, *, stays: bool = False) -> Iterator[Update]:
    """Show how far something has come from the first call of what this yields; `stays`: also in the end."""
    if _choices.quiet or not (messages.is_interactive and messages.file.isatty()):
        from sparsegroup.reporting.progress import Heartbeat

        yield Heartbeat(name, unit, _logger.info, HEARTBEAT).update
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column

    from sparsegroup.reporting.formatting import per_second

    class Shortened(TextColumn):
        """Text of a column that becomes narrower in a narrow terminal, so that other columns keep their widths."""

        def __init__(self, what: str) -> None:
            super().__init__(f"{{task.{what}}}", markup=False, table_column=Column(overflow="ellipsis"))

        def render(self, task: "Task") -> "Text":
            text = super().render(task)
            text.no_wrap = True
            return text

    share = TaskProgressColumn(table_column=Column(no_wrap=True, min_width=4))
    remaining = TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5))
    counted = (DownloadColumn(),) if unit == "bytes" else (TextColumn("{task.fields[speed]}", markup=False),)
    columns = (
        Shortened("description"),
        BarColumn(bar_width=10),
        share,
        remaining,
        *counted,
        Shortened("fields[detail]"),
    )
    with Progress(*columns, console=messages, transient=not stays) as bar:

        def update(done: int, total: int | None, detail: str) -> None:
            if not bar.tasks:
                bar.add_task(name, total=total, detail="", speed="")
            task = bar.tasks[0]
            speed = task.finished_speed or task.speed
            shown = per_second(speed) if speed else ""
            bar.update(task.id, completed=done, total=total, detail=detail, speed=shown)

        yield update


@contextmanager
def training_bar(total: int, name: str, *, stays: bool = True) -> Iterator["Callback"]:
    """Progress over `total` samples, with figures of the last point; yields the callback that shows it."""
    from sparsegroup.training.callbacks.progress import TrainingProgress

    with progress(name, "samples", total, stays=stays) as update:
        yield TrainingProgress(update, total)


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
