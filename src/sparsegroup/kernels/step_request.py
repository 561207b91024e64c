"""What a backend is: it takes some parameters, and carries out one step of those it takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from sparsegroup.kernels.numbers import StepScalars
from sparsegroup.kernels.regularizer import StepConstants
from sparsegroup.kernels.slot import Slot, compute_dtype


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
    """Raise IndexError unless all `rows` lie in [0, count): kernels and torch's coalesce write where they are told."""
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
