"""A table's rows in the host's memory."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import compiled_step, compiled_sweep, finite
from sparsegroup.kernels.cpu.block import BLOCK
from sparsegroup.kernels.numbers import as_stored
from sparsegroup.kernels.views import TORCH_DTYPES, array_of
from sparsegroup.optim.stored import RowStep
from sparsegroup.rules import Rule
from sparsegroup.table.differentiable_lookup import Int64s
from sparsegroup.table.host_rows import HostRows
from sparsegroup.table.row_parts import kinds_of
from sparsegroup.table.row_storage import WEIGHT, Floats, NewRowBuffer, RowGradient, RowStorage
from sparsegroup.table.table_config import TableConfig


class HostStorage(RowStorage):
    """One kernel finds keys and fetches vectors; steps are checked before they are taken."""

    _rows: HostRows

    def __init__(self, config: TableConfig) -> None:
        super().__init__(HostRows(config.dim, config.dtype, config.huge_pages, {}))

    # Lookup

    @property
    def addresses(self) -> tuple[int, int, int]:
        rows = self._rows
        return rows.pages.addresses.ctypes.data, rows.shift, rows.row_bytes

    def new_rows(self, first: int, count: int) -> NewRowBuffer:
        rows = self._rows
        rows.reserve(first + count, soon=2 * count)
        initial = tuple(rows.initial.values())
        if not rows.is_plain:  # what inserts keys writes numbers of the weights' dtype
            rows.begin(first, count)
            initial = ()
        return NewRowBuffer(rows.pages.addresses, rows.shift, rows.row_bytes, initial)

    # Step

    def check_step(self, rule: Rule, carries_u: bool, state_dtype: torch.dtype | None) -> None:
        kinds = kinds_of(_parts(rule, carries_u), self._rows.dtype, self.dtype_of_state(state_dtype) == torch.bfloat16)
        if not compiled_step.is_ready(rule, carries_u, self._rows.dim > BLOCK, self._rows.dtype, kinds):
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

    def finite(self, values: Tensor) -> Tensor | None:
        return None if finite.are_finite(values) else torch.isfinite(values).all(dim=1)

    def step(self, gradient: RowGradient, request: RowStep, num_rows: Callable[[], int]) -> None:
        rows, values = gradient.rows.contiguous(), gradient.values.contiguous()
        hessian = None if gradient.hessian is None else gradient.hessian.contiguous()
        memory, rule, settings = self._rows, request.rule, request.settings
        carries_u = "u" in memory.initial
        layout = memory.layout(_parts(rule, carries_u))
        if layout.kinds is not None:
            layout = replace(layout, offsets=np.append(layout.offsets, [[request.numbers.seed]], axis=1))
            begun = zip(settings.initial, map(memory.part_dtype, rule.state), strict=True)
            settings = replace(settings, initial=tuple(as_stored(*one) for one in begun))
        self._live += compiled_step.advance_rows(
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
        if self._sweeps_eagerly:
            return super().survival_l21(rows, count, request)
        norms, _ = self._swept(rows, count if rows is None else len(rows), request, applies=False)
        return norms / (math.sqrt(self._rows.dim) * request.settings.regularizer.norm.tau_scale)

    def sweep(self, count: int, request: RowStep, *, drops: bool) -> Int64s:
        if self._sweeps_eagerly:
            return super().sweep(count, request, drops=drops)
        _, mask = self._swept(None, count, request, applies=True, drops=drops)
        return np.flatnonzero(mask)

    @property
    def _sweeps_eagerly(self) -> bool:
        return not self._rows.is_plain or self._rows.dim > compiled_sweep.WIDEST

    def _swept(
        self, rows: Int64s | None, count: int, request: RowStep, *, applies: bool, drops: bool = False
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        memory = self._rows
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
        self._live += born
        return norms.astype(np.float64), changed


def _parts(rule: Rule, carries_u: bool) -> tuple[str, ...]:
    """What a step of the rule reads of a row, in the order in which it does."""
    return (WEIGHT, *(("u",) if carries_u else ()), *rule.state)
