"""Which λ21 the groups of a parameter outlive: what a target is reached by."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

KEY_BYTES = 8
"""What a live row takes beside its vector where a model is served: its key."""

SMALLEST = 1e-30
"""The least λ21 above zero: what outlives it has a norm that float32 can tell from 0."""


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
        0 where all may live; else halfway between the last group that lives and the first that does not, and at least
        `SMALLEST`, so that groups without any gradient can be among the dead. Equal ones are all dead.
    """
    critical = np.concatenate([np.empty(0), *(census.critical for census in censuses)])
    if not len(critical):
        return 0.0
    budget *= 1 + 1e-9  # what is more is no rounding
    prices = [cost * one.weight for one, cost in zip(censuses, costs, strict=True)]
    if len({price for one, price in zip(censuses, prices, strict=True) if len(one.critical)}) == 1:
        kept = min(int(budget / max(prices)), len(critical))
        around = [place for place in (len(critical) - kept - 1, len(critical) - kept) if 0 <= place < len(critical)]
        ascending = np.partition(critical, around) if around else critical
        last_live = ascending[len(critical) - kept] if kept else None
        first_dead = ascending[len(critical) - kept - 1] if kept < len(critical) else None
    else:
        order = np.argsort(-critical, kind="stable")
        critical = critical[order]
        price = np.concatenate(
            [np.empty(0), *(np.full(len(c.critical), p) for c, p in zip(censuses, prices, strict=True))]
        )
        kept = int(np.searchsorted(np.cumsum(price[order]), budget, side="right"))
        last_live = critical[kept - 1] if kept else None
        first_dead = critical[kept] if kept < len(critical) else None
    if first_dead is None:
        return 0.0
    between = float(first_dead if last_live is None else (first_dead + last_live) / 2)
    return max(between, SMALLEST)
