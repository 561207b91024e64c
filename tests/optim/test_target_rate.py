"""Asking for a size: what is asked for is what is left, whatever the optimizer, the log and the place of the rows."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from family import FAMILY, Member
from optimizer_cases import ALLOW_CREATE_GRAPH, backward
from over import over
from sparsegroup import (
    GroupAdagrad,
    GroupAdam,
    GroupOptimizer,
    HashEmbedding,
    MinCount,
    TargetBytes,
    TargetRate,
    feature_rate,
)
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint

pytestmark = ALLOW_CREATE_GRAPH

STEPS = 120


def keys_of(step: int, count: int = 64, spread: int = 400) -> Tensor:
    """A few that come often and many that come once, more and more of them."""
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(count, generator=generator).square() * spread).long()


def pull(vectors: Tensor, keys: Tensor) -> Tensor:
    """A loss that pulls each key into a direction of its own, some hard and some hardly."""
    strength = (keys % 7 == 0).double() + 0.05
    direction = torch.sin(keys[:, None].double() * torch.arange(1, vectors.shape[1] + 1))
    return (strength[:, None] * (vectors - direction).square()).mean()


def train(module: nn.Module, optimizer: GroupOptimizer, target: Any, first: int = 0, last: int = STEPS) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        keys = keys_of(step)
        backward(optimizer, pull(module(keys), keys))
        optimizer.step()
        target.step()


class TestItLands:
    @pytest.mark.parametrize(
        ("member", "penalty"),
        [
            *((FAMILY["adam"], penalty) for penalty in ("lasso", "mcp", "hard")),
            *((FAMILY[name], penalty) for name, penalty in (("sgd", "mcp"), ("ftrl", "hard"), ("adahessian", "lasso"))),
        ],
    )
    def test_in_a_table(self, member: Member, penalty: str) -> None:
        for rate in (0.3, 0.03):
            table = HashEmbedding(4, std=0.1, dtype=torch.float64)
            optimizer = member.build(table.weight, penalty=penalty)
            train(table, optimizer, TargetRate(optimizer, rate, steps=STEPS))
            assert table.num_live == pytest.approx(rate * table.num_seen, abs=1)
            assert table.num_seen > 1000

    @pytest.mark.parametrize("sparse", [False, True])
    def test_in_an_embedding(self, sparse: bool) -> None:
        embedding = nn.Embedding(10_000, 4, sparse=sparse)
        optimizer = GroupAdam([{"params": embedding.parameters(), "l21": 1e-3}], lr=1e-2, penalty="hard")
        target = TargetRate(optimizer, 0.1, steps=STEPS)
        train(embedding, optimizer, target)
        seen = torch.zeros(10_000, dtype=torch.bool)
        for step in range(STEPS):
            seen[keys_of(step)] = True
        live = ((embedding.weight != 0).any(1) & seen).sum()
        assert int(live) == pytest.approx(0.1 * int(seen.sum()), abs=1)
        assert target.rate == pytest.approx(0.1, rel=0.02)
        assert (embedding.weight[~seen] != 0).all()

    def test_in_dense_layers(self) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(50, 64), nn.ReLU(), nn.Linear(64, 1))
        optimizer = GroupAdam([{"params": [net[0].weight], "l21": 1e-3, "groups": "columns"}, *others(net)], lr=1e-2)
        target = TargetRate(optimizer, 0.2, steps=60)
        x = torch.randn(256, 50)
        for _ in range(60):
            optimizer.zero_grad()
            (net(x).squeeze(1) - x[:, :10].sum(1)).square().mean().backward()
            optimizer.step()
            target.step()
        kept = (net[0].weight != 0).any(0)
        assert int(kept.sum()) == 10
        assert kept[:10].sum() >= 9  # the inputs that matter

    def test_over_two_tables_together_and_apart(self) -> None:
        def build() -> tuple[HashEmbedding, HashEmbedding, GroupOptimizer]:
            tables = HashEmbedding(4, std=0.1), HashEmbedding(8, std=0.1, seed=1)
            return *tables, GroupAdam([{"params": table.parameters()} for table in tables], lr=1e-2, penalty="hard")

        a, b, optimizer = build()
        both = nn.ModuleList([a, b])

        def run(targets: list[Any]) -> None:
            for step in range(STEPS):
                optimizer.zero_grad()
                keys = keys_of(step)
                loss = pull(both[0](keys), keys) + 0.1 * pull(both[1](keys * 3), keys)
                loss.backward()
                optimizer.step()
                for target in targets:
                    target.step()

        run([TargetRate(optimizer, 0.1, steps=STEPS)])
        assert a.num_live + b.num_live == pytest.approx(0.1 * (a.num_seen + b.num_seen), abs=1)
        assert a.feature_rate > b.feature_rate  # they share one λ21, per √d

        a, b, optimizer = build()
        both = nn.ModuleList([a, b])
        run([TargetRate(optimizer, rate, steps=STEPS, param_groups=[n]) for n, rate in enumerate((0.05, 0.2))])
        assert a.num_live == pytest.approx(0.05 * a.num_seen, abs=1)
        assert b.num_live == pytest.approx(0.2 * b.num_seen, abs=1)

    def test_at_a_number_of_bytes(self) -> None:
        table = HashEmbedding(4, std=0.1)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        train(table, optimizer, TargetBytes(optimizer, "3 kB", steps=STEPS))
        assert 3000 - 24 < table.num_live * (4 * 4 + 8) <= 3000

    def test_at_more_bytes_than_there_are(self) -> None:
        table = HashEmbedding(4, std=0.1)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        train(table, optimizer, TargetBytes(optimizer, "1 GB", steps=STEPS))
        assert table.feature_rate == 1
        assert optimizer.param_groups[0]["l21"] == 0

    @settings(max_examples=15)
    @given(
        rate=st.floats(0.05, 1),
        steps=st.integers(1, 40),
        ramp=st.none() | st.integers(0, 60),
        interval=st.none() | st.integers(1, 50),
        sample=st.integers(1, 500),
    )
    def test_under_any_schedule(
        self, rate: float, steps: int, ramp: int | None, interval: int | None, sample: int
    ) -> None:
        table = HashEmbedding(2, std=0.1)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        target = TargetRate(optimizer, rate, steps=steps, ramp=ramp, interval=interval, sample=sample)
        train(table, optimizer, target, last=steps)
        assert target.scheduled_rate is not None
        assert table.num_live == pytest.approx(target.scheduled_rate * table.num_seen, abs=1)
        if ramp is None or ramp <= steps:
            assert target.scheduled_rate == rate


def others(net: nn.Sequential) -> list[dict[str, Any]]:
    return [{"params": [p for name, p in net.named_parameters() if name != "0.weight"]}]


class TestWithoutAnEnd:
    @pytest.mark.parametrize("penalty", ["lasso", "hard"])
    def test_the_rate_is_held_within_a_tenth(self, penalty: str) -> None:
        table = HashEmbedding(4, std=0.1)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty=penalty)
        target = TargetRate(optimizer, 0.1, interval=5)
        rates = []
        for step in range(300):
            train(table, optimizer, target, step, step + 1)
            rates.append(table.feature_rate)
        held = np.array(rates[20:])
        assert held.min() >= 0.09
        assert held.max() <= 0.11

    def test_a_second_pass_goes_on_at_the_rate_of_the_first(self) -> None:
        table = HashEmbedding(4, std=0.1)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        train(table, optimizer, TargetRate(optimizer, 0.1, steps=STEPS))
        again = TargetRate(optimizer, 0.1, steps=STEPS)
        train(table, optimizer, again, STEPS, STEPS + 10)
        assert again.scheduled_rate == pytest.approx(0.1, rel=0.05)  # no ramp from all features


class TestSchedule:
    def test_the_share_falls_along_a_cubic(self) -> None:
        table = HashEmbedding(4, std=0.1)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        target = TargetRate(optimizer, 0.2, steps=100, ramp=50, interval=1)
        scheduled = []
        for step in range(100):
            train(table, optimizer, target, step, step + 1)
            scheduled.append(target.scheduled_rate)
        expected = [0.2 + 0.8 * (1 - min(1.0, t / 50)) ** 3 for t in range(1, 101)]
        np.testing.assert_allclose(np.array(scheduled, float), expected, rtol=1e-12)

    def test_lambda_follows_any_learning_rate_schedule(self) -> None:
        table = HashEmbedding(4, std=0.1)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)  # ends at 0
        target = TargetRate(optimizer, 0.1, steps=STEPS)
        for step in range(STEPS):
            train(table, optimizer, target, step, step + 1)
            scheduler.step()
        assert table.num_live == pytest.approx(0.1 * table.num_seen, abs=1)

    def test_an_optimizer_without_a_target_is_what_it_was(self) -> None:
        """λ21 is all that a target changes."""
        tables = [HashEmbedding(4, std=0.1) for _ in range(2)]
        ours, theirs = (GroupAdam(table.parameters(), lr=1e-2, penalty="hard") for table in tables)
        target = TargetRate(ours, 0.1, steps=STEPS)
        for step in range(STEPS - 50):  # until it begins to sweep
            l21 = ours.param_groups[0]["l21"]
            train(tables[0], ours, target, step, step + 1)
            theirs.param_groups[0]["l21"] = l21
            train(tables[1], theirs, _Nothing(), step, step + 1)
        keys = torch.arange(2000)
        assert torch.equal(tables[0].lookup(keys), tables[1].lookup(keys))


class _Nothing:
    def step(self) -> None:
        pass


class TestResume:
    @pytest.mark.parametrize("cut", [1, 37, 96, 119])
    def test_bit_for_bit(self, cut: int, tmp_path: Any) -> None:
        def build() -> tuple[HashEmbedding, GroupOptimizer, TargetRate]:
            table = HashEmbedding(4, std=0.1)
            optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
            return table, optimizer, TargetRate(optimizer, 0.1, steps=STEPS, sample=200)

        whole = build()
        train(*whole)
        first = build()
        train(*first, last=cut)
        save_checkpoint(tmp_path / "at", first[0], first[1], extra=first[2].state_dict())
        second = build()
        second[2].load_state_dict(load_checkpoint(tmp_path / "at", second[0], second[1]).extra)
        train(*second, first=cut)
        keys = torch.arange(4000)
        assert torch.equal(whole[0].lookup(keys), second[0].lookup(keys))
        assert whole[2].state_dict() == second[2].state_dict()

    def test_a_state_is_plain_numbers(self) -> None:
        optimizer = GroupAdam(HashEmbedding(4).parameters())
        state = TargetRate(optimizer, 0.1, steps=5).state_dict()
        assert all(value is None or isinstance(value, int | float) for value in state.values())
        assert copy.deepcopy(state) == state


class TestBadInput:
    @over("rate", [0, -0.1, 1.1, math.nan])
    def test_a_rate_out_of_range(self, rate: float) -> None:
        with pytest.raises(ValueError, match=r"rate must be in \(0, 1\]"):
            TargetRate(GroupAdam(HashEmbedding(4).parameters()), rate)

    @over("options", [{"steps": 0}, {"ramp": -1}, {"interval": 0}, {"steps": 1.5}, {"sample": 0}])
    def test_numbers_out_of_range(self, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            TargetRate(GroupAdam(HashEmbedding(4).parameters()), 0.1, **options)

    def test_another_optimizer(self) -> None:
        with pytest.raises(TypeError, match="an optimizer of sparsegroup, got Adam"):
            TargetRate(torch.optim.Adam([nn.Parameter(torch.ones(2))]), 0.1)  # type: ignore[arg-type]

    def test_nothing_to_make_sparse(self) -> None:
        with pytest.raises(ValueError, match=r"param_groups=\[…\]"):
            TargetRate(GroupAdam([nn.Parameter(torch.ones(2))]), 0.1)

    @over("numbers", [[1], [-1], []])
    def test_param_groups_that_are_not_there(self, numbers: list[int]) -> None:
        with pytest.raises(ValueError, match="param group"):
            TargetRate(GroupAdam(HashEmbedding(4).parameters()), 0.1, param_groups=numbers)

    def test_a_captured_step_could_not_follow(self) -> None:
        optimizer = GroupAdam([nn.Parameter(torch.ones(2))], l21=1e-3)
        optimizer.param_groups[0]["capturable"] = True
        with pytest.raises(ValueError, match="param group 0 has capturable=True"):
            TargetRate(optimizer, 0.1)

    def test_nothing_has_changed_when_it_raises(self) -> None:
        optimizer = GroupAdam(HashEmbedding(4).parameters(), l21=0.5)
        with pytest.raises(ValueError, match="rate"):
            TargetRate(optimizer, 2.0)
        assert optimizer.param_groups[0]["l21"] == 0.5

    def test_more_rows_than_have_had_a_gradient_is_said(self) -> None:
        """Those that have not start at random and mean nothing: they die, though more may live."""
        table = HashEmbedding(4)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        target = TargetRate(optimizer, 0.5, steps=3)
        for _ in range(3):
            optimizer.zero_grad()
            keys = torch.arange(100)
            (table(keys).sum(dim=1) * (keys < 20)).sum().backward()
            optimizer.step()
            if target.count < 2:
                target.step()
        with pytest.warns(RuntimeWarning, match=r"0\.5 is more than the groups that have had a gradient: 0\.2 of all"):
            target.step()
        assert table.num_live == 20

    @pytest.mark.parametrize(("seen", "live"), [(40, 40), (200, 60), (1_000, 100)])
    def test_the_least_that_is_kept(self, seen: int, live: int) -> None:
        table = HashEmbedding(2)
        optimizer = GroupAdam(table.parameters(), penalty="hard")
        target = TargetRate(optimizer, 0.1, steps=20, least=60)
        for _ in range(20):
            optimizer.zero_grad()
            table(torch.arange(seen)).square().sum().backward()
            optimizer.step()
            target.step()
        assert table.num_live == live

    def test_a_size_below_one_row_is_said(self) -> None:
        table = HashEmbedding(4)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        target = TargetBytes(optimizer, 10, interval=1)
        half_step(table, optimizer)
        with pytest.warns(RuntimeWarning, match="a size of 10 bytes is less than one group: nothing will be left"):
            target.step()
        assert table.num_live == 0
        half_step(table, optimizer)
        target.step()  # once is enough


class TestRowsWithoutAGradient:
    """Rows that were looked up and never had a non-zero gradient are noise, and the first to go."""

    def test_they_do_not_crowd_out_the_others(self) -> None:
        table, optimizer, target = half_trained(0.2)
        for _ in range(3):
            half_step(table, optimizer)
            target.step()
            assert table.num_live == 20
        assert not table.lookup(torch.arange(50, 100)).any()

    def test_at_the_end_they_go(self) -> None:
        table, optimizer, target = half_trained(0.1, steps=2)
        for _ in range(2):
            half_step(table, optimizer)
            target.step()
        assert table.num_live == 10
        assert not table.lookup(torch.arange(50, 100)).any()


def half_trained(rate: float, **options: Any) -> tuple[HashEmbedding, GroupOptimizer, TargetRate]:
    table = HashEmbedding(4)
    optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
    return table, optimizer, TargetRate(optimizer, rate, interval=1, **options)


def half_step(table: HashEmbedding, optimizer: GroupOptimizer) -> None:
    optimizer.zero_grad()
    vectors = table(torch.arange(100))
    (vectors[:50].square().sum() + 0 * vectors[50:].sum()).backward()
    optimizer.step()


def test_no_key_has_been_admitted_yet() -> None:
    table = HashEmbedding(4, std=0.1, admission=MinCount(2))
    optimizer = GroupAdam([table.weight, nn.Parameter(torch.ones(2))], lr=1e-2, penalty="hard")
    target = TargetRate(optimizer, 0.1, steps=STEPS)
    for step in range(STEPS):
        optimizer.zero_grad()
        keys = keys_of(step)
        pull(table(keys), keys).backward()
        optimizer.step()
        target.step()
    assert table.num_rows < 0.8 * table.num_seen
    assert table.num_live == pytest.approx(0.1 * table.num_seen, abs=1)


def test_the_rate_of_a_weight_is_that_of_the_target() -> None:
    table = HashEmbedding(4, std=0.1)
    optimizer = GroupAdagrad(table.parameters(), lr=0.1, penalty="hard")
    target = TargetRate(optimizer, 0.05, steps=STEPS)
    train(table, optimizer, target)
    assert target.rate == feature_rate(table.weight) == pytest.approx(0.05, rel=0.02)
