"""A click log to train on, wherever it lies."""

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

from sparsegroup.data.formats.recognition import FORMAT_DEFAULTS, FormatOptions, choose_format
from sparsegroup.data.prepared_log import PreparedLog
from sparsegroup.data.raw.raw_log import RawLog
from sparsegroup.names import OnBadRow


def open_log(
    log: Path,
    test: Path | None = None,
    *,
    on_bad_row: OnBadRow = "error",
    max_bad: float = 0.001,
    threads: int = 1,
    on_progress: Callable[[int], None] | None = None,
    **options: Unpack[FormatOptions],
) -> PreparedLog | RawLog:
    """A prepared log if `log` is a folder, else a raw one, whose rows are counted now.

    Args:
        log: Folder or file.
        test: Of a raw log, a log of its own for the test set.
        on_bad_row, max_bad, threads, on_progress: Of a raw log, see `RawLog`.
        **options: Of a raw log, see `choose_format`.

    Raises:
        ClickLogError: It cannot be read.
        ValueError: Options that do not go together, or options of raw logs for a prepared one.
        OSError: No such file.
    """
    if not log.is_dir():
        found = choose_format(log, test, **options)
        return RawLog(
            log, test, found, on_bad_row=on_bad_row, max_bad=max_bad, threads=threads, on_progress=on_progress
        )
    given = [name for name, value in options.items() if value != FORMAT_DEFAULTS[name]]
    if test is not None or given:
        option = "test" if test is not None else given[0].replace("_", "-")
        raise ValueError(f"--{option} is for raw logs; {log} is a folder, prepared already")
    return PreparedLog(log)
