"""One step of a param group: a plan for each parameter, made and checked before anything changes, then run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.groups import Grouping, grouping
from sparsegroup.kernels.step import (
    Backend,
    ParameterMemory,
    Regularizer,
    StepConstants,
    StepScalars,
    TensorPlan,
    array_of,
    compute_dtype,
)
from sparsegroup.optim.arguments import threshold_of
from sparsegroup.optim.dtensor import local_entry
from sparsegroup.optim.state import as_count
from sparsegroup.optim.table_parameter import KEYS, StateOwner
from sparsegroup.rules import Rule

KEY_BYTES = 8
"""Bytes of a live row in a served model in addition to its vector: its key."""

SMALLEST = 1e-30
"""The least λ21 above zero: what outlives it has a norm that float32 can tell from 0."""


@dataclass(frozen=True)
class GroupCensus:
    """The groups of one parameter, or a sample of them."""

    critical: npt.NDArray[np.float64]  # `[n]` float64, the largest λ21 at which each group is zero
    weight: float  # how many groups each of these represents
    live: float  # groups that are not zero at present; an estimate where it is a sample
    seen: float  # groups ever seen, of which a rate is a share; also an estimate then
    live_bytes: int  # what a live group takes in a compact model: its weights, and 8 bytes for the key of a table's row


def l21_for(censuses: Sequence[GroupCensus], costs: Sequence[float], budget: float) -> float:
    """The smallest λ21 at which the live groups of some parameters, each at its cost, cost no more than a budget.

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


VANISHING_LR = 2.0**-50
"""Learning rates below this count as 0: they move nothing, and ‖s‖², of order lr⁻², may overflow float32."""

LEAST_LR = 2.0**-20
"""The learning rate of a sweep where it is 0: small enough for σ to be what decides, too large to overflow."""

_KEPT = 16
"""Step counts whose scalars are kept: parameters that were added together are at the same."""


CPU = torch.device("cpu")

Entry = dict[str, Any]
"""The optimizer's state of one parameter."""


class ParameterSite(NamedTuple):
    """Which parameter an error is about, by the numbers of its param group and in it; its text is for messages."""

    group: int
    number: int
    names: Sequence[str] | None = None

    def __str__(self) -> str:
        return f"param group {self.group}, {self.names[self.number] if self.names else f'parameter {self.number}'}"


class RowsPlan(Protocol):
    """What a step will do to a table's rows. All that can fail has been checked, and nothing is changed yet."""

    @property
    def parameter(self) -> Tensor: ...

    @property
    def gradient(self) -> Tensor:
        """`[n, dim]`, in the order in which a second input must come: that of the coalesced gradient."""

    def with_second_input(self, second_input: Tensor) -> Self:
        """Return the plan with the rule's second input, shaped as `gradient`. FloatingPointError: not finite."""

    def run(self, step: "GroupStep", scalars: StepScalars, entry: Entry) -> None:
        """Take the step."""


class RepeatedPlans:
    """The plans of a param group's tensors in the step before, run again while gradients and memory are alike.

    `others` are the numbers in the group of the parameters that are planned one by one.
    """

    def __init__(
        self, step: "GroupStep", plans: Sequence[TensorPlan], states: Mapping[Tensor, Entry], requests: "Requests"
    ) -> None:
        self.plans, self.requests = plans, requests
        memories = [plan.memory for plan in plans]
        own = {id(memory.x) for memory in memories}
        self.others = [number for number, parameter in enumerate(step.group["params"]) if id(parameter) not in own]
        self.counters = [memory.counter for memory in memories]
        self._expected = [(plan, one.x, one.shape, one.stride, one.dtype) for plan in plans for one in [plan.memory]]
        self._all_entries, self._entries = list(states.values()), [states[memory.x] for memory in memories]
        self._tensors = [tensor for memory in memories for tensor in memory.entries]
        self._located = [*(memory.x for memory in memories), *self._tensors]
        self._addresses = list(map(Tensor.data_ptr, self._located))

    def take(self, states: Mapping[Tensor, Entry]) -> bool:
        """Read the gradients; False if one must be checked or changed, or a parameter or its state has moved."""
        for plan, x, shape, stride, dtype in self._expected:
            gradient = x.grad
            if (
                gradient is None
                or gradient.layout is not torch.strided
                or gradient.dtype is not dtype
                or not gradient.shape == shape == x.shape
                or x.stride() != stride
            ):
                return False
            plan.gradient = gradient
        return (
            len(states) == len(self._all_entries)
            and all(map(is_, states.values(), self._all_entries))
            and sum(map(len, self._entries)) == len(self._tensors)
            and all(map(is_, chain.from_iterable(map(dict.values, self._entries)), self._tensors))
            and list(map(Tensor.data_ptr, self._located)) == self._addresses
        )

    def run(self, step: "GroupStep") -> None:
        """Take the step."""
        counts = [counter.item() + 1.0 for counter in self.counters]
        for plan, counter, count in zip(self.plans, self.counters, counts, strict=True):
            counter[()] = count
            plan.scalars = step.scalars(count)
        step.carry_out(self.requests, self.plans)


