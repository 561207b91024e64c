"""What a backend is asked to do: the memory of a parameter, its λ, a step's scalars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.groups import Grouping, GroupSpec, contiguous_groups, grouping
from sparsegroup.penalties import Lasso, Norm, Penalty, PracticalNorm


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of arithmetic, and of state unless another is asked for: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class Execution:
    """How a param group wants to be stepped: its groups, and torch's arguments of the same names."""

    groups: GroupSpec
    foreach: bool | None
    fused: bool | None
    capturable: bool

    @property
    def wants_kernels(self) -> bool:
        """Whether compiled kernels may be taken: neither `foreach=True` nor `fused=False`."""
        return not self.foreach and self.fused is not False

    def is_same(self, other: "Execution") -> bool:
        """Whether nothing differs; `groups` is compared by identity, for it may be a tensor."""
        return (
            self.groups is other.groups
            and self.foreach is other.foreach
            and self.fused is other.fused
            and self.capturable is other.capturable
        )


class Slot:
    """The memory of one parameter: its weights, u and the rule's state.

    Args:
        x: The parameter, of any shape.
        u: The dual residual, shaped as `x`; None for a parameter that carries none.
        state: The rule's state in the order of `rule.state`, each shaped as `x`.
        execution: How its param group wants it to be stepped.

    Attributes:
        x, u, state, execution: See above.
        shape, dtype, is_empty: The parameter's; it is empty where it has no element.
        carries_u: Whether there is a u.
        parts: x, u where it is carried, and the state.
        addresses: Where the parts begin in memory.
        width: The number of elements of a group, where groups lie one after the other; else 0.
        count: The number of groups, where they lie one after the other; else 0.
        fits: All parts have memory (a subclass that wraps other tensors has none), are contiguous, shaped as `x` and
            on its device, so that one address per part says it all.
    """

    def __init__(self, x: Tensor, u: Tensor | None, state: tuple[Tensor, ...], execution: Execution) -> None:
        self.x, self.u, self.state, self.execution = x, u, state, execution
        self.shape, self.dtype, self.is_empty = x.shape, x.dtype, not x.numel()
        self.carries_u = u is not None
        self.parts: tuple[Tensor, ...] = (x, *state) if u is None else (x, u, *state)
        self.addresses = [part.data_ptr() for part in self.parts]
        self.fits = (all(self.addresses) or self.is_empty) and all(
            p.shape == x.shape and p.is_contiguous() and p.device == x.device for p in self.parts
        )
        layout = contiguous_groups(execution.groups, x.shape)
        self.is_contiguous_in_groups = layout is not None
        self.width, self.count = layout or (0, 0)

    @cached_property
    def state_dtypes(self) -> frozenset[torch.dtype]:
        """The dtypes of u and the state."""
        return frozenset(part.dtype for part in self.parts[1:])

    @cached_property
    def groups(self) -> Grouping:
        """The groups of the parameter."""
        return grouping(self.execution.groups, self.shape, self.x.device)


@cache
def as_stored(value: float, dtype: torch.dtype) -> float:
    """`value`, rounded to `dtype`."""
    return float(torch.tensor(value, dtype=dtype))


@dataclass(frozen=True)
class StepScalars:
    """What depends on the step.

    Attributes:
        scalars: From the rule, on the host, or as 0-d tensors on the device.
        start: σ₀ (0 for a rule without), and 0 where the learning rate is 0, else 1; as `scalars`.
        seed: The seed of stochastic rounding: int32, or a 0-d int32 tensor.
    """

    scalars: tuple[Any, ...]
    start: tuple[Any, Any]
    seed: int | Tensor

    @classmethod
    def of_row(cls, row: Tensor, seed: Tensor) -> "StepScalars":
        """The numbers from scalars, σ₀ and whether x moves, in one tensor on the device."""
        *scalars, sigma_0, moves = row.unbind(0)
        return cls(tuple(scalars), (sigma_0, moves), seed)

    @property
    def on_device(self) -> bool:
        """Whether they are tensors."""
        return isinstance(self.seed, Tensor)


@dataclass(frozen=True)
class Regularizer:
    """λ1, λ21, λ2 ≥ 0 and the shape of the group threshold.

    Attributes:
        l1: λ1.
        l21: λ21.
        l2: λ2.
        norm: What the threshold compares.
        penalty: The threshold's shape.
    """

    l1: float = 0.0
    l21: float = 0.0
    l2: float = 0.0
    norm: Norm = field(default_factory=PracticalNorm)
    penalty: Penalty = field(default_factory=Lasso)

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> "Regularizer":
        """The regularizer of a param group, whose norm and penalty may be names."""
        return cls(group["l1"], group["l21"], group["l2"], Norm.of(group["norm"]), Penalty.of(group["penalty"]))

    @property
    def active(self) -> bool:
        """Whether any λ is positive."""
        return self.l1 > 0 or self.l2 > 0 or self.l21 > 0

    @property
    def tau(self) -> float:
        """λ21, scaled to the norm: times √d, the threshold of a group of d elements."""
        return self.l21 * self.norm.tau_scale

    @property
    def keep(self) -> float:
        """1 where an element with σ + 2 λ2 = 0 stays in proportion to its group, 0 where λ1 makes it 0."""
        return 1.0 if self.l1 == 0 else 0.0


