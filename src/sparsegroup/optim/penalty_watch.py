"""A look at the first dense gradient of each embedding: a penalty on the whole weight would update every row."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sparsegroup.groups import is_rows
from sparsegroup.optim.group_step import GroupStep
from sparsegroup.optim.plans import ParameterPlan, ParameterSite

_FEWEST_ROWS = 256
"""Of a weight that is looked at: a batch may well hold all rows of a smaller one."""

_SAMPLE = 1024
_TOLERANCE = 0.01
"""How far a gradient may be from the penalty's, relatively: a few roundings of bfloat16."""


class PenaltyWatch:
    """Warns, once for a parameter, where λ21 meets a penalty on a whole weight that a model adds to its loss.

    A group that never had a non-zero gradient is left as it is. The gradient of a penalty such as `c * (x ** 2).sum()`
    is not zero in rows that no batch has held: it counts as an update of them all, and as nothing but the penalty
    insists on them, λ21 makes them zero.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def look(self, step: GroupStep, plans: Sequence[ParameterPlan]) -> None:
        """Look at the gradients of parameters that are stepped with a λ21 for the first time; nothing is changed."""
        seen = self._seen
        new = [plan for plan in plans if id(plan.parameter) not in seen]
        if not new:
            return
        seen.update(id(plan.parameter) for plan in new)
        if not is_rows(step.group["groups"]) or step.execution.capturable:
            return
        numbers = {id(parameter): number for number, parameter in enumerate(step.group["params"])}
        found = []
        for plan in new:
            if plan.is_dense and (kind := penalty_in(plan.parameter, plan.gradient)) is not None:
                found.append((ParameterSite.of(step.group, (step.number, numbers[id(plan.parameter)])), kind))
        if found:
            warnings.warn(_message(found, step.group), RuntimeWarning, stacklevel=6)


def penalty_in(parameter: Tensor, gradient: Tensor) -> str | None:
    """Which multiple of the weights, or of their signs, the gradient of most rows is; None if it is none.

    Args:
        parameter: `[rows, …]`.
        gradient: Dense, shaped as `parameter`. Some 1,000 rows of both are read.
    """
    if parameter.ndim < 2 or len(parameter) < _FEWEST_ROWS or type(gradient) is not Tensor:
        return None
    apart = -(-len(parameter) // _SAMPLE)
    x, g = (tensor.detach()[::apart].flatten(1).double() for tensor in (parameter, gradient))
    for shape, name in ((x, "the weights"), (x.sign(), "their signs")):
        ratios = (g / shape)[(g != 0) & (shape != 0)]
        if not len(ratios):
            return None
        factor = ratios.median()
        its = factor * shape
        alike = ((g - its).abs() <= _TOLERANCE * its.abs()).all(dim=1) & (x != 0).any(dim=1)
        if 2 * int(alike.sum()) > len(x):
            return f"{factor.item():.3g} times {name}"
    return None


def _message(found: Sequence[tuple[ParameterSite, str]], group: Mapping[str, Any]) -> str:
    (site, kind), others = found[0], len(found) - 1
    also = f", and so for {others} more parameters" if others > 1 else ", and so for one more" if others else ""
    if group.get("weight_decay"):
        source, remedy = f"weight_decay={group['weight_decay']:g}", "weight_decay=0"
    else:
        source, remedy = "a penalty of the model on the whole weight", "the model's own penalty 0 (its l2_reg, say)"
    return (
        f"the gradient of most rows is {kind} ({site}{also}): {source} updates every row, also those that no batch has "
        f"held, and with l21 > 0 these become zero. Make {remedy} and give the optimizer l2 instead, which leaves "
        "such rows alone"
    )
