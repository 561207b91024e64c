"""Parquet and Arrow files, row group by row group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa

from sparsegroup.data.columns.typed_columns import text_of
from sparsegroup.data.formats.log_format import Head, LogFormat
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.raw.raw_file import LINE, BadRow, Chunk, RawFile

_FORMATS = {".parquet": "parquet", ".arrow": "ipc", ".feather": "ipc"}
_ROWS = 1 << 16


@dataclass(frozen=True)
class ColumnarChunk(Chunk):
    """Some rows of a columnar file; lines and offsets count rows.

    Attributes:
        rows: The rows, as `frame` gives them.
    """

    rows: pl.DataFrame

    def frame(self, log: LogFormat, columns: Sequence[str], bad: list[BadRow]) -> pl.DataFrame:
        """The rows."""
        return self.rows


class ColumnarFile(RawFile):
    """A Parquet, Arrow or Feather file.

    Args:
        path: The file.
        name: See `RawFile`.
    """

    suffixes = tuple(_FORMATS)
    size = None

    def _read_head(self) -> Head:
        return Head(self.source, tuple(self._dataset().schema.names))

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
            ClickLogError: The file is damaged, or a column holds lists or structs where the format knows no kinds.
        """
        row = 0
        try:
            dataset = self._dataset()
            wanted = [name for name in log.raw if name not in self.added]
            scanner = dataset.scanner(columns=wanted, batch_size=_ROWS, use_threads=False)
            for batch in scanner.to_batches():
                first, row = row, row + batch.num_rows
                if row > offset and batch.num_rows:
                    frame = pl.DataFrame(pl.from_arrow(batch)).with_columns(
                        _as_text(self.source, name, dtype, typed=bool(log.kinds))
                        for name, dtype in zip(batch.schema.names, batch.schema.types, strict=True)
                    )
                    frame = frame.with_columns(pl.int_range(first + 1, row + 1).alias(LINE))
                    yield ColumnarChunk(first + 1, row, row + 1, frame[max(offset - first, 0) :])
        except (OSError, pa.ArrowException) as error:
            raise ClickLogError(f"{self.source}: damaged ({error})") from error

    def _dataset(self) -> Any:
        return self.stored.dataset(_FORMATS[self.stored.suffix])


def _as_text(source: str, name: str, dtype: pa.DataType, *, typed: bool) -> pl.Expr:
    if typed:
        return text_of(name, pl.DataFrame(pl.from_arrow(pa.schema([(name, dtype)]).empty_table())).schema[name])
    if pa.types.is_nested(dtype):
        raise ClickLogError(f"{source}: column {name!r} is {dtype}; write it as text, with a separator")
    column = pl.col(name)
    if pa.types.is_boolean(dtype):
        column = column.cast(pl.UInt8)
    elif pa.types.is_temporal(dtype):
        column = column.cast(pl.Datetime).dt.epoch("s")
    elif pa.types.is_floating(dtype):
        # 1.0 and 1 are the same value.
        column = (
            pl.when((column == column.round()) & (column.abs() < 2.0**63))
            .then(column.cast(pl.Int64, strict=False).cast(pl.String))
            .otherwise(column.cast(pl.String))
        )
    return column.cast(pl.String).replace("", None)
