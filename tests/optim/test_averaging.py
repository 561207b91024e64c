"""Averages of weights: by torch's `AveragedModel`, of tables as they are and of dense weights by `keep_zeros`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import (
    AveragedModel,
    get_ema_avg_fn,
    get_ema_multi_avg_fn,
    get_swa_avg_fn,
    get_swa_multi_avg_fn,
)

from optimizer_cases import assert_identical
from over import over
from sparsegroup import GroupAdam, HashEmbedding, keep_zeros, param_groups

DECAY = 0.75
KEYS = torch.arange(30)


def ema(number: int) -> float:
    return 1 - DECAY


def mean(number: int) -> float:
    return 1 / (number + 1)


AVERAGES: dict[str, tuple[dict[str, Any], Callable[[int], float]]] = {
    "multi ema": ({"multi_avg_fn": get_ema_multi_avg_fn(DECAY)}, ema),
    "multi swa": ({"multi_avg_fn": get_swa_multi_avg_fn()}, mean),
    "keep_zeros": ({"multi_avg_fn": keep_zeros(get_ema_multi_avg_fn(DECAY))}, ema),
    "buffers": ({"multi_avg_fn": get_ema_multi_avg_fn(DECAY), "use_buffers": True}, ema),
}


class Model(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = HashEmbedding(3, std=0.5, dtype=torch.float64, **options)
        self.embedding = nn.Embedding(30, 3, dtype=torch.float64)
        self.out = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, keys: Tensor) -> Tensor:
        return self.out(self.table(keys) + self.embedding(keys))


def optimizer_of(model: Model) -> GroupAdam:
    return GroupAdam(param_groups(model, l21=0.3), lr=0.1)


def train(model: Model, optimizer: GroupAdam, step: int) -> None:
    draw = torch.Generator().manual_seed(step)
    optimizer.zero_grad()
    keys = torch.randint(0, 4 + 2 * step, (12,), generator=draw).clamp(max=29)
    (model(keys) * torch.rand(12, 1, generator=draw, dtype=torch.float64)).square().sum().backward()
    optimizer.step()


def expected_average(now: Tensor, before: Tensor | None, weight: float) -> Tensor:
    """Element by element: 0 where it is 0 now, as now where it was 0, else a step of `weight` from before to now."""
    if before is None:
        return now
    moved = before + weight * (now - before)
    return torch.where(now == 0, 0.0, torch.where(before == 0, now, moved))


@over(
    ("name", "options"),
    [*((name, {}) for name in AVERAGES), ("multi swa", {"max_bytes": "8MB"}), ("multi ema", {"fallback": True})],
)
def test_a_table_is_averaged_row_by_row_and_dead_rows_stay_dead(name, options):
    """An `nn.Embedding` is averaged like that by `keep_zeros` only. An average is saved without optimizer state."""
    arguments, weight_of = AVERAGES[name]
    model = Model(**options)
    optimizer, average = optimizer_of(model), AveragedModel(model, **arguments)
    expected, expected_dense, dead = None, None, 0
    for step in range(12):
        train(model, optimizer, step)
        if step == 8 and not options:
            optimizer.zero_grad()
            model.table.shrink()
        average.update_parameters(model)
        expected = expected_average(model.table.lookup(KEYS), expected, weight_of(step))
        expected_dense = expected_average(model.embedding.weight.detach().clone(), expected_dense, weight_of(step))
        got = average.module.table
        torch.testing.assert_close(got.lookup(KEYS), expected, rtol=1e-7, atol=1e-12)  # torch's 1/n is float32
        for count in ("num_rows", "num_live", "num_seen"):
            assert getattr(got, count) == getattr(model.table, count)
        dead += model.table.num_rows - model.table.num_live
    assert dead
    assert (got.lookup(KEYS) != model.table.lookup(KEYS)).any()
    live = {one: int((one.embedding.weight != 0).any(1).sum()) for one in (model, average.module)}
    if name == "keep_zeros":
        torch.testing.assert_close(average.module.embedding.weight.detach(), expected_dense, rtol=1e-12, atol=1e-12)
    assert live[model] < live[average.module] or name == "keep_zeros"

    assert model.table.table.state_names
    assert got.table.state_names == ()
    other = AveragedModel(Model(**options), **arguments)
    other.load_state_dict(average.state_dict())
    assert_identical(other.module.table.lookup(KEYS), got.lookup(KEYS))
    assert other.n_averaged == 12


@over(
    "combine",
    [
        lambda a, b: a.copy_(0.5 * a + b),
        lambda a, b: a + b,
        lambda a, b: a.mul_(0.5),
        lambda a, b: a.copy_(torch.ones(1, 3)),
        lambda a, b: torch.ones(1, 3).copy_(a),
        lambda a, b: torch.ones(1, 3).lerp_(a, 0.5),
        lambda a, b: a.lerp_(b, torch.ones(1, 3)),
        lambda a, b: a.exp(),
    ],
)
def test_arithmetic_is_refused_with_the_way_to_average_and_changes_nothing(combine):
    tables = [HashEmbedding(3), HashEmbedding(3)]
    for table in tables:
        table(KEYS)
    before = [table.lookup(KEYS) for table in tables]
    with torch.no_grad(), pytest.raises(NotImplementedError, match=r"table\.average_\(other, rate\).*keep_zeros"):
        combine(*(table.weight.detach() for table in tables))
    assert_identical([table.lookup(KEYS) for table in tables], before)


@over("arguments", [{}, {"avg_fn": get_ema_avg_fn(DECAY)}, {"avg_fn": get_swa_avg_fn()}])
def test_averaging_functions_of_one_tensor_are_refused_with_the_function_to_pass(arguments):
    model = Model()
    average = AveragedModel(model, **arguments)
    average.update_parameters(model)
    with pytest.raises(NotImplementedError, match=r"multi_avg_fn=keep_zeros"):
        average.update_parameters(model)


@over("options", [{}, {"fallback": True}])
def test_a_table_is_averaged_with_another_as_by_torchs_function(options):
    model = Model(**options)
    optimizer, average = optimizer_of(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    ours = Model(**options).table
    for step in range(4):
        train(model, optimizer, step)
        average.update_parameters(model)
        ours.average_(model.table, ema(step) if step else 1.0)
    assert_identical(ours.lookup(KEYS), average.module.table.lookup(KEYS))
    assert ours.table.state_names == ()
    for other, rate, message in (
        (model.table, 1.5, r"rate must be in \[0, 1\]"),
        (HashEmbedding(4), 0.5, "dim=4|fallback"),
    ):
        with pytest.raises(ValueError, match=message):
            ours.average_(other, rate)
    assert_identical(ours.lookup(KEYS), average.module.table.lookup(KEYS))


def test_a_clone_is_a_separate_table_and_tables_of_another_shape_are_refused():
    table, restored = HashEmbedding(3), HashEmbedding(3)
    before, clone = table(KEYS).detach(), table.weight.data.clone()
    table.assign(KEYS, torch.ones(30, 3))
    restored.weight.data.copy_(clone)
    assert_identical(restored.lookup(KEYS), before)
    with torch.no_grad(), pytest.raises(ValueError, match=r"dim=4 and torch.float32 cannot be .* one with dim=3"):
        table.weight.copy_(HashEmbedding(4).weight)
