"""Deleted models and optimizers are freed immediately: no reference cycle waits for Python's collector."""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gpu_cases import DEVICE
from optimizer_cases import ALL, make
from over import over
from sparsegroup import (
    FieldTables,
    GroupAdam,
    GroupOptimizer,
    HashEmbedding,
    HashEmbeddingBag,
    TargetRate,
    UnusedFor,
    field_keys,
)
from sparsegroup.checkpoint import save_checkpoint
from sparsegroup.kernels.gpu import runtime

KEYS = torch.arange(6)
FIRST_ORDER = [cls for cls in ALL if not cls.rule.second_order]  # the graph of a second derivative is torch's own cycle


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Fields(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = FieldTables(3, {0: 3, 1: 1}, field_bits=4)

    def forward(self, keys: Tensor) -> Tensor:
        return self.tables(field_keys(keys.view(-1, 2), field_bits=4))


def bags() -> nn.Module:
    return nn.Sequential(nn.Unflatten(0, (3, 2)), HashEmbeddingBag(3, mode="sum"))


def on_device() -> HashEmbedding:
    return HashEmbedding(3, device=DEVICE)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: nn.Embedding(6, 3),
    "sparse": lambda: nn.Embedding(6, 3, sparse=True),
    "bfloat16": lambda: nn.Embedding(6, 3, dtype=torch.bfloat16),
    "table": lambda: HashEmbedding(3),
    "table that evicts": lambda: HashEmbedding(3, eviction=UnusedFor(steps=1, live=True, every=1)),
    "table of a size": lambda: HashEmbedding(3, max_bytes="3 MB"),
    "bags": bags,
    "fields": Fields,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "regularized": {"l21": 1e-3},
    "eager": {"l21": 1e-3, "foreach": True},
}


def weak(things: Iterator[object]) -> list[weakref.ref[Any]]:
    return [weakref.ref(thing) for thing in things]


def parts_of(model: nn.Module, optimizer: GroupOptimizer) -> Iterator[object]:
    """Return all objects that hold memory."""
    yield optimizer
    for parameter in model.parameters():
        yield parameter
        if hasattr(parameter, "store"):
            yield from (parameter.store, parameter.store.storage, parameter.store.rows, parameter.store.directory)
    for entry in optimizer.state.values():
        yield from (value for value in entry.values() if isinstance(value, Tensor))


def train(model: nn.Module, optimizer: GroupOptimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(KEYS.to(DEVICE) if DEVICE.type == "cuda" else KEYS).float().square().sum().backward()
        optimizer.step()


def trained(new: Callable[[], nn.Module], cls: type[GroupOptimizer], **options: Any) -> list[weakref.ref[Any]]:
    model = new()
    optimizer = make(cls, model.parameters(), **options)
    train(model, optimizer)
    return weak(parts_of(model, optimizer))


def assert_gone(references: list[weakref.ref[Any]]) -> None:
    assert references
    assert not [type(one()).__name__ for one in references if one() is not None]


@over("kind", MODULES)
@over("options", OPTIONS)
@over("cls", FIRST_ORDER)
def test_a_training_leaves_nothing(cls, options, kind):
    assert_gone(trained(MODULES[kind], cls, **OPTIONS[options]))


def test_a_training_on_a_gpu_leaves_nothing():
    with runtime.rehearsal() if DEVICE.type == "cpu" else nullcontext(), np.errstate(all="ignore"):
        assert_gone(trained(on_device, GroupAdam, l21=1e-3))


@pytest.mark.parametrize("kind", MODULES)
def test_what_a_training_uses_leaves_nothing(kind: str, tmp_path: Path, two_threads: None) -> None:
    """Use targets, sweeps, checkpoints, loading, copies, schedules and hooks."""

    def used() -> list[weakref.ref[Any]]:
        model = MODULES[kind]()
        optimizer = make(GroupAdam, [{"params": list(model.parameters()), "l21": 1e-3}])
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        target = TargetRate(optimizer, 0.5, interval=1, param_groups=[0])
        optimizer.register_step_post_hook(lambda *_: None)
        for _ in range(3):
            train(model, optimizer, 1)
            target.step()
            scheduler.step()
        save_checkpoint(tmp_path / "checkpoint", model, optimizer, track=True)
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if hasattr(model, "prefetch"):
            model.prefetch(torch.arange(50_000))
        train(model, optimizer, 1)
        optimizer.sweep()
        other, others = copy.deepcopy((model, optimizer))
        train(other, others)
        return weak(iter([*parts_of(model, optimizer), *parts_of(other, others), target]))

    assert_gone(used())
