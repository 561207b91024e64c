"""Carrying out a checked step: which backend takes which parameter, and rows that lie in a store of their own."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sparsegroup.kernels.backends import backends_of
from sparsegroup.kernels.numbers import Numbers
from sparsegroup.kernels.slot import compute_dtype
from sparsegroup.kernels.step_request import Backend, StepRequest, TensorStep
from sparsegroup.optim.group_step import GroupStep, Update, advance_steps
from sparsegroup.optim.places import Place, State
from sparsegroup.optim.stored import Claim, RowPlan, RowStep
from sparsegroup.rules import Rule


class Execution:
    """Carries out the steps of one optimizer.

    Args:
        rule: The optimizer's.
    """

    def __init__(self, rule: Rule) -> None:
        self._backends = backends_of(rule)
        self._places: dict[Tensor, Place] = {}

    def check(self) -> None:
        """Raise what a device has reported of the steps before, if it has come by now.

        Raises:
            IndexError: A sparse gradient had rows that its parameter has not.
        """
        for backend in self._backends:
            backend.check()

    def carry_out(self, step: GroupStep, updates: Sequence[Update], states: Mapping[Tensor, State]) -> None:
        """The updates of one param group. `states[parameter]` is empty before a parameter's first."""
        dense: list[Update] = []
        for update in updates:
            if update.plan is not None:
                _in_store(step, update.plan, states[update.parameter])
            else:
                dense.append(update)
        requests: dict[Backend, list[TensorStep]] = {}
        places = [self._place(step, update.parameter, states[update.parameter]) for update in dense]
        for update, place, numbers in zip(dense, places, _numbers(step, places), strict=True):
            slot = place.slot
            if slot.count * slot.width or slot.x.numel():
                tensor = TensorStep(
                    slot, numbers, update.gradient, update.hessian, update.rows, update.repeats, update.unchecked
                )
                requests.setdefault(place.backend(update.rows is not None), []).append(tensor)
        for backend, tensors in requests.items():
            backend.step(StepRequest(step.number, step.settings, tensors))

    def _place(self, step: GroupStep, parameter: Tensor, state: State) -> Place:
        place = self._places.get(parameter)
        if place is None or not place.holds(state, step.execution, step.wants_u):
            step.prepare(parameter, state)
            place = Place(parameter, state, tuple(step.rule.state), step.execution, self._backends)
            self._places[parameter] = place
        return place


def _numbers(step: GroupStep, places: Sequence[Place]) -> list[Numbers]:
    """What depends on the step counts, each of which is one higher now."""
    if not step.execution.capturable:
        return [step.numbers(place.count_step()) for place in places]
    return advance_steps(
        step, [place.step for place in places], [compute_dtype(place.slot.x.dtype) for place in places]
    )


def _in_store(step: GroupStep, plan: RowPlan, state: State) -> None:
    """Rows of a store, which keeps u and the rule's state beside them."""
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["claim"] = Claim()
    state["step"] += 1
    numbers = step.numbers(float(state["step"]))
    plan.apply(
        RowStep(
            step.rule, state["claim"], step.initial, step.group["state_dtype"], step.wants_u, numbers, step.settings
        )
    )
