"""Asking for a size: λ21 that a share of features or a number of bytes needs."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sparsegroup.names import bytes_of
from sparsegroup.optim.census import GroupCensus
from sparsegroup.optim.optimizer import GroupOptimizer, warn_of_fallback
from sparsegroup.optim.state import TARGET, TargetState
from sparsegroup.optim.table_parameter import store_of

SAMPLE, LEAST_SAMPLE = 65_536, 8_192
"""Groups of a parameter that λ21 is set by, of long and short trainings: so that they cost a hundredth of any."""

RAMP = 0.8
"""The share of the steps after which the target is reached; the rest trains the survivors."""

CONTROLS = 50
"""How often λ21 is set in a training whose steps are known."""

_INTERVAL = 200

_SLACK = 0.05
"""How far the rate may be from the schedule's before all groups are examined."""

_NEARLY = 0.98
"""Share of the target below which the user is warned."""

SMALLEST = 1e-30
"""The least λ21 above zero: what outlives it has a norm that float32 can tell from 0."""


class SizeTarget(ABC):
    """Base of `TargetRate` and `TargetBytes`: a schedule of the live share, and the λ21 that follows the schedule.

    The state is part of the optimizer's `state_dict()`, so that checkpoints hold the state. A target made before
    `optimizer.load_state_dict()` continues from the loaded state. A target made afterwards also continues, if it has
    the same size and steps and the last step is not reached. Any other new target starts at the current live share.

    Attributes:
        target: The share, or the bytes.
        optimizer: The optimizer.
        param_groups: Numbers of the param groups whose λ21 it sets.
        steps: Steps of the training, or None.
        ramp: Steps after which the target is reached.
        interval: Steps between two settings of λ21.
    """

    def __init__(
        self,
        optimizer: GroupOptimizer,
        steps: int | None,
        ramp: int | None,
        interval: int | None,
        param_groups: Sequence[int] | None,
        sample: int | None,
        seed: int,
    ) -> None:
        given = (("steps", steps, 1), ("ramp", ramp, 0), ("interval", interval, 1), ("sample", sample, 1))
        for name, value, least in given:
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"{name} must be an int >= {least} or None, got {value!r}")
        if not isinstance(optimizer, GroupOptimizer):
            raise TypeError(f"a target needs an optimizer of sparsegroup, got {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.param_groups = _chosen(optimizer, param_groups)
        for number in self.param_groups:
            warn_of_fallback(optimizer.param_groups[number]["params"], f"param group {number} of a size target")
        self.steps = steps
        self.ramp = ramp if ramp is not None else 0 if steps is None else math.ceil(RAMP * steps)
        self.interval = interval or (_INTERVAL if steps is None else max(1, steps // CONTROLS))
        self.sample = sample or (SAMPLE if steps is None else min(max(LEAST_SAMPLE, 4 * steps), SAMPLE))
        self.seed = seed
        self._final = 1.0
        self._has_warned = False
        self._own = TargetState(self.target, steps)
        group = optimizer.param_groups[self.param_groups[0]]
        if not self._continues(group.get(TARGET)):
            group[TARGET] = self._own
            self.restart()

    target: float

    @property
    def count(self) -> int:
        """Number of steps so far."""
        return self._state.count

    @property
    def l21(self) -> float:
        """Last value that λ21 was set to."""
        return self._state.l21

    @property
    def rate(self) -> float | None:
        """Live groups over groups seen when λ21 was last set; None before λ21 was set."""
        return self._state.rate

    @property
    def scheduled_rate(self) -> float | None:
        """Rate of the schedule when λ21 was last set."""
        return self._state.scheduled_rate

    # Its state is in a param group, where every checkpoint of the optimizer has it

    @property
    def _state(self) -> TargetState:
        group = self.optimizer.param_groups[self.param_groups[0]]
        found = group.get(TARGET)
        if found is not self._own:
            if isinstance(found, Mapping):  # the optimizer has been loaded since
                self._own = replace(TargetState(**found), target=self.target, steps=self.steps)
            group[TARGET] = self._own
        return self._own

    def _continues(self, found: Any) -> bool:
        """Return whether `found` is the loaded state of an unfinished target of this size and steps."""
        if not isinstance(found, Mapping):  # nothing, or the state of another target of this optimizer
            return False
        is_alike = (found["target"], found["steps"]) == (self.target, self.steps)
        return is_alike and (self.steps is None or found["count"] < self.steps)

    # What a subclass says

    @abstractmethod
    def _final_rate(self, censuses: Sequence[GroupCensus]) -> float:
        """The share of the groups seen that must live at the end, by the groups that there are now."""

    def _asked_rate(self) -> float:
        """The least share that the user expects: less than `_final_rate` if more is kept than was requested."""
        return 1.0

    @abstractmethod
    def _costs(self, censuses: Sequence[GroupCensus]) -> list[float]:
        """What a live group of each parameter costs, of the unit in which shares are counted."""

    # Use

    def step(self) -> None:
        """Follow the schedule; to be called after each `optimizer.step()`.

        At the last of `steps` it looks at all groups and sweeps, so that the target is met exactly. After the ramp it
        does so whenever rows that no batch touches have left the rate more than 5 % away from its target.

        Raises:
            ValueError: A param group's hyperparameters are out of range by now.
        """
        due = self.is_due
        self._state.count += 1
        if self.count == self.steps:
            self.settle()
        elif due:
            self.set_l21(self.sample)
            if self._is_away:
                self.settle()

    @property
    def is_due(self) -> bool:
        """Return whether the next `step` sets λ21. Do not `prefetch` before that step: the keys would count as seen.

        A training of unknown length may be short: before its first interval ends, λ21 is set at the steps 1, 2, 3, 4,
        6, 8, 12, 16, 24 … as well.
        """
        step = self.count + 1
        is_early = self.steps is None and step < self.interval and step % (1 << max(step.bit_length() - 2, 0)) == 0
        return is_early or step % self.interval == 0 or step == self.steps

    def settle(self) -> None:
        """Set λ21 by all groups and sweep: the live share becomes the schedule's at this moment.

        Rows of a table that were looked up and never had a non-zero gradient go first; see `GroupOptimizer.sweep`.
        """
        self._state.rate = self.set_l21(0)
        self.optimizer.sweep(zero_untrained=True)

    def set_l21(self, sample: int) -> float | None:
        """Set λ21 for the schedule's rate at this moment, without a sweep.

        Args:
            sample: How many groups of a parameter to look at, at most; 0 for all.

        Returns:
            The share that is left where that λ21 has reached all groups; None if nothing was seen yet.
        """
        censuses = self._censuses(sample)
        costs = self._costs(censuses)
        total = sum(cost * census.seen for cost, census in zip(costs, censuses, strict=True))
        if not total:
            return None
        state = self._state
        ahead = 0.0 if state.count >= self.ramp else (1 - state.count / self.ramp) ** 3
        self._final = scheduled = min(1.0, self._final_rate(censuses))
        if ahead > 0:
            scheduled += (max(state.begin, self._final) - self._final) * ahead
        state.rate, state.scheduled_rate = rate_of(censuses, costs), scheduled
        l21 = l21_for(censuses, costs, scheduled * total)
        parts = zip(costs, censuses, strict=True)
        live = sum(cost * one.weight * float((one.critical > l21).sum()) for cost, one in parts)
        self._warn(costs, total, live, l21)
        self._hand_over(l21)
        return live / total

    @property
    def _is_away(self) -> bool:
        """Whether the schedule has ended, and rows that no batch has touched since are away from it."""
        if self.rate is None or self.scheduled_rate is None or self.scheduled_rate > self._final * (1 + _SLACK):
            return False
        return abs(self.rate - self.scheduled_rate) > _SLACK * self.scheduled_rate

    def _warn(self, costs: Sequence[float], total: float, live: float, l21: float) -> None:
        """Warn, once, about a target of less than one group, or of more groups than have any gradient."""
        over = self.count >= self.interval if self.steps is None else self.count == self.steps
        if self._has_warned or not over:
            return
        wanted = self._final * total
        if wanted < min(costs):
            why = "less than one group: nothing will be left"
        elif l21 == SMALLEST and live < _NEARLY * min(wanted, self._asked_rate() * total):
            why = f"more than the groups that have had a gradient: {live / total:.2g} of all will be left"
        else:
            return
        self._has_warned = True
        warnings.warn(f"{self} is {why}", RuntimeWarning, stacklevel=4)

    def _censuses(self, sample: int) -> list[GroupCensus]:
        seed = (self.seed, self.count)
        return [one for number in self.param_groups for one in self.optimizer.census(number, sample, seed)]

    def restart(self) -> None:
        """Restart the schedule at the share that lives now: for groups that start again in another epoch.

        `steps` and `ramp` then count within one epoch.
        """
        state = self._state
        state.count, state.rate, state.scheduled_rate = 0, None, None
        censuses = self._censuses(self.sample)
        state.begin = rate_of(censuses, [1.0] * len(censuses)) or 1.0
        self._hand_over(0.0)
        self.set_l21(self.sample)

    def _hand_over(self, l21: float) -> None:
        # A rule without state tells a row that was updated by its u alone, which a λ above 0 keeps.
        if not self.optimizer.rule.state:
            l21 = max(l21, SMALLEST)
        self._state.l21 = l21
        for number in self.param_groups:
            self.optimizer.param_groups[number]["l21"] = l21


def l21_for(censuses: Sequence[GroupCensus], costs: Sequence[float], budget: float) -> float:
    """Return the smallest λ21 at which the live groups of some parameters cost no more than a budget.

    0 if all may live; else halfway between the last group that lives and the first that does not, and at least
    `SMALLEST`, so that groups without any gradient can be among the dead. Equal ones are all dead.
    """
    critical = np.concatenate([np.empty(0), *(census.critical for census in censuses)])
    if not len(critical):
        return 0.0
    budget *= 1 + 1e-9  # what is more is no rounding
    prices = [cost * one.weight for one, cost in zip(censuses, costs, strict=True)]
    different = {price for one, price in zip(censuses, prices, strict=True) if len(one.critical)}
    if len(different) == 1:
        kept = min(int(budget / different.pop()), len(critical))
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


def rate_of(censuses: Sequence[GroupCensus], costs: Sequence[float]) -> float | None:
    """The share of the groups seen that is live, each counted by its cost; None where none was seen."""
    seen = sum(cost * census.seen for cost, census in zip(costs, censuses, strict=True))
    return sum(cost * census.live for cost, census in zip(costs, censuses, strict=True)) / seen if seen else None


def _chosen(optimizer: GroupOptimizer, numbers: Sequence[int] | None) -> tuple[int, ...]:
    groups = optimizer.param_groups
    if numbers is None:
        tables = [n for n, group in enumerate(groups) if any(store_of(p) is not None for p in group["params"])]
        numbers = tables or [number for number, group in enumerate(groups) if group["l21"] > 0]
        if not numbers:
            raise ValueError(
                "no param group holds a HashEmbedding or has a positive l21: say which are to be made sparse, by "
                "param_groups=[…]"
            )
    for number in numbers:
        if not 0 <= number < len(groups):
            raise ValueError(f"param_groups: the optimizer has {len(groups)} param groups, no number {number}")
    if not len(numbers):
        raise ValueError("param_groups must name at least one param group")
    for number in numbers:
        if groups[number]["capturable"]:
            raise ValueError(
                f"param group {number} has capturable=True: a captured step keeps the λ21 it was captured with"
            )
    return tuple(numbers)


class TargetRate(SizeTarget):
    """Keeps a share of the groups: λ21 follows a schedule from all of them to `rate`, which no user has to guess.

    Every some steps λ21 becomes the quantile of what groups outlive, ‖u - σ x‖ / √d for norm "s", over those seen, such
    that the scheduled share of them lives. The share falls along a cubic, as in gradual pruning (Zhu and Gupta, 2017),
    and stays while the survivors train. Zero groups still accumulate gradients and return if these persist. With
    `penalty="hard"` the survivors are not shrunk: the recommended one.

    Args:
        optimizer: The optimizer.
        rate: Live groups over groups seen, in (0, 1]: rows of a table over distinct features ever seen in training,
            rows of an `nn.Embedding` over the rows that had a gradient.
        steps: Steps of the training. None, for a stream of unknown length: the rate is held within 10 %.
        ramp: Steps until the rate is reached; by default 80 % of `steps`, and 0, immediately, if these are unknown.
        interval: Steps between two settings of λ21; by default a fiftieth of `steps`, or 200. Without `steps` it is set
            more often before the first interval ends.
        param_groups: Numbers of the optimizer's param groups whose λ21 is set, together; by default those that hold a
            `HashEmbedding`, or, without one, those whose l21 is positive. For targets that differ, make several
            `TargetRate`s.
        least: Groups that are kept even where `rate` is less; all, where there are fewer.
        sample: Groups of each parameter to look at; by default 65,536, and down to 8,192 in short trainings.
        seed: For drawing the sample.

    Raises:
        ValueError: A number out of range, or no param group to be chosen.
        TypeError: Not an optimizer of this library.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, HashEmbedding, TargetRate
        >>> table = HashEmbedding(4)
        >>> optimizer = GroupAdam(table.parameters(), penalty="hard")
        >>> target = TargetRate(optimizer, 0.1, steps=50)
        >>> for _ in range(50):
        ...     optimizer.zero_grad()
        ...     table(torch.randint(1000, (64,))).square().sum().backward()
        ...     optimizer.step()
        ...     target.step()
        >>> 0.098 <= table.feature_rate <= 0.102
        True
    """

    def __init__(
        self,
        optimizer: GroupOptimizer,
        rate: float,
        *,
        steps: int | None = None,
        ramp: int | None = None,
        interval: int | None = None,
        param_groups: Sequence[int] | None = None,
        sample: int | None = None,
        seed: int = 0,
        least: int = 0,
    ) -> None:
        if not 0 < rate <= 1:
            raise ValueError(f"rate must be in (0, 1], got {rate}")
        if not isinstance(least, int) or isinstance(least, bool) or least < 0:
            raise ValueError(f"least must be an int >= 0, got {least!r}")
        self.target, self.least = float(rate), least
        super().__init__(optimizer, steps, ramp, interval, param_groups, sample, seed)

    def __str__(self) -> str:
        return f"a feature rate of {self.target:g}"

    def _asked_rate(self) -> float:
        return self.target

    def _final_rate(self, censuses: Sequence[GroupCensus]) -> float:
        seen = sum(census.seen for census in censuses)
        return max(self.target, self.least / seen if seen else 0.0)

    def _costs(self, censuses: Sequence[GroupCensus]) -> list[float]:
        return [1.0] * len(censuses)


class TargetBytes(SizeTarget):
    """Keeps as many groups as fit: as `TargetRate`, for a compact model of this many bytes.

    Counted is what the live groups take where the model is served: their weights in the dtype of training, and 8 bytes
    for each key of a table. Features that training has not seen yet are not known before: the share follows.

    Args:
        optimizer: The optimizer.
        size: Bytes, or a text such as "200MB", "1.5 GiB".
        steps, ramp, interval, param_groups, sample, seed: See `TargetRate`.

    Raises:
        ValueError: Not a size, a number out of range, or no param group to be chosen.
        TypeError: Not an optimizer of this library.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, HashEmbedding, TargetBytes
        >>> table = HashEmbedding(4)
        >>> optimizer = GroupAdam(table.parameters(), penalty="hard")
        >>> TargetBytes(optimizer, "2 kB", steps=1000).target
        2000
    """

    def __init__(
        self,
        optimizer: GroupOptimizer,
        size: int | str,
        *,
        steps: int | None = None,
        ramp: int | None = None,
        interval: int | None = None,
        param_groups: Sequence[int] | None = None,
        sample: int | None = None,
        seed: int = 0,
    ) -> None:
        self.target = bytes_of(size)
        super().__init__(optimizer, steps, ramp, interval, param_groups, sample, seed)

    def __str__(self) -> str:
        return f"a size of {self.target:,} bytes"

    def _final_rate(self, censuses: Sequence[GroupCensus]) -> float:
        total = sum(census.live_bytes * census.seen for census in censuses)
        return self.target / total if total else 1.0

    def _costs(self, censuses: Sequence[GroupCensus]) -> list[float]:
        return [float(census.live_bytes) for census in censuses]
