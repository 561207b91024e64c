"""Gradients that are not finite, and `shrink`: nothing is half done."""

import copy
import math
import re

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


class TestShrink:
    def test_it_waits_for_pending_gradients(self) -> None:
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

    def test_a_lookup_from_before_it_has_no_way_back(self) -> None:
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

    def test_a_row_that_returns_has_no_past(self) -> None:
        """Start, residual and moments are those of a key never seen."""
        table, optimizer = edges_trained()
        optimizer.param_groups[0]["l21"] = 1e9
        learn(table, optimizer, pull(as_keys([0, 1]), DIM))
        optimizer.zero_grad()
        optimizer.param_groups[0]["l21"] = 0.02
        assert table.shrink() == 2
        learn(table, optimizer, pull(as_keys([1, 12345]), DIM))

        twin, twin_optimizer = edges_trained()
        learn(twin, twin_optimizer, pull(as_keys([7]), DIM))  # the step count counts
        twin_optimizer.zero_grad()
        learn(twin, twin_optimizer, pull(as_keys([54321, 12345]), DIM))
        after, expected = everything(table, optimizer)["optimizer"], everything(twin, twin_optimizer)["optimizer"]
        at, there = (entry["keys"].tolist().index(12345) for entry in (after, expected))
        for name in after.keys() - {"step", "keys", "u"}:
            assert_identical(after[name][at], expected[name][there], name)
        returned, new = after["keys"].tolist().index(1), expected["keys"].tolist().index(54321)
        for name in after.keys() - {"step", "keys", "u"}:
            assert_identical(after[name][returned], expected[name][new], name)


