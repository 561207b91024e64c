"""The first rows of a raw log, for looking at its columns."""

from dataclasses import dataclass

import polars as pl

from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.raw.raw_file import BadRow, RawFile

SAMPLE_ROWS = 100_000
SAMPLE_BYTES = 8 << 20


@dataclass(frozen=True)
class LogSample:
    """The first rows of a log.

    Attributes:
        frame: Columns of texts, null where there is no value; without those that have no name.
        whole: Whether these are all rows.
    """

    frame: pl.DataFrame
    whole: bool


def first_rows(file: RawFile) -> LogSample:
    """The first `SAMPLE_ROWS` rows of a log that names its columns; of a text no more than `SAMPLE_BYTES`.

    Rows that cannot be read are left out.

    Raises:
        ClickLogError: The file is damaged.
    """
    names = tuple(name for name in file.head.columns if name)
    kinds = dict.fromkeys(names, "category")
    log = LogFormat("log", "", names, labelled=False, separator=file.head.separator or ",", kinds=kinds)
    columns, rows, end = file.columns(log), 0, 0
    frames: list[pl.DataFrame] = []
    for chunk in file.chunks(log, 0, 1, SAMPLE_BYTES):
        if rows >= SAMPLE_ROWS or end >= SAMPLE_BYTES:
            return LogSample(_joined(frames, names), False)
        bad: list[BadRow] = []
        frames.append(chunk.frame(log, columns, bad))
        rows += len(frames[-1])
        end = chunk.end_offset if file.head.separator else 0
    return LogSample(_joined(frames, names), rows <= SAMPLE_ROWS)


def _joined(frames: list[pl.DataFrame], names: tuple[str, ...]) -> pl.DataFrame:
    if not frames:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
    rows = pl.concat(frames).head(SAMPLE_ROWS)
    return rows.select(name for name in names if name in rows.columns)
