"""What a table tells of its index and rows."""

import numpy as np
import numpy.typing as npt

from sparsegroup.table.index import ABSENT, Index
from sparsegroup.table.records import FieldCount, TableMemory
from sparsegroup.table.rows import Rows

Int64s = npt.NDArray[np.int64]


def count_fields(index: Index, alive: npt.NDArray[np.bool_], dropped: Int64s, bits: int) -> dict[int, FieldCount]:
    """Counts by the field that a key's top `bits` bits hold, of the fields ever seen.

    Args:
        index: Of the keys that have a row.
        alive: `[rows]`, which rows are not zero.
        dropped: Keys that have had a row, and may have one again.
        bits: 0 to 16.
    """
    counts = np.zeros((1 << bits, 3), np.int64)
    for keys, rows in index.scan():
        fields = _fields(keys, bits)
        counts[:, 0] += np.bincount(fields, minlength=len(counts))
        counts[:, 2] += np.bincount(fields[alive[rows]], minlength=len(counts))
    counts[:, 1] = counts[:, 0]
    away = dropped[index.find(dropped) == ABSENT] if len(dropped) else dropped
    counts[:, 0] += np.bincount(_fields(away, bits), minlength=len(counts))
    return {field: FieldCount(*map(int, counts[field])) for field in np.flatnonzero(counts[:, 0]).tolist()}


def memory_of(index: Index, rows: Rows, dropped: int) -> TableMemory:
    """Bytes of a table whose dropped keys take `dropped`."""
    parts = {part: index.num_keys * rows.dim * rows.itemsize(part) for part in rows.parts}
    return TableMemory(index.bytes, rows.bytes(index.num_keys), dropped, parts)


def _fields(keys: Int64s, bits: int) -> Int64s:
    return (keys.view(np.uint64) >> np.uint64(64 - bits)).astype(np.int64)