@dataclass(frozen=True)
class StepConstants:
    """What the groups of a launch share.

    Attributes:
        regularizer: λ1, λ21, λ2, norm and penalty.
        initial: The rule's states before the first gradient, in their order.
        sigma_0: From `rule.host_sigma_0`, for a rule that has it.
        frozen: Whether the learning rate is 0: then only the states advance.
    """

    regularizer: Regularizer
    initial: tuple[float, ...]
    sigma_0: float | None
    frozen: bool


@dataclass(slots=True)
class TensorStep:
    """One parameter's part of a step.

    Attributes:
        slot: Where the parameter and its state lie.
        numbers: What depends on the step count of this parameter.
        gradient: Shaped as the parameter, or as its `rows`; of any floating dtype.
        hessian: Shaped as `gradient`; for second-order rules the diagonal of the Hessian, for those with `mean_square`
            the mean of g² over each element's group.
        rows: `[n]` int64, the rows of a sparse gradient; None for a dense one.
        repeats: Whether `rows` may hold a row several times, whose gradients are to be added up.
        unchecked: Whether `rows` may lie beyond the parameter.
    """

    slot: Slot
    numbers: StepScalars
    gradient: Tensor
    hessian: Tensor | None = None
    rows: Tensor | None = None
    repeats: bool = False
    unchecked: bool = False

    def is_contiguous(self) -> bool:
        """Whether gradient and Hessian are."""
        return self.gradient.is_contiguous() and (self.hessian is None or self.hessian.is_contiguous())

    def contiguous(self) -> "TensorStep":
        """The same with gradients that are contiguous."""
        if self.is_contiguous():
            return self
        hessian = None if self.hessian is None else self.hessian.contiguous()
        return replace(self, gradient=self.gradient.contiguous(), hessian=hessian)

    def summed(self) -> "TensorStep":
        """The same with each row once.

        Raises:
            IndexError: The gradient has rows that the parameter has not.
        """
        if self.rows is None:
            return self
        if self.unchecked:
            check_rows(self.rows, self.slot.shape[0], "a parameter whose gradient was left to the kernels")
        if not self.repeats:
            return self
        size = (self.slot.shape[0], *self.gradient.shape[1:])
        gradient = self.gradient.to(compute_dtype(self.slot.dtype))
        total = torch.sparse_coo_tensor(self.rows.unsqueeze(0), gradient, size, check_invariants=False).coalesce()
        return replace(self, rows=total.indices()[0], gradient=total.values(), repeats=False)


def check_rows(rows: Tensor, count: int, where: object) -> None:
    """Raise IndexError unless all `rows` lie in [0, count): kernels and torch's coalesce write there unchecked."""
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < count:
        raise IndexError(
            f"a sparse gradient has rows {int(rows.min())} to {int(rows.max())}, the parameter has {count} ({where})"
        )


@dataclass(frozen=True)
class StepRequest:
    """One step of parameters that share their hyperparameters.

    Attributes:
        group: The number of their param group: a backend may keep what it prepared for it.
        settings: λ, the rule's initial state, σ₀, and whether the learning rate is 0.
        tensors: The parameters' parts; none is empty.
    """

    group: int
    settings: StepConstants
    tensors: Sequence[TensorStep]


class Backend(Protocol):
    """A way to carry out the steps of one rule. It may keep what it needs from step to step."""

    def takes(self, slot: Slot, sparse: bool) -> bool:
        """Whether it can step the parameter, by dense or by sparse gradients."""

    def step(self, request: StepRequest) -> None:
        """One step of parameters that it takes: x, u and the state change in place.

        Raises:
            IndexError: A sparse gradient has rows that its parameter has not, where the host can see it.
        """

    def check(self) -> None:
        """Raise what a device has reported of steps before, if it has come by now; never waits.

        Raises:
            IndexError: A sparse gradient had rows that its parameter has not; they were left out.
        """


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
    """The memory of a contiguous CPU tensor as an array.

    Unlike with `tensor.numpy()`, torch may resize the tensor afterwards, as `zero_()` on a sparse gradient that it
    belongs to does; the view must not be used any more then.
    """
    kind = "f" if tensor.is_floating_point() else "i"
    return np.asarray(_Memory(tensor, f"{'<' if np.little_endian else '>'}{kind}{tensor.element_size()}"))
