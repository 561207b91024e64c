"""Rows in pages: x, u and the optimizer's state of a row side by side, so that a step touches few cache lines.

All parts are of one dtype, or u and the state are bfloat16 beside weights of float32. NumPy has no bfloat16: its bits
are uint16 here, and what is read is float32.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.kernels.cpu import compiled_step
from sparsegroup.kernels.cpu.jit import array_at, kernel
from sparsegroup.kernels.rounding import narrowed, widened
from sparsegroup.kernels.views import TORCH_DTYPES
from sparsegroup.table.pages import MappedPages
from sparsegroup.table.row_storage import WEIGHT

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]

_PAGE_BYTES = 16 << 20
_BITS = np.dtype(np.uint16)
_LINE = 64


class HostRows:
    """Rows of `dim` numbers per part.

    Args:
        dim: Length of a part.
        dtype: float32 or float64.
        huge_pages: See `MappedPages`.
        initial: The parts after the weights: name → value of a new row's elements.
        is_narrow: Keep these parts as bfloat16, beside weights of float32.

    Attributes:
        dtype: That of the weights, and of what is read.
        row_bytes: From row to row, a multiple of 4.
    """

    def __init__(
        self,
        dim: int,
        dtype: np.dtype[Any],
        huge_pages: bool,
        initial: Mapping[str, float],
        is_narrow: bool = False,
    ) -> None:
        assert not is_narrow or dtype == np.float32
        self.dim = dim
        self.dtype = dtype
        self.huge_pages = huge_pages
        self.initial = dict(initial)
        self.is_narrow = is_narrow
        self._row = self._row_of(len(initial))
        self.row_bytes = self._row.itemsize
        self.shift = max(0, (_PAGE_BYTES // self.row_bytes).bit_length() - 1)
        self.pages = MappedPages(self.row_bytes << self.shift, huge_pages)
        self._layouts: dict[tuple[str, ...], compiled_step.RowLayout] = {}

    @property
    def parts(self) -> tuple[str, ...]:
        """Names, in the order of a row."""
        return (WEIGHT, *self.initial)

    @property
    def state_dtype(self) -> torch.dtype:
        """That of the parts after the weights."""
        return torch.bfloat16 if self.is_narrow else TORCH_DTYPES[self.dtype]

    def _row_of(self, states: int) -> np.dtype[Any]:
        """A row with so many parts after the weights, each from a multiple of 4 bytes on."""
        kind = _BITS if self.is_narrow else self.dtype
        first, between = self.dim * self.dtype.itemsize, self.dim * kind.itemsize
        between += -between % 4 if self.is_narrow else 0
        return np.dtype(
            {
                "names": [str(k) for k in range(1 + states)],
                "formats": [(self.dtype, self.dim), *[(kind, self.dim)] * states],
                "offsets": [0, *(first + k * between for k in range(states))],
                "itemsize": first + states * between,
            }
        )

    def bytes_of_row(self, parts: int) -> int:
        """What a row of so many parts takes, the weights among them."""
        return self._row_of(parts - 1).itemsize

    def reserve(self, count: int) -> None:
        """Have memory for `count` rows.

        Raises:
            MemoryError: The system has no more; nothing has changed.
        """
        wanted = -(-count // (1 << self.shift))
        if wanted > len(self.pages):
            self.pages.resize(wanted)

    def ask_beyond(self, count: int, more: int) -> Callable[[], None] | None:
        """What has the system hand out the memory behind the first `count` rows; see `MappedPages.ask_for`.

        Args:
            count: Rows that there are.
            more: How many are about to come, at least.
        """
        with suppress(MemoryError):  # then the last page is what there is
            self.reserve(count + more)
        page, row = divmod(count, 1 << self.shift)
        used = page * self.pages.page_bytes + row * self.row_bytes
        unit = self.pages.unit
        return self.pages.ask_for(used + -used % unit, used + max(more * self.row_bytes, unit))

    def bytes(self, count: int) -> int:
        """Bytes that the first `count` rows take, in whole pages of the system's."""
        unit = self.pages.unit
        return -(-count * self.row_bytes // unit) * unit

    def layout(self, parts: tuple[str, ...]) -> compiled_step.RowLayout:
        """Where the parts lie in a row, for the step."""
        known = self._layouts.get(parts)
        if known is None:
            offsets = [self._offset(part) for part in parts]
            if self.is_narrow:
                lines = np.arange(0, self.row_bytes, _LINE)
                known = compiled_step.RowLayout(self.row_bytes, np.array([offsets], np.int64), lines)
            else:
                part_bytes = self.dim * self.dtype.itemsize
                known = compiled_step.row_layout(self.row_bytes, offsets, part_bytes)
            self._layouts[parts] = known
        return known

    def _offset(self, part: str) -> int:
        """Bytes from where a row begins to a part."""
        return int(self._row.fields[str(self.parts.index(part))][1])  # type: ignore[index]

    def _is_bits(self, part: str) -> bool:
        return self.is_narrow and part != WEIGHT

    def _stored(self, part: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Values of a part as it is stored."""
        numbers = np.ascontiguousarray(values, self.dtype)
        return narrowed(numbers) if self._is_bits(part) else numbers

    def _numbers(self, part: str, stored: npt.NDArray[Any]) -> Floats:
        """The values of a part, as it is stored."""
        return widened(stored) if self._is_bits(part) else stored

    def read(self, part: str, rows: Int64s) -> Floats:
        """`[n, dim]` of a part; zeros where a row is negative."""
        out = np.empty((len(rows), self.dim), _BITS if self._is_bits(part) else self.dtype)
        _read(rows, *self._place(part), out, out.dtype.type(0))
        return self._numbers(part, out)

    def write(self, part: str, rows: Int64s, values: Floats) -> None:
        """Set a part of some rows to `values`, `[n, dim]`, rounded to the nearest."""
        stored = self._stored(part, values)
        _write(rows, *self._place(part), stored, stored.dtype.type(0))

    def read_whole(self, rows: Int64s) -> Floats:
        """`[n, parts · dim]`, all parts of some rows."""
        whole = np.empty(len(rows), self._row)
        words = self._words(whole)
        _read(rows, *self._place(WEIGHT), words, words.dtype.type(0))
        return self._joined(whole) if self.is_narrow else words

    def write_whole(self, rows: Int64s, values: Floats) -> None:
        """Set all parts of some rows to `values`, `[n, parts · dim]`, rounded to the nearest."""
        words = np.ascontiguousarray(values, self.dtype)
        if self.is_narrow:
            whole = np.zeros(len(rows), self._row)
            for k, part in enumerate(self.parts):
                whole[str(k)] = self._stored(part, words[:, k * self.dim : (k + 1) * self.dim])
            words = self._words(whole)
        _write(rows, *self._place(WEIGHT), words, words.dtype.type(0))

    def _words(self, whole: npt.NDArray[Any]) -> Floats:
        """Whole rows as numbers of the weights' dtype, `[n, row_bytes / bytes of one]`."""
        return whole.view(self.dtype).reshape(len(whole), self.row_bytes // self.dtype.itemsize)

    def _joined(self, whole: npt.NDArray[Any]) -> Floats:
        """`[n, parts · dim]` of whole rows."""
        return np.concatenate([self._numbers(part, whole[str(k)]) for k, part in enumerate(self.parts)], axis=1)

    def itemsize(self, part: str) -> int:
        """Bytes of a number of a part."""
        return _BITS.itemsize if self._is_bits(part) else int(self.dtype.itemsize)

    def set_initial(self, initial: Mapping[str, float], count: int) -> None:
        """Have other values of the same parts in new rows; the first `count` rows are not new."""
        self.initial = dict(initial)

    def blocks(self, count: int) -> Iterator[Any]:
        """The first `count` rows in order, `[rows, parts, dim]`, as memory that can be written to a file."""
        step = 1 << self.shift
        if self.is_narrow:
            for _, rows in self._views(0, count):
                yield self._joined(rows)
            return
        for page, first in enumerate(range(0, count, step)):
            size = min(step, count - first) * self.row_bytes
            yield (ctypes.c_char * size).from_address(int(self.pages.addresses[page]))

    def fill(self, part: str, count: int, value: float) -> None:
        """Set a part of the first `count` rows to one value."""
        self._set_all(part, 0, count, value)

    def begin(self, first: int, count: int) -> None:
        """Give the parts after the weights of the rows first, …, first + count - 1 what new rows have."""
        for part, value in self.initial.items():
            self._set_all(part, first, first + count, value)

    def _set_all(self, part: str, first: int, last: int, value: float) -> None:
        _fill(first, last, *self._place(part), self.dim, self._stored(part, [value])[0])

    def live(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Which of the rows first, …, last - 1 have a non-zero vector."""
        out = np.empty(last - first, np.bool_)
        _live(first, *self._place(WEIGHT), self.dim, out, self.dtype.type(0))
        return out

    def _views(self, first: int, last: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """The rows first, …, last - 1 page by page: where each begins, and `[rows]` of `_row` over their memory."""
        while first < last:
            page, before = first >> self.shift, first & ((1 << self.shift) - 1)
            count = min(last - first, (1 << self.shift) - before)
            address = int(self.pages.addresses[page]) + before * self.row_bytes
            memory: Any = (ctypes.c_char * (count * self.row_bytes)).from_address(address)
            yield first, np.frombuffer(memory, self._row)
            first += count

    def _place(self, part: str) -> tuple[Any, ...]:
        return self.pages.addresses, self.shift, self.row_bytes, self._offset(part)

    def relaid(self, initial: Mapping[str, float], count: int, is_narrow: bool = False) -> "HostRows":
        """The first `count` rows with other parts after the weights; parts of the same name are kept. Empties `self`.

        Args:
            initial, is_narrow: As of the class.
            count: Rows that there are.

        Raises:
            MemoryError: The system has no more; nothing has changed.
        """
        other = HostRows(self.dim, self.dtype, self.huge_pages, initial, is_narrow)
        other.reserve(count)
        step = 1 << self.shift
        for first in range(0, count, step):
            ((_, source),) = self._views(first, min(first + step, count))
            for start, target in other._views(first, first + len(source)):
                rows = source[start - first : start - first + len(target)]
                for place, part in enumerate(other.parts):
                    if part in self.parts:
                        numbers = self._numbers(part, rows[str(self.parts.index(part))])
                        target[str(place)] = other._stored(part, numbers)
                    elif other.initial[part] != 0:
                        target[str(place)] = other._stored(part, [other.initial[part]])
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
