"""The rows of a table and what is done with them, whether they are in the host's memory or on a device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.groups import grouping
from sparsegroup.kernels import eager
from sparsegroup.kernels.cpu.rows import WHOLE
from sparsegroup.kernels.eager import Block
from sparsegroup.kernels.step import TORCH_DTYPES, StepScalars, array_of
from sparsegroup.optim.step import GroupStep
from sparsegroup.rules import Rule
from sparsegroup.signals import signals_deferred
from sparsegroup.table.lookup.autograd import GradientLines, Int64s, KeySearch, LookupInfo

Floats = npt.NDArray[Any]


WEIGHT = "weight"
"""The part of a row that a lookup gives."""

_NO_PAGES = np.zeros(1, np.int64)
_SWEPT_AT_A_TIME, _COUNTED_AT_A_TIME = 1 << 16, 1 << 18


class Rows(ABC):
    """Rows of `dim` numbers per part, the parts of a row next to each other, found by number.

    What is read and written is of `dtype`, float32 or float64. `initial` are the parts after the weights: name → value
    of a new row's elements.
    """

    state_dtype: torch.dtype  # in which the parts after the weights are stored
    row_bytes: int  # from row to row
    shift: int  # a page has 2**shift rows

    def __init__(self, dim: int, dtype: np.dtype[Any], initial: Mapping[str, float]) -> None:
        self.dim, self.dtype, self.initial = dim, dtype, dict(initial)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names, in the order of a row."""
        return (WEIGHT, *self.initial)

    @abstractmethod
    def reserve(self, count: int) -> None:
        """Reserve memory for `count` rows. MemoryError changes nothing."""

    @abstractmethod
    def bytes(self, count: int) -> int:
        """Return the bytes of the first `count` rows, in whole pages."""

    @abstractmethod
    def bytes_of_row(self, parts: int) -> int:
        """Return the bytes of a row with this many parts, with the weights."""

    @abstractmethod
    def part_dtype(self, part: str) -> torch.dtype:
        """Return the dtype in which a part is stored."""

    @abstractmethod
    def part_bytes(self, part: str) -> int:
        """Return the bytes of a part of one row."""

    @abstractmethod
    def read(self, part: str, rows: Int64s) -> Floats:
        """Return a part of some rows, `[n, dim]`; zeros for negative row numbers."""

    @abstractmethod
    def write(self, part: str, rows: Int64s, values: Floats) -> None:
        """Set a part of distinct rows to `values`, `[n, dim]`, rounded to the nearest."""

    def read_whole(self, rows: Int64s) -> Floats:
        """Return all parts of some rows, `[n, parts · dim]`."""
        return np.concatenate([self.read(part, rows) for part in self.parts], axis=1)

    def write_whole(self, rows: Int64s, values: Floats) -> None:
        """Set all parts of distinct rows to `values`, `[n, parts · dim]`, rounded to the nearest."""
        for part, numbers in zip(self.parts, np.split(values, len(self.parts), axis=1), strict=True):
            self.write(part, rows, numbers)

    @abstractmethod
    def fill(self, part: str, first: int, last: int, value: float) -> None:
        """Set a part of the rows first, …, last - 1 to one value."""

    @abstractmethod
    def live(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Return which of the rows first, …, last - 1 have a non-zero vector."""

    def begin(self, first: int, last: int) -> None:
        """Reserve memory for the new rows first, …, last - 1. The caller must write their weights next."""
        self.reserve(last)
        for part, value in self.initial.items():
            self.fill(part, first, last, value)

    @abstractmethod
    def compact(self, surviving: npt.NDArray[np.bool_]) -> None:
        """Move the rows of the mask to 0, 1, … in their order, and give the memory of the others back."""

    @abstractmethod
    def relaid(self, initial: Mapping[str, float], count: int, state_dtype: torch.dtype) -> "Rows":
        """Return the first `count` rows with other parts after the weights, and empty `self`.

        Parts that both layouts have keep their values. MemoryError changes nothing. Callers must defer signals.
        """

    def set_initial(self, initial: Mapping[str, float], count: int) -> None:
        """Have other values of the same parts in new rows, those after the first `count`."""
        self.initial = dict(initial)

    def blocks(self, count: int) -> Iterator[Any]:
        """Yield the first `count` rows in order, `[rows, parts, dim]` at a time, as memory for a file."""
        for piece in pieces_of(count, self.row_bytes):
            yield self.read_whole(np.arange(piece.start, piece.stop))


def pieces_of(count: int, bytes_of_each: int, first: int = 0, piece_bytes: int = 8 << 20) -> Iterator[slice]:
    """Slices of the rows first, …, count - 1, a few mebibytes at a time."""
    at_a_time = max(1, piece_bytes // bytes_of_each)
    for begin in range(first, count, at_a_time):
        yield slice(begin, min(begin + at_a_time, count))


@dataclass(slots=True, eq=False)
class RowGradient:
    """A gradient as a storage will step with it."""

    rows: Tensor  # `[n]` int64, the row of each line
    values: Tensor  # `[n, dim]`
    second_input: Tensor | None  # `[n, dim]`, for a rule that takes one
    finite: Tensor | None  # `[n]` bool, the lines to be stepped with; None for all
    lines: GradientLines | None  # how the lines belong to rows, if it is known

    def finite_lines(self) -> "RowGradient":
        """Return the lines to step with."""
        if self.finite is None:
            return self
        second_input = None if self.second_input is None else self.second_input[self.finite]
        return RowGradient(self.rows[self.finite], self.values[self.finite], second_input, None, None)

    def rows_on_host(self) -> Int64s:
        """Return the rows, each at least once."""
        if self.lines is not None and self.lines.on_host is not None:
            return self.lines.on_host
        return array_of(self.rows.cpu().contiguous())


class NewRowBuffer(NamedTuple):
    """Memory on the host in which new rows begin: the rows, or what will be sent to a device."""

    addresses: Int64s  # `[p]` int64, of pages
    shift: int  # a page has 2**shift rows
    row_bytes: int  # from row to row
    weights: int  # their kind, see `sparsegroup.kernels.cpu.rows`
    initial: Floats  # what follows the weights in a new row, as numbers of their dtype


class RowStorage(ABC):
    """A table's rows and what is done with them where they are. Called by one thread at a time."""

    keeps_rounding = False  # whether weights are rounded when stored, so that u is needed without a regularizer too
    is_on_device = False  # whether the rows are not in the host's memory
    needs_each_row_once = True  # whether a step takes one line for each row; else its kernel sums a row's lines

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._live: int | None = 0  # None: unknown until the next count
        self._skipped = 0

    @property
    def rows(self) -> Rows:
        """The rows, including new ones not yet copied to a device."""
        return self._rows

    @property
    def state_names(self) -> tuple[str, ...]:
        """The parts of a row after its weights."""
        return tuple(self._rows.initial)

    def num_live(self, num_rows: int) -> int:
        """Return the number of non-zero rows among the `num_rows` rows. Waits for a device."""
        if self._live is None:
            edges = [*range(0, num_rows, _COUNTED_AT_A_TIME), num_rows]
            self._live = sum(int(self.rows.live(first, last).sum()) for first, last in pairwise(edges))
        return self._live

    def forget_live(self) -> None:
        """Mark the number of non-zero rows as unknown, so that the next read counts the rows."""
        self._live = None

    def change(self, action: Callable[[], int]) -> None:
        """Run an action that changes rows and returns the increase of the number of non-zero rows.

        The number is unknown if the action is interrupted.
        """
        live, self._live = self._live, None
        increase = action()
        self._live = None if live is None else live + increase

    def compact(self, surviving: npt.NDArray[np.bool_]) -> None:
        """Keep only the rows of the mask, renumbered in their order. Callers must defer signals."""
        self._live = None
        self.rows.compact(surviving)

    @property
    def skipped_rows(self) -> int:
        """Row updates omitted because of a non-finite gradient; waits for a device."""
        return self._skipped

    def count_skipped(self, total: int) -> None:
        """Set the number of row updates omitted in all."""
        self._skipped = total

    # Lookup

    @property
    def for_lookup(self) -> tuple[int, int, int, int]:
        """Rows as the lookup's kernel reads them: address of the pages' addresses, `Rows.shift`, `Rows.row_bytes`,
        and the kind of the weights, see `sparsegroup.kernels.cpu.rows`.

        Without rows on the host, the kernel, which prefetches them, prefetches nothing.
        """
        return _NO_PAGES.ctypes.data, 62, 0, WHOLE

    def prepare(self, search: KeySearch) -> None:  # noqa: B027  # rows on the host need none of it
        """Do what can be done of `fetch` ahead of time, in another thread."""

    def fetch(self, search: KeySearch) -> tuple[Tensor, LookupInfo]:
        """Fetch the vectors of a search, zeros for absent keys, if the rows are on a device."""
        raise NotImplementedError

    @abstractmethod
    def new_rows(self, first: int, count: int) -> NewRowBuffer:
        """Return memory for `count` new rows from `first` on. MemoryError changes nothing."""

    # Step

    def are_finite(self, values: Tensor) -> bool:
        """Return whether no element of a gradient is infinite or NaN. Rows on a device are checked by their kernel."""
        return True

    @abstractmethod
    def check_step(self, rule: Rule, carries_u: bool, state_dtype: torch.dtype | None) -> None:
        """Raise RuntimeError if `rule` cannot be compiled, ValueError if state cannot be kept in `state_dtype`."""

    @abstractmethod
    def dtype_of_state(self, requested: torch.dtype | None) -> torch.dtype:
        """Return the dtype of state for the `requested` dtype or None. Raises ValueError if it cannot be used."""

    def check_reports(self, describe: Callable[[Int64s], str], num_rows: Callable[[], int]) -> None:
        """Raise FloatingPointError if a device has reported that an earlier step met a non-finite gradient."""
        return  # a step on the host has raised before it changed anything

    def lay_out(
        self, initial: Mapping[str, float], count: int, state_dtype: torch.dtype | None, *, keeps_state: bool = True
    ) -> bool:
        """Give the `count` rows the parts `initial` after the weights. Return whether rows were changed or moved.

        MemoryError changes nothing.
        """
        rows, dtype = self.rows, self.dtype_of_state(state_dtype)
        differs = tuple(rows.initial) != tuple(initial) or rows.state_dtype != dtype
        old = () if keeps_state else rows.parts
        with signals_deferred():
            if differs:
                self._rows = rows = rows.relaid(initial, count, dtype)
            for part, value in initial.items():
                if part in old:
                    rows.fill(part, 0, count, value)
        rows.set_initial(initial, count)
        return differs or not keeps_state

    @abstractmethod
    def step(self, gradient: RowGradient, step: GroupStep, scalars: StepScalars, num_rows: Callable[[], int]) -> None:
        """Take the optimizer's step over rows whose parts have been laid out for it; `num_rows` counts the rows."""

    # Sweep: by PyTorch on the host, some rows at a time

    def survival_l21(self, rows: Int64s | None, count: int, step: GroupStep, scalars: StepScalars) -> Floats:
        """Return the largest λ21 at which each of `rows` is zero, float64; infinite without any non-zero gradient.

        The `count` rows carry u, and `rows` None means all of them. The step has no gradient.
        """
        norms = [
            eager.survival_l21(step.rule, block, *self._constants(step, scalars, block))
            for _, block in self._blocks(np.arange(count) if rows is None else rows, step, scalars)
        ]
        return np.concatenate([np.empty(0), *(norm.flatten().double().numpy() for norm in norms)])

    def sweep(self, count: int, step: GroupStep, scalars: StepScalars, *, drops: bool) -> Int64s:
        """Apply the closed form to the `count` rows without a gradient. Return the changed rows.

        With `drops`, rows that never had a non-zero gradient become zero where λ21 > 0.
        """
        table_rows = self.rows
        self.forget_live()
        changed = [np.empty(0, np.int64)]
        for rows, block in self._blocks(np.arange(count), step, scalars):
            x, u, touched = eager.swept(
                step.rule, block, *self._constants(step, scalars, block), table_rows.part_dtype(WEIGHT)
            )
            if drops:
                x = torch.where(touched, x, torch.zeros_like(x))
            after = x.to(block.x.dtype)
            assert block.u is not None
            changed.append(rows[((after != block.x) | (u != block.u)).any(1).numpy()])
            with signals_deferred():
                table_rows.write(WEIGHT, rows, after.numpy())
                table_rows.write("u", rows, u.numpy())
        return np.concatenate(changed)

    def _constants(self, step: GroupStep, scalars: StepScalars, block: Block) -> tuple[Any, Any, Any, Any]:
        initial = step.constants.initial_as(map(self.rows.part_dtype, step.rule.state))
        groups = grouping("rows", block.x.shape, block.x.device)
        return scalars.of_rule, initial, step.constants.regularizer, groups

    def _blocks(self, rows: Int64s, step: GroupStep, scalars: StepScalars) -> Iterator[tuple[Int64s, Block]]:
        table_rows = self.rows
        for first in range(0, len(rows), _SWEPT_AT_A_TIME):
            some = np.ascontiguousarray(rows[first : first + _SWEPT_AT_A_TIME])
            x, u, *state = (
                torch.from_numpy(table_rows.read(part, some)).to(TORCH_DTYPES[table_rows.dtype])
                for part in (WEIGHT, "u", *step.rule.state)
            )
            yield some, Block(x, u, state)
