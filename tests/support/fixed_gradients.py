"""Drives an optimizer with gradients, Hessians and learning rates that are fixed beforehand.

Gradients that do not depend on the parameter keep two trajectories comparable: a rounding error stays what it is
instead of steering the gradients apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import Optimizer

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """What one step is given.

    Attributes:
        lr: Learning rate.
        gradient: Shaped as the parameter, or `[len(rows), …]`.
        rows: The rows of a sparse gradient; None for a dense one.
        hessian: Shaped as `gradient`: a diagonal Hessian, which Hutchinson's estimator then gives exactly.
    """

    lr: float
    gradient: Array
    rows: list[int] | None = None
    hessian: Array | None = None


def gradient_of(parameter: Tensor, step: Step) -> Tensor:
    """The gradient of `step` in the parameter's dtype, with a graph if it has a Hessian."""
    g = torch.as_tensor(step.gradient, dtype=parameter.dtype)
    if step.hessian is None:
        if step.rows is None:
            return g
        return torch.sparse_coo_tensor(
            torch.tensor([step.rows]), g, parameter.shape, dtype=parameter.dtype, check_invariants=True
        )
    h = torch.as_tensor(step.hessian, dtype=parameter.dtype)
    x = parameter if step.rows is None else functional.embedding(torch.tensor(step.rows), parameter, sparse=True)
    moved = x - x.detach()
    loss = (g * moved + h * moved * moved / 2).sum()
    # Not `backward(create_graph=True)`, which warns that it leaves a reference cycle behind.
    return torch.autograd.grad(loss, parameter, create_graph=True)[0]


def take(optimizer: Optimizer, parameter: Tensor, step: Step) -> None:
    """One optimizer step on the gradient and at the learning rate of `step`."""
    for group in optimizer.param_groups:
        group["lr"] = step.lr
    parameter.grad = gradient_of(parameter, step)
    optimizer.step()


def trajectory(optimizer: Optimizer, parameter: Tensor, steps: Iterable[Step]) -> Array:
    """The parameter after each step, `[steps, …]` in float64."""
    visited = []
    for step in steps:
        take(optimizer, parameter, step)
        visited.append(parameter.detach().double().numpy().copy())
    return np.stack(visited)


def relative_error(a: Array | Tensor, b: Array | Tensor) -> float:
    """max |a - b| / max |b|."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    assert a.shape == b.shape
    assert np.isfinite(a).all()
    return float(np.abs(a - b).max() / np.abs(b).max())


def rests_at_0(epoch: int) -> float:
    """A factor of the learning rate that falls to 0 and rises again."""
    return max(0.0, abs(epoch % 60 - 30) / 30 - 0.1)
