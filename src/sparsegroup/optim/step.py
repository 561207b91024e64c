"""One step of a param group: all gradients are read and checked before anything changes.

    GroupOptimizer.step        for each param group, first all plans, then all runs:
      GroupStep.plan             a `TensorPlan` for each tensor, a `RowsPlan` for each table
      GroupStep.run              counts the step and computes the rule's scalars; then
        Launch.step                many tensors: `kernels/cpu/backend.py`, `kernels/gpu/backend.py`, `kernels/eager.py`
        Backend.step_rows          the rows of a tensor with a sparse gradient: by the same files
        RowsPlan.run               the rows of a table: `table/rows/step.py`, by the storage's `step` in
                                     `table/rows/host.py` (the kernel: `kernels/cpu/block.py`) or `table/rows/device.py`

A `GroupStep` is used again as long as neither an option nor the memory of a tensor has changed.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sparsegroup.kernels.step import (
    Backend,
    Launch,
    ParameterMemory,
    Regularizer,
    StepConstants,
    StepScalars,
    TensorPlan,
    compute_dtype,
)
from sparsegroup.optim.arguments import defaults_of, threshold_of
from sparsegroup.optim.census import GroupCensus
from sparsegroup.optim.dtensor import local, local_entry
from sparsegroup.optim.state import as_count
from sparsegroup.optim.table_parameter import KEYS, StateOwner, gradient_of
from sparsegroup.penalties import Norm, Penalty
from sparsegroup.rules import Rule

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
    """Planned change of a table's rows by a step. All checks have passed, and nothing is changed yet."""

    @property
    def parameter(self) -> Tensor: ...

    @property
    def gradient(self) -> Tensor:
        """`[n, dim]`, in the order in which a second input must come: that of the coalesced gradient."""

    def with_second_input(self, second_input: Tensor) -> Self:
        """Return the plan with the rule's second input, shaped as `gradient`. FloatingPointError: not finite."""

    def run(self, step: "GroupStep", scalars: StepScalars, entry: Entry) -> None:
        """Take the step."""


Plan: TypeAlias = TensorPlan | RowsPlan


