"""The storage of a table's rows: row numbers for keys, vectors, gradients and steps, in host memory or on a device."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.kernels.cpu import step as cpu_step
from sparsegroup.kernels.cpu.block import BLOCK
from sparsegroup.kernels.step import TORCH_DTYPES, StepScalars, array_of
from sparsegroup.optim.step import GroupStep
from sparsegroup.rules import Rule
from sparsegroup.table.config import TableConfig
from sparsegroup.table.directory.directory import Directory
from sparsegroup.table.directory.eviction import RowUses
from sparsegroup.table.lookup.autograd import Int64s
from sparsegroup.table.rows.host import HostRows, kinds_of
from sparsegroup.table.rows.rows import WEIGHT, Floats, NewRowBuffer, RowGradient, RowStorage


class HostStorage(RowStorage):
    """One kernel finds keys and fetches vectors; steps are checked before they are taken."""

    _rows: HostRows

    def __init__(self, config: TableConfig) -> None:
        super().__init__(HostRows(config.dim, config.dtype, config.huge_pages, {}))
        self._layout: tuple[HostRows, Rule, cpu_step.RowLayout] | None = None

    # Lookup

    @property
    def addresses(self) -> tuple[int, int, int]:
        rows = self._rows
        return rows.pages.addresses.ctypes.data, rows.shift, rows.row_bytes

    def new_rows(self, first: int, count: int) -> NewRowBuffer:
        rows = self._rows
        rows.reserve(first + count, soon=2 * count)
        return NewRowBuffer(rows.pages.addresses, rows.shift, rows.row_bytes, rows.new_row())

    # Step

    def check_step(self, rule: Rule, carries_u: bool, state_dtype: torch.dtype | None) -> None:
        kinds = kinds_of(_parts(rule, carries_u), self._rows.dtype, self.dtype_of_state(state_dtype) == torch.bfloat16)
        if not cpu_step.is_ready(rule, kinds, self._rows.dim > BLOCK, self._rows.dtype):
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
        rows, values = gradient.rows.contiguous(), gradient.values.contiguous()
        hessian = None if gradient.hessian is None else gradient.hessian.contiguous()
        memory, rule = self._rows, step.rule
        if self._layout is None or self._layout[:2] != (memory, rule):
            self._layout = memory, rule, memory.layout(_parts(rule, "u" in memory.initial))
        self._live += cpu_step.advance_rows(
            rule,
            memory.dtype,
            array_of(rows),
            cpu_step.Pages(memory.pages.addresses, memory.shift),
            self._layout[2],
            np.array([[values.data_ptr(), 0 if hessian is None else hessian.data_ptr()]], np.int64),
            memory.dim,
            np.array([scalars.scalars], memory.dtype),
            step.constants,
            int(scalars.seed),
        )

    # Sweep

    def survival_l21(self, rows: Int64s | None, count: int, step: GroupStep, scalars: StepScalars) -> Floats:
        if self._sweeps_eagerly:
            return super().survival_l21(rows, count, step, scalars)
        norms, _ = self._swept(rows, count if rows is None else len(rows), step, scalars, applies=False)
        return norms / (math.sqrt(self._rows.dim) * step.constants.regularizer.norm.tau_scale)

    def sweep(self, count: int, step: GroupStep, scalars: StepScalars, *, drops: bool) -> Int64s:
        if self._sweeps_eagerly:
            return super().sweep(count, step, scalars, drops=drops)
        _, mask = self._swept(None, count, step, scalars, applies=True, drops=drops)
        return np.flatnonzero(mask)

    @property
    def _sweeps_eagerly(self) -> bool:
        return self._rows.dim > cpu_step.WIDEST

    def _swept(
        self,
        rows: Int64s | None,
        count: int,
        step: GroupStep,
        scalars: StepScalars,
        *,
        applies: bool,
        drops: bool = False,
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        memory = self._rows
        norms, changed, born = cpu_step.sweep_rows(
            step.rule,
            memory.dtype,
            count,
            rows,
            cpu_step.Pages(memory.pages.addresses, memory.shift),
            memory.layout((WEIGHT, "u", *step.rule.state)),
            memory.dim,
            np.array(scalars.scalars, memory.dtype),
            step.constants,
            applies=applies,
            drops=drops,
        )
        self._live += born
        return norms.astype(np.float64), changed


def _parts(rule: Rule, carries_u: bool) -> tuple[str, ...]:
    """What a step of the rule reads of a row, in the order in which it does."""
    return (WEIGHT, *(("u",) if carries_u else ()), *rule.state)


def new_storage(config: TableConfig) -> RowStorage:
    """An empty storage where the table's rows will be."""
    if not config.on_device:
        return HostStorage(config)
    from sparsegroup.table.rows.device import DeviceStorage  # needs Triton

    return DeviceStorage(config)


def new_directory(config: TableConfig, buckets: int | None = None) -> Directory:
    """A directory without keys, whose index begins with this many buckets, or few."""
    return Directory(
        config.max_rows,
        config.huge_pages,
        buckets,
        field_bits=config.field_bits,
        sketch_bytes=config.sketch_bytes,
        uses=None if config.unit is None else RowUses(config.unit == "steps"),
        is_watched=config.drops_rows,
    )
