"""Parameters on a GPU, by Triton's kernels. This module needs no Triton; what it calls does."""

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from sparsegroup.kernels.gpu import runtime
from sparsegroup.kernels.gpu.watch import Watch
from sparsegroup.kernels.slot import Slot
from sparsegroup.kernels.step_request import StepRequest, TensorStep
from sparsegroup.penalties import Lasso, PracticalNorm
from sparsegroup.rules import Rule

if TYPE_CHECKING:
    from sparsegroup.kernels.gpu.launch import TensorTable

_STATE_DTYPES = {torch.float32, torch.bfloat16}


@cache
def is_ready(rule: Rule) -> bool:
    """Whether a rule can be bound for Triton; False, with a warning, for one that cannot."""
    from sparsegroup.kernels.gpu import binding

    try:
        binding.step_kernels(rule, True, PracticalNorm.weigh, Lasso.shrinkage)
    except (OSError, SyntaxError, ValueError) as error:
        warnings.warn(
            f"the rule {rule.name!r} cannot be compiled for the GPU, its steps will be slow: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


class GpuBackend:
    """The step in Triton: contiguous parameters on a GPU, many of them in one launch, without waiting for the device.

    Args:
        rule: The base optimizer.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._tables: dict[int, dict[tuple[Any, ...], TensorTable]] = {}
        self._watches: dict[torch.device, Watch] = {}

    def takes(self, slot: Slot, sparse: bool) -> bool:
        """Groups that lie one after the other and fit a tile, of a rule that Triton can compile."""
        return (
            slot.fits
            and slot.execution.wants_kernels
            and slot.dtype in runtime.WEIGHT_DTYPES
            and len(slot.state_dtypes) <= 1
            and slot.state_dtypes <= _STATE_DTYPES
            and runtime.serves(slot.x.device)
            and (slot.width <= runtime.WIDEST_GROUP if sparse else self._fits_a_tile(slot))
            and is_ready(self.rule)
        )

    @staticmethod
    def _fits_a_tile(slot: Slot) -> bool:
        return not slot.carries_u or 0 < slot.width <= runtime.WIDEST_GROUP

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

    def step(self, request: StepRequest) -> None:
        """See `Backend.step`. Rows that the parameter has not are left out, and reported by a later `check`."""
        from sparsegroup.kernels.gpu.launch import step_tensors
        from sparsegroup.kernels.gpu.launch_rows import GradientRuns, runs_of, step_rows

        dense: list[TensorStep] = []
        for tensor in request.tensors:
            tensor = tensor.contiguous()
            if tensor.rows is None:
                dense.append(tensor)
            elif len(tensor.rows):
                g, rows, watch = tensor.gradient, tensor.rows.contiguous(), self._watch(tensor.rows.device)
                gradient = runs_of(g, rows) if tensor.repeats else GradientRuns(g, rows, tensor.hessian)
                step_rows(self.rule, tensor.slot, gradient, watch.counters, request.settings, tensor.numbers)
                watch.send()
        step_tensors(self.rule, dense, request.settings, self._tables.setdefault(request.group, {}))

    def _watch(self, device: torch.device) -> Watch:
        if device not in self._watches:
            self._watches[device] = Watch(device)
        return self._watches[device]
