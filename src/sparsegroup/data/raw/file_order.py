"""Files in the order of time."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from sparsegroup.data.batches import TIME
from sparsegroup.data.log_errors import LogOptionError
from sparsegroup.data.raw.encoding import encode_chunk
from sparsegroup.data.raw.raw_file import RawFile
from sparsegroup.data.raw.raw_log import rows_alone
from sparsegroup.data.schema import LogFormat

_BYTES = 1 << 16
_THREADS = 8


def by_first_time(files: Sequence[RawFile], log: LogFormat) -> list[RawFile]:
    """The files by the time of the first row of each that has one; those without rows come last.

    Files of the same time stay as they are. Each is opened, several at once.

    Args:
        files: At least one.
        log: Their format.

    Raises:
        LogOptionError: The format has no column of times.
        ClickLogError: A file has other columns, or is damaged.
    """
    if len(files) == 1:
        return list(files)
    if log.time is None:
        raise LogOptionError(
            "`sort_files` time is for logs with a column of times (ts or timestamp, or one that a schema names); that "
            f"of {files[0].source} has none",
            "sort_files",
        )
    with ThreadPoolExecutor(_THREADS) as pool:
        times = list(pool.map(partial(_first_time, log=log), files))
    return [files[place] for place in sorted(range(len(files)), key=times.__getitem__)]


def _first_time(file: RawFile, log: LogFormat) -> int | float:
    file.check(log)
    wanted = rows_alone(replace(log, split="last-day", split_column=None), "error")
    for chunk in file.chunks(wanted, 0, 1, _BYTES):
        times = encode_chunk(chunk, wanted, file.columns(log), partition=file.partition).batch.column(TIME)
        if len(times):
            return int(times[0].as_py())
    return math.inf
