"""A table's rows in the host's memory."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import compiled_step, compiled_sweep, finite
from sparsegroup.kernels.cpu.block import BLOCK
from sparsegroup.kernels.numbers import as_stored
from sparsegroup.kernels.step_request import check_rows
from sparsegroup.kernels.views import TORCH_DTYPES, array_of
from sparsegroup.optim.stored import RowStep
from sparsegroup.rules import Rule
from sparsegroup.table import batch, eager_sweep_rows
from sparsegroup.table.batch import Scratch
from sparsegroup.table.host_rows import HostRows
from sparsegroup.table.index import Index
from sparsegroup.table.key_search import KeySearch, Reach, RowSpace, run_search
from sparsegroup.table.row_locations import Generation, GradientLines, Int64s, RowLocations
from sparsegroup.table.row_parts import kinds_of
from sparsegroup.table.row_storage import WEIGHT, Floats, RowGradient
from sparsegroup.table.table_config import TableConfig

_COUNT_AT_A_TIME = 1 << 18


class HostStorage:
    """The host's `RowStorage`: one kernel finds and fetches, and steps are checked before they are taken.

    Args:
        config: The table's.
    """

    keeps_rounding = False  # the weights are as precise as the arithmetic

    def __init__(self, config: TableConfig) -> None:
        self.rows = HostRows(config.dim, config.dtype, config.huge_pages, {})
        self.num_live = 0
        self.skipped_rows = 0

    @property
    def state_names(self) -> tuple[str, ...]:
        """See `RowStorage`."""
        return tuple(self.rows.initial)

    # Lookup

    def find(self, search: KeySearch, index: Index, scratch: Scratch, *, fetch: bool, alone: bool = False) -> None:
        """See `RowStorage`."""
        search.fetch_into(self._empty(len(search.keys)) if fetch else None)
        run_search(search, index, scratch, scratch.vectors, self._reach, alone=alone)

    def vectors(
        self, search: KeySearch, index: Index, scratch: Scratch, generation: Generation
    ) -> tuple[RowLocations, Tensor]:
        """See `RowStorage`."""
        rows, out = search.distinct_rows, search.out
        if out is None:
            out = self._empty(len(search.keys))
            search.fetch_into(out)
            enough = len(rows) <= len(scratch.vectors)
            vectors = scratch.vectors if enough else np.empty((len(rows), self.rows.dim), self.rows.dtype)
            run_search(search, index, scratch, vectors, self._reach, finds=False)
        elif search.has_new:
            batch.expand(search.inverse, scratch.vectors, array_of(out))
        lines = GradientLines(generation, len(rows))
        return RowLocations(generation, rows, search.inverse, search.absent > 0, lines), out

    @property
    def _reach(self) -> Reach:
        rows = self.rows
        return Reach(rows.pages.addresses.ctypes.data, rows.shift, rows.row_bytes)

    def _empty(self, n: int) -> Tensor:
        try:
            return torch.empty(n, self.rows.dim, dtype=TORCH_DTYPES[self.rows.dtype])
        except RuntimeError as error:  # as torch says that there is no memory
            raise MemoryError(str(error)) from error

    def new_rows(self, first: int, count: int) -> RowSpace:
        """See `RowStorage`."""
        rows = self.rows
        rows.reserve(first + count)
        rows.ask_beyond(first + count, 2 * count)
        initial = tuple(rows.initial.values())
        if not rows.is_plain:  # what inserts keys writes numbers of the weights' dtype
            rows.begin(first, count)
            initial = ()
        return RowSpace(rows.pages.addresses, rows.shift, rows.row_bytes, initial)

    def count_new(self, live: int) -> None:
        """See `RowStorage`."""
        self.num_live += live

    def recount(self, num_rows: int) -> None:
        """See `RowStorage`."""
        ends = [*range(0, num_rows, _COUNT_AT_A_TIME), num_rows]
        self.num_live = sum(int(self.rows.live(a, b).sum()) for a, b in pairwise(ends))

    def count_skipped(self, total: int) -> None:
        """See `RowStorage`."""
        self.skipped_rows = total

    # Step

    def check_step(self, rule: Rule, carries_u: bool, state_dtype: torch.dtype | None) -> None:
        """See `RowStorage`."""
        kinds = kinds_of(_parts(rule, carries_u), self.rows.dtype, self._is_narrow(state_dtype))
        if not compiled_step.is_ready(rule, carries_u, self.rows.dim > BLOCK, self.rows.dtype, kinds):
            raise RuntimeError(f"a HashEmbedding needs a rule that can be compiled, {rule.name!r} cannot")

    def _is_narrow(self, state_dtype: torch.dtype | None) -> bool:
        """Whether `state_dtype` is bfloat16. Raises ValueError if state cannot be kept in it."""
        own = TORCH_DTYPES[self.rows.dtype]
        if state_dtype in (None, own):
            return False
        if own == torch.float32:
            return True
        raise ValueError(
            f"state_dtype={state_dtype} cannot be for a HashEmbedding of {own}, whose u and state are {own}: leave it "
            "out, or make the table with dtype=torch.float32"
        )

    def check_reports(self, describe: Callable[[Int64s], str]) -> None:
        """Nothing is left to be reported: a step on the host has raised before it changed anything."""

    def lay_out(self, initial: Mapping[str, float], count: int, state_dtype: torch.dtype | None) -> bool:
        """See `RowStorage`."""
        is_narrow = self._is_narrow(state_dtype)
        moves = tuple(self.rows.initial) != tuple(initial) or self.rows.is_narrow != is_narrow
        if moves:
            self.rows = self.rows.relaid(initial, count, is_narrow)
        self.rows.set_initial(initial, count)
        return moves

    def read_gradient(
        self, gradient: Tensor, lines: GradientLines | None, num_rows: Callable[[], int], where: object, *, sums: bool
    ) -> RowGradient:
        """See `RowStorage`. Rows that are not known to be distinct are summed here."""
        if gradient.requires_grad or lines is None:
            check_rows(gradient._indices()[0], num_rows(), where)
            gradient, lines = gradient.coalesce(), None
        values = gradient._values().detach()
        return RowGradient(gradient._indices()[0], values, None, self.finite(values), lines)

    def finite(self, values: Tensor) -> Tensor | None:
        """See `RowStorage`."""
        return None if finite.are_finite(values) else torch.isfinite(values).all(dim=1)

    def step(self, gradient: RowGradient, request: RowStep, num_rows: Callable[[], int]) -> None:
        """See `RowStorage`."""
        rows, values = gradient.rows.contiguous(), gradient.values.contiguous()
        hessian = None if gradient.hessian is None else gradient.hessian.contiguous()
        memory, rule, settings = self.rows, request.rule, request.settings
        carries_u = "u" in memory.initial
        layout = memory.layout(_parts(rule, carries_u))
        if layout.kinds is not None:
            layout = replace(layout, offsets=np.append(layout.offsets, [[request.numbers.seed]], axis=1))
            begun = zip(settings.initial, map(memory.part_dtype, rule.state), strict=True)
            settings = replace(settings, initial=tuple(as_stored(*one) for one in begun))
        self.num_live += compiled_step.advance_rows(
            rule,
            carries_u,
            memory.dtype,
            array_of(rows),
            compiled_step.Pages(memory.pages.addresses, memory.shift),
            layout,
            np.array([[values.data_ptr(), 0 if hessian is None else hessian.data_ptr()]], np.int64),
            memory.dim,
            np.array([request.numbers.scalars], memory.dtype),
            settings,
        )

    # Sweep

    def survival_l21(self, rows: Int64s | None, count: int, request: RowStep) -> Floats:
        """See `RowStorage`."""
        memory = self.rows
        if self._sweeps_eagerly:
            found = np.arange(count) if rows is None else rows
            return eager_sweep_rows.survival_l21(memory, found, request)
        norms, _ = self._swept(rows, count if rows is None else len(rows), request, applies=False)
        return norms / (math.sqrt(memory.dim) * request.settings.regularizer.norm.tau_scale)

    def sweep(self, count: int, request: RowStep, *, drops: bool) -> Int64s:
        """See `RowStorage`."""
        if self._sweeps_eagerly:
            changed = eager_sweep_rows.sweep(self.rows, np.arange(count), request, drops=drops)
            self.recount(count)
            return changed
        _, mask = self._swept(None, count, request, applies=True, drops=drops)
        return np.flatnonzero(mask)

    @property
    def _sweeps_eagerly(self) -> bool:
        return not self.rows.is_plain or self.rows.dim > compiled_sweep.WIDEST

    def _swept(
        self, rows: Int64s | None, count: int, request: RowStep, *, applies: bool, drops: bool = False
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        memory = self.rows
        norms, changed, born = compiled_sweep.sweep_rows(
            request.rule,
            memory.dtype,
            count,
            rows,
            compiled_step.Pages(memory.pages.addresses, memory.shift),
            memory.layout((WEIGHT, "u", *request.rule.state)),
            memory.dim,
            np.array(request.numbers.scalars, memory.dtype),
            request.settings,
            applies=applies,
            drops=drops,
        )
        self.num_live += born
        return norms.astype(np.float64), changed


def _parts(rule: Rule, carries_u: bool) -> tuple[str, ...]:
    """What a step of the rule reads of a row, in the order in which it does."""
    return (WEIGHT, *(("u",) if carries_u else ()), *rule.state)