class Stepper(Protocol):
    """What an optimizer does with one kind of parameter: with tensors, parts of DTensors, or rows of a table."""

    def check(self, parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
        """Raise ValueError, TypeError or RuntimeError unless the parameter fits its param group."""

    def plan(
        self, parameter: Tensor, gradient: Tensor, step: "GroupStep", states: Mapping[Tensor, Entry], number: int
    ) -> Plan:
        """Read and check the gradient. Nothing is changed."""

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
    """One step of a param group: its options, resolved, and its parameters, located. Reused while `is_current`.

    After a change of options, the new step uses the memory of the step `before` if the memory is still as it was.
    """

    def __init__(
        self,
        rule: Rule,
        group: Mapping[str, Any],
        number: int = 0,
        steppers: Sequence[Stepper] = (),
        before: "GroupStep | None" = None,
        states: Mapping[Tensor, Entry] | None = None,
    ) -> None:
        self.rule, self.group, self.number, self.steppers = rule, group, number, steppers
        self._parameters = list(group["params"])
        self._options = [group.get(name) for name in defaults_of(rule)]
        self._changeable = [option for option in self._options if not _is_fixed(option)]
        self._contents = self._contents_now()
        self.groups = group["groups"]
        self.capturable = bool(group["capturable"])
        self.wants_kernels = not group["foreach"] and group["fused"] is not False
        self.initial = rule.initial_state(group)
        self.takes_gradients_unchanged = not (group["maximize"] or group.get("weight_decay") or rule.mean_square)
        lr = 1.0 if self.capturable else float(group["lr"])
        frozen = lr < VANISHING_LR
        # lr = 0 is an infinite σ: the moments advance, x and u stay. Any other rate gives the same moments.
        rate = 1.0 if frozen else lr
        sigma_0 = None if rule.sigma_0 is None else rule.host_sigma_0(group, rate)
        constants = StepConstants(Regularizer.of(group), tuple(self.initial.values()), sigma_0, frozen)
        if before is not None and before.constants.is_same(constants):
            constants = before.constants
        self.constants: StepConstants = constants
        self.regularizer = self.constants.regularizer
        self.wants_u = self.regularizer.active or rule.sigma_0 is not None  # whether parameters carry u
        self._arguments = rule.scalar_arguments(group, rate)
        self._scalars: dict[float, StepScalars] = {}
        # The options on which the memory of parameters depends.
        groups = _content(self.groups, True) if isinstance(self.groups, Tensor) else self.groups
        self._layout = groups, self.wants_kernels, self.capturable, self.wants_u
        self._memory = GroupMemory()
        is_alike = before is not None and before._layout == self._layout and before._is_of(group)
        if before is not None and is_alike and before._memory.is_current(states or {}):
            self._memory = before._memory

    def is_current(self, group: Mapping[str, Any], states: Mapping[Tensor, Entry]) -> bool:
        """Return whether the options, the parameters, their state and the memory of all of them are as they were."""
        return (
            self.group is group
            and self._is_of(group)
            and all(map(is_, map(group.get, defaults_of(self.rule)), self._options))
            and (not self._changeable or self._contents == self._contents_now())
            and self._memory.is_current(states)
        )

    def _contents_now(self) -> list[Any]:
        return [_content(option, self.group["capturable"]) for option in self._changeable]

    def _is_of(self, group: Mapping[str, Any]) -> bool:
        """Return whether the group has the parameters that it had."""
        return len(group["params"]) == len(self._parameters) and all(map(is_, group["params"], self._parameters))

    @classmethod
    def without_gradient(cls, rule: Rule, group: Mapping[str, Any], number: int = 0) -> "GroupStep":
        """A step that only applies the closed form; a learning rate of 0, an infinite σ, counts as `LEAST_LR`."""
        threshold = threshold_of(group, f"param group {number}")
        return cls(rule, {**group, **threshold, "lr": max(float(group["lr"]), LEAST_LR), "capturable": False}, number)

    def scalars(self, t: float) -> StepScalars:
        """Return the scalars of step `t`, on the host. Step 0 has the scalars of step 1."""
        known = self._scalars.get(t)
        if known is None:
            if len(self._scalars) == _KEPT:
                self._scalars.clear()
            count = max(int(t), 1)
            constants, seed = self.constants, step_seed(count)
            of_rule = self.rule.scalars(**self._arguments, **({"t": count} if self.rule.counts_steps else {}))
            moves = 0.0 if constants.frozen else 1.0
            known = self._scalars[t] = StepScalars(of_rule, constants.sigma_0 or 0.0, moves, seed)
        return known

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
            # The parts are in the rows; the entry holds who owns them.
            entry.update(dict.fromkeys((KEYS, *self.initial), owner or StateOwner()))
        if "u" not in entry and self._carries_u(parameter):
            entry["u"] = entry[KEYS]

    def _carries_u(self, parameter: Tensor) -> bool:
        """Low-precision parameters carry u at λ = 0 too: it holds what their rounding lost."""
        return self.wants_u or parameter.dtype != compute_dtype(parameter.dtype)

    # The step

    def plan(self, states: Mapping[Tensor, Entry]) -> list[Plan]:
        """Read and check all gradients. Nothing is changed; the first step allocates state after all checks."""
        plans: list[Plan] = []
        known = self._memory.of if self.takes_gradients_unchanged else {}
        for number, parameter in enumerate(self._parameters):
            gradient = gradient_of(parameter)
            if gradient is None:
                continue
            memory = known.get(id(parameter))
            if (
                memory is not None
                and gradient.layout is torch.strided
                and gradient.dtype is memory.dtype
                and gradient.shape == memory.shape
            ):
                plans.append(TensorPlan(parameter, gradient, memory))
            else:
                plans.append(self.steppers[number].plan(parameter, gradient, self, states, number))
        return plans

    def run(self, plans: Sequence[Plan], states: Mapping[Tensor, Entry], backends: Sequence[Backend]) -> None:
        """Carry out the plans of the group's parameters: many tensors in one launch, rows of tables by their plans."""
        tensors = [plan for plan in plans if isinstance(plan, TensorPlan)]
        if tensors:
            self._step_tensors(tensors, states, backends)
        if len(tensors) < len(plans):
            for plan in plans:
                if not isinstance(plan, TensorPlan):
                    self._step_table(plan, states[plan.parameter])

    def _step_tensors(
        self, plans: Sequence[TensorPlan], states: Mapping[Tensor, Entry], backends: Sequence[Backend]
    ) -> None:
        self._locate([plan for plan in plans if plan.memory is None], states)
        if self.capturable:
            _count_on_device(self, plans)
        else:
            self._count(plans)
        dense = [plan for plan in plans if plan.rows is None]
        for launch, indices in self._memory.launches([plan.memory for plan in dense], backends):
            launch.step([dense[index] for index in indices], self.constants)
        if len(dense) < len(plans):
            for plan in plans:
                if plan.rows is not None and not plan.memory.is_empty:
                    plan.memory.backend(backends, sparse=True).step_rows(plan, self.constants)

    def _step_table(self, plan: RowsPlan, entry: Entry) -> None:
        """Count a step of the rows of a table, and take it."""
        self.prepare_in_rows(plan.parameter, entry)
        count = entry["step"].item() + 1.0
        entry["step"].fill_(count)
        plan.run(self, self.scalars(count), entry)

    def _count(self, plans: Sequence[TensorPlan]) -> None:
        """Count a step of some tensors, and set the scalars of each."""
        scalars, at = None, 0.0
        for plan in plans:
            counter = plan.memory.counter
            count = counter.item() + 1.0
            counter[()] = count  # an array over the memory of `entry["step"]`: faster than the tensor
            if scalars is None or count != at:
                scalars, at = self.scalars(count), count
            plan.scalars = scalars

    def _locate(self, plans: Sequence[TensorPlan], states: Mapping[Tensor, Entry]) -> None:
        """Set the memory of the plans, which have been checked. Add missing state."""
        known = self._memory.of
        new = [plan for plan in plans if id(plan.parameter) not in known]
        for plan in new:
            key = plan.parameter if plan.whole is None else plan.whole
            self.prepare(key, states[key])
            entry, names = local_entry(states[key]), tuple(self.rule.state)
            options = {"wants_kernels": self.wants_kernels, "capturable": self.capturable}
            self._memory.add(ParameterMemory(plan.parameter, entry, names, self.groups, **options), key)
        if new:
            self._memory.note(states)
        for plan in plans:
            plan.memory = known[id(plan.parameter)]


class GroupMemory:
    """Addresses of the tensors of a param group and of their state, and the launches that backends prepared for them.

    All of it is used until a tensor or a part of its state is replaced, moved or laid out in another way.
    """

    def __init__(self) -> None:
        self.of: dict[int, ParameterMemory] = {}  # by the `id` of a tensor
        self._keys: list[Tensor] = []  # the parameters, by which the optimizer knows the state
        self._has_shards = False
        self._objects: list[Any] = []
        self._tensors: list[Tensor] = []
        self._places: list[Any] = []
        self._launched: list[ParameterMemory] = []
        self._launches: list[tuple[Launch, list[int]]] = []

    def add(self, memory: ParameterMemory, key: Tensor) -> None:
        """Add the memory of a parameter, or of this rank's part of the parameter."""
        self.of[id(memory.x)] = memory
        self._keys.append(key)
        self._has_shards |= key is not memory.x

    def note(self, states: Mapping[Tensor, Entry]) -> None:
        """Remember where all tensors and their state are now."""
        self._objects = self._objects_now(states)
        self._tensors = [one for one in self._objects if isinstance(one, Tensor)]
        self._places = self._places_now()

    def is_current(self, states: Mapping[Tensor, Entry]) -> bool:
        """Return whether all tensors and their state are where they were."""
        if not self._keys:
            return True
        objects = self._objects_now(states)
        is_same = len(objects) == len(self._objects) and all(map(is_, objects, self._objects))
        return is_same and self._places_now() == self._places

    def _objects_now(self, states: Mapping[Tensor, Entry]) -> list[Any]:
        entries = map(states.get, self._keys, repeat(_NOTHING))
        objects = [*self._keys, *chain.from_iterable(map(dict.values, entries))]
        return list(map(local, objects)) if self._has_shards else objects

    def _places_now(self) -> list[Any]:
        tensors = self._tensors[: len(self._keys)]
        layouts = *map(Tensor.size, tensors), *map(Tensor.stride, tensors), *map(_dtype, tensors)
        return [*map(Tensor.data_ptr, self._tensors), *layouts]

    def launches(self, memories: list[ParameterMemory], backends: Sequence[Backend]) -> list[tuple[Launch, list[int]]]:
        """Return the launches of a step by dense gradients, each with the indices of its tensors in `memories`."""
        if memories != self._launched:  # not the same objects
            alike: dict[tuple[Any, ...], list[int]] = {}
            for index, memory in enumerate(memories):
                if not memory.is_empty:
                    backend = memory.backend(backends, sparse=False)
                    alike.setdefault((backend, memory.dtype, memory.carries_u, memory.x.device), []).append(index)
            self._launched = memories
            self._launches = [
                (backend.launch([memories[index] for index in indices]), indices)
                for (backend, *_), indices in alike.items()
            ]
        return self._launches


_NOTHING: Entry = {}
_dtype = attrgetter("dtype")


def _is_fixed(option: Any) -> bool:
    """Return whether an option cannot change in place."""
    if isinstance(option, tuple):
        return all(map(_is_fixed, option))
    return option is None or isinstance(option, bool | int | float | str | torch.dtype | Norm | Penalty)


def _content(option: Any, stays_on_device: bool) -> Any:
    """Return the content of an option that may change in place; of an unknown kind, what equals nothing else."""
    if isinstance(option, tuple | list):
        return tuple(one if _is_fixed(one) else _content(one, stays_on_device) for one in option)
    if isinstance(option, Mapping):
        return _content([*option.items()], stays_on_device)
    if isinstance(option, Tensor):
        if option.numel() == 1 and not stays_on_device:
            return option.item()
        return id(option), option.data_ptr(), option._version
    return object()


def step_seed(t: Any) -> Any:
    """The int32 seed of step `t`, an int or an int64 tensor."""
    mixed = ((t * 0x9E3779B1) + (1 << 31)) % (1 << 32) - (1 << 31)
    return mixed.to(torch.int32) if isinstance(mixed, Tensor) else mixed


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
        *of_rule, sigma_0, moves = row.unbind(0)
        plan.scalars = StepScalars(tuple(of_rule), sigma_0, moves, seed)
