"""What the optimizer tests share: the optimizers, losses that drive all of them alike, snapshots of all they hold."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from family import FAMILY
from sparsegroup import GroupOptimizer

ALL = tuple(member.optimizer for member in FAMILY.values())
KINDS = tuple(FAMILY[name].optimizer for name in ("sgd", "adam", "ftrl", "adahessian"))
"""Optimizers without state, with two moments, with a σ at the start, and of second order: one of each kind."""

# torch says so on every `backward(create_graph=True)`, which AdaHessian needs; its `step()` breaks the cycle.
ALLOW_CREATE_GRAPH = pytest.mark.filterwarnings(r"ignore:Using backward\(\) with create_graph=True:UserWarning")


def make(cls: type[GroupOptimizer], params: Any, **arguments: Any) -> GroupOptimizer:
    """An optimizer with a learning rate, which GroupFTRL has no default for."""
    return cls(params, **{"lr": 0.1, **arguments})


def parameter(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Parameter:
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return nn.Parameter(values.to(dtype))


def wave(like: Tensor, t: float) -> Tensor:
    """Numbers in [-1, 1] that differ between elements and steps."""
    count = torch.arange(like.numel(), dtype=torch.float64).view(like.shape)
    return torch.sin(1.7 * count + 0.9 * t).to(like.dtype)


def separable_loss(x: Tensor, t: float = 0.0) -> Tensor:
    """Has a diagonal Hessian, for which AdaHessian's estimate is exact whatever its random vectors are."""
    return ((0.5 + 0.25 * wave(x, t + 1)) * x * x / 2 + wave(x, t) * x).sum()


def lookup_loss(table: Tensor, rows: Iterable[int], t: float = 0.0, sparse: bool = True) -> Tensor:
    """As `separable_loss`, through an embedding lookup; row r gets the same gradient whatever other rows are there."""
    at = torch.tensor(list(rows), dtype=torch.int64)
    x = functional.embedding(at, table, sparse=sparse)
    return ((0.5 + 0.25 * wave(table, t + 1)[at]) * x * x / 2 + wave(table, t)[at] * x).sum()


def backward(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """New gradients of `loss`, with the graph that second-order rules need."""
    optimizer.zero_grad()
    second_order = isinstance(optimizer, GroupOptimizer) and optimizer.rule.second_order
    loss.backward(create_graph=second_order)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def train(optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> None:
    """`steps` steps on the separable loss of all parameters; two calls are one longer call with `start` passed on."""
    for t in range(start, start + steps):
        backward(optimizer, sum(separable_loss(p, t + 7 * i) for i, p in enumerate(parameters_of(optimizer))))
        optimizer.step()


def train_lookup(optimizer: torch.optim.Optimizer, batches: Sequence[Sequence[int]], start: int = 0) -> None:
    """One step per batch of rows on the sparse gradients of the optimizer's only parameter."""
    (table,) = parameters_of(optimizer)
    for t, rows in enumerate(batches, start):
        backward(optimizer, lookup_loss(table, rows, t))
        optimizer.step()


def snapshot(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A deep copy of everything a failed call must leave alone."""
    params = parameters_of(optimizer)
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return {
        "identity": [[id(p) for p in group["params"]] for group in optimizer.param_groups],
        "params": [p.detach().clone() for p in params],
        "grads": [None if p.grad is None else p.grad.detach().clone() for p in params],
        "groups": copy.deepcopy(groups),
        "defaults": copy.deepcopy(optimizer.defaults),
        "state": [copy.deepcopy(dict(optimizer.state[p])) if p in optimizer.state else None for p in params],
        "entries": len(optimizer.state),
        "hooks": len(optimizer._optimizer_load_state_dict_pre_hooks),
    }


def assert_identical(a: Any, b: Any, at: str = "") -> None:
    """Equal bit for bit, in tensors' dtypes and in containers' keys."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        assert a.layout == b.layout, at
        if a.layout != torch.strided:
            a, b = a.to_dense(), b.to_dense()
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{at}: {m}")
    elif isinstance(a, Mapping):
        assert a.keys() == b.keys(), at
        for key in a:
            assert_identical(a[key], b[key], f"{at}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), at
        for index, (item, other) in enumerate(zip(a, b, strict=True)):
            assert_identical(item, other, f"{at}[{index}]")
    else:
        assert type(a) is type(b), at
        assert a == b, at


@contextmanager
def refused(optimizer: torch.optim.Optimizer, error: type[Exception], match: str) -> Iterator[None]:
    """The body raises `error`, and nothing the optimizer holds has changed."""
    before = snapshot(optimizer)
    with pytest.raises(error, match=match):
        yield
    assert_identical(snapshot(optimizer), before)


class Marker:
    """Something that only the graph keeps alive."""


class Hold(torch.autograd.Function):
    """The identity; its nodes hold the marker, in the graph of the loss and in that of the gradient."""

    @staticmethod
    def forward(ctx, x, marker):
        ctx.marker = marker
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return Hold.apply(g, ctx.marker), None
