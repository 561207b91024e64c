"""Parquet and Arrow files, row group by row group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from sparsegroup.data.kinds import text_of
from sparsegroup.data.log_errors import SAMPLE
from sparsegroup.data.raw.arrow_columns import LONGEST_VALUE, ArrowColumn, too_long
from sparsegroup.data.raw.raw_file import LINE, BadRow, Chunk, RawFile
from sparsegroup.data.raw.record_batches import SUFFIXES, damage, opened, read_batches
from sparsegroup.data.raw.stored_file import StoredFile
from sparsegroup.data.schema import Head, LogFormat

_ROWS = 1 << 16


@dataclass(frozen=True)
class ColumnarChunk(Chunk):
    """Some rows of a columnar file; lines and offsets count rows.

    Attributes:
        source: The file, for messages.
        place: Where in the file they are, for messages.
        batch: The rows as they were read, not yet validated.
    """

    source: str
    place: str
    batch: pa.RecordBatch

    def frame(self, log: LogFormat, columns: Sequence[str], bad: list[BadRow]) -> pl.DataFrame:
        """The rows as texts; those that cannot be read are told to `bad`.

        Raises:
            ClickLogError: The file is damaged: offsets, texts or codes are not those of their type. Or a column holds
                what cannot be read, or lists or structs where the format knows no kinds.
        """
        with damage(self.source, lambda: self.place):
            self.batch.validate(full=True)
            return _texts(self.source, self.batch, self.line, bad, typed=bool(log.kinds))


class ColumnarFile(RawFile):
    """A Parquet, Arrow or Feather file.

    Args:
        path: The file.
        name: See `RawFile`.
    """

    suffixes = SUFFIXES
    size = None

    def __init__(self, path: StoredFile | str | Path, name: str | None = None) -> None:
        super().__init__(path, name)
        self._begins: dict[int, int] = {}

    def _read_head(self) -> Head:
        with opened(self.stored) as batches:
            return Head(self.source, batches.names)

    def columns(self, log: LogFormat) -> list[str]:
        """All columns of the file, in order."""
        return [name for name in self.head.columns if name not in self.added]

    def has_label(self, log: LogFormat) -> bool:
        """Whether the label column of the format is there."""
        return log.label in self.head.columns

    def first_row(self, log: LogFormat) -> int:
        """Rows are numbered from 1."""
        return 1

    def chunks(self, log: LogFormat, offset: int, line: int, chunk_bytes: int) -> Iterator[Chunk]:
        """The rows from row `offset` on.

        Raises:
            ClickLogError: The file is damaged.
        """
        wanted = [name for name in log.raw if name not in self.added]
        for batches, first, batch in read_batches(self.stored, wanted, _ROWS, offset, self._begins):
            begin, end = max(first, offset), first + batch.num_rows
            if begin < end:
                rows, entry = batch.slice(begin - first), begin == batches.begin
                yield ColumnarChunk(begin + 1, end, end + 1, self.source, batches.place, rows, is_entry=entry)


def _texts(source: str, batch: pa.RecordBatch, line: int, bad: list[BadRow], *, typed: bool) -> pl.DataFrame:
    """A batch whose first row is number `line`, as texts; rows that cannot be read are told to `bad`."""
    names = batch.schema.names
    columns = [ArrowColumn(source, name, values) for name, values in zip(names, batch.columns, strict=True)]
    unusable = {row: (line + row, reason, text) for column in columns for row, reason, text in column.unusable()}
    plain = pa.RecordBatch.from_arrays([column.values for column in columns], names)
    lines = pl.int_range(line, line + batch.num_rows, eager=True).alias(LINE)
    if unusable:
        keep = np.isin(np.arange(batch.num_rows), list(unusable), invert=True)
        plain, lines = plain.filter(pa.array(keep)), lines.filter(keep)
    if not typed:
        for column in columns:
            column.check_is_flat()
    frame = pl.DataFrame(pl.from_arrow(plain))
    texts = [text_of(name, dtype, plain=not typed) for name, dtype in frame.schema.items()]
    frame = frame.with_columns(*texts, lines)
    for column in columns:
        if pa.types.is_nested(column.values.type):  # how long such a text is, only writing it tells
            long = frame[column.name].str.len_bytes().fill_null(0) > LONGEST_VALUE
            for number, text in frame.filter(long).select(LINE, pl.col(column.name).str.slice(0, SAMPLE)).iter_rows():
                unusable[number - line] = (number, too_long(column.name), f"{column.name}={text}")
            frame = frame.filter(~long)
    bad.extend(unusable.values())
    return frame
