"""A step depends on a gradient's values only, not on their layout in memory."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from gpu_cases import DEVICE
from optimizer_cases import ALLOW_CREATE_GRAPH, KINDS, assert_identical, make
from over import over
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding, HashEmbeddingBag
from sparsegroup.kernels.gpu import runtime

pytestmark = ALLOW_CREATE_GRAPH

Form: TypeAlias = Callable[[Tensor], Tensor]


def negated(gradient: Tensor) -> Tensor:
    """Return the same values as a lazy negation of torch."""
    return torch._neg_view(-gradient)


def negated_column(gradient: Tensor) -> Tensor:
    return torch._neg_view(torch.stack([-gradient, gradient], -1))[..., 0]


def transposed(gradient: Tensor) -> Tensor:
    return gradient.movedim(0, -1).contiguous().movedim(-1, 0)


NEGATED = (negated, negated_column)
DENSE = {
    "float32": {},
    "float64": {"dtype": torch.float64},
    "bfloat16": {"dtype": torch.bfloat16},
    "eager": {"foreach": True},
    "columns": {"groups": "columns"},
    "maximized": {"maximize": True},
    "decayed": {"weight_decay": 0.1},
}


def stepped(
    cls: type[GroupOptimizer],
    form: Form,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **options: Any,
) -> list[Any]:
    x = nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3).to(device, dtype))
    if cls.rule.second_order:
        options["generator"] = torch.Generator().manual_seed(0)
    optimizer = make(cls, [x], l21=1e-3, **options)
    for t in range(3):
        loss = (torch.linspace(-1, 2, 12, device=device).view(4, 3) * x.float().square()).sum() * (t + 1)
        (gradient,) = torch.autograd.grad(loss, [x], create_graph=cls.rule.second_order)
        x.grad = form(gradient)
        optimizer.step()
    return [x.detach(), optimizer.state_dict()["state"]]


@over("form", NEGATED)
@over("kind", DENSE)
@over("cls", KINDS)
def test_a_negated_dense_gradient(cls, kind, form):
    assert_identical(stepped(cls, form, **DENSE[kind]), stepped(cls, Tensor.clone, **DENSE[kind]))


def test_a_negated_gradient_on_a_gpu():
    with runtime.rehearsal() if DEVICE.type == "cpu" else nullcontext(), np.errstate(all="ignore"):
        assert_identical(*(stepped(GroupAdam, form, device=DEVICE) for form in (negated, Tensor.clone)))


class Lookup(nn.Module):
    """Vectors of keys, whose gradient comes in another form."""

    def __init__(self, embedding: nn.Module, form: Form) -> None:
        super().__init__()
        self.embedding, self.form = embedding, form

    def forward(self, keys: Tensor) -> Tensor:
        vectors = self.embedding(keys)
        vectors.register_hook(self.form)
        return vectors


SPARSE = {
    "embedding": lambda: nn.Embedding(9, 3, sparse=True),
    "table": lambda: HashEmbedding(3),
    "table with fallback": lambda: HashEmbedding(3, fallback=True),
    "bags": lambda: HashEmbeddingBag(3, mode="mean"),
}


@over("form", (*NEGATED, transposed))
@over("kind", SPARSE)
@over("cls", [cls for cls in KINDS if not cls.rule.second_order])
def test_a_lookups_gradient_in_any_layout(cls, kind, form):
    found = []
    for one in (form, Tensor.clone):
        torch.manual_seed(0)
        model = Lookup(SPARSE[kind](), one)
        groups = [
            {"params": [x], "l21": 0.0 if name.endswith("fallback") else 1e-3} for name, x in model.named_parameters()
        ]
        optimizer = make(cls, groups)
        for t in range(3):
            optimizer.zero_grad()
            keys = (torch.arange(8).view(4, 2) * (t + 1)) % 9
            vectors = model(keys)
            (torch.linspace(-1, 2, vectors.numel()).view_as(vectors) * vectors).sum().backward()
            optimizer.step()
        found.append([optimizer.state_dict()["state"], [p.detach() for p in model.parameters() if p.is_leaf][1:]])
    assert_identical(*found)
