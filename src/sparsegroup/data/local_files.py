"""Parquet files of this machine, and NumPy's arrays as Arrow's.

pyarrow takes some paths for URIs, and polars some for patterns: here a path is a path. `pa.array`, `pa.scalar` and
`to_numpy` import pandas if it is installed, which takes a fifth of a second: `arrow_of` does not.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq

from sparsegroup.errors import ClickLogError

LOCAL = fs.LocalFileSystem()
"""The file system of this machine. Its paths are to be given as `on_disk` gives them."""


def check_name(path: str | Path) -> None:
    """Whether a path is text: manifests and the libraries that read and write columns hold no other bytes.

    Raises:
        ClickLogError: It is not.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ClickLogError(f"{os.fsencode(path)!r}: the name is not UTF-8; rename it") from None


def on_disk(path: str | Path) -> str:
    """A path that pyarrow cannot take for a URI, such as `./log-12:30`."""
    return os.path.join(os.curdir, path)  # an absolute one is unchanged


def open_local(path: Path) -> pa.NativeFile:
    """Open the file at `path` for reading at any position. The caller closes the file. OSError: the file is missing."""
    return LOCAL.open_input_file(on_disk(path))


def parquet_metadata(path: Path) -> pq.FileMetaData:
    """Return the footer of the file at `path`. OSError or pyarrow.ArrowException: the file is missing or damaged."""
    return pq.read_metadata(on_disk(path), filesystem=LOCAL)


def parquet_ends(path: Path) -> list[int]:
    """Return the end positions, in bytes, of the row groups and the footer of a Parquet file that pyarrow has written.

    The first row group includes the beginning of the file, so that the parts cover the whole file.
    """
    metadata = parquet_metadata(path)
    begins = []
    for group in range(1, metadata.num_row_groups):
        first = metadata.row_group(group).column(0)
        begins.append(first.dictionary_page_offset or first.data_page_offset)
    size = path.stat().st_size
    footer = size - 8 - metadata.serialized_size  # its length and the signature follow the footer
    return [*begins, *([footer] if metadata.num_row_groups else []), size]


def parquet_writer(path: Path, schema: pa.Schema, **options: Any) -> pq.ParquetWriter:
    """A writer of the file at `path`, to be closed; `options` are pyarrow's."""
    return pq.ParquetWriter(on_disk(path), schema, filesystem=LOCAL, **options)


def write_parquet(path: Path, rows: pl.LazyFrame) -> None:
    """Write rows to a file, on the way without having all of them in memory where that can be."""
    rows.sink_parquet(on_disk(path))


def names_of(path: Path, keys: npt.NDArray[np.int64]) -> dict[int, str]:
    """The values of the `keys` `[n]` that a Parquet file of columns `key` and `value` has.

    Raises:
        ClickLogError: It is missing or damaged.
    """
    try:
        named = scan_parquet([path]).filter(pl.col("key").is_in(keys.tolist())).select("key", "value")
        return dict(named.collect(engine="streaming").iter_rows())
    except (OSError, pl.exceptions.PolarsError) as error:
        what = f"missing or damaged ({str(error).splitlines()[0]})"
        raise ClickLogError(f"{path}: {what}; without this file, features are shown by key") from error


def scan_parquet(paths: Iterable[Path]) -> pl.LazyFrame:
    """The rows of several files."""
    return pl.scan_parquet([on_disk(path) for path in paths], glob=False)


def arrow_of(values: npt.NDArray[Any]) -> pa.Array:
    """`[n]` numbers as an Arrow array of their dtype, over the same memory where that is contiguous; or texts."""
    if values.dtype.kind == "U":
        return pa.array(values)
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])
