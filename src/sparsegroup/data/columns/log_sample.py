"""The first rows of a raw log, for looking at its columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.raw.raw_file import BadRow, Chunk, RawFile

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


def first_rows(first: RawFile) -> LogSample:
    """The first `SAMPLE_ROWS` rows of a log that names its columns; of texts no more than `SAMPLE_BYTES`.

    Rows that cannot be read are left out. Columns that folders add have the values of all files, spread over the rows.

    Args:
        first: The log's first file.

    Raises:
        ClickLogError: A file is damaged, or has other columns than the first.
    """
    names = tuple(name for name in first.head.columns if name)
    kinds = dict.fromkeys(names, "category")
    log = LogFormat("log", "", names, labelled=False, separator=first.head.separator or ",", kinds=kinds)
    files = [first, *first.others]
    frames: list[pl.DataFrame] = []
    rows = size = 0
    whole = True
    for file, chunk, read in _chunks(files, log):
        if rows >= SAMPLE_ROWS or size >= SAMPLE_BYTES:
            whole = False
            break
        bad: list[BadRow] = []
        frame = chunk.full_frame(log, file.columns(log), bad, file.partition)
        frames.append(frame.select(name for name in names if name in frame.columns))
        rows += len(frame)
        size += read if first.head.separator else 0
    if not frames:
        return LogSample(pl.DataFrame(schema=dict.fromkeys(names, pl.String)), whole)
    joined = pl.concat(frames).head(SAMPLE_ROWS)
    spread = [_spread(name, files, len(joined)) for name in first.added]
    return LogSample(joined.with_columns(spread), whole and rows <= SAMPLE_ROWS)


def _chunks(files: Sequence[RawFile], log: LogFormat) -> Iterator[tuple[RawFile, Chunk, int]]:
    """The chunks of files, and how long each is."""
    for file in files:
        file.check_alike(log)
        end = 0
        for chunk in file.chunks(log, 0, 1, SAMPLE_BYTES):
            yield file, chunk, chunk.end_offset - end
            end = chunk.end_offset


def _spread(name: str, files: Sequence[RawFile], rows: int) -> pl.Series:
    return pl.Series(name, [files[row * len(files) // rows].partition[name] for row in range(rows)], pl.String)
