"""The closed form without a gradient: `sweep`, and the λ21 that each group outlives."""

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from family import FAMILY, regularizer
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from over import over
from sparsegroup import GroupAdagrad, GroupAdam, GroupMomentum, GroupOptimizer, HashEmbedding
from sparsegroup.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from sparsegroup.checkpoint.manifest import CHECKPOINT
from sparsegroup.models import MLP
from sparsegroup.training import Trainer
from table_cases import learn, stream
from table_pairs import NORMS, PENALTIES, TOLERANCE, Pair, same, table_of

pytestmark = ALLOW_CREATE_GRAPH


def vectors_of(table: HashEmbedding) -> torch.Tensor:
    """`[rows, dim]`, by row number."""
    return torch.from_numpy(table.table.rows.read("weight", np.arange(table.num_rows)))


def median(optimizer: GroupOptimizer) -> float:
    """The λ21 that half of the groups outlive."""
    return float(np.median(optimizer.census(0)[0].critical))


def adam(weight: nn.Parameter, **options: Any) -> GroupOptimizer:
    return GroupAdam([weight], lr=0.03, **options)


def trained(build: Any = adam, **options: Any) -> tuple[HashEmbedding, GroupOptimizer]:
    table = table_of(torch.float64)
    optimizer = build(table.weight, **options)
    for lookups in stream(steps=6):
        learn(table, optimizer, lookups)
    return table, optimizer


CASES = [
    *(("adam", norm, penalty) for norm, penalty in zip(NORMS, PENALTIES, strict=True)),
    ("ftrl", "s_tilde", "lasso"),
    ("rowwise_adagrad", "metric", "mcp"),
]
"""Each norm, each penalty, and rules of two moments, with a σ at the start, and with a number for each row."""


@over(("name", "norm", "penalty"), CASES)
def test_a_table_is_swept_as_an_embedding_and_rows_live_iff_lambda_is_below_their_critical_one(
    name: str, norm: str, penalty: str
) -> None:
    member = FAMILY[name]
    options = regularizer(member, norm, penalty)

    def change(t: int, optimizer: GroupOptimizer) -> None:
        if t % 3 == 2:
            optimizer.param_groups[0]["l21"] = options["l21"] * (1.5 if t % 2 else 0.5)
            optimizer.sweep()

    for dtype in TOLERANCE if (name, penalty) == ("adam", "mcp") else [torch.float64]:
        pair = Pair(table_of(dtype), lambda weight: member.build(weight, **options))
        same(pair.follow(stream(steps=15), change))
        pair.assert_same_state()
    table, optimizer = trained(member.build, **options)
    (census,) = optimizer.census(0)
    assert len(census.critical) == census.seen == table.num_rows
    for share in (0.25, 0.5, 0.75):
        critical = np.sort(census.critical)
        at = int(share * len(critical))
        optimizer.param_groups[0]["l21"] = (critical[at - 1] + critical[at]) / 2
        optimizer.sweep()
        expected = torch.from_numpy(census.critical > optimizer.param_groups[0]["l21"])
        (census,) = optimizer.census(0)  # where σ changes what u is, a row's own has changed
        if penalty == "lasso" and norm == "s":
            assert torch.equal((vectors_of(table) != 0).any(1), expected)
        assert int((vectors_of(table) != 0).any(1).sum()) == table.num_live == int(expected.sum())


@over("dim", [1, 256, 257])
def test_rows_of_any_width(dim: int) -> None:
    """PyTorch sweeps rows that are wider than a block of the compiled kernel."""
    pair = Pair(table_of(torch.float64, dim=dim), lambda weight: GroupAdam([weight], lr=0.03, l21=0.4, penalty="hard"))
    path = pair.follow(stream(steps=12, dim=dim), lambda t, optimizer: optimizer.sweep())
    same(path)
    assert 0 < (path[0, -1] == 0).all(-1).double().mean() < 1
    (ours,), (theirs,) = pair.ours.census(0), pair.theirs.census(0)
    # Rows without a gradient are first, and not the oracle's.
    critical = np.sort(ours.critical)[-len(theirs.critical) :]
    np.testing.assert_allclose(critical, np.sort(theirs.critical), rtol=1e-9)


def stepped(optimizer_class: type[GroupOptimizer], **options: Any) -> tuple[nn.Parameter, GroupOptimizer]:
    torch.manual_seed(1)
    x = nn.Parameter(torch.randn(40, 3, dtype=torch.float64))
    optimizer = optimizer_class([x], **options)
    for _ in range(5):
        x.grad = torch.randn_like(x)
        optimizer.step()
    return x, optimizer


