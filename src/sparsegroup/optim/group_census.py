"""Which λ21 the groups of a parameter outlive: what a target is reached by."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class GroupCensus:
    """The groups of one parameter, or a sample of them.

    Attributes:
        critical: `[n]` float64, the largest λ21 at which each group is zero.
        weight: How many groups each of these stands for.
        live: Groups that are not zero at present; an estimate where it is a sample.
        seen: Groups ever seen, of which a rate is a share; likewise.
        live_bytes: What a live group takes in a compact model: its weights, and 8 bytes for the key of a table's row.
    """

    critical: npt.NDArray[np.float64]
    weight: float
    live: float
    seen: float
    live_bytes: int


def l21_for(censuses: Sequence[GroupCensus], costs: Sequence[float], budget: float) -> float:
    """The smallest λ21 at which the live groups of some parameters cost no more than a budget.

    Args:
        censuses: One of each parameter.
        costs: What a live group of each costs.
        budget: ≥ 0, in the same unit.

    Returns:
        0 where all may live; else halfway between the last group that lives and the first that does not.
    """
    critical = np.concatenate([np.empty(0), *(census.critical for census in censuses)])
    each = [np.full(len(one.critical), cost * one.weight) for one, cost in zip(censuses, costs, strict=True)]
    cost = np.concatenate([np.empty(0), *each])
    order = np.argsort(-critical, kind="stable")
    critical, total = critical[order], np.cumsum(cost[order])
    kept = int(np.searchsorted(total, budget * (1 + 1e-9), side="right"))  # more than that is no rounding
    if kept == len(critical):
        return 0.0
    return float(critical[kept] if not kept else (critical[kept] + critical[kept - 1]) / 2)