Plan: TypeAlias = TensorPlan | RowsPlan | RepeatedPlans
Requests: TypeAlias = dict[Backend, list[TensorPlan]]


class Stepper(Protocol):
    """What an optimizer does with one kind of parameter: with tensors, parts of DTensors, or rows of a table."""

    def check(self, parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
        """Raise ValueError, TypeError or RuntimeError unless the parameter fits its param group."""

    def plan(
        self, parameter: Tensor, gradient: Tensor, step: "GroupStep", states: Mapping[Tensor, Entry], number: int
    ) -> Plan:
        """Read the gradient. All that can fail fails here; nothing is changed."""

    def census(
        self, parameter: Tensor, step: "GroupStep", entry: Entry, sample: int, draw: np.random.Generator
    ) -> list[GroupCensus]:
        """Up to which λ21 the parameter's groups survive; of `sample` groups, or of all for 0."""

    def sweep(self, parameter: Tensor, step: "GroupStep", entry: Entry, *, zero_untrained: bool) -> None:
        """Apply the closed form to all groups without a gradient; see `GroupOptimizer.sweep`."""

    def exported(self, parameter: Tensor, entry: Entry) -> Entry:
        """The state as `state_dict` has it."""

    def adapted(self, parameter: Tensor, entry: Entry, rule: Rule, where: str) -> Entry:
        """A loaded state as torch's loader can take it. Raises ValueError or TypeError if it does not fit."""

    def restore(self, parameter: Tensor, entry: Entry, rule: Rule, group: Mapping[str, Any]) -> None:
        """Bring a state that torch's loader has passed on to where it belongs; `entry` is changed."""


class GroupStep:
    """One step of one param group, resolved once and kept until a hyperparameter changes.

    It keeps the constants of the step `before` if they are the same, and with them what kernels made of them.
    """

    def __init__(
        self,
        rule: Rule,
        group: Mapping[str, Any],
        number: int = 0,
        steppers: Sequence[Stepper] = (),
        before: "GroupStep | None" = None,
    ) -> None:
        self.rule, self.group, self.number, self.steppers = rule, group, number, steppers
        self.groups = group["groups"]
        self.capturable = bool(group["capturable"])
        self.wants_kernels = not group["foreach"] and group["fused"] is not False
        self.parameters = list(map(id, group["params"]))  # memory that was prepared for others may be gone
        self.initial = rule.initial_state(group)
        self.takes_gradients_unchanged = not (group["maximize"] or group.get("weight_decay") or rule.mean_square)
        lr = 1.0 if self.capturable else float(group["lr"])
        frozen = lr < VANISHING_LR
        # lr = 0 is an infinite σ: the moments advance, x and u stay. Any other rate gives the same moments.
        rate = 1.0 if frozen else lr
        sigma_0 = None if rule.sigma_0 is None else rule.host_sigma_0(group, rate)
        constants = StepConstants(Regularizer.of(group), tuple(self.initial.values()), sigma_0, frozen)
        self.constants: StepConstants = constants
        if before is not None and before.constants.is_same(constants):
            self.constants = before.constants
        self.regularizer = self.constants.regularizer
        self.wants_u = self.regularizer.active or rule.sigma_0 is not None  # whether parameters carry u
        self._arguments = rule.scalar_arguments(group, rate)
        self._scalars: dict[float, StepScalars] = {}
        self._groupings: dict[tuple[torch.Size, torch.device], Grouping] = {}
        self._counters: dict[int, tuple[Tensor, int, npt.NDArray[Any]]] = {}  # by id of a table's step count
        self.repeated: RepeatedPlans | None = None
        if before is not None and self.wants_u == before.wants_u and self.shares_memory(before):
            self.repeated = before.repeated if self.takes_gradients_unchanged else None

    @classmethod
    def without_gradient(cls, rule: Rule, group: Mapping[str, Any], number: int = 0) -> "GroupStep":
        """A step that only applies the closed form; a learning rate of 0, an infinite σ, counts as `LEAST_LR`."""
        threshold = threshold_of(group, f"param group {number}")
        return cls(rule, {**group, **threshold, "lr": max(float(group["lr"]), LEAST_LR), "capturable": False}, number)

    def shares_memory(self, other: "GroupStep") -> bool:
        """Whether what was prepared of the parameters' memory for another step of the group holds for this one."""
        return (
            self.groups is other.groups
            and not isinstance(self.groups, Tensor)  # which may have been changed in place
            and self.wants_kernels == other.wants_kernels
            and self.capturable == other.capturable
            and self.parameters == other.parameters
        )

    def scalars(self, t: float) -> StepScalars:
        """Return the scalars of step `t`, on the host. Step 0 has the scalars of step 1."""
        known = self._scalars.get(t)
        if known is None:
            if len(self._scalars) == _KEPT:
                self._scalars.clear()
            count = max(int(t), 1)
            constants, seed = self.constants, step_seed(count)
            scalars = self.rule.scalars(**self._arguments, **({"t": count} if self.rule.counts_steps else {}))
            start = (constants.sigma_0 or 0.0, 0.0 if constants.frozen else 1.0)
            known = self._scalars[t] = StepScalars(scalars, start, seed)
        return known

    def grouping_of(self, x: Tensor) -> Grouping:
        """The groups of a tensor shaped as its parameter. An index is brought to its device once."""
        key = x.shape, x.device
        if key not in self._groupings:
            self._groupings[key] = grouping(self.groups, *key)
        return self._groupings[key]

    def site(self, number: int) -> ParameterSite:
        """Where a parameter of the group is, for messages."""
        return ParameterSite(self.number, number, self.group.get("param_names"))

    # State

    def prepare(self, parameter: Tensor, entry: Entry) -> None:
        """Add to the state of a tensor what it lacks."""
        dtype = self.group["state_dtype"] or compute_dtype(parameter.dtype)
        device = parameter.device if self.capturable else CPU
        if not entry:
            entry["step"] = as_count(0.0, device)
            for name, value in self.initial.items():
                entry[name] = torch.full_like(parameter, value, dtype=dtype)
        else:
            entry["step"] = as_count(entry["step"], device)
        if "u" not in entry and self._carries_u(parameter):
            entry["u"] = torch.zeros_like(parameter, dtype=dtype)

    def prepare_in_rows(self, parameter: Tensor, entry: Entry, owner: StateOwner | None = None) -> None:
        """Add to the state of a table's rows what it lacks: the step, and `owner` under each part's name."""
        if KEYS not in entry:
            entry["step"] = as_count(entry.get("step", 0.0), CPU)
            entry.update(dict.fromkeys((KEYS, *self.initial), owner or StateOwner()))
        if "u" not in entry and self._carries_u(parameter):
            entry["u"] = entry[KEYS]

    def _carries_u(self, parameter: Tensor) -> bool:
        """Low-precision parameters carry u at λ = 0 too: it holds what their rounding lost."""
        return self.wants_u or parameter.dtype != compute_dtype(parameter.dtype)

    # The step

    def run(
        self,
        plans: Sequence[Plan],
        states: Mapping[Tensor, Entry],
        memories: dict[int, ParameterMemory],
        backends: Sequence[Backend],
    ) -> None:
        """Carry out the plans of the group's parameters: tensors together, rows of tables by their own plans."""
        tensors: list[TensorPlan] = []
        for plan in plans:
            if isinstance(plan, RepeatedPlans):
                plan.run(self)
            elif isinstance(plan, TensorPlan):
                plan.memory = self._memory(plan, states, memories)
                tensors.append(plan)
            else:
                entry = states[plan.parameter]
                self.prepare_in_rows(plan.parameter, entry)
                plan.run(self, self.scalars(self._counted(entry["step"])), entry)
        if self.capturable:
            _count_on_device(self, tensors)
        requests: Requests = {}
        for plan in tensors:
            memory, is_sparse = plan.memory, plan.rows is not None
            if not self.capturable:
                count = memory.counter.item() + 1.0
                memory.counter[()] = count
                plan.scalars = self.scalars(count)
            if memory.is_empty:
                continue
            number = memory.backends[is_sparse]
            if number is None:
                number = next(number for number, one in enumerate(backends) if one.takes(memory, is_sparse))
                memory.backends[is_sparse] = number
            requests.setdefault(backends[number], []).append(plan)
        if tensors:
            is_new = self.repeated is None and all(map(self._is_repeatable, tensors))
            self.repeated = RepeatedPlans(self, tensors, states, requests) if is_new else None
            self.carry_out(requests, tensors)

    def carry_out(self, requests: "Requests", plans: Sequence[TensorPlan]) -> None:
        """Let backends step the tensors of the plans; gradients are not kept any longer than by their owners."""
        for backend, some in requests.items():
            backend.step(self.number, self.constants, some)
        for plan in plans:
            del plan.gradient
            plan.second_input = None

    def _counted(self, steps: Tensor) -> float:
        """Count a step of a table's rows; gives the new count."""
        known = self._counters.get(id(steps))
        if known is None or known[1] != steps.data_ptr():
            known = self._counters[id(steps)] = steps, steps.data_ptr(), array_of(steps)
        counter = known[2]
        count: float = counter.item() + 1.0
        counter[()] = count
        return count

    def _is_repeatable(self, plan: TensorPlan) -> bool:
        """Whether it does nothing but step a tensor with its gradient unchanged."""
        return (
            self.takes_gradients_unchanged
            and not self.capturable
            and plan.gradient is plan.parameter.grad
            and plan.whole is plan.rows is plan.second_input is None
            and plan.memory.dtype == compute_dtype(plan.memory.dtype)
        )

    def _memory(
        self, plan: TensorPlan, states: Mapping[Tensor, Entry], memories: dict[int, ParameterMemory]
    ) -> ParameterMemory:
        """Addresses of the tensor and its state; missing state is added."""
        parameter = plan.parameter
        if plan.whole is None:
            entry = states[parameter]
        else:
            self.prepare(plan.whole, states[plan.whole])
            entry = local_entry(states[plan.whole])
        known = memories.get(id(parameter))  # a tensor's own hash takes as long as all the rest
        if known is not None and _is_current(known, parameter, entry) and (known.carries_u or not self.wants_u):
            return known
        self.prepare(parameter, entry)
        memory = memories[id(parameter)] = ParameterMemory(
            parameter,
            entry,
            tuple(self.rule.state),
            self.groups,
            wants_kernels=self.wants_kernels,
            capturable=self.capturable,
        )
        return memory


def step_seed(t: Any) -> Any:
    """The int32 seed of step `t`, an int or an int64 tensor."""
    mixed = ((t * 0x9E3779B1) + (1 << 31)) % (1 << 32) - (1 << 31)
    return mixed.to(torch.int32) if isinstance(mixed, Tensor) else mixed


def _is_current(memory: ParameterMemory, parameter: Tensor, entry: Entry) -> bool:
    """Whether the parameter and all of its state are still where they were."""
    x = memory.x
    return (
        x is parameter
        and x.data_ptr() == memory.addresses[0]
        and x.stride() == memory.stride
        and x.shape == memory.shape
        and len(entry) == len(memory.entries)
        and all(map(is_, entry.values(), memory.entries))
        and [tensor.data_ptr() for tensor in memory.entries] == memory.entry_addresses
    )


def _count_on_device(step: GroupStep, plans: Sequence[TensorPlan]) -> None:
    """Count a step of some tensors, and set the scalars of each, without the host knowing any of them."""
    if not plans:
        return
    torch._foreach_add_([plan.memory.counter for plan in plans], 1)
    alike: dict[tuple[torch.device, torch.dtype], list[TensorPlan]] = {}
    for plan in plans:
        kind = plan.memory.counter.device, compute_dtype(plan.memory.dtype)
        alike.setdefault(kind, []).append(plan)
    for (_, dtype), some in alike.items():
        _set_scalars_on_device(step, some, dtype)


def _set_scalars_on_device(step: GroupStep, plans: Sequence[TensorPlan], dtype: torch.dtype) -> None:
    rule, group = step.rule, step.group
    t = torch.stack([plan.memory.counter for plan in plans]).double()
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
    for plan, row, seed in zip(plans, table.to(dtype).unbind(0), seeds.unbind(0), strict=True):
        *scalars, its_sigma_0, its_moves = row.unbind(0)
        plan.scalars = StepScalars(tuple(scalars), (its_sigma_0, its_moves), seed)