@over("norm", NORMS)
@over("optimizer_class", [GroupMomentum, GroupAdagrad])
def test_a_sweep_is_the_closed_form_of_u_minus_sigma_x(optimizer_class: type[GroupOptimizer], norm: str) -> None:
    """For rules whose σ a gradient of zero leaves as it is: momentum, 1/α, and Adagrad, (√Σg² + ε)/α."""
    l1, l2 = 0.3, 0.2
    x, optimizer = stepped(optimizer_class, lr=0.5, l1=l1, l21=0.1, l2=l2, norm=norm)
    state, l21 = optimizer.state[x], median(optimizer)
    before, u = x.detach().clone(), state["u"].clone()
    sigma = (state["sum"].sqrt() + 1e-10) / 0.5 if "sum" in state else torch.full_like(before, 1 / 0.5)
    optimizer.param_groups[0]["l21"] = l21
    optimizer.sweep()

    z = u - sigma * before
    s = -torch.sign(z) * (z.abs() - l1).clamp(min=0)
    half = sigma / 2 + l2
    weighed = {"s": s, "s_tilde": s / half, "metric": s / half.sqrt()}[norm]
    k = (1 - math.sqrt(3) * l21 / torch.linalg.vector_norm(weighed, dim=1, keepdim=True)).clamp(min=0)
    expected = k * s / (sigma + 2 * l2)
    torch.testing.assert_close(x.detach(), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(state["u"], z + sigma * expected, rtol=0, atol=1e-13)
    assert 0 < (expected == 0).all(1).sum() < len(x)


def test_state_step_count_and_groups_without_lambda_stay() -> None:
    torch.manual_seed(0)
    x, y = (nn.Parameter(torch.randn(20, 3)) for _ in range(2))
    optimizer = GroupAdam([{"params": [x], "l21": 1e-3}, {"params": [y]}], lr=1e-2)
    optimizer.sweep()  # before the first step
    assert optimizer.census(0) == []
    x.grad, y.grad = torch.randn(20, 3), torch.randn(20, 3)
    optimizer.step()
    before = copy.deepcopy([{**optimizer.state[p], "u": None} for p in (x, y)])
    y_before = y.detach().clone()
    optimizer.param_groups[0]["l21"] = 30.0
    optimizer.sweep()
    assert not (x != 0).all()
    assert torch.equal(y, y_before)
    assert_identical([{**optimizer.state[p], "u": None} for p in (x, y)], before)
    once = x.detach().clone()
    optimizer.param_groups[0]["l21"], optimizer.param_groups[1]["l21"] = 0.0, math.nan
    with pytest.raises(ValueError, match=r"l21 .*param group 1"):
        optimizer.sweep()
    assert torch.equal(x, once)


@over("optimizer_class", [GroupAdam, GroupMomentum])
def test_groups_that_never_had_a_gradient_stay(optimizer_class: type[GroupOptimizer]) -> None:
    x = nn.Parameter(torch.ones(4, 3))
    optimizer = optimizer_class([x], lr=0.1, l21=1e3)
    x.grad = torch.zeros(4, 3)
    x.grad[1] = 1.0
    optimizer.step()
    optimizer.sweep()
    assert (x != 0).all(1).tolist() == [True, False, True, True]
    (census,) = optimizer.census(0)
    assert census.seen == len(census.critical) == 1


@over("dim", [3, 300])
def test_rows_without_a_gradient_become_zero_on_request(dim: int) -> None:
    table = HashEmbedding(dim, std=1.0)
    optimizer = GroupAdam(table.parameters(), lr=0.1, l21=1e-3)
    table(torch.arange(4))[1].sum().backward()
    optimizer.step()
    optimizer.sweep()
    assert table.num_live == 4
    optimizer.sweep(zero_untrained=True)
    assert (table.lookup(torch.arange(4)) != 0).any(1).tolist() == [False, True, False, False]
    assert table.num_live == 1
    table(torch.arange(4)).sum().backward()
    optimizer.step()  # they come back from zero
    assert table.num_live == 4


def test_a_learning_rate_of_zero_keeps_the_order_of_the_living() -> None:
    _, optimizer = trained(penalty="hard")
    (census,) = optimizer.census(0)
    optimizer.param_groups[0]["lr"] = 0.0
    (frozen,) = optimizer.census(0)
    assert np.isfinite(frozen.critical).all()
    np.testing.assert_array_equal(np.argsort(frozen.critical), np.argsort(census.critical))


def test_another_optimizers_rows_are_not_swept() -> None:
    table, optimizer = trained(l21=1e3)
    learn(table, GroupAdagrad(table.parameters()), stream(steps=1)[0])
    before = vectors_of(table)
    optimizer.sweep()
    assert torch.equal(vectors_of(table), before)
    (census,) = optimizer.census(0)
    assert not len(census.critical)


@over(("groups", "count"), [("rows", 6), ("columns", 4), ("all", 1), (1, 4), (torch.tensor([0, 7, 7, 2, 0, 0]), 3)])
def test_a_census_counts_groups_however_they_are_cut(groups: Any, count: int) -> None:
    torch.manual_seed(3)
    x = nn.Parameter(torch.randn(6, 4, dtype=torch.float64))
    optimizer = GroupAdam([x], lr=0.1, groups=groups, l21=1e-3)
    x.grad = torch.randn_like(x)
    optimizer.step()
    (census,) = optimizer.census(0)
    assert len(census.critical) == census.seen == census.live == count
    optimizer.param_groups[0]["l21"] = float(np.median(census.critical))
    optimizer.sweep()
    (after,) = optimizer.census(0)
    assert after.live == (census.critical > np.median(census.critical)).sum()


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), sample=st.integers(1, 300))
def test_a_sample_stands_for_all(seed: int, sample: int) -> None:
    x = nn.Parameter(torch.randn(200, 2, generator=torch.Generator().manual_seed(0)))
    optimizer = GroupAdam([x], lr=0.1, l21=1e-3)
    x.grad = torch.ones(200, 2)
    x.grad[:50] = 0
    optimizer.step()
    (census,) = optimizer.census(0, sample, (seed,))
    assert len(census.critical) <= min(sample, 200)
    assert census.seen == pytest.approx(len(census.critical) * max(1.0, 200 / sample))
    (all_of_them,) = optimizer.census(0)
    assert np.isin(census.critical, all_of_them.critical).all()