class TestNotFinite:
    """Gradients of keys 0 and INT64.max are bad, in one element each; the others are good."""

    BAD = (0, 2**63 - 1)

    def give(self, table: nn.Module, optimizer: GroupOptimizer, bad: float | None, extra: Tensor | None = None) -> None:
        """Gradients for all keys, one of the bad ones looked up twice, once with a good gradient."""
        keys = as_keys([*EDGES, 0])
        (lookup,) = pull(keys, DIM)
        gradient = lookup.gradient.clone()
        if bad is not None:
            gradient[0, 1], gradient[EDGES.index(2**63 - 1), 2] = bad, -bad
        vectors = table(keys)
        moved = vectors - vectors.detach()
        loss = (gradient * moved).sum() + moved.square().sum() / 2
        backward(optimizer, loss if extra is None else loss + extra.square().sum())

    @over("bad", [NAN, INF, -INF])
    @one_of_each_kind
    def test_they_raise_before_anything_is_changed(self, member: Member, bad: float) -> None:
        dense_before, dense_after = (nn.Parameter(torch.ones(2, 2, dtype=torch.float64)) for _ in range(2))
        good, table = (HashEmbedding(DIM, std=0.5, dtype=torch.float64) for _ in range(2))
        optimizer = member.build(table.weight, **REGULARIZED)
        optimizer = type(optimizer)(
            [{"params": [p], **REGULARIZED} for p in (dense_before, good.weight, table.weight, dense_after)],
            **{"lr": member.lr, **member.hyperparameters, **member.only_ours},
        )

        def give(value: float | None) -> None:
            self.give(table, optimizer, value, extra=torch.cat([good(as_keys([3, 4])), dense_before, dense_after]))

        dense_before.data, dense_after.data = (torch.ones(2, DIM, dtype=torch.float64) for _ in range(2))
        for _ in range(2):
            give(None)
            optimizer.step()
        give(bad)
        everything_before = (
            everything(good, optimizer, 1),
            everything(table, optimizer, 2),
            [p.detach().clone() for p in (dense_before, dense_after)],
            [copy.deepcopy(dict(optimizer.state[p])) for p in (dense_before, dense_after)],
        )
        with pytest.raises(FloatingPointError) as error:
            optimizer.step()
        assert all(str(key) in str(error.value) for key in self.BAD)
        assert str(2**62) not in str(error.value)
        assert_identical(
            (
                everything(good, optimizer, 1),
                everything(table, optimizer, 2),
                [p.detach().clone() for p in (dense_before, dense_after)],
                [copy.deepcopy(dict(optimizer.state[p])) for p in (dense_before, dense_after)],
            ),
            everything_before,
        )
        assert table.skipped_rows == 0
        give(None)
        optimizer.step()
        assert optimizer.state_dict()["state"][2]["step"] == 3

    @staticmethod
    def tensors(module: nn.Module, optimizer: GroupOptimizer) -> list[Tensor]:
        state = optimizer.state[module.weight]
        return [module.weight.detach(), *(value for name, value in state.items() if name != "step")]

    @over("bad", [NAN, INF])
    @one_of_each_kind
    def test_skipping_leaves_those_rows_and_updates_the_others(self, member: Member, bad: float) -> None:
        table = HashEmbedding(DIM, std=0.5, dtype=torch.float64, nonfinite="skip")
        oracle = KeyedEmbedding(table)
        ours, theirs = (member.build(module.weight, **REGULARIZED) for module in (table, oracle))
        for module, optimizer in ((table, ours), (oracle, theirs)):
            self.give(module, optimizer, None)
            optimizer.step()
            if module is oracle:
                rows = oracle.rows(as_keys(self.BAD))
                kept = [tensor[rows].clone() for tensor in self.tensors(oracle, theirs)]
            self.give(module, optimizer, bad if module is table else None)
            optimizer.step()
            if module is oracle:  # an embedding's rows are spared by putting them back
                for tensor, values in zip(self.tensors(oracle, theirs), kept, strict=True):
                    tensor[rows] = values
            self.give(module, optimizer, None)
            optimizer.step()
        keys = as_keys(oracle.row_of)
        torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=1e-12, atol=1e-12)
        assert table.skipped_rows == 2
        assert ours.state_dict()["state"][0]["step"] == 3

    def test_many_bad_keys_are_counted_and_some_are_named(self) -> None:
        table = HashEmbedding(DIM)
        optimizer = GroupAdam([table.weight])
        keys = random_keys(5000)
        (table(keys) * NAN).sum().backward()
        with pytest.raises(FloatingPointError) as error:
            optimizer.step()
        assert len(str(error.value)) < 2000
        assert re.search(r"5000|49\d\d more", str(error.value).replace(",", ""))
        assert any(str(key) in str(error.value) for key in keys.tolist())
        assert_identical(table.lookup(keys), table.initial(keys))

    def test_what_one_table_skips_is_not_counted_when_another_raises(self) -> None:
        skipping, raising = HashEmbedding(DIM, nonfinite="skip"), HashEmbedding(DIM)
        optimizer = GroupAdam([skipping.weight, raising.weight])
        keys = as_keys([1, 2])
        (skipping(keys) * NAN + raising(keys) * NAN).sum().backward()
        with pytest.raises(FloatingPointError):
            optimizer.step()
        assert skipping.skipped_rows == 0
        assert optimizer.state_dict()["state"] == {}

    def test_all_rows_may_be_skipped(self) -> None:
        table = HashEmbedding(DIM, nonfinite="skip")
        optimizer = GroupAdam([table.weight], l21=0.1)
        keys = random_keys(500)
        for step in (1, 2):
            optimizer.zero_grad()
            (table(keys) * INF).sum().backward()
            optimizer.step()
            assert table.skipped_rows == 500 * step
        assert_identical(table.lookup(keys), table.initial(keys))

    def test_a_sum_that_overflows_is_not_finite(self) -> None:
        """Each gradient is finite, their sum over the lookups of a key is not."""
        table = HashEmbedding(DIM)
        optimizer = GroupMomentum([table.weight])
        vectors = table(as_keys([4, 4, 5]))
        (vectors * torch.tensor([[3e38], [3e38], [1.0]])).sum().backward()
        with pytest.raises(FloatingPointError, match=r"\b4\b"):
            optimizer.step()

    def test_a_dense_parameter_is_still_as_in_torch(self) -> None:
        table, _ = edges_trained()
        dense = nn.Parameter(torch.ones(2))
        optimizer = GroupAdam([dense, table.weight])
        (dense * NAN).sum().backward()
        table(as_keys([1])).sum().backward()
        optimizer.step()
        assert dense.isnan().all()
