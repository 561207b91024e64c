"""Parameters on a GPU, by Triton's kernels. This module needs no Triton; what it calls does."""

import warnings
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch

from sparsegroup.kernels.gpu import runtime
from sparsegroup.kernels.gpu.transfer import Watch
from sparsegroup.kernels.step import Backend, Launch, ParameterMemory, StepConstants, TensorPlan
from sparsegroup.penalties import Lasso, PracticalNorm
from sparsegroup.rules import Rule

if TYPE_CHECKING:
    from sparsegroup.kernels.gpu.launch import TensorTable


_STATE_DTYPES = {torch.float32, torch.bfloat16}


@cache
def compiles(rule: Rule) -> bool:
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
            and compiles(self.rule)
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
    """See `Launch`. The tables with the places of tensors stay on the device until a tensor moves."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._tables: dict[ParameterMemory, TensorTable] = {}

    def step(self, plans: Sequence[TensorPlan], constants: StepConstants) -> None:
        from sparsegroup.kernels.gpu.launch import step_tensors

        for plan in plans:
            _make_contiguous(plan)
        step_tensors(self._rule, plans, constants, self._tables)
