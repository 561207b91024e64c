"""Rows in pages of the host's memory: x, u and the optimizer's state side by side, to touch few cache lines.

All parts are of one dtype, but where that is float32 some take less: weights as bfloat16 or float16, u and the state as
bfloat16, where that is asked for, and the state of a group, the same for all elements, as one float32. NumPy has no
bfloat16: 16 bits are uint16 here.
"""

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import step as cpu_step
from sparsegroup.kernels.cpu.block import BLOCK
from sparsegroup.kernels.cpu.intrinsics import on_stack
from sparsegroup.kernels.cpu.jit import array_at, kernel
from sparsegroup.kernels.cpu.rows import BFLOAT16, BFLOAT16_WEIGHTS, FLOAT16_WEIGHTS, SCALAR, WHOLE
from sparsegroup.kernels.rounding import narrowed, widened
from sparsegroup.kernels.step import NUMPY_DTYPES, TORCH_DTYPES, StepScalars, compute_dtype
from sparsegroup.optim.step import GroupStep
from sparsegroup.rules import Rule, is_of_group
from sparsegroup.table.config import TableConfig
from sparsegroup.table.rows.pages import MappedPages
from sparsegroup.table.rows.rows import WEIGHT, Floats, NewRowBuffer, RowGradient, Rows, RowStorage

Int64s = npt.NDArray[np.int64]

_ALIGNED = 4
_NARROW_WEIGHTS = {torch.bfloat16: BFLOAT16_WEIGHTS, torch.float16: FLOAT16_WEIGHTS}


@cache
def kinds_of(parts: tuple[str, ...], weight_dtype: torch.dtype, has_bfloat16: bool) -> tuple[int, ...]:
    """Return the kinds of parts, see `sparsegroup.kernels.cpu.rows`, of rows with weights of `weight_dtype`."""
    if weight_dtype == torch.float64:
        return (WHOLE,) * len(parts)
    weights, others = _NARROW_WEIGHTS.get(weight_dtype, WHOLE), BFLOAT16 if has_bfloat16 else WHOLE
    return tuple(weights if part == WEIGHT else SCALAR if is_of_group(part) else others for part in parts)


