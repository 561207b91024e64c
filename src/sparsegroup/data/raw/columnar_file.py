"""Parquet and Arrow files, row group by row group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from sparsegroup.data.columns.arrow_columns import LONGEST_VALUE, ArrowColumn, too_long
from sparsegroup.data.formats.log_format import Head, LogFormat
from sparsegroup.data.log_errors import SAMPLE
from sparsegroup.data.raw.raw_file import LINE, BadRow, Chunk, RawFile
from sparsegroup.data.raw.record_batches import SUFFIXES, checked_batches, damage, opened

_ROWS = 1 << 16


@dataclass(frozen=True)
class ColumnarChunk(Chunk):
    """Some rows of a columnar file; lines and offsets count rows.

    Attributes:
        rows: The rows, as `frame` gives them.
        unusable: Rows that cannot be read.
    """

    rows: pl.DataFrame
    unusable: Sequence[BadRow] = ()

    def frame(self, log: LogFormat, columns: Sequence[str], bad: list[BadRow]) -> pl.DataFrame:
        """The rows."""
        bad.extend(self.unusable)
        return self.rows


class ColumnarFile(RawFile):
    """A Parquet, Arrow or Feather file.

    Args:
        path: The file.
        name: See `RawFile`.
    """

    suffixes = SUFFIXES
    size = None

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
            ClickLogError: The file is damaged, or a column holds what cannot be read, or lists or structs where the
                format knows no kinds.
        """
        wanted = [name for name in log.raw if name not in self.added]
        for batches, first, batch in checked_batches(self.stored, wanted, _ROWS, offset):
            end = first + batch.num_rows
            if end > offset and batch.num_rows:
                with damage(self.source, batches):
                    chunk = _chunk(
                        self.source,
                        batch.slice(skipped := max(offset - first, 0)),
                        first + skipped,
                        typed=bool(log.kinds),
                    )
                yield chunk


def _chunk(source: str, batch: pa.RecordBatch, first: int, *, typed: bool) -> ColumnarChunk:
    """A batch that begins with row `first`, from 0, as texts."""
    names, end = batch.schema.names, first + batch.num_rows
    columns = [ArrowColumn(source, name, values) for name, values in zip(names, batch.columns, strict=True)]
    bad = {row: (first + row + 1, reason, text) for column in columns for row, reason, text in column.unusable()}
    plain = pa.RecordBatch.from_arrays([column.values for column in columns], names)
    lines = pl.int_range(first + 1, end + 1, eager=True).alias(LINE)
    if bad:
        keep = np.isin(np.arange(batch.num_rows), list(bad), invert=True)
        plain, lines = plain.filter(pa.array(keep)), lines.filter(keep)
    frame = pl.DataFrame(pl.from_arrow(plain)).with_columns(column.as_text(typed=typed) for column in columns)
    frame = frame.with_columns(lines)
    for column in columns:
        if pa.types.is_nested(column.values.type):  # how long such a text is, only writing it tells
            long = frame[column.name].str.len_bytes().fill_null(0) > LONGEST_VALUE
            for line, text in frame.filter(long).select(LINE, pl.col(column.name).str.slice(0, SAMPLE)).iter_rows():
                bad[line - first - 1] = (line, too_long(column.name), f"{column.name}={text}")
            frame = frame.filter(~long)
    return ColumnarChunk(first + 1, end, end + 1, frame, list(bad.values()))
