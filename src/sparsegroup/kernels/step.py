"""What a backend is asked to do: the memory of a parameter, its λ, a step's scalars."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.groups import Grouping, GroupSpec, contiguous_groups, grouping
from sparsegroup.penalties import Lasso, Norm, Penalty, PracticalNorm

_ARRAY_TYPES: Mapping[torch.dtype, str] = {
    dtype: np.dtype(name).str
    for dtype, name in (
        (torch.float64, "f8"),
        (torch.float32, "f4"),
        (torch.float16, "f2"),
        (torch.int64, "i8"),
        (torch.int32, "i4"),
        (torch.int16, "i2"),
        (torch.int8, "i1"),
        (torch.uint8, "u1"),
        (torch.bool, "?"),
    )
}
"""Torch's dtype → its name in NumPy's array interface."""

NUMPY_DTYPES: Mapping[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
"""The dtypes that the compiled step computes with."""
TORCH_DTYPES = {theirs: ours for ours, theirs in NUMPY_DTYPES.items()}


class _Memory:
    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: Tensor, typestr: str) -> None:
        self.tensor = tensor  # to be kept as long as the view
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "typestr": typestr,
            "version": 3,
        }


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """Return the memory of a contiguous CPU tensor as an array.

    Unlike with `tensor.numpy()`, torch may resize the tensor afterwards, as `zero_()` on its sparse gradient does. The
    array must not be used after that. KeyError: NumPy has no such dtype.
    """
    return np.asarray(_Memory(tensor, _ARRAY_TYPES[tensor.dtype]))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of arithmetic, and, by default, of state: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class ParameterMemory:
    """Memory of one tensor: its weights, u and the rule's state. Valid while all of it stays where it is.

    Attributes:
        parts, addresses: x, u if it is carried, and the state, shaped as x; where they begin in memory.
        width, count: Elements of a group and the number of groups if groups are contiguous; else 0.
        fits: All parts have memory (a subclass that wraps other tensors has none), which holds their elements in order,
            are shaped as `x` and on its device, so that one address per part says it all.
        counter: The step count: a tensor where the parameter is if `capturable`, else an array over the host's tensor.
    """

    def __init__(
        self,
        x: Tensor,
        entry: dict[str, Any],
        names: tuple[str, ...],
        groups: GroupSpec,
        *,
        wants_kernels: bool,
        capturable: bool,
    ) -> None:
        self.x, self.u = x, entry.get("u")
        self.state: tuple[Tensor, ...] = tuple(entry[name] for name in names)
        self.wants_kernels, self.capturable = wants_kernels, capturable
        self.shape, self.dtype, self.is_empty = x.shape, x.dtype, not x.numel()
        self.carries_u = self.u is not None
        self.parts: tuple[Tensor, ...] = (x, *self.state) if self.u is None else (x, self.u, *self.state)
        self.addresses = [part.data_ptr() for part in self.parts]
        self.fits = (all(self.addresses) or self.is_empty) and all(
            p.shape == x.shape and p.is_contiguous() and not p.is_neg() and p.device == x.device for p in self.parts
        )
        layout = contiguous_groups(groups, x.shape)
        self.is_contiguous_in_groups = layout is not None
        self.width, self.count = layout or (0, 0)
        self._groups = groups
        self.counter: Any = entry["step"] if capturable else array_of(entry["step"])
        self._backends: dict[bool, Backend] = {}

    def backend(self, backends: "Sequence[Backend]", *, sparse: bool) -> "Backend":
        """Return the first of the backends that steps the tensor by dense, or by sparse gradients."""
        if sparse not in self._backends:
            self._backends[sparse] = next(one for one in backends if one.takes(self, sparse))
        return self._backends[sparse]

    @cached_property
    def state_dtypes(self) -> frozenset[torch.dtype]:
        """The dtypes of u and the state."""
        return frozenset(part.dtype for part in self.parts[1:])

    @cached_property
    def groups(self) -> Grouping:
        """The groups of the parameter."""
        return grouping(self._groups, self.shape, self.x.device)


@cache
def as_stored(value: float, dtype: torch.dtype) -> float:
    """`value`, rounded to `dtype`."""
    return float(torch.tensor(value, dtype=dtype, device="cpu"))


class StepScalars(NamedTuple):
    """Scalars that depend on the step: on the host, or as 0-d tensors on the device.

    On the host `sigma_0` and `moves` repeat `StepConstants.sigma_0` and `frozen`. On the device only the tensors hold,
    because only the device may know the learning rate.
    """

    of_rule: tuple[Any, ...]  # from the rule
    sigma_0: Any  # σ₀, or 0 for a rule without it
    moves: Any  # 0 where the learning rate is 0, else 1
    seed: int | Tensor  # the seed of stochastic rounding: int32, or a 0-d int32 tensor

    @property
    def on_device(self) -> bool:
        """Whether they are tensors."""
        return isinstance(self.seed, Tensor)


@dataclass(frozen=True)
class Regularizer:
    """λ1, λ21, λ2 ≥ 0, the norm that the group threshold compares, and its shape."""

    l1: float = 0.0
    l21: float = 0.0
    l2: float = 0.0
    norm: Norm = field(default_factory=PracticalNorm)
    penalty: Penalty = field(default_factory=Lasso)

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> "Regularizer":
        """The regularizer of a param group, whose norm and penalty may be names."""
        return cls(group["l1"], group["l21"], group["l2"], group["norm"], group["penalty"])

    @property
    def active(self) -> bool:
        """Whether any λ is positive."""
        return self.l1 > 0 or self.l2 > 0 or self.l21 > 0

    @cached_property
    def tau(self) -> float:
        """λ21, scaled to the norm: times √d, the threshold of a group of d elements."""
        return self.l21 * self.norm.tau_scale

    @property
    def keep(self) -> float:
        """1 where an element with σ + 2 λ2 = 0 stays in proportion to its group, 0 where λ1 makes it 0."""
        return 1.0 if self.l1 == 0 else 0.0


@dataclass(frozen=True, eq=False)
class StepConstants:
    """What the groups of a param group share until a hyperparameter changes. Kernels keep what they make of it."""

    regularizer: Regularizer
    initial: tuple[float, ...]  # the rule's states before the first gradient, in their order
    sigma_0: float | None  # from `rule.host_sigma_0`, for a rule that has it
    frozen: bool  # whether the learning rate is 0: only the states advance

    def is_same(self, other: "StepConstants") -> bool:
        """Return whether nothing differs. Kernels look up what they keep by identity, which is faster."""
        names = ("regularizer", "initial", "sigma_0", "frozen")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def initial_as(self, dtypes: Iterable[torch.dtype]) -> tuple[float, ...]:
        """Return the initial states, rounded to the dtypes in which states are stored."""
        return tuple(map(as_stored, self.initial, dtypes))


@dataclass(slots=True, eq=False)
class TensorPlan:
    """Planned change of one tensor by a step. `memory` and `scalars` are set after all checks."""

    parameter: Tensor  # the tensor: a parameter, or this rank's part of one
    gradient: Tensor  # shaped as the parameter, or as its `rows`; of any floating dtype
    memory: ParameterMemory = None  # type: ignore[assignment]  # where the parameter and its state are
    # shaped as `gradient`: the Hessian's diagonal for second-order rules, the mean of g² over each element's group for
    # rules with `mean_square`, None for others
    second_input: Tensor | None = None
    rows: Tensor | None = None  # `[n]` int64, the rows of a sparse gradient; None for a dense one
    repeats: bool = False  # whether `rows` may hold a row several times, whose gradients must be added up
    unchecked: bool = False  # whether `rows` may be beyond the parameter
    whole: Tensor | None = None  # the DTensor of which `parameter` is this rank's part, or None
    scalars: StepScalars = field(init=False)  # what depends on the step count of this parameter

    def with_second_input(self, second_input: Tensor) -> "TensorPlan":
        """Return the plan with the second input of the rule."""
        self.second_input = second_input.to(self.gradient.dtype)
        return self

    def sum_rows(self) -> None:
        """Have each row of a sparse gradient once. Raises IndexError if it has rows that the parameter has not."""
        if self.rows is None:
            return
        if self.unchecked:
            check_rows(self.rows, self.memory.shape[0], "a parameter whose gradient was left to the kernels")
        if self.repeats:
            size = (self.memory.shape[0], *self.gradient.shape[1:])
            gradient = self.gradient.to(compute_dtype(self.memory.dtype))
            every = torch.sparse_coo_tensor(
                self.rows.unsqueeze(0), gradient, size, device=gradient.device, check_invariants=False
            )
            total = every.coalesce()
            self.rows, self.gradient, self.repeats = total.indices()[0], total.values(), False


def check_rows(rows: Tensor, count: int, where: object) -> None:
    """Raise IndexError unless all `rows` are in [0, count): kernels and torch's coalesce write there unchecked."""
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise IndexError(
            f"a sparse gradient has rows {int(rows.min())} to {int(rows.max())}, the parameter has {count} ({where})"
        )


class Launch(Protocol):
    """Prepared step of some tensors by dense gradients, for their present memory."""

    def step(self, plans: Sequence[TensorPlan], constants: StepConstants) -> None:
        """Step the tensors by their plans, in the order of the tensors: x, u and the state change in place."""


class Backend(ABC):
    """Implementation of the steps of one rule.

    Attributes:
        has_reports: Whether a device may report something of a step later, so that `check` must be called.
    """

    has_reports = False

    @abstractmethod
    def takes(self, memory: ParameterMemory, sparse: bool) -> bool:
        """Whether it can step the parameter, by dense or by sparse gradients."""

    @abstractmethod
    def launch(self, memories: Sequence[ParameterMemory]) -> Launch:
        """Prepare the step of tensors of one dtype on one device, which all carry u or all do not."""

    @abstractmethod
    def step_rows(self, plan: TensorPlan, constants: StepConstants) -> None:
        """Step the rows of a tensor that its sparse gradient holds: x, u and the state change in place."""

    def check(self) -> None:  # noqa: B027  # most backends have no reports
        """Raise IndexError if a device has reported that an earlier sparse gradient had rows beyond; never waits."""
