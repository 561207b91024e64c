"""Torch's default device and default dtype change nothing: the library names both wherever it allocates."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optimizer_cases import ALLOW_CREATE_GRAPH, KINDS, assert_identical, make
from over import over
from sparsegroup import (
    FieldTables,
    GroupOptimizer,
    HashEmbedding,
    HashEmbeddingBag,
    TargetRate,
    feature_rate,
    field_keys,
    sparsity_report,
)
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.table import TableEmbeddingBag

pytestmark = ALLOW_CREATE_GRAPH
STEPS, LINES, DIM = 4, 6, 3
ON_CPU = {"dtype": torch.float32, "device": "cpu"}
DRAWN = torch.Generator().manual_seed(0)
IDS = torch.randint(0, 9, (STEPS, LINES), generator=DRAWN)
SLOPES, CURVES = torch.randn(2, STEPS, LINES, DIM, generator=DRAWN, **ON_CPU).unbind()


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(9, DIM, **ON_CPU))

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[ids]


def low_precision() -> nn.Module:
    return Dense().to(torch.bfloat16)


def embedding() -> nn.Module:
    return nn.Embedding(9, DIM, sparse=True, **ON_CPU)


def table() -> nn.Module:
    return HashEmbedding(DIM, **ON_CPU, fallback=True, max_bytes="3 MB")


class Pairs(nn.Module):
    """Bags of two keys each, of a table."""

    def __init__(self, bag: nn.Module) -> None:
        super().__init__()
        self.bag = bag

    def forward(self, ids: Tensor) -> Tensor:
        return self.bag(torch.stack([ids, ids + 1], 1))


def bags() -> nn.Module:
    return Pairs(HashEmbeddingBag(DIM, mode="mean", **ON_CPU))


def padded_bags() -> nn.Module:
    return Pairs(TableEmbeddingBag(HashEmbeddingBag(DIM, mode="sum", padding_idx=3, **ON_CPU), 12))


class Fields(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = FieldTables(DIM, {0: DIM, 1: 1}, field_bits=4, **ON_CPU)

    def forward(self, ids: Tensor) -> Tensor:
        return self.tables(field_keys(ids.view(-1, 2), field_bits=4)).view(LINES, DIM)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "dense": Dense,
    "bfloat16": low_precision,
    "sparse": embedding,
    "table": table,
    "bags": bags,
    "padded bags": padded_bags,
    "fields": Fields,
}


@contextmanager
def float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


DEFAULTS: dict[str, Callable[[], Any]] = {"device": lambda: torch.device("meta"), "dtype": float64}


def trained(new: Callable[[], nn.Module], cls: type[GroupOptimizer], folder: Path, **options: Any) -> list[Any]:
    """Return the results of a training with a checkpoint in the middle, a target size and a final sweep."""
    if cls.rule.second_order:  # torch's bags cannot be differentiated twice, and its default generator is one of all
        options["generator"] = torch.Generator("cpu").manual_seed(1)
    torch.manual_seed(0)
    model = new()
    fallbacks = [parameter for name, parameter in model.named_parameters() if name.endswith("fallback")]
    others = [parameter for name, parameter in model.named_parameters() if not name.endswith("fallback")]
    groups = [{"params": others, "l21": 1e-3}, *({"params": [one]} for one in fallbacks)]
    optimizer = make(cls, groups, **options)
    target = TargetRate(optimizer, 0.5, steps=STEPS, interval=1, sample=2, param_groups=[0])
    for t in range(STEPS):
        optimizer.zero_grad(set_to_none=t != 2)
        vectors = model(IDS[t]).float()
        loss = (SLOPES[t] * vectors + CURVES[t] * vectors.square()).sum()
        loss.backward(create_graph=cls.rule.second_order)
        optimizer.step()
        target.step()
        if t == 1:
            save_checkpoint(folder, model, optimizer, step=t)
            load_checkpoint(folder, model, optimizer)
    state = optimizer.state_dict()
    optimizer.load_state_dict(copy.deepcopy(state))
    optimizer.sweep()
    rates = [feature_rate(parameter) for parameter in model.parameters()]
    weights = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return [state["state"], optimizer.state_dict()["state"], weights, rates, str(sparsity_report(optimizer))]


def plain(found: Any) -> Any:
    """Return the results without objects that differ between runs, and without the padding of state dicts."""
    if isinstance(found, dict):
        return {name: plain(value) for name, value in found.items() if name != "owner"}
    return [plain(one) for one in found] if isinstance(found, list | tuple) else found


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("kind", MODULES)
@over("cls", KINDS)
def test_torchs_defaults_change_no_training(cls: type[GroupOptimizer], kind: str, default: str, tmp_path: Path) -> None:
    expected = trained(MODULES[kind], cls, tmp_path / f"{cls.__name__} as it is")
    with DEFAULTS[default]():
        found = trained(MODULES[kind], cls, tmp_path / f"{cls.__name__} otherwise")
    assert_identical(plain(found), plain(expected))
