"""Parameters on a GPU, by Triton's kernels. This module needs no Triton; what it calls does."""

import warnings
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.gpu import runtime
from sparsegroup.kernels.step import Backend, Launch, ParameterMemory, StepConstants, TensorPlan
from sparsegroup.penalties import Lasso, PracticalNorm
from sparsegroup.rules import Rule

if TYPE_CHECKING:
    from sparsegroup.kernels.gpu.launch import TensorTable


class Watch:
    """Three counts on a device, int64, and what has arrived of them; for what is counted see `source.table_rows`."""

    def __init__(self, device: torch.device) -> None:
        self.counters = torch.zeros(3, dtype=torch.int64, device=device)
        self._arrived = torch.zeros(3, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        self._event: Any = None

    def send(self) -> None:
        """Request the current counts, unless an answer is still on its way or a graph is captured."""
        if self.counters.device.type != "cuda":
            self._arrived.copy_(self.counters)
            self._event = True
        elif not self._is_capturing() and (self._event is None or self._event.query()):
            self._arrived.copy_(self.counters, non_blocking=True)
            self._event = self._event or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(self.counters.device))

    def arrived(self) -> list[int] | None:
        """The counts of some step before, if an answer has come; never waits. None while a graph is captured."""
        if self._event is None or self._is_capturing() or not (self._event is True or self._event.query()):
            return None
        return self._arrived.tolist()

    def _is_capturing(self) -> bool:
        return self.counters.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def now(self) -> list[int]:
        """The counts, waiting for the device."""
        return self.counters.tolist()

    def clear(self, counter: int) -> None:
        """Let a counter begin again at 0; no answer is on its way any more."""
        self.counters[counter] = 0
        self._arrived = torch.zeros_like(self._arrived, pin_memory=self.counters.device.type == "cuda")
        self._event = None


_DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32, np.dtype(np.float32): torch.float32}


class Transfer:
    """Sends arrays through two pinned buffers in turn, on a separate stream, for which the current stream then waits.

    To the CPU, arrays are copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = None
        self._buffers: list[Tensor | None] = [None, None]
        self._events: list[Any] = [None, None]
        self._turn = 0

    def send(self, *arrays: npt.NDArray[Any]) -> list[Tensor]:
        """The contiguous `arrays` (int64, int32 or float32) as tensors on the device, in one block of memory.

        The host waits for none but the transfer before the last; the device, only for the transfer.
        """
        places, size = [], 0
        for array in arrays:
            places.append(slice(size, size + array.nbytes))
            size += -(-array.nbytes // 16) * 16
        on_gpu = self.device.type == "cuda"
        block = self._next_buffer(size) if on_gpu else torch.empty(size, dtype=torch.uint8, device="cpu")
        memory = block.numpy()
        for place, array in zip(places, arrays, strict=True):
            memory[place] = array.reshape(-1).view(np.uint8)
        if on_gpu:
            block = self._copy_of(block[:size])
        return [
            block[place].view(_DTYPES[array.dtype]).view(array.shape)
            for place, array in zip(places, arrays, strict=True)
        ]

    def _next_buffer(self, size: int) -> Tensor:
        turn = self._turn = 1 - self._turn
        if self._events[turn] is None:
            self._stream = self._stream or torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._events[turn] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        else:
            self._events[turn].synchronize()  # the buffer's last content has left it
        buffer = self._buffers[turn]
        if buffer is None or len(buffer) < size:
            buffer = torch.empty(2 * size, dtype=torch.uint8, device="cpu", pin_memory=True)
            self._buffers[turn] = buffer
        return buffer

    def _copy_of(self, buffer: Tensor) -> Tensor:
        with torch.cuda.stream(self._stream):
            block = torch.empty(len(buffer), dtype=torch.uint8, device=self.device)
            block.copy_(buffer, non_blocking=True)
            self._events[self._turn].record(self._stream)
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self._events[self._turn])
        block.record_stream(current)
        return block


_STATE_DTYPES = {torch.float32, torch.bfloat16}


@cache
def is_ready(rule: Rule) -> bool:
    """Whether a rule can be bound for Triton; False, with a warning, for one that cannot."""
    from sparsegroup.kernels.gpu import bind

    try:
        bind.step_kernels(rule, True, PracticalNorm.weigh, Lasso.shrinkage)
    except (OSError, SyntaxError, ValueError) as error:
        warnings.warn(
            f"the rule {rule.name!r} cannot be compiled for the GPU, its steps will be slow: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


class GpuBackend(Backend):
    """The step in Triton: contiguous parameters on a GPU, many in one launch, without waiting for the device."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._watches: dict[torch.device, Watch] = {}

    def takes(self, memory: ParameterMemory, sparse: bool) -> bool:
        """Groups that are contiguous and fit a tile, of a rule that Triton can compile."""
        return (
            memory.fits
            and memory.wants_kernels
            and memory.dtype in runtime.WEIGHT_DTYPES
            and len(memory.state_dtypes) <= 1
            and memory.state_dtypes <= _STATE_DTYPES
            and runtime.serves(memory.x.device)
            and (0 < memory.width <= runtime.WIDEST_GROUP or not (sparse or memory.carries_u))
            and is_ready(self.rule)
        )

    def check(self) -> None:
        """See `Backend.check`."""
        for watch in self._watches.values():
            counts = watch.arrived()
            if counts is not None and counts[1]:
                watch.clear(1)
                raise IndexError(
                    f"a sparse gradient of a step before had {counts[1]} rows that its parameter has not, {counts[2]} "
                    "for one; they were left out"
                )

    def launch(self, memories: Sequence[ParameterMemory]) -> Launch:
        """See `Backend.launch`."""
        return _DenseLaunch(self.rule)

    def step_rows(self, plan: TensorPlan, constants: StepConstants) -> None:
        """See `Backend.step_rows`. Rows that the parameter has not are left out, and reported by a later `check`."""
        from sparsegroup.kernels.gpu.launch import GradientRuns, runs_of, step_rows

        assert plan.rows is not None
        if len(plan.rows):
            _make_contiguous(plan)
            g, rows, watch = plan.gradient, plan.rows.contiguous(), self._watch(plan.rows.device)
            gradient = runs_of(g, rows) if plan.repeats else GradientRuns(g, rows, plan.second_input)
            step_rows(self.rule, plan.memory, gradient, watch.counters, constants, plan.scalars)
            watch.send()

    def _watch(self, device: torch.device) -> Watch:
        if device not in self._watches:
            self._watches[device] = Watch(device)
            self.has_reports = True
        return self._watches[device]


def _make_contiguous(plan: TensorPlan) -> None:
    plan.gradient = plan.gradient.resolve_neg().contiguous()
    plan.second_input = None if plan.second_input is None else plan.second_input.resolve_neg().contiguous()


class _DenseLaunch:
    """See `Launch`. The tables that tell a kernel where its tensors are stay on the device until one moves."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._tables: dict[tuple[Any, ...], TensorTable] = {}

    def step(self, plans: Sequence[TensorPlan], constants: StepConstants) -> None:
        from sparsegroup.kernels.gpu.launch import step_tensors

        for plan in plans:
            _make_contiguous(plan)
        step_tensors(self._rule, plans, constants, self._tables)
