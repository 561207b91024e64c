"""What is at a path, as a click log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.formats.recognition import FormatOptions, given
from sparsegroup.data.log import Log
from sparsegroup.data.log_errors import LogOptionError
from sparsegroup.data.prepared_log import PreparedLog
from sparsegroup.data.raw.raw_log import RawLog
from sparsegroup.names import OnBadRow


def open_log(
    log: Path,
    test: Path | None = None,
    format: LogFormat | None = None,
    *,
    like: FormatOptions | None = None,
    whole: bool = False,
    on_bad_row: OnBadRow = "error",
    max_bad: float = 0.001,
    threads: int = 1,
    on_progress: Callable[[int, int | None], None] | None = None,
    **options: Unpack[FormatOptions],
) -> Log:
    """The log at a path: a prepared one if it is a folder, else a raw one, whose rows are counted now.

    Args:
        log: Folder or file.
        test: A log of its own for the test set, of a raw log.
        format: Format of a raw log; by default as `options` say, or told from how the log begins.
        like: Options that another log was read with, which hold for a raw log where `options` leave them open. A
            `schema` or a `dataset` in `options` says all of the format.
        whole: Take all rows of a raw log, as for scoring, see `RawLog`.
        on_bad_row, max_bad, threads, on_progress: How to read a raw log, see `RawLog`.
        **options: What tells the format of a raw log, see `FormatOptions`.

    Raises:
        ClickLogError: It cannot be read.
        LogOptionError: Options that do not go together, options of raw logs for a prepared one, or no such schema.
        OSError: No such file.
    """
    wanted = given(options)
    if is_prepared(log):
        others = {"test": test, "format": format}
        for option in (*(name for name, value in others.items() if value is not None), *wanted):
            raise LogOptionError(f"`{option}` is for raw logs; {log} is a folder, prepared already", option)
        return PreparedLog(log)
    if like is not None and not {"schema", "dataset"} & set(wanted):
        inherited = given(like)
        if whole:  # then no rows are test rows
            inherited.pop("test_fraction", None)
        wanted = {**inherited, **wanted}
    reading: Any = {"on_bad_row": on_bad_row, "max_bad": max_bad, "threads": threads, "on_progress": on_progress}
    return RawLog(log, test, format, whole=whole, **reading, **wanted)


def is_prepared(log: Path) -> bool:
    """Whether a prepared log, or what should be one, is at the path: options of raw logs are not for it."""
    return log.is_dir()