def test_a_sample_of_a_table_is_drawn_from_its_rows() -> None:
    table, optimizer = trained()
    (whole,), (some,) = optimizer.census(0), optimizer.census(0, 10)
    assert len(some.critical) == 10
    assert some.weight == table.num_rows / 10
    assert some.seen == whole.seen == table.num_seen
    assert np.isin(some.critical, whole.critical).all()
    assert some.live_bytes == 5 * 8 + 8


@over("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_parameters_feed_their_rounding_back(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = nn.Parameter(torch.randn(50, 4).to(dtype))
    optimizer = GroupMomentum([x], lr=0.5, l21=0.1, momentum=0.0)
    x.grad = torch.randn(50, 4).to(dtype)
    optimizer.step()
    z = optimizer.state[x]["u"] - x.detach().float() / 0.5
    optimizer.param_groups[0]["l21"] = 0.5
    optimizer.sweep()
    torch.testing.assert_close(optimizer.state[x]["u"], z + x.detach().float() / 0.5, rtol=0, atol=1e-6)


def test_evaluation_and_checkpoints_sweep_if_asked(tmp_path: Path) -> None:
    table, model = HashEmbedding(4, std=0.1, field_bits=8), MLP(fields=2, dim=4, hidden=(8,))
    optimizer = GroupAdam([{"params": m.parameters()} for m in (table, model)], lr=1e-2, penalty="hard")
    trainer = Trainer(table, model, optimizer)
    draw = torch.Generator().manual_seed(0)
    batches = [(torch.randint(50, (32, 2), generator=draw), torch.randint(2, (32,), generator=draw)) for _ in range(10)]
    trainer.fit(batches)
    rows, both = table.num_live, nn.ModuleList([table, model])
    optimizer.param_groups[0]["l21"] = median(optimizer)
    trainer.evaluate(batches)
    save_checkpoint(tmp_path / "plain", both, optimizer)
    assert table.num_live == rows
    save_checkpoint(tmp_path / "swept", both, optimizer, sweep=True)
    assert table.num_live == rows // 2
    optimizer.param_groups[0]["l21"] *= 2
    trainer.evaluate(batches, sweep=True)
    assert table.num_live < rows // 2


def test_a_sweep_is_noted_as_a_change(tmp_path: Path) -> None:
    """A checkpoint of what has changed holds what a sweep has done."""
    table, optimizer = trained(penalty="hard", l21=1e-9)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, table, optimizer)
    optimizer.param_groups[0]["l21"] = median(optimizer)
    optimizer.sweep()
    path = checkpoints.save(2, table, optimizer)
    assert CHECKPOINT.read(path).parent is not None
    again = table_of(torch.float64)
    load_checkpoint(path, again, GroupAdam(again.parameters()))
    keys = torch.cat([keys for keys, _ in table.items()])
    assert again.num_live == table.num_live == len(keys)
    assert torch.equal(again.lookup(keys), table.lookup(keys))
