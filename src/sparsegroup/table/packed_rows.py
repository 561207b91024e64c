"""Dead rows set aside: u and the optimizer's state in bfloat16, no weights, found by an index of their own."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.kernels.numbers import as_stored
from sparsegroup.kernels.rounding import step_seed, to_bfloat16, widened
from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.hashing import mixed
from sparsegroup.table.host_rows import HostRows
from sparsegroup.table.index import Index
from sparsegroup.table.index_filter import keep_rows
from sparsegroup.table.row_storage import WEIGHT

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint16]

AT_A_TIME = 1 << 16
"""Rows that are packed or unpacked at a time."""

_COPIED = 1 << 18
"""Buckets up to which the index is copied when it grows, and is no larger than it must be."""

_PER_WORD = 2
"""Numbers: rows are moved by words of 32 bits."""


class PackedRows:
    """Rows whose weights are zero, in slots of half the precision and without the weights.

    What is packed is rounded stochastically, by a chance that depends on key, element and step; what is a bfloat16
    already stays as it is. The value that a part begins with stays exact, so that a row that was never updated is
    known again. A row that is taken out leaves its slot empty until `close_gaps`; rows never change their order.

    Args:
        dim: Length of a part.
        huge_pages: See `MappedPages`.

    Attributes:
        count: Rows.
        initial: The parts that are kept, of a row of float32, after its weights → value in a new row.
    """

    def __init__(self, dim: int, huge_pages: bool) -> None:
        self.dim = dim
        self.count = 0
        self._huge_pages = huge_pages
        self.lay_out({})

    def lay_out(self, initial: Mapping[str, float]) -> None:
        """Keep these parts from now on; there must be no row."""
        assert not self.count
        self.initial = dict(initial)
        self._starts = np.array([as_stored(value, torch.bfloat16) for value in initial.values()], np.float32)
        width = max(len(initial) * self.dim, 1)
        self._rows = HostRows(width + width % _PER_WORD, np.dtype(np.uint16), self._huge_pages, {})
        self._index = Index(self._huge_pages)
        self._held = np.zeros(0, np.bool_)

    @property
    def parts(self) -> tuple[str, ...]:
        """As a row of float32 has them, the weights among them."""
        return (WEIGHT, *self.initial)

    @property
    def bytes(self) -> int:
        """What slots and index take; 0 where no row has been packed."""
        slots = self._index.num_keys
        return self._index.bytes + self._rows.bytes(slots) + slots if slots else 0

    def find(self, keys: Int64s) -> Int64s:
        """Slots of keys, `ABSENT` where there is none."""
        slots = self._index.find(keys)
        there = np.flatnonzero(slots != ABSENT)
        slots[there[~self._held[slots[there]]]] = ABSENT
        return slots

    def slots(self) -> Int64s:
        """Those that hold a row, in order."""
        return np.flatnonzero(self._held)

    def keys(self) -> Int64s:
        """The keys of all rows, in their order."""
        self.close_gaps()
        return self._index.keys_of_rows(0, self.count)

    # Coming and going

    def reserve(self, count: int) -> None:
        """Have memory for so many more rows.

        Raises:
            MemoryError: The system has no more; nothing has changed.
        """
        slots = self._index.num_keys + count
        self._rows.reserve(slots)
        buckets = Index.buckets_for(slots)
        if self._index.buckets < buckets <= _COPIED:
            self._index = self._index.with_buckets(buckets)
        self._index.reserve(slots)
        held = np.zeros(slots, np.bool_)
        held[: len(self._held)] = self._held
        self._held = held

    def add(self, keys: Int64s, rows: Floats, steps: int) -> None:
        """Pack rows of distinct keys that have none here, nor an empty slot. `reserve` first.

        Args:
            keys: `[n]`.
            rows: `[n, parts · dim]` float32, whole rows, whose weights are left out.
            steps: The optimizer's so far.
        """
        first = self._index.num_keys
        slots = np.arange(first, first + len(keys))
        self.write(slots, keys, rows, steps)
        self._index.insert(keys, slots)
        self._index.settle(len(keys))
        self._held[slots] = True
        self.count += len(keys)

    def write(self, slots: Int64s, keys: Int64s, rows: Floats, steps: int) -> None:
        """Set the rows of some slots, whose keys are `keys`; see `add`."""
        for first in range(0, len(keys), AT_A_TIME):
            some = slice(first, first + AT_A_TIME)
            self._rows.write(WEIGHT, slots[some], self._packed(keys[some], rows[some], steps))

    def read_whole(self, slots: Int64s) -> Floats:
        """`[n, parts · dim]` float32, the rows of some slots, with weights of zero."""
        bits = self._rows.read(WEIGHT, slots)
        out = np.zeros((len(slots), len(self.parts), self.dim), np.float32)
        for number in range(len(self.initial)):
            out[:, 1 + number] = self._unpacked(bits, number)
        return out.reshape(len(slots), len(self.parts) * self.dim)

    def take(self, slots: Int64s) -> Floats:
        """Take the rows of distinct slots out; gives them as `read_whole` does."""
        rows = self.read_whole(slots)
        self._held[slots] = False
        self.count -= len(slots)
        return rows

    def forget(self, keys: Int64s) -> None:
        """Have no rows of these distinct keys."""
        slots = self.find(keys)
        self.take(slots[slots != ABSENT])

    def keep(self, kept: Bools) -> Int64s:
        """Keep the rows of the mask `[count]`, in their order; gives the keys of the others."""
        self.close_gaps()
        gone, _ = keep_rows(self._index, kept)
        self._rows.compact(kept)
        self._held = np.ones(len(kept) - len(gone), np.bool_)
        self.count = len(self._held)
        return gone

    def close_gaps(self) -> None:
        """Have the rows in slots 0, 1, …, so that a row's slot is its place among them."""
        used = self._held[: self._index.num_keys]
        if self.count < len(used):
            keep_rows(self._index, used)
            self._rows.compact(used)
            self._held = np.ones(self.count, np.bool_)

    def give_back(self) -> None:
        """Give memory back that the index has no use for any more, if it is much."""
        least = Index.buckets_for(self._index.num_keys)
        if 2 * least <= self._index.buckets:
            self._index = self._index.with_buckets(least)

    # As rows that are looked at

    def read(self, part: str, rows: Int64s) -> Floats:
        """`[n, dim]` float32 of a part of some rows, by their places."""
        self.close_gaps()
        out = np.zeros((len(rows), self.dim), np.float32)
        for first in range(0, len(rows) if part != WEIGHT else 0, AT_A_TIME):
            some = rows[first : first + AT_A_TIME]
            bits = self._rows.read(WEIGHT, some)
            out[first : first + len(some)] = self._unpacked(bits, self.parts.index(part) - 1)
        return out

    def live(self, first: int, last: int) -> Bools:
        """Which of the rows first, …, last - 1 have a non-zero vector: none."""
        return np.zeros(last - first, np.bool_)

    def key_blocks(self, at_most: int) -> Iterator[Int64s]:
        """The keys of all rows in order, some at a time."""
        self.close_gaps()
        for first in range(0, self.count, at_most):
            yield self._index.keys_of_rows(first, min(first + at_most, self.count))

    def blocks(self) -> Iterator[Floats]:
        """All rows in order, some at a time, `[n, parts · dim]`."""
        slots = self.slots()
        for first in range(0, len(slots), AT_A_TIME):
            yield self.read_whole(slots[first : first + AT_A_TIME])

    # Rounding

    def _unpacked(self, bits: Bits, number: int) -> Floats:
        """`[n, dim]` float32, the part of that number behind the weights."""
        values: Floats = widened(bits[:, number * self.dim : (number + 1) * self.dim])
        value, start = list(self.initial.values())[number], self._starts[number]
        if np.float32(value) != start:
            values[values == start] = value
        return values

    def _packed(self, keys: Int64s, rows: Floats, steps: int) -> Bits:
        values = rows.reshape(len(keys), len(self.parts), self.dim)
        elements = torch.from_numpy(_elements(keys, self.dim))
        out = np.zeros((len(keys), self._rows.dim), np.uint16)
        for part, (value, start) in enumerate(zip(self.initial.values(), self._starts, strict=True)):
            exact = np.ascontiguousarray(values[:, 1 + part])
            rounded = to_bfloat16(torch.from_numpy(exact), elements, step_seed(steps), part)
            bits = rounded.view(torch.int16).numpy().view(np.uint16)
            if np.float32(value) != start:
                bits[exact == np.float32(value)] = start.view(np.uint32) >> 16
            out[:, part * self.dim : (part + 1) * self.dim] = bits
        return out


def _elements(keys: Int64s, dim: int) -> npt.NDArray[np.int32]:
    """What tells the elements of rows apart, `[n, dim]` int32."""
    first = mixed(keys).astype(np.uint32) * np.uint32(dim)
    return (first[:, None] + np.arange(dim, dtype=np.uint32)).view(np.int32)
