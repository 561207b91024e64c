"""Logs in Parquet or Arrow files, row group by row group."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds

from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.raw.text_file import Chunk

_FORMATS = {".parquet": "parquet", ".arrow": "ipc", ".feather": "ipc"}
_ROWS = 1 << 16


def is_columnar(path: Path) -> bool:
    """Whether the file's name says so."""
    return path.suffix in _FORMATS


def column_names(path: Path) -> list[str]:
    """Names of all columns."""
    names: list[str] = _dataset(path).schema.names
    return names


def read_columns(path: Path, columns: Sequence[str], offset: int) -> Iterator[Chunk]:
    """The columns as strings, from row `offset` on; rows are numbered from 1.

    Raises:
        ClickLogError: The file is damaged, or a column holds lists or structs.
    """
    row = 0
    try:
        for batch in _dataset(path).scanner(columns=list(columns), batch_size=_ROWS, use_threads=False).to_batches():
            first, row = row, row + batch.num_rows
            if row > offset and batch.num_rows:
                frame = pl.DataFrame(pl.from_arrow(batch)).with_columns(
                    _as_text(path, name, dtype)
                    for name, dtype in zip(batch.schema.names, batch.schema.types, strict=True)
                )
                frame = frame.with_columns(pl.int_range(first + 1, row + 1).alias(""))
                yield Chunk(first + 1, b"", row, row + 1, frame[max(offset - first, 0) :])
    except (OSError, pa.ArrowException) as error:
        raise ClickLogError(f"{path}: damaged ({error})") from error


def _as_text(path: Path, name: str, dtype: pa.DataType) -> pl.Expr:
    if pa.types.is_nested(dtype):
        raise ClickLogError(f"{path}: column {name!r} is {dtype}; write it as text, with a separator")
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


def _dataset(path: Path) -> ds.Dataset:
    try:
        return ds.dataset(path, format=_FORMATS[path.suffix])
    except pa.ArrowException as error:
        raise ClickLogError(f"{path}: damaged, or no {_FORMATS[path.suffix]} file ({error})") from error
