"""Rows in pages of the host's memory: x, u and the optimizer's state side by side, to touch few cache lines.

All parts are of one dtype, but beside weights of float32 two kinds take less: u and the state as bfloat16, where that
is asked for, and the state of a group, the same for all elements, as one float32. NumPy has no bfloat16: its bits are
uint16 here.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.kernels.cpu import step as compiled_step
from sparsegroup.kernels.cpu.jit import array_at, kernel
from sparsegroup.kernels.cpu.rows import NARROW, SINGLE, WHOLE
from sparsegroup.kernels.rounding import narrowed, widened
from sparsegroup.kernels.step import TORCH_DTYPES
from sparsegroup.rules import is_of_group
from sparsegroup.table.rows.pages import MappedPages
from sparsegroup.table.rows.rows import WEIGHT, Rows

Floats = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]


_BITS = np.dtype(np.uint16)
_ALIGNED = 4


@cache
def kinds_of(parts: tuple[str, ...], dtype: np.dtype[Any], is_narrow: bool) -> tuple[int, ...] | None:
    """The kinds of parts, see `narrow_copies`, of rows with weights of `dtype`; None where all are of that dtype."""
    kinds = tuple(_kind(part, dtype, is_narrow) for part in parts)
    return kinds if any(kind != WHOLE for kind in kinds) else None


def _kind(part: str, dtype: np.dtype[Any], is_narrow: bool) -> int:
    if part == WEIGHT or dtype != np.float32:
        return WHOLE
    return SINGLE if is_of_group(part) else NARROW if is_narrow else WHOLE


class RowParts:
    """The parts of a row, and the arrays that they are stored as.

    Args:
        dim: Elements of a part.
        dtype: That of the weights, and of what is read.
        states: Names of the parts after the weights.
        is_narrow: Whether these are bfloat16, beside weights of float32.

    Attributes:
        names: The weights, then the states, in the order of a row.
        record: A row as NumPy has it, a field for each part by its place.
        is_plain: Whether all parts are of `dtype`, with all elements.
    """

    def __init__(self, dim: int, dtype: np.dtype[Any], states: Sequence[str], is_narrow: bool) -> None:
        assert not is_narrow or dtype == np.float32
        self.names = (WEIGHT, *states)
        self.is_plain = kinds_of(self.names, dtype, is_narrow) is None
        self._dim, self._dtype = dim, dtype
        self._kinds = {part: _kind(part, dtype, is_narrow) for part in self.names}
        offsets = np.cumsum([0, *(self._aligned_bytes(part) for part in self.names)]).tolist()
        self._offsets: dict[str, int] = dict(zip(self.names, offsets, strict=False))
        self.record = np.dtype(
            {
                "names": [str(place) for place in range(len(self.names))],
                "formats": [self._format(part) for part in self.names],
                "offsets": offsets[:-1],
                "itemsize": offsets[-1],
            }
        )

    def _format(self, part: str) -> tuple[np.dtype[Any], tuple[int]]:
        kind = self._kinds[part]
        return _BITS if kind == NARROW else self._dtype, (1 if kind == SINGLE else self._dim,)

    def _aligned_bytes(self, part: str) -> int:
        size = self.bytes(part)
        return size + (-size % _ALIGNED if self._kinds[part] == NARROW else 0)

    def bytes(self, part: str) -> int:
        """What a part takes."""
        kind, (count,) = self._format(part)
        return count * int(kind.itemsize)

    def dtype(self, part: str) -> torch.dtype:
        """In which a part is stored."""
        return torch.bfloat16 if self._kinds[part] == NARROW else TORCH_DTYPES[self._dtype]

    def offset(self, part: str) -> int:
        """Bytes from where a row begins to a part."""
        return self._offsets[part]

    def place(self, part: str) -> str:
        """The field of a part."""
        return str(self.names.index(part))

    def empty(self, part: str, count: int) -> npt.NDArray[Any]:
        """An array for a part of so many rows, as it is stored."""
        kind, shape = self._format(part)
        return np.empty((count, *shape), kind)

    def stored(self, part: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Values `[…, dim]` of a part, or one for all elements, as they are stored: bfloat16 to the nearest."""
        numbers = np.asarray(values, self._dtype)
        if self._kinds[part] == SINGLE:
            numbers = numbers[..., :1]
        numbers = np.ascontiguousarray(numbers)
        return narrowed(numbers) if self._kinds[part] == NARROW else numbers

    def numbers(self, part: str, stored: npt.NDArray[Any]) -> Floats:
        """The values `[n, dim]` of a part, as it is stored."""
        if self._kinds[part] == SINGLE:
            return np.repeat(stored, self._dim, axis=1)
        return widened(stored) if self._kinds[part] == NARROW else stored

    def words(self, rows: npt.NDArray[Any]) -> Floats:
        """Whole rows of `record` as numbers of `dtype`, whatever they are."""
        return rows.view(self._dtype).reshape(len(rows), self.record.itemsize // self._dtype.itemsize)

    def joined(self, rows: npt.NDArray[Any]) -> Floats:
        """`[n, parts · dim]` of whole rows of `record`."""
        if self.is_plain:
            return self.words(rows)
        return np.concatenate([self.numbers(part, rows[str(k)]) for k, part in enumerate(self.names)], axis=1)

    def split(self, values: Floats) -> npt.NDArray[Any]:
        """Whole rows of `record` of `[n, parts · dim]`."""
        rows = np.zeros(len(values), self.record)
        for k, part in enumerate(self.names):
            rows[str(k)] = self.stored(part, values[:, k * self._dim : (k + 1) * self._dim])
        return rows


_PAGE_BYTES = 16 << 20
_LINE = 64


class HostRows(Rows):
    """Rows of `dim` numbers per part.

    Args:
        dim: Length of a part.
        dtype: float32 or float64.
        huge_pages: See `MappedPages`.
        initial: The parts after the weights: name → value of a new row's elements.
        is_narrow: Keep these parts as bfloat16, beside weights of float32. (State of groups is one number a row of
            float32 in either case.)

    Attributes:
        dtype: That of the weights, and of what is read.
        row_bytes: From row to row, a multiple of 4.
        is_plain: Whether all parts are of `dtype`, with all elements.
    """

    def __init__(
        self,
        dim: int,
        dtype: np.dtype[Any],
        huge_pages: bool,
        initial: Mapping[str, float],
        is_narrow: bool = False,
    ) -> None:
        super().__init__(dim, dtype, initial)
        self.huge_pages = huge_pages
        self.is_narrow = is_narrow
        self.state_dtype = torch.bfloat16 if is_narrow else TORCH_DTYPES[dtype]
        self._row = RowParts(dim, dtype, tuple(initial), is_narrow)
        self.is_plain = self._row.is_plain
        self.row_bytes = self._row.record.itemsize
        self.shift = max(0, (_PAGE_BYTES // self.row_bytes).bit_length() - 1)
        self.pages = MappedPages(self.row_bytes << self.shift, huge_pages)
        self._layouts: dict[tuple[str, ...], compiled_step.RowLayout] = {}

    def bytes_of_row(self, parts: int) -> int:
        """What a row of so many parts takes, the weights among them; of parts that there are not, with all elements."""
        itemsize = 2 if self.is_narrow else self.dtype.itemsize
        return self.row_bytes + (parts - len(self.parts)) * (self.dim + self.dim % 2) * itemsize

    def reserve(self, count: int, soon: int = 0) -> None:
        """Have memory for `count` rows, and prefault that of `soon` more; see `MappedPages.reserve`."""
        self.pages.reserve(count * self.row_bytes, soon * self.row_bytes)

    def bytes(self, count: int) -> int:
        """Bytes that the first `count` rows take, in whole pages of the system's."""
        return self.pages.whole_units(count * self.row_bytes)

    def layout(self, parts: tuple[str, ...]) -> compiled_step.RowLayout:
        """Where the parts lie in a row, for the step."""
        known = self._layouts.get(parts)
        if known is None:
            offsets = [self._row.offset(part) for part in parts]
            if self.is_plain:
                known = compiled_step.row_layout(self.row_bytes, offsets, self.dim * self.dtype.itemsize)
            else:
                lines, kinds = np.arange(0, self.row_bytes, _LINE), kinds_of(parts, self.dtype, self.is_narrow)
                known = compiled_step.RowLayout(self.row_bytes, np.array([offsets], np.int64), lines, kinds)
            self._layouts[parts] = known
        return known

    def read(self, part: str, rows: Int64s) -> Floats:
        """`[n, dim]` of a part; zeros where a row is negative."""
        out = self._row.empty(part, len(rows))
        _read(rows, *self._place(part), out, out.dtype.type(0))
        return self._row.numbers(part, out)

    def write(self, part: str, rows: Int64s, values: Floats) -> None:
        """Set a part of some rows to `values`, `[n, dim]`, rounded to the nearest; of groups, to the first element."""
        stored = self._row.stored(part, values)
        _write(rows, *self._place(part), stored, stored.dtype.type(0))

    def read_whole(self, rows: Int64s) -> Floats:
        """`[n, parts · dim]`, all parts of some rows."""
        whole = np.empty(len(rows), self._row.record)
        words = self._row.words(whole)
        _read(rows, *self._place(WEIGHT), words, words.dtype.type(0))
        return self._row.joined(whole)

    def write_whole(self, rows: Int64s, values: Floats) -> None:
        """Set all parts of some rows to `values`, `[n, parts · dim]`; see `write`."""
        words = np.ascontiguousarray(values, self.dtype)
        if not self.is_plain:
            words = self._row.words(self._row.split(words))
        _write(rows, *self._place(WEIGHT), words, words.dtype.type(0))

    def part_dtype(self, part: str) -> torch.dtype:
        """In which a part is stored."""
        return self._row.dtype(part)

    def part_bytes(self, part: str) -> int:
        """What a part of a row takes."""
        return self._row.bytes(part)

    def blocks(self, count: int) -> Iterator[Any]:
        """The first `count` rows in order, `[rows, parts, dim]`, as memory that can be written to a file."""
        step = 1 << self.shift
        if not self.is_plain:
            for _, rows in self._views(0, count):
                yield self._row.joined(rows)
            return
        for page, first in enumerate(range(0, count, step)):
            size = min(step, count - first) * self.row_bytes
            yield (ctypes.c_char * size).from_address(int(self.pages.addresses[page]))

    def begin(self, first: int, count: int) -> None:
        """Give the parts after the weights of the rows first, …, first + count - 1 what new rows have."""
        for part, value in self.initial.items():
            self.fill(part, first, first + count, value)

    def fill(self, part: str, first: int, last: int, value: float) -> None:
        """Set a part of the rows first, …, last - 1 to one value."""
        stored = self._row.stored(part, [value] * self.dim)
        _fill(first, last, *self._place(part), len(stored), stored[0])

    def live(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Which of the rows first, …, last - 1 have a non-zero vector."""
        out = np.empty(last - first, np.bool_)
        _live(first, *self._place(WEIGHT), self.dim, out, self.dtype.type(0))
        return out

    def _views(self, first: int, last: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The rows first, …, last - 1 page by page: where each begins, and `[rows]` of records over their memory."""
        while first < last:
            page, before = first >> self.shift, first & ((1 << self.shift) - 1)
            count = min(last - first, (1 << self.shift) - before)
            address = int(self.pages.addresses[page]) + before * self.row_bytes
            memory: Any = (ctypes.c_char * (count * self.row_bytes)).from_address(address)
            yield first, np.frombuffer(memory, self._row.record)
            first += count

    def _place(self, part: str) -> tuple[Any, ...]:
        return self.pages.addresses, self.shift, self.row_bytes, self._row.offset(part)

    def relaid(self, initial: Mapping[str, float], count: int, state_dtype: torch.dtype) -> "HostRows":
        """See `Rows`. Where memory ends, nothing has changed."""
        other = HostRows(self.dim, self.dtype, self.huge_pages, initial, state_dtype == torch.bfloat16)
        other.reserve(count)
        step = 1 << self.shift
        for first in range(0, count, step):
            ((_, source),) = self._views(first, min(first + step, count))
            for start, target in other._views(first, first + len(source)):
                rows = source[start - first : start - first + len(target)]
                for part in other.parts:
                    if part in self.parts:
                        numbers = self._row.numbers(part, rows[self._row.place(part)])
                        target[other._row.place(part)] = other._row.stored(part, numbers)
                    elif other.initial[part] != 0:
                        target[other._row.place(part)] = other._row.stored(part, [other.initial[part]])
            self.pages.release(first >> self.shift)
        self.pages.resize(0)
        return other

    def compact(self, kept: npt.NDArray[np.bool_]) -> None:
        """Keep the rows of the mask `kept` as rows 0, 1, …, and give the memory of the others back."""
        count = int(_compact(kept, self.pages.addresses, self.shift, self.row_bytes))
        pages = -(-count // (1 << self.shift))
        self.pages.resize(pages)
        used = count - ((pages - 1) << self.shift)
        if pages and used < 1 << self.shift:
            self.pages.clear_after(used * self.row_bytes)


def _read_rows(rows: Any, pages: Any, shift: int, row_bytes: int, offset: int, out: Any, zero: Any) -> None:
    mask = (np.int64(1) << shift) - 1
    dim = out.shape[1]
    for i in range(len(rows)):
        if rows[i] < 0:
            for e in range(dim):
                out[i, e] = zero
        else:
            x = array_at(pages[rows[i] >> shift] + (rows[i] & mask) * row_bytes + offset, dim, zero)
            for e in range(dim):
                out[i, e] = x[e]


def _write_rows(rows: Any, pages: Any, shift: int, row_bytes: int, offset: int, values: Any, zero: Any) -> None:
    mask = (np.int64(1) << shift) - 1
    dim = values.shape[1]
    for i in range(len(rows)):
        x = array_at(pages[rows[i] >> shift] + (rows[i] & mask) * row_bytes + offset, dim, zero)
        for e in range(dim):
            x[e] = values[i, e]


def _fill_rows(
    first: int, last: int, pages: Any, shift: int, row_bytes: int, offset: int, dim: int, value: Any
) -> None:
    mask = (np.int64(1) << shift) - 1
    for row in range(first, last):
        x = array_at(pages[row >> shift] + (row & mask) * row_bytes + offset, dim, value)
        for e in range(dim):
            x[e] = value


def _live_rows(first: int, pages: Any, shift: int, row_bytes: int, offset: int, dim: int, out: Any, zero: Any) -> None:
    mask = (np.int64(1) << shift) - 1
    for i in range(len(out)):
        row = first + i
        x = array_at(pages[row >> shift] + (row & mask) * row_bytes + offset, dim, zero)
        out[i] = False
        for e in range(dim):
            if x[e] != zero:
                out[i] = True
                break


def _compact_rows(kept: Any, pages: Any, shift: int, row_bytes: int) -> int:
    mask = (np.int64(1) << shift) - 1
    words = row_bytes // 4
    count = 0
    for row in range(len(kept)):
        if kept[row]:
            if row != count:
                source = array_at(pages[row >> shift] + (row & mask) * row_bytes, words, np.int32(0))
                target = array_at(pages[count >> shift] + (count & mask) * row_bytes, words, np.int32(0))
                for e in range(words):
                    target[e] = source[e]
            count += 1
    return count


_read = kernel(_read_rows, "the table's rows (read)")
_write = kernel(_write_rows, "the table's rows (write)")
_fill = kernel(_fill_rows, "the table's rows (fill)")
_live = kernel(_live_rows, "the table's rows (live)")
_compact = kernel(_compact_rows, "the table's rows (compact)")
