"""NumPy's arrays as Arrow's, and back, without pandas.

`pa.array`, `pa.scalar` and `to_numpy` import pandas where it is installed, a fifth of a second, to look whether what
they are given is one of its objects.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def arrow_of(values: npt.NDArray[Any]) -> pa.Array:
    """`[n]` numbers as an Arrow array of their dtype, over the same memory where that is contiguous."""
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, buffer])


def numpy_of(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """`[n]` numbers of an Arrow array without nulls, over the same memory where that is one piece.

    Raises:
        ValueError: There are nulls.
    """
    if column.null_count:
        raise ValueError(f"{column.null_count} of {len(column)} values are null")
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if len(chunks) == 1:
        return np.from_dlpack(chunks[0])
    empty = np.empty(0, column.type.to_pandas_dtype())
    return np.concatenate([empty, *(np.from_dlpack(chunk) for chunk in chunks)])
