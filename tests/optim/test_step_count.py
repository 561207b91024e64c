"""Step counts remain exact beyond the limit of float32, and after loading from any dtype."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from optimizer_cases import ALLOW_CREATE_GRAPH, KINDS, assert_identical, make
from over import over
from sparsegroup import GroupAdam, GroupOptimizer, GroupSGD, HashEmbedding

pytestmark = ALLOW_CREATE_GRAPH
LIMIT = 2**24
"""The last count of float32: one more is rounded off."""


def embedding() -> nn.Module:
    return nn.Embedding(5, 3, sparse=True)


def table() -> nn.Module:
    return HashEmbedding(3)


def dense() -> nn.Module:
    return nn.Embedding(5, 3)


MODULES = {"dense": dense, "sparse": embedding, "table": table}


def step(model: nn.Module, optimizer: GroupOptimizer) -> None:
    optimizer.zero_grad()
    model(torch.arange(4)).square().sum().backward(create_graph=optimizer.rule.second_order)
    optimizer.step()


def begun(kind: str, cls: type[GroupOptimizer], count: Any, **options: Any) -> tuple[nn.Module, GroupOptimizer]:
    """Return an optimizer after one step, loaded with another step count."""
    torch.manual_seed(0)
    model = MODULES[kind]()
    optimizer = make(cls, model.parameters(), **options)
    step(model, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    for entry in state["state"].values():
        entry["step"] = count
    optimizer.load_state_dict(state)
    return model, optimizer


def count_of(optimizer: GroupOptimizer) -> int:
    (entry,) = optimizer.state_dict()["state"].values()
    return int(entry["step"])


@over("kind", MODULES)
@over("cls", KINDS)
def test_steps_count_on_beyond_float32(kind, cls):
    model, optimizer = begun(kind, cls, torch.tensor(float(LIMIT)))
    for steps in (1, 2, 3):
        step(model, optimizer)
        assert count_of(optimizer) == LIMIT + steps
    copied, *_ = copy.deepcopy((optimizer, model))
    assert count_of(copied) == LIMIT + 3


@over("kind", MODULES)
@over("dtype", (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, int, float))
def test_a_count_is_loaded_from_any_dtype(kind, dtype):
    count = torch.tensor(7, dtype=dtype) if isinstance(dtype, torch.dtype) else dtype(7)
    expected, found = begun(kind, GroupSGD, torch.tensor(7.0)), begun(kind, GroupSGD, count)
    for model, optimizer in (expected, found):
        step(model, optimizer)
    assert count_of(found[1]) == 8
    assert_identical(found[1].state_dict()["state"], expected[1].state_dict()["state"])


@over("dtype", (torch.float16, torch.bfloat16, torch.float32))
def test_a_count_set_by_hand_in_another_dtype_counts_on(dtype):
    model, optimizer = begun("dense", GroupSGD, 7)
    (entry,) = optimizer.state.values()
    entry["step"] = torch.tensor(7, dtype=dtype)
    step(model, optimizer)
    assert count_of(optimizer) == 8


def test_rounding_by_chance_does_not_repeat_itself_after_many_steps():
    """V of .999ⁿ, stored in bfloat16: each step must draw anew, or nothing below half a unit is ever taken off."""
    x = nn.Parameter(torch.zeros(1000))
    optimizer = GroupAdam([x], state_dtype=torch.bfloat16)
    x.grad = torch.ones(1000)
    optimizer.step()
    optimizer.state[x]["exp_avg_sq"].fill_(1.0)
    optimizer.state[x]["step"].fill_(LIMIT)
    for _ in range(100):
        x.grad = torch.zeros(1000)
        optimizer.step()
    assert optimizer.state[x]["exp_avg_sq"].float().mean().item() == pytest.approx(0.999**100, rel=0.01)


@pytest.mark.parametrize("kind", MODULES)
@over("cls", KINDS)
def test_a_sweep_of_state_without_steps_is_that_after_the_first(kind, cls):
    swept = []
    for count in (0, 1):
        _, optimizer = begun(kind, cls, count, l21=0.1)
        optimizer.param_groups[0]["l21"] = 1.0
        (found,) = optimizer.census(0)
        optimizer.sweep()
        optimizer.load_state_dict(optimizer.state_dict())
        (entry,) = optimizer.state_dict()["state"].values()
        swept.append([{**entry, "step": None}, found.critical.tolist()])
    assert_identical(*swept)
