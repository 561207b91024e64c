"""A part of what a target is set for: groups that share one λ21 and one schedule."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparsegroup.optim.group_census import GroupCensus, l21_for

_SLACK = 0.05

_DOUBT = 4.0
"""Standard errors of a sampled rate that are put down to the sample."""


@dataclass
class TargetPart:
    """All groups; or those of one field of a table's keys, or of all fields that are not named.

    Attributes:
        field: The field; None for all (others).
        begin: The share that lived when the schedule began.
        final: The share that is to live at its end.
        l21: λ21 as it was set last.
        rate: Live groups over groups seen, as of then; None where none was seen.
        scheduled_rate: What the schedule asked for then.
        cost: What the groups seen would cost if all of them lived.
        warned: Whether it has been said that what was asked for cannot be had.
        is_sampled: Whether live groups are counted in a sample, as those of a field are.
    """

    field: int | None = None
    begin: float = 1.0
    final: float = 1.0
    l21: float = 0.0
    rate: float | None = None
    scheduled_rate: float | None = None
    cost: float = 0.0
    warned: bool = False
    is_sampled: bool = False
    _doubt: float = 0.0

    def set_l21(self, censuses: Sequence[GroupCensus], costs: Sequence[float], final: float, share: float) -> float:
        """Set λ21 such that the scheduled share of the groups lives.

        Args:
            censuses: The groups of this part.
            costs: What a live group of each costs.
            final: The share that is to live at the end.
            share: What is still ahead of the way from `begin` to there.

        Returns:
            What the groups cost that live at that λ21.
        """
        self.cost = sum(cost * census.seen for cost, census in zip(costs, censuses, strict=True))
        self.final = min(1.0, final)
        self.rate = rate_of(censuses, costs)
        if self.rate is None:
            self.l21, self.scheduled_rate = 0.0, None
            return 0.0
        self.scheduled_rate = self.final
        if share > 0:
            self.scheduled_rate += (max(self.begin, self.final) - self.final) * share
        self._doubt = self._doubt_of(censuses)
        self.l21 = l21_for(censuses, costs, self.scheduled_rate * self.cost)
        left = zip(costs, censuses, strict=True)
        return sum(cost * one.weight * float((one.critical > self.l21).sum()) for cost, one in left)

    def _doubt_of(self, censuses: Sequence[GroupCensus]) -> float:
        """How far a rate that was told from a sample of a table's rows may be from what it is."""
        looked_at = sum(len(census.critical) for census in censuses)
        if not self.is_sampled or self.scheduled_rate is None or all(census.weight <= 1 for census in censuses):
            return 0.0
        return _DOUBT * math.sqrt(self.scheduled_rate * (1 - self.scheduled_rate) / looked_at)

    @property
    def is_away(self) -> bool:
        """Whether the schedule has come to its end, and rows that no batch has touched since are not there."""
        if self.rate is None or self.scheduled_rate is None or self.scheduled_rate > self.final * (1 + _SLACK):
            return False
        return abs(self.rate - self.scheduled_rate) > _SLACK * self.scheduled_rate + self._doubt


def rate_of(censuses: Sequence[GroupCensus], costs: Sequence[float]) -> float | None:
    """The share of the groups seen that is live, each counted by its cost; None where none was seen."""
    seen = sum(cost * census.seen for cost, census in zip(costs, censuses, strict=True))
    return sum(cost * census.live for cost, census in zip(costs, censuses, strict=True)) / seen if seen else None
