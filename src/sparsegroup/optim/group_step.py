"""One step of one param group: what its hyperparameters and its step count come to."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsegroup.kernels.rounding import step_seed
from sparsegroup.kernels.step import Execution, Regularizer, StepConstants, StepScalars, compute_dtype
from sparsegroup.optim.places import State
from sparsegroup.optim.stored import KEYS, StateOwner
from sparsegroup.rules import Rule

VANISHING_LR = 2.0**-50
"""Learning rates below this count as 0: they move nothing, and ‖s‖², of order lr⁻², may overflow float32."""

LEAST_LR = 2.0**-20
"""The learning rate of a sweep where it is 0: small enough for σ to be what decides, too large to overflow."""

_KEPT = 16
"""Step counts of which the numbers are kept: parameters that came together are at the same."""


class GroupStep:
    """One step of one param group.

    Args:
        rule: The base optimizer.
        group: The param group.
        number: Its number.
    """

    def __init__(self, rule: Rule, group: Mapping[str, Any], number: int = 0) -> None:
        self.rule = rule
        self.group = group
        self.number = number
        self.execution = Execution(group["groups"], group["foreach"], group["fused"], bool(group["capturable"]))
        self.regularizer = Regularizer.of(group)
        self.initial = rule.initial_state(group)
        self.wants_u = self.regularizer.active or rule.sigma_0 is not None
        self.takes_gradients_as_they_are = not group["maximize"] and not group.get("weight_decay")
        lr = 1.0 if self.execution.capturable else float(group["lr"])
        frozen = lr < VANISHING_LR
        # lr = 0 is an infinite σ: the moments advance, x and u stay. Any other rate gives the same moments.
        self._rate = 1.0 if frozen else lr
        sigma_0 = None if rule.sigma_0 is None else rule.host_sigma_0(group, self._rate)
        self.settings = StepConstants(self.regularizer, tuple(self.initial.values()), sigma_0, frozen)
        self._numbers: dict[float, StepScalars] = {}

    @classmethod
    def without_gradient(cls, rule: Rule, group: Mapping[str, Any], number: int = 0) -> "GroupStep":
        """A step in which the closed form alone is taken; a learning rate of 0, an infinite σ, counts as `LEAST_LR`."""
        return cls(rule, {**group, "lr": max(float(group["lr"]), LEAST_LR), "capturable": False}, number)

    def numbers(self, t: float) -> StepScalars:
        """The numbers of step `t`, on the host."""
        known = self._numbers.get(t)
        if known is None:
            if len(self._numbers) == _KEPT:
                self._numbers.clear()
            scalars = self.rule.host_scalars(self.group, int(t), self._rate)
            start = (self.settings.sigma_0 or 0.0, 0.0 if self.settings.frozen else 1.0)
            known = self._numbers[t] = StepScalars(scalars, start, step_seed(int(t)))
        return known

    def prepare(self, parameter: Tensor, state: State) -> None:
        """Add to `state` what it lacks."""
        dtype = self.group["state_dtype"] or compute_dtype(parameter.dtype)
        device = parameter.device if self.execution.capturable else torch.device("cpu")
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=device)
            for name, value in self.initial.items():
                state[name] = torch.full_like(parameter, value, dtype=dtype)
        elif state["step"].device != device:
            state["step"] = state["step"].to(device)
        if "u" not in state and self._carries_u(parameter):
            state["u"] = torch.zeros_like(parameter, dtype=dtype)

    def prepare_in_rows(self, parameter: Tensor, state: State, claim: StateOwner | None = None) -> None:
        """Add to the state of a parameter in a store what it lacks: the step, and the claim under each part's name.

        Args:
            parameter: The parameter.
            state: Its state; changed.
            claim: By which the store holds the state; None for a new one.
        """
        if KEYS not in state:
            state.setdefault("step", torch.zeros((), dtype=torch.float32))
            state.update(dict.fromkeys((KEYS, *self.initial), claim or StateOwner()))
        if "u" not in state and self._carries_u(parameter):
            state["u"] = state[KEYS]

    def _carries_u(self, parameter: Tensor) -> bool:
        """Low-precision parameters carry u at λ = 0 too: it holds what their rounding lost."""
        return self.wants_u or parameter.dtype != compute_dtype(parameter.dtype)


def advance_steps(step: GroupStep, steps: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[StepScalars]:
    """Count a step of parameters, and give the numbers of each, without the host knowing any of them.

    Args:
        step: The step of the param group.
        steps: 0-d float32, on the parameters' devices; changed.
        dtypes: In which each computes.
    """
    if not steps:
        return []
    torch._foreach_add_(list(steps), 1)
    numbers: dict[int, StepScalars] = {}
    kinds = [(one.device, dtype) for one, dtype in zip(steps, dtypes, strict=True)]
    for kind in dict.fromkeys(kinds):
        here = [index for index, its in enumerate(kinds) if its == kind]
        numbers.update(zip(here, _numbers_on_device(step, [steps[index] for index in here], kind[1]), strict=True))
    return [numbers[index] for index in range(len(steps))]


def _numbers_on_device(step: GroupStep, steps: Sequence[Tensor], dtype: torch.dtype) -> list[StepScalars]:
    rule, group = step.rule, step.group
    t = torch.stack(list(steps)).double()
    lr: Any = group["lr"]
    if isinstance(lr, Tensor):
        lr = lr.to(t.device, torch.float64).reshape(())
        moves: Any = (lr >= VANISHING_LR).double()
        rate: Any = torch.where(lr >= VANISHING_LR, lr, 1.0)
    else:
        moves = float(lr >= VANISHING_LR)
        rate = lr if lr >= VANISHING_LR else 1.0
    sigma_0: Any = 0.0 if rule.sigma_0 is None else rule.host_sigma_0(group, rate)
    columns = [*rule.host_scalars(group, t, rate), sigma_0, moves]
    table = torch.stack([c.expand_as(t) if isinstance(c, Tensor) else torch.full_like(t, c) for c in columns], 1)
    seeds = step_seed(t.long())
    rows = zip(table.to(dtype).unbind(0), seeds.unbind(0), strict=True)
    return [StepScalars.of_row(row, seed) for row, seed in rows]