class RowParts:
    """The parts of a row: their `kinds` (see `sparsegroup.kernels.cpu.rows`), and `record`, a NumPy field for each."""

    def __init__(self, dim: int, weight_dtype: torch.dtype, parts: tuple[str, ...], has_bfloat16: bool) -> None:
        self._dim, self._dtype, self._weight_dtype = dim, NUMPY_DTYPES[compute_dtype(weight_dtype)], weight_dtype
        kinds = kinds_of(parts, weight_dtype, has_bfloat16)
        self.kinds = dict(zip(parts, kinds, strict=True))
        self._all_whole = set(kinds) == {WHOLE}
        formats = [
            np.dtype((self._dtype if kind in (WHOLE, SCALAR) else np.uint16, (1 if kind == SCALAR else dim,)))
            for kind in kinds
        ]
        ends = np.cumsum([one.itemsize + -one.itemsize % _ALIGNED for one in formats]).tolist()
        self.record = np.dtype({"names": parts, "formats": formats, "offsets": [0, *ends[:-1]], "itemsize": ends[-1]})

    def offset(self, part: str) -> int:
        """Return the bytes from the start of a row to a part."""
        return int(self.record.fields[part][1])  # type: ignore[index]

    def bytes(self, part: str) -> int:
        """Return the bytes of a part."""
        return self.record[part].itemsize

    def dtype(self, part: str) -> torch.dtype:
        """Return the dtype in which a part is stored."""
        if part == WEIGHT:
            return self._weight_dtype
        return torch.bfloat16 if self.kinds[part] == BFLOAT16 else TORCH_DTYPES[self._dtype]

    def stored(self, part: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return values `[…, dim]` of a part, or one value for all elements, as stored: 16 bits to the nearest."""
        numbers, kind = np.asarray(values, self._dtype), self.kinds[part]
        if kind == SCALAR:
            numbers = numbers[..., :1]
        numbers = np.ascontiguousarray(numbers)
        if kind in (WHOLE, SCALAR):
            return numbers
        if kind == BFLOAT16:
            return narrowed(numbers)
        return torch.from_numpy(numbers).to(self._weight_dtype).view(torch.uint16).numpy()

    def numbers(self, part: str, stored: npt.NDArray[Any]) -> Floats:
        """Return the values `[n, dim]` of a part from the stored part."""
        kind = self.kinds[part]
        if kind == SCALAR:
            return np.repeat(stored, self._dim, axis=1)
        if kind == FLOAT16_WEIGHTS:
            return np.ascontiguousarray(stored).view(np.float16).astype(np.float32)
        return stored if kind == WHOLE else widened(stored)

    def words(self, rows: npt.NDArray[Any]) -> Floats:
        """View whole rows of `record` as numbers of `dtype`."""
        return rows.view(self._dtype).reshape(len(rows), self.record.itemsize // self._dtype.itemsize)

    def joined(self, rows: npt.NDArray[Any]) -> Floats:
        """Return whole rows of `record` as `[n, parts · dim]`; a view if they are stored so."""
        if self._all_whole:
            return self.words(rows)
        return np.concatenate([self.numbers(part, rows[part]) for part in self.kinds], axis=1)

    def split(self, values: Floats) -> npt.NDArray[Any]:
        """Return whole rows of `record` from `[n, parts · dim]`; a view if they are stored so."""
        if self._all_whole:
            return np.ascontiguousarray(values, self._dtype).view(self.record)[:, 0]
        rows = np.zeros(len(values), self.record)
        for k, part in enumerate(self.kinds):
            rows[part] = self.stored(part, values[:, k * self._dim : (k + 1) * self._dim])
        return rows


_PAGE_BYTES = 16 << 20


class HostRows(Rows):
    """Rows in the host's memory; with `has_bfloat16`, parts after weights are bfloat16, except the state of groups."""

    def __init__(
        self,
        dim: int,
        weight_dtype: torch.dtype,
        huge_pages: bool,
        initial: Mapping[str, float],
        has_bfloat16: bool = False,
    ) -> None:
        super().__init__(dim, NUMPY_DTYPES[compute_dtype(weight_dtype)], initial)
        self.huge_pages, self.weight_dtype = huge_pages, weight_dtype
        self.state_dtype = torch.bfloat16 if has_bfloat16 else TORCH_DTYPES[self.dtype]
        self._row = RowParts(dim, weight_dtype, self.parts, has_bfloat16)
        self.weights = self._row.kinds[WEIGHT]
        self.row_bytes = self._row.record.itemsize
        self.shift = max(0, (_PAGE_BYTES // self.row_bytes).bit_length() - 1)
        self.pages = MappedPages(self.row_bytes << self.shift, huge_pages)

    def bytes_of_row(self, parts: int) -> int:
        """Return the bytes of a row of this many parts, with the weights. Missing parts count with all elements."""
        itemsize = self.state_dtype.itemsize
        return self.row_bytes + (parts - len(self.parts)) * (self.dim + self.dim % 2) * itemsize

    def reserve(self, count: int, soon: int = 0) -> None:
        """Reserve memory for `count` rows, and prefault that of `soon` more; see `MappedPages.reserve`."""
        self.pages.reserve(count * self.row_bytes, soon * self.row_bytes)

    def bytes(self, count: int) -> int:
        """Return the bytes of the first `count` rows, in whole pages of the system."""
        return self.pages.whole_units(count * self.row_bytes)

    def layout(self, parts: tuple[str, ...]) -> cpu_step.RowLayout:
        """Return the places of parts in a row, for the step."""
        row = self._row
        return cpu_step.row_layout(
            self.row_bytes,
            tuple(map(row.offset, parts)),
            tuple(map(row.bytes, parts)),
            tuple(row.kinds[part] for part in parts),
        )

    def read(self, part: str, rows: Int64s) -> Floats:
        """Return a part of some rows, `[n, dim]`; zeros for negative row numbers."""
        out = np.empty(len(rows), self._row.record[part])
        _read(rows, *self._place(part), out, out.dtype.type(0))
        return self._row.numbers(part, out)

    def write(self, part: str, rows: Int64s, values: Floats) -> None:
        """Set a part of some rows to `values`, `[n, dim]`, rounded to the nearest; of groups, to the first element."""
        stored = self._row.stored(part, values)
        _write(rows, *self._place(part), stored, stored.dtype.type(0))

    def read_whole(self, rows: Int64s) -> Floats:
        """Return all parts of some rows, `[n, parts · dim]`."""
        whole = np.empty(len(rows), self._row.record)
        words = self._row.words(whole)
        _read(rows, *self._place(WEIGHT), words, words.dtype.type(0))
        return self._row.joined(whole)

    def write_whole(self, rows: Int64s, values: Floats) -> None:
        """Set all parts of some rows to `values`, `[n, parts · dim]`; see `write`."""
        words = self._row.words(self._row.split(values))
        _write(rows, *self._place(WEIGHT), words, words.dtype.type(0))

    def part_dtype(self, part: str) -> torch.dtype:
        """Return the dtype in which a part is stored."""
        return self._row.dtype(part)

    def part_bytes(self, part: str) -> int:
        """Return the bytes of a part of a row."""
        return self._row.bytes(part)

    def blocks(self, count: int) -> Iterator[Any]:
        """Yield the first `count` rows in order, `[rows, parts, dim]`, as memory for a file."""
        for _, rows in self._views(0, count):
            yield self._row.joined(rows)

    def new_row(self) -> Floats:
        """Return what follows the weights in a new row, as numbers of `dtype`."""
        row = np.zeros(1, self._row.record)
        for part, value in self.initial.items():
            row[part] = self._row.stored(part, [value])
        return self._row.words(row)[0, -(-self.part_bytes(WEIGHT) // self.dtype.itemsize) :]

    def fill(self, part: str, first: int, last: int, value: float) -> None:
        """Set a part of the rows first, …, last - 1 to one value."""
        stored = self._row.stored(part, [value] * self.dim)
        _fill(first, last, *self._place(part), len(stored), stored[0])

    def live(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Return which of the rows first, …, last - 1 have a non-zero vector."""
        out = np.empty(last - first, np.bool_)
        zeros = (
            (self.dtype.type(0), self.dtype.type(-0.0)) if self.weights == WHOLE else np.array([0, 1 << 15], np.uint16)
        )
        _live(first, *self._place(WEIGHT), self.dim, out, *zeros)
        return out

    def _views(self, first: int, last: int) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the rows first, …, last - 1 page by page: the first row, and `[rows]` of records over their memory."""
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
        other = HostRows(self.dim, self.weight_dtype, self.huge_pages, initial, state_dtype == torch.bfloat16)
        other.reserve(count)
        step = 1 << self.shift
        for first in range(0, count, step):
            ((_, source),) = self._views(first, min(first + step, count))
            for start, target in other._views(first, first + len(source)):
                rows = source[start - first : start - first + len(target)]
                for part in other.parts:
                    if part in self.parts:
                        target[part] = other._row.stored(part, self._row.numbers(part, rows[part]))
                    elif other.initial[part] != 0:
                        target[part] = other._row.stored(part, [other.initial[part]])
            self.pages.release(first >> self.shift)
        self.pages.resize(0)
        return other

    def compact(self, kept: npt.NDArray[np.bool_]) -> None:
        """Keep the rows of the mask `kept` as rows 0, 1, …, and release the memory of the others."""
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


def _live_rows(
    first: int, pages: Any, shift: int, row_bytes: int, offset: int, dim: int, out: Any, zero: Any, minus_zero: Any
) -> None:
    mask = (np.int64(1) << shift) - 1
    for i in range(len(out)):
        row = first + i
        x = array_at(pages[row >> shift] + (row & mask) * row_bytes + offset, dim, zero)
        out[i] = False
        for e in range(dim):
            if x[e] != zero and x[e] != minus_zero:
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


_LANES = 64
_memory_of_sums = on_stack(_LANES * 8)


def _are_finite(address: int, count: int, zero: Any) -> bool:
    """Return whether no number is infinite or NaN."""
    values = array_at(address, count, zero)
    sums = array_at(_memory_of_sums(), _LANES, zero)  # of 0 · x, not 0 where x is not finite; side by side, to be quick
    for e in range(_LANES):
        sums[e] = zero
    whole = count // _LANES * _LANES
    for start in range(0, whole, _LANES):
        some = array_at(address + start * values.itemsize, _LANES, zero)
        for e in range(_LANES):
            sums[e] += some[e] * zero
    for i in range(whole, count):
        sums[0] += values[i] * zero
    are_zero = True
    for e in range(_LANES):
        are_zero &= sums[e] == zero
    return are_zero


_finite = kernel(_are_finite, "the check for finite numbers")


class HostStorage(RowStorage):
    """One kernel finds keys and fetches vectors; steps are checked before they are taken."""

    _rows: HostRows

    def __init__(self, config: TableConfig) -> None:
        super().__init__(HostRows(config.dim, config.weight_dtype, config.huge_pages, {}))
        self.keeps_rounding = config.weight_dtype in _NARROW_WEIGHTS
        self._layout: tuple[HostRows, Rule, cpu_step.RowLayout] | None = None

    # Lookup

    @property
    def for_lookup(self) -> tuple[int, int, int, int]:
        rows = self._rows
        return rows.pages.place, rows.shift, rows.row_bytes, rows.weights

    def new_rows(self, first: int, count: int) -> NewRowBuffer:
        rows = self._rows
        rows.reserve(first + count, soon=2 * count)
        return NewRowBuffer(rows.pages.addresses, rows.shift, rows.row_bytes, rows.weights, rows.new_row())

    # Step

    def are_finite(self, values: Tensor) -> bool:
        values = values.contiguous()
        return bool(_finite(values.data_ptr(), values.numel(), NUMPY_DTYPES[values.dtype].type(0)))

    def check_step(self, rule: Rule, carries_u: bool, state_dtype: torch.dtype | None) -> None:
        rows = self._rows
        kinds = kinds_of(_parts(rule, carries_u), rows.weight_dtype, self.dtype_of_state(state_dtype) == torch.bfloat16)
        if not cpu_step.compiles(rule, kinds, self._rows.dim > BLOCK, self._rows.dtype):
            raise RuntimeError(f"a HashEmbedding needs a rule that can be compiled, {rule.name!r} cannot")

    def dtype_of_state(self, requested: torch.dtype | None) -> torch.dtype:
        own = TORCH_DTYPES[self._rows.dtype]
        if requested in (None, own):
            return own
        if own == torch.float32:
            return torch.bfloat16
        raise ValueError(
            f"state_dtype={requested} cannot be for a HashEmbedding of {own}, whose u and state are {own}: leave it "
            "out, or make the table with dtype=torch.float32"
        )

    def step(self, gradient: RowGradient, step: GroupStep, scalars: StepScalars, num_rows: Callable[[], int]) -> None:
        rows, values = gradient.rows.contiguous(), gradient.values.resolve_neg().contiguous()
        second_input = None if gradient.second_input is None else gradient.second_input.resolve_neg().contiguous()
        table_rows, rule = self._rows, step.rule
        if self._layout is None or self._layout[:2] != (table_rows, rule):
            self._layout = table_rows, rule, table_rows.layout(_parts(rule, "u" in table_rows.initial))
        advance = partial(
            cpu_step.advance_rows,
            rule,
            table_rows.dtype,
            rows.data_ptr(),
            len(rows),
            cpu_step.Pages(table_rows.pages.addresses, table_rows.shift),
            self._layout[2],
            np.array([[values.data_ptr(), 0 if second_input is None else second_input.data_ptr()]], np.int64),
            table_rows.dim,
            np.array([scalars.of_rule], table_rows.dtype),
            step.constants,
            int(scalars.seed),
        )
        self.change(advance)  # also keeps the count of live rows

    # Sweep

    def survival_l21(self, rows: Int64s | None, count: int, step: GroupStep, scalars: StepScalars) -> Floats:
        if self._sweeps_eagerly:
            return super().survival_l21(rows, count, step, scalars)
        norms, _, _ = self._swept(rows, count if rows is None else len(rows), step, scalars, applies=False)
        return norms.astype(np.float64) / (math.sqrt(self._rows.dim) * step.constants.regularizer.norm.tau_scale)

    def sweep(self, count: int, step: GroupStep, scalars: StepScalars, *, drops: bool) -> Int64s:
        if self._sweeps_eagerly:
            return super().sweep(count, step, scalars, drops=drops)
        changed = np.empty(0, np.bool_)

        def sweep_all() -> int:
            nonlocal changed
            _, changed, increase = self._swept(None, count, step, scalars, applies=True, drops=drops)
            return increase

        self.change(sweep_all)
        return np.flatnonzero(changed)

    @property
    def _sweeps_eagerly(self) -> bool:
        return self._rows.dim > BLOCK

    def _swept(
        self,
        rows: Int64s | None,
        count: int,
        step: GroupStep,
        scalars: StepScalars,
        *,
        applies: bool,
        drops: bool = False,
    ) -> tuple[Floats, npt.NDArray[np.bool_], int]:
        table_rows = self._rows
        return cpu_step.sweep_rows(
            step.rule,
            table_rows.dtype,
            count,
            rows,
            cpu_step.Pages(table_rows.pages.addresses, table_rows.shift),
            table_rows.layout((WEIGHT, "u", *step.rule.state)),
            table_rows.dim,
            np.array(scalars.of_rule, table_rows.dtype),
            step.constants,
            applies=applies,
            drops=drops,
        )


def _parts(rule: Rule, carries_u: bool) -> tuple[str, ...]:
    """Return the parts of a row that a step of the rule reads, in order."""
    return (WEIGHT, *(("u",) if carries_u else ()), *rule.state)


def new_storage(config: TableConfig) -> RowStorage:
    """Return an empty storage, in the host's memory or on a device."""
    if not config.on_device:
        return HostStorage(config)
    from sparsegroup.table.rows.device import DeviceStorage  # needs Triton

    return DeviceStorage(config)
