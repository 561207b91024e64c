"""A table's rows in a GPU's memory."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sparsegroup.kernels.gpu import launch_rows
from sparsegroup.kernels.gpu.gpu_backend import is_ready
from sparsegroup.kernels.gpu.transfer import Transfer
from sparsegroup.kernels.gpu.watch import Watch
from sparsegroup.optim.stored import RowStep
from sparsegroup.rules import Rule
from sparsegroup.table import batch
from sparsegroup.table.device_rows import DeviceRows
from sparsegroup.table.differentiable_lookup import GradientLines, Int32s, Int64s, KeySearch, LookupInfo, LookupResult
from sparsegroup.table.row_storage import Floats, NewRowBuffer, RowGradient, RowStorage
from sparsegroup.table.table_config import TableConfig


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
        return NewRowBuffer(np.array([starts.ctypes.data - first * row_bytes]), 62, row_bytes, ())

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
        launch_rows.step_table(
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
    batch.sort_runs(inverse, order, starts)
    return order, starts


def _runs_of(gradient: RowGradient) -> launch_rows.GradientRuns:
    """The runs of a gradient; sorted on the device if the lookup has not sorted it."""
    values, rows, lines = gradient.values.contiguous(), gradient.rows.contiguous(), gradient.lines
    if gradient.hessian is not None:
        return launch_rows.GradientRuns(values, rows, gradient.hessian.contiguous())
    if lines is None or lines.order is None or lines.on_host is None:
        return launch_rows.runs_of(values, rows)
    memory, count = gradient.rows.untyped_storage(), len(lines.on_host)

    def at(offset: int, length: int) -> Tensor:
        return torch.empty(0, dtype=torch.int32, device=rows.device).set_(memory, offset, (length,), (1,))

    return launch_rows.GradientRuns(values, rows, None, at(lines.order, lines.count), at(lines.starts, count + 1))
