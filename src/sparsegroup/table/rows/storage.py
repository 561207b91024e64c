"""The storage of a table's rows: row numbers for keys, vectors, gradients and steps, in host memory or on a device."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import rows as finite
from sparsegroup.kernels.cpu import step
from sparsegroup.kernels.cpu.block import BLOCK
from sparsegroup.kernels.gpu import launch
from sparsegroup.kernels.gpu.backend import Transfer, Watch, is_ready
from sparsegroup.kernels.step import TORCH_DTYPES, array_of
from sparsegroup.optim.stored import RowStep
from sparsegroup.rules import Rule
from sparsegroup.table.config import TableConfig
from sparsegroup.table.directory.directory import Directory
from sparsegroup.table.directory.eviction import RowUses
from sparsegroup.table.lookup import kernels
from sparsegroup.table.lookup.autograd import GradientLines, Int32s, Int64s, KeySearch, LookupInfo, LookupResult
from sparsegroup.table.rows.device import DeviceRows
from sparsegroup.table.rows.host import HostRows, kinds_of
from sparsegroup.table.rows.rows import WEIGHT, Floats, NewRowBuffer, RowGradient, RowStorage


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
        return NewRowBuffer(rows.pages.addresses, rows.shift, rows.row_bytes, rows.new_row())

    # Step

    def check_step(self, rule: Rule, carries_u: bool, state_dtype: torch.dtype | None) -> None:
        kinds = kinds_of(_parts(rule, carries_u), self._rows.dtype, self.dtype_of_state(state_dtype) == torch.bfloat16)
        if not step.is_ready(rule, kinds, self._rows.dim > BLOCK, self._rows.dtype):
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
        memory, rule = self._rows, request.rule
        self._live += step.advance_rows(
            rule,
            memory.dtype,
            array_of(rows),
            step.Pages(memory.pages.addresses, memory.shift),
            memory.layout(_parts(rule, "u" in memory.initial)),
            np.array([[values.data_ptr(), 0 if hessian is None else hessian.data_ptr()]], np.int64),
            memory.dim,
            np.array([request.numbers.scalars], memory.dtype),
            request.settings,
            int(request.numbers.seed),
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
        return self._rows.dim > step.WIDEST

    def _swept(
        self, rows: Int64s | None, count: int, request: RowStep, *, applies: bool, drops: bool = False
    ) -> tuple[Floats, npt.NDArray[np.bool_]]:
        memory = self._rows
        norms, changed, born = step.sweep_rows(
            request.rule,
            memory.dtype,
            count,
            rows,
            step.Pages(memory.pages.addresses, memory.shift),
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


class DeviceStorage(RowStorage):
    """Keys are found on the host, vectors gathered and rows stepped on the device, and no step waits for it.

    New rows get their start on the host and wait there until something is done on the device: so that another thread
    may look ahead, and insert, without the device.
    """

    _rows: DeviceRows
    is_on_device = True
    sums_gradients = False  # the step's kernel sums and checks lines, and nothing is waited for

    def __init__(self, config: TableConfig) -> None:
        super().__init__(DeviceRows(config.dim, config.weight_dtype, config.device, {}))
        self.config = config
        self.keeps_rounding = config.weight_dtype != torch.float32
        self._waiting: list[tuple[int, Floats]] = []
        self._transfer = Transfer(config.device)
        self._watch = Watch(config.device)

    @property
    def rows(self) -> DeviceRows:
        while self._waiting:
            first, starts = self._waiting[0]
            (values,) = self._transfer.send(starts)
            self._rows.scatter(torch.arange(first, first + len(starts), device=self.config.device), values)
            self._waiting.pop(0)
        return self._rows

    @property
    def num_live(self) -> int:
        return self._live + self._watch.now()[0]

    @property
    def skipped_rows(self) -> int:
        return self._skipped + self._watch.now()[1]

    def recount(self, num_rows: int) -> None:
        self._watch.clear(0)
        super().recount(num_rows)

    def count_skipped(self, total: int) -> None:
        self._watch.clear(1)
        super().count_skipped(total)

    # Lookup

    def fetch(self, search: KeySearch) -> LookupResult:
        """See `RowStorage`. If autograd is on, the keys are sorted by row for the step to come."""
        rows, numbering = search.row_array, search.numbering
        of_keys = rows[search.inverse]
        lines = None
        if torch.is_grad_enabled():
            order, starts = _runs(search.inverse, len(rows))
            sent, *sorted_ones = self._transfer.send(of_keys, order, starts)
            at_order, at_starts = (int(one.storage_offset()) for one in sorted_ones)
            lines = GradientLines(numbering, len(of_keys), at_order, at_starts, rows.copy())
        else:
            (sent,) = self._transfer.send(of_keys)
        info = LookupInfo(numbering, sent, None, search.absent > 0, lines)
        return LookupResult(info, self.rows.gather(sent), search)

    def new_rows(self, first: int, count: int) -> NewRowBuffer:
        self._rows.reserve(first + count)  # before the index gets the keys: without memory for them none is inserted
        starts = np.empty((count, self.config.dim), self.config.dtype)
        self._waiting.append((first, starts))
        row_bytes = self.config.dim * starts.itemsize
        return NewRowBuffer(
            np.array([starts.ctypes.data - first * row_bytes]), 62, row_bytes, np.empty(0, starts.dtype)
        )

    # Step

    def check_step(self, rule: Rule, carries_u: bool, state_dtype: torch.dtype | None) -> None:
        if not is_ready(rule):
            raise RuntimeError(f"a HashEmbedding needs a rule that can be compiled, {rule.name!r} cannot")

    def check_reports(self, describe: Callable[[Int64s], str]) -> None:
        counts = None if self.config.skips_nonfinite else self._watch.arrived()
        if counts is not None and counts[1]:
            self._watch.clear(1)
            raise FloatingPointError(
                f"the gradient of {counts[1]:,} rows of a HashEmbedding was not finite in a step before, that of "
                f"{describe(np.array([counts[2]]))} for one; these rows have been left as they were, the others have "
                "been updated"
            )

    def dtype_of_state(self, requested: torch.dtype | None) -> torch.dtype:
        return requested or torch.float32

    def step(self, gradient: RowGradient, request: RowStep, num_rows: Callable[[], int]) -> None:
        memory = self.rows
        launch.step_table(
            request.rule,
            "u" in memory.initial,
            memory.layout(),
            num_rows(),
            _runs_of(gradient),
            self._watch.counters,
            request.settings,
            request.numbers,
        )
        self._watch.send()


def _runs(inverse: Int32s, distinct: int) -> tuple[Int32s, Int32s]:
    order, starts = np.empty(len(inverse), np.int32), np.empty(distinct + 1, np.int32)
    kernels.sort_runs(inverse, order, starts)
    return order, starts


def _runs_of(gradient: RowGradient) -> launch.GradientRuns:
    """The runs of a gradient; sorted on the device if the lookup has not sorted it."""
    values, rows, lines = gradient.values.contiguous(), gradient.rows.contiguous(), gradient.lines
    if gradient.hessian is not None:
        return launch.GradientRuns(values, rows, gradient.hessian.contiguous())
    if lines is None or lines.order is None or lines.on_host is None:
        return launch.runs_of(values, rows)
    memory, count = gradient.rows.untyped_storage(), len(lines.on_host)

    def at(offset: int, length: int) -> Tensor:
        return torch.empty(0, dtype=torch.int32, device=rows.device).set_(memory, offset, (length,), (1,))

    return launch.GradientRuns(values, rows, None, at(lines.order, lines.count), at(lines.starts, count + 1))


def new_storage(config: TableConfig) -> RowStorage:
    """An empty storage where the table's rows are to be."""
    if not config.on_device:
        return HostStorage(config)
    pass  # FOLD  # needs Triton

    return DeviceStorage(config)


def new_directory(config: TableConfig, buckets: int | None = None) -> Directory:
    """A directory without keys, whose index begins with so many buckets, or few."""
    return Directory(
        config.max_rows,
        config.huge_pages,
        buckets,
        field_bits=config.field_bits,
        sketch_bytes=config.sketch_bytes,
        uses=None if config.unit is None else RowUses(config.unit == "steps"),
        is_watched=config.drops_rows,
    )
