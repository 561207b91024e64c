"""Gradients that are not finite, and `shrink`: nothing is half done."""

import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from family import Member
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical, backward
from over import over
from sparsegroup import GroupAdam, GroupMomentum, GroupOptimizer, HashEmbedding
from table_cases import EDGES, REGULARIZED, KeyedEmbedding, as_keys, edges_trained, everything, learn, pull, random_keys
from table_pairs import one_of_each_kind

pytestmark = ALLOW_CREATE_GRAPH

NAN, INF = math.nan, math.inf
DIM = 3
BAD = (0, 2**63 - 1)


def test_shrink_waits_for_pending_gradients() -> None:
    table, optimizer = edges_trained()
    table(as_keys(EDGES[:3])).sum().backward()
    before = everything(table, optimizer)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="grad"):
            table.shrink()
        assert_identical(everything(table, optimizer), before)
        optimizer.step()
        before = everything(table, optimizer)
    optimizer.zero_grad()
    assert table.shrink() == 0


def test_a_lookup_from_before_shrink_has_no_way_back() -> None:
    table, optimizer = edges_trained()
    loss = table(as_keys([5, 1])).square().sum()
    optimizer.param_groups[0]["l21"] = 1e9
    learn(table, optimizer, pull(as_keys([0, 1]), DIM))
    optimizer.zero_grad()
    assert table.shrink() == 2
    before = everything(table, optimizer)
    with pytest.raises(RuntimeError, match="shrink"):
        loss.backward()
    assert table.weight.grad is None
    assert_identical(everything(table, optimizer), before)
    table(as_keys([5, 1])).sum().backward()
    optimizer.step()


def give(table: nn.Module, optimizer: GroupOptimizer, bad: float | None, others: Tensor | None = None) -> None:
    """Gradients for all keys; those of `BAD` are bad in one element, key 0 is also looked up with a good one."""
    (lookup,) = pull(as_keys([*EDGES, 0]), DIM)
    gradient = lookup.gradient.clone()
    if bad is not None:
        gradient[0, 1], gradient[EDGES.index(BAD[1]), 2] = bad, -bad
    vectors = table(lookup.keys)
    moved = vectors - vectors.detach()
    loss = (gradient * moved).sum() + moved.square().sum() / 2
    backward(optimizer, loss if others is None else loss + others.square().sum())


@over("bad", [NAN, INF, -INF])
@one_of_each_kind
def test_they_raise_before_anything_is_changed(member: Member, bad: float) -> None:
    dense = [nn.Parameter(torch.ones(2, DIM, dtype=torch.float64)) for _ in range(2)]
    good, table = (HashEmbedding(DIM, std=0.5, dtype=torch.float64) for _ in range(2))
    optimizer = member.optimizer(
        [{"params": [p], **REGULARIZED} for p in (dense[0], good.weight, table.weight, dense[1])],
        **{"lr": member.lr, **member.hyperparameters, **member.only_ours},
    )

    def give_all(value: float | None) -> None:
        give(table, optimizer, value, torch.cat([good(as_keys([3, 4])), *dense]))

    def all_of_it() -> list[Any]:
        of_dense = copy.deepcopy([(p.detach(), dict(optimizer.state[p])) for p in dense])
        return [everything(good, optimizer, 1), everything(table, optimizer, 2), of_dense]

    for _ in range(2):
        give_all(None)
        optimizer.step()
    give_all(bad)
    before = all_of_it()
    with pytest.raises(FloatingPointError) as error:
        optimizer.step()
    assert all(str(key) in str(error.value) for key in BAD)
    assert str(2**62) not in str(error.value)
    assert_identical(all_of_it(), before)
    assert table.skipped_rows == 0
    give_all(None)
    optimizer.step()
    assert optimizer.state_dict()["state"][2]["step"] == 3


def tensors(module: nn.Module, optimizer: GroupOptimizer) -> list[Tensor]:
    state = optimizer.state[module.weight]
    return [module.weight.detach(), *(value for name, value in state.items() if name != "step")]


@over("bad", [NAN, INF])
@one_of_each_kind
def test_skipping_leaves_those_rows_and_updates_the_others(member: Member, bad: float) -> None:
    table = HashEmbedding(DIM, std=0.5, dtype=torch.float64, nonfinite="skip")
    oracle = KeyedEmbedding(table)
    ours, theirs = (member.build(module.weight, **REGULARIZED) for module in (table, oracle))
    for t, value in enumerate((None, bad, None)):
        give(table, ours, value)
        ours.step()
        if t == 1:
            rows = oracle.rows(as_keys(BAD))
            kept = [tensor[rows].clone() for tensor in tensors(oracle, theirs)]
        give(oracle, theirs, None)
        theirs.step()
        if t == 1:  # an embedding's rows are spared by putting them back
            for tensor, values in zip(tensors(oracle, theirs), kept, strict=True):
                tensor[rows] = values
    keys = as_keys(oracle.row_of)
    torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=1e-12, atol=1e-12)
    assert table.skipped_rows == 2
    assert ours.state_dict()["state"][0]["step"] == 3


def test_many_bad_keys_are_counted_and_some_are_named() -> None:
    """When one table raises, what another would skip is not counted; all of its rows may be bad."""
    table, skipping = HashEmbedding(DIM), HashEmbedding(DIM, nonfinite="skip")
    optimizer = GroupAdam([skipping.weight, table.weight], l21=0.1)
    keys = random_keys(5000)
    (table(keys) * NAN + skipping(keys) * NAN).sum().backward()
    with pytest.raises(FloatingPointError) as error:
        optimizer.step()
    assert len(str(error.value)) < 2000
    assert re.search(r"5000|49\d\d more", str(error.value).replace(",", ""))
    assert any(str(key) in str(error.value) for key in keys.tolist())
    assert_identical(table.lookup(keys), table.initial(keys))
    assert skipping.skipped_rows == 0
    assert optimizer.state_dict()["state"] == {}
    table.weight.grad = None
    for skipped in (5000, 10_000):
        optimizer.step()
        assert skipping.skipped_rows == skipped
    assert_identical(skipping.lookup(keys), skipping.initial(keys))


def test_a_sum_that_overflows_is_not_finite_and_a_dense_parameter_is_as_in_torch() -> None:
    """Each gradient of a key is finite, their sum over its lookups is not."""
    table, dense = HashEmbedding(DIM), nn.Parameter(torch.ones(2))
    optimizer = GroupMomentum([dense, table.weight])
    (table(as_keys([4, 4, 5])) * torch.tensor([[3e38], [3e38], [1.0]])).sum().backward()
    with pytest.raises(FloatingPointError, match=r"\b4\b"):
        optimizer.step()
    optimizer.zero_grad()
    (dense * NAN).sum().backward()
    table(as_keys([1])).sum().backward()
    optimizer.step()
    assert dense.isnan().all()
