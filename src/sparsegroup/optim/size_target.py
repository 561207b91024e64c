"""λ21 set along the way so that a chosen share of the groups is left: what all targets share."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from sparsegroup.optim.base import GroupOptimizer
from sparsegroup.optim.group_census import SMALLEST, GroupCensus
from sparsegroup.optim.stored import store_of
from sparsegroup.optim.target_part import TargetPart, rate_of

SAMPLE, LEAST_SAMPLE = 65_536, 8_192
"""Groups of a parameter that λ21 is set by, of long and short trainings: so that they cost a hundredth of any."""

RAMP = 0.8
"""The share of the steps after which the target is reached; the rest trains the survivors."""

CONTROLS = 50
"""How often λ21 is set in a training whose steps are known."""

_INTERVAL = 200

_NEARLY = 0.98
"""Of what was asked for: who ends below has to be told."""


class SizeTarget(ABC):
    """What `TargetRate` and `TargetBytes` share: a schedule of the live share, and λ21 set to follow it.

    Attributes:
        target: The share, or the bytes.
        optimizer: The optimizer.
        param_groups: Numbers of the param groups whose λ21 it sets.
        steps: Steps of the training, or None.
        ramp: Steps after which the target is reached.
        interval: Steps between two settings of λ21.
        count: Steps so far.
        fields: Fields of a table's keys that have targets of their own.
        l21: λ21 as it was set last; of all other fields where some have their own.
        field_l21: Theirs: field → λ21.
        rate: Live groups over groups seen, as of the last setting; None before the first.
        scheduled_rate: What the schedule asked for then.
    """

    def __init__(
        self,
        optimizer: GroupOptimizer,
        *,
        steps: int | None,
        ramp: int | None,
        interval: int | None,
        param_groups: Sequence[int] | None,
        sample: int | None,
        seed: int,
        fields: Sequence[int] = (),
    ) -> None:
        given = (("steps", steps, 1), ("ramp", ramp, 0), ("interval", interval, 1), ("sample", sample, 1))
        for name, value, least in given:
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise ValueError(f"{name} must be an int >= {least} or None, got {value!r}")
        if not isinstance(optimizer, GroupOptimizer):
            raise TypeError(f"a target needs an optimizer of sparsegroup, got {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.param_groups = _chosen(optimizer, param_groups)
        self.fields = tuple(fields)
        _check_fields(optimizer, self.param_groups, self.fields)
        self.steps = steps
        self.ramp = ramp if ramp is not None else 0 if steps is None else math.ceil(RAMP * steps)
        self.interval = interval or (_INTERVAL if steps is None else max(1, steps // CONTROLS))
        self.sample = sample or (SAMPLE if steps is None else min(max(LEAST_SAMPLE, 4 * steps), SAMPLE))
        self.seed = seed
        self.count = 0
        self.rate: float | None = None
        self.scheduled_rate: float | None = None
        sampled = bool(self.fields)
        self._parts = [TargetPart(field, is_sampled=sampled) for field in (None, *self.fields)]
        self._begin()
        self._hand_over()
        self.set_l21(self.sample)

    target: float

    # What a subclass says

    @abstractmethod
    def _final_rate(self, field: int | None, censuses: Sequence[GroupCensus]) -> float:
        """The share of the groups seen that is to live at the end, by what there is now.

        Args:
            field: The field of a table's keys that they are of; None for all, or those of all fields without a target.
            censuses: The groups.
        """

    def _asked_rate(self, field: int | None) -> float:
        """The share that whoever asked expects at least: less than `_final_rate` where more is kept than was asked."""
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
        self.count += 1
        if self.count == self.steps:
            self.settle()
        elif due:
            self.set_l21(self.sample)
            if any(part.is_away for part in self._parts):
                self.settle()

    @property
    def is_due(self) -> bool:
        """Whether the next `step` sets λ21. Don't `prefetch` before it: the next batch's keys would count as seen."""
        return (self.count + 1) % self.interval == 0 or self.count + 1 == self.steps

    def settle(self) -> None:
        """Set λ21 by all groups and sweep: the live share is what the schedule asks for at this moment.

        Rows of a table that were looked up and never had a non-zero gradient go first; see `GroupOptimizer.sweep`.
        """
        self.rate = self.set_l21(0)
        self.optimizer.sweep(drop_untrained=True)

    def set_l21(self, sample: int) -> float | None:
        """Set λ21 to what the schedule asks for at this moment, without a sweep.

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
        ahead = 0.0 if self.count >= self.ramp else (1 - self.count / self.ramp) ** 3
        left = 0.0
        for part in self._parts:
            own = [(one, cost) for one, cost in zip(censuses, costs, strict=True) if one.field == part.field]
            its_censuses, its_costs = [one for one, _ in own], [cost for _, cost in own]
            final = self._final_rate(part.field, its_censuses)
            live = part.set_l21(its_censuses, its_costs, final, ahead)
            left += live
            self._warn(part, its_costs, live)
        self.rate = rate_of(censuses, costs)
        self.scheduled_rate = self._parts[0].scheduled_rate
        if self.fields:
            self.scheduled_rate = sum((part.scheduled_rate or 0.0) * part.cost for part in self._parts) / total
        self._hand_over()
        return left / total

    def _warn(self, part: TargetPart, costs: Sequence[float], live: float) -> None:
        """Say so, once, where a part is asked for less than a group of it, or for more than have any gradient."""
        over = self.steps is None or self.count == self.steps
        if part.warned or not over or not part.cost:
            return
        wanted = part.final * part.cost
        if wanted < min(costs):
            why = "less than one group: nothing will be left"
        elif part.l21 == SMALLEST and live < _NEARLY * min(wanted, self._asked_rate(part.field) * part.cost):
            why = f"more than the groups that have had a gradient: {live / part.cost:.2g} of all will be left"
        else:
            return
        part.warned = True
        asked = str(self) if part.field is None else f"{self.describe(part.field)} in field {part.field}"
        warnings.warn(f"{asked} is {why}", RuntimeWarning, stacklevel=4)

    def describe(self, field: int) -> str:
        """What is asked for of a field, in words."""
        return str(self)

    def _censuses(self, sample: int) -> list[GroupCensus]:
        seed = (self.seed, self.count)
        if self.fields and sample:
            sample = max(sample // len(self._parts), min(sample, LEAST_SAMPLE))
        groups = self.param_groups
        return [one for number in groups for one in self.optimizer.census(number, sample, seed, self.fields)]

    def _begin(self) -> None:
        """Begin the schedule at the share that lives at present."""
        censuses = self._censuses(self.sample)
        for part in self._parts:
            own = [one for one in censuses if one.field == part.field]
            part.begin = rate_of(own, [1.0] * len(own)) or 1.0

    def restart(self) -> None:
        """Begin the schedule anew, at the share that lives now: for groups that start again in another epoch.

        `steps` and `ramp` are then those of one epoch.
        """
        self.count = 0
        self.rate = self.scheduled_rate = None
        for part in self._parts:
            part.l21, part.rate, part.scheduled_rate = 0.0, None, None
        self._begin()
        self._hand_over()
        self.set_l21(self.sample)

    @property
    def l21(self) -> float:
        """See above."""
        return self._parts[0].l21

    @property
    def field_l21(self) -> dict[int, float]:
        """See above."""
        return {part.field: part.l21 for part in self._parts if part.field is not None}

    def _hand_over(self) -> None:
        # A rule without state tells a row that was updated by its u alone, which a λ above 0 keeps.
        if not self.optimizer.rule.state:
            for part in self._parts:
                part.l21 = max(part.l21, SMALLEST)
        for number in self.param_groups:
            group = self.optimizer.param_groups[number]
            group["l21"] = self.l21
            group.pop("field_l21", None)
            if self.fields:
                group["field_l21"] = self.field_l21

    def state_dict(self) -> dict[str, Any]:
        """Numbers from which `load_state_dict` goes on; λ21 is in the optimizer's state."""
        state: dict[str, Any] = {
            "count": self.count,
            "begin": self._parts[0].begin,
            "l21": self.l21,
            "rate": self.rate,
            "scheduled_rate": self.scheduled_rate,
        }
        if self.fields:
            state["fields"] = {part.field: {"begin": part.begin, "l21": part.l21} for part in self._parts[1:]}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` found another target with the same arguments.

        Raises:
            ValueError: That one had targets for other fields; nothing has changed.
        """
        theirs = state.get("fields", {})
        if set(theirs) != set(self.fields):
            given, own = sorted(theirs), sorted(self.fields)
            raise ValueError(f"the state is of a target with the fields {given}, this one has {own}: give it the same")
        self.count = int(state["count"])
        self.rate, self.scheduled_rate = state["rate"], state["scheduled_rate"]
        for part in self._parts:
            saved = state if part.field is None else theirs[part.field]
            part.begin, part.l21 = float(saved["begin"]), float(saved["l21"])
        self._hand_over()


def _chosen(optimizer: GroupOptimizer, numbers: Sequence[int] | None) -> tuple[int, ...]:
    groups = optimizer.param_groups
    if numbers is not None:
        for number in numbers:
            if not 0 <= number < len(groups):
                raise ValueError(f"param_groups: the optimizer has {len(groups)} param groups, no number {number}")
        if not len(numbers):
            raise ValueError("param_groups must name at least one param group")
        return _checked(optimizer, numbers)
    tables = [n for n, group in enumerate(groups) if any(store_of(p) is not None for p in group["params"])]
    chosen = tables or [number for number, group in enumerate(groups) if group["l21"] > 0]
    if not chosen:
        raise ValueError(
            "no param group holds a HashEmbedding or has a positive l21: say which are to be made sparse, by "
            "param_groups=[…]"
        )
    return _checked(optimizer, chosen)


def _checked(optimizer: GroupOptimizer, numbers: Sequence[int]) -> tuple[int, ...]:
    for number in numbers:
        if optimizer.param_groups[number]["capturable"]:
            raise ValueError(
                f"param group {number} has capturable=True: a captured step keeps the λ21 it was captured with"
            )
    return tuple(numbers)


def _check_fields(optimizer: GroupOptimizer, numbers: Sequence[int], fields: Sequence[int]) -> None:
    for number in numbers if fields else ():
        where = f"param group {number}"
        stores = [store_of(parameter) for parameter in optimizer.param_groups[number]["params"]]
        if all(store is None for store in stores):
            raise ValueError(f"fields are of a HashEmbedding's keys: {where} has no HashEmbedding; leave it out")
        for store in stores:
            if store is not None:
                store.check_fields(fields, where)
