"""The memory of a table by part, and counts of its rows by field."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparsegroup.table.directory.directory import Directory
from sparsegroup.table.rows.rows import Rows

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TableMemory:
    """Bytes of a table.

    Attributes:
        index: What the index's slots take.
        rows: What the rows take, in whole pages of the system's (2 MiB where they are huge).
        dropped: What is remembered of keys without a row, dropped or not admitted, to count them and their occurrences;
            and of rows, when they were used, where a policy asks for that.
        scratch: Working memory of lookups that is kept for the next one: 256 MiB at most
            (twice that on several ranks), and 1/32 of `max_bytes` at most.
        parts: What the rows hold: "weight", "u" and the optimizer's state → rows × what such a part takes.
    """

    index: int
    rows: int
    dropped: int
    parts: Mapping[str, int]
    scratch: int = 0

    @property
    def total(self) -> int:
        """All that is allocated."""
        return self.content + self.dropped + self.scratch

    @property
    def content(self) -> int:
        """Index and rows: the bytes that follow from the rows only, however the table got them."""
        return self.index + self.rows

    @classmethod
    def total_of(cls, memories: Iterable["TableMemory"]) -> "TableMemory":
        """Those of several tables added up."""
        total, parts = cls(0, 0, 0, {}), Counter[str]()
        for one in memories:
            parts.update(one.parts)
            scratch = total.scratch + one.scratch
            total = cls(total.index + one.index, total.rows + one.rows, total.dropped + one.dropped, {}, scratch)
        return replace(total, parts=dict(parts))


@dataclass(frozen=True)
class FieldCount:
    """One field: distinct keys ever seen, rows, and rows with a non-zero vector."""

    seen: int
    rows: int
    live: int


def _fields_of(keys: Int64s, bits: int) -> npt.NDArray[np.uint16]:
    """The field, in the top `bits` bits, of each key."""
    return (keys.view(np.uint64) >> np.uint64(64 - bits)).astype(np.uint16)


def count_fields(directory: Directory, alive: npt.NDArray[np.bool_], bits: int) -> dict[int, FieldCount]:
    """Counts by the field that a key's top `bits` bits hold, of the fields ever seen.

    Args:
        directory: The table's.
        alive: `[num_rows]`, which rows are not zero.
        bits: 0 to 16.
    """
    counts = np.zeros((1 << bits, 3), np.int64)
    for keys, rows in directory.index.scan():
        fields = _fields_of(keys, bits)
        counts[:, 0] += np.bincount(fields, minlength=len(counts))
        counts[:, 2] += np.bincount(fields[alive[rows]], minlength=len(counts))
    counts[:, 1] = counts[:, 0]
    counts[:, 0] = directory.seen.by_field(counts[:, 1], directory.keys_without_row)
    return {field: FieldCount(*map(int, counts[field])) for field in np.flatnonzero(counts[:, 0]).tolist()}


def memory_of(directory: Directory, rows: Rows, scratch: int) -> TableMemory:
    """Bytes of a table."""
    count, index = directory.num_rows, directory.index
    parts = {part: count * rows.part_bytes(part) for part in rows.parts}
    return TableMemory(index.bytes, rows.bytes(count), directory.noted_bytes, parts, scratch)
