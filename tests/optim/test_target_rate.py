"""A target size is the size at the end, whatever the optimizer, the log and the place of the rows."""

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from family import FAMILY
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
from sparsegroup.names import bytes_of
from sparsegroup.optim import SizeTarget
from sparsegroup.optim.census import GroupCensus
from sparsegroup.optim.target import l21_for

pytestmark = ALLOW_CREATE_GRAPH

STEPS = 120


def keys_of(step: int, count: int = 64, spread: int = 400) -> Tensor:
    """A few that come often and many that come once, more and more of them."""
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(count, generator=generator).square() * spread).long()


def pull(vectors: Tensor, keys: Tensor) -> Tensor:
    """A loss that pulls each key into a separate direction, some hard and some hardly."""
    strength = (keys % 7 == 0).double() + 0.05
    direction = torch.sin(keys[:, None].double() * torch.arange(1, vectors.shape[1] + 1))
    return (strength[:, None] * (vectors - direction).square()).mean()


def train(module: nn.Module, optimizer: GroupOptimizer, *targets: Any, first: int = 0, last: int = STEPS) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        keys = keys_of(step)
        backward(optimizer, pull(module(keys), keys))
        optimizer.step()
        for target in targets:
            target.step()


def adam_on_table(penalty: str = "hard", **options: Any) -> tuple[HashEmbedding, GroupOptimizer]:
    table = HashEmbedding(4, **{"std": 0.1, **options})
    return table, GroupAdam(table.parameters(), lr=1e-2, penalty=penalty)


def is_share(table: HashEmbedding, rate: float) -> bool:
    return table.num_live == pytest.approx(rate * table.num_seen, abs=1)


class TestItLands:
    @over(("name", "penalty", "rate"), [("adam", "lasso", 0.03), ("adam", "mcp", 0.3), ("ftrl", "hard", 0.03)])
    def test_in_a_table(self, name: str, penalty: str, rate: float) -> None:
        table = HashEmbedding(4, std=0.1, dtype=torch.float64)
        optimizer = FAMILY[name].build(table.weight, penalty=penalty)
        target = TargetRate(optimizer, rate, steps=STEPS)
        train(table, optimizer, target)
        assert is_share(table, rate)
        assert table.num_seen > 1000
        assert target.rate == feature_rate(table.weight) == pytest.approx(rate, rel=0.05)

    @pytest.mark.parametrize("sparse", [False, True])
    def test_in_an_embedding(self, sparse: bool) -> None:
        embedding = nn.Embedding(10_000, 4, sparse=sparse)
        optimizer = GroupAdam([{"params": embedding.parameters(), "l21": 1e-3}], lr=1e-2, penalty="hard")
        target = TargetRate(optimizer, 0.1, steps=STEPS)
        train(embedding, optimizer, target)
        seen = torch.zeros(10_000, dtype=torch.bool)
        seen[torch.cat([keys_of(step) for step in range(STEPS)])] = True
        live = ((embedding.weight != 0).any(1) & seen).sum()
        assert int(live) == pytest.approx(0.1 * int(seen.sum()), abs=1)
        assert target.rate == pytest.approx(0.1, rel=0.02)
        assert (embedding.weight[~seen] != 0).all()

    def test_in_dense_layers(self) -> None:
        torch.manual_seed(0)
        first, last = nn.Linear(50, 64), nn.Linear(64, 1)
        columns = {"params": [first.weight], "l21": 1e-3, "groups": "columns"}
        optimizer = GroupAdam([columns, {"params": [first.bias, *last.parameters()]}], lr=1e-2)
        target = TargetRate(optimizer, 0.2, steps=60)
        x = torch.randn(256, 50)
        for _ in range(60):
            optimizer.zero_grad()
            (last(first(x).relu()).squeeze(1) - x[:, :10].sum(1)).square().mean().backward()
            optimizer.step()
            target.step()
        live = (first.weight != 0).any(0)
        assert int(live.sum()) == 10
        assert live[:10].sum() >= 9  # the inputs that matter

    @pytest.mark.parametrize("rates", [(0.1,), (0.05, 0.2)])
    def test_over_two_tables_together_and_apart(self, rates: tuple[float, ...]) -> None:
        a, b = HashEmbedding(4, std=0.1), HashEmbedding(8, std=0.1, seed=1)
        optimizer = GroupAdam([{"params": table.parameters()} for table in (a, b)], lr=1e-2, penalty="hard")
        apart = [{"param_groups": [number]} for number in range(2)] if len(rates) == 2 else [{}]
        targets = [TargetRate(optimizer, r, steps=STEPS, **which) for r, which in zip(rates, apart, strict=True)]
        for step in range(STEPS):
            optimizer.zero_grad()
            keys = keys_of(step)
            (pull(a(keys), keys) + 0.1 * pull(b(keys * 3), keys)).backward()
            optimizer.step()
            for target in targets:
                target.step()
        if len(rates) == 2:
            assert is_share(a, 0.05)
            assert is_share(b, 0.2)
        else:
            assert a.num_live + b.num_live == pytest.approx(0.1 * (a.num_seen + b.num_seen), abs=1)
            assert a.feature_rate > b.feature_rate  # they share one λ21, per √d

    def test_at_a_number_of_bytes(self) -> None:
        table, optimizer = adam_on_table()
        train(table, optimizer, TargetBytes(optimizer, "3 kB", steps=STEPS))
        assert 3000 - 24 < table.num_live * (4 * 4 + 8) <= 3000
        again = TargetBytes(optimizer, "3 kB", steps=STEPS)
        train(table, optimizer, again, first=STEPS, last=STEPS + 10)
        assert again.scheduled_rate == pytest.approx(table.feature_rate, rel=0.2)  # no ramp from all features
        more, optimizer = adam_on_table()
        train(more, optimizer, TargetBytes(optimizer, "1 GB", steps=20), last=20)
        assert more.feature_rate == 1
        assert optimizer.param_groups[0]["l21"] == 0

    @settings(max_examples=15)
    @given(
        rate=st.floats(0.05, 1),
        steps=st.integers(1, 40),
        ramp=st.none() | st.integers(0, 60),
        interval=st.none() | st.integers(1, 50),
        sample=st.integers(1, 500),
    )
    def test_under_any_schedule(self, rate: float, steps: int, ramp: int | None, **options: int | None) -> None:
        table, optimizer = adam_on_table()
        target = TargetRate(optimizer, rate, steps=steps, ramp=ramp, **options)
        train(table, optimizer, target, last=steps)
        assert target.scheduled_rate is not None
        assert is_share(table, target.scheduled_rate)
        if ramp is None or ramp <= steps:
            assert target.scheduled_rate == rate

    def test_with_keys_that_are_not_admitted(self) -> None:
        """And under a learning rate that ends at 0."""
        table, optimizer = adam_on_table(admission=MinCount(2))
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        train(table, optimizer, TargetRate(optimizer, 0.1, steps=STEPS), scheduler)
        assert table.num_rows < 0.8 * table.num_seen
        assert is_share(table, 0.1)


class TestSchedule:
    @pytest.mark.parametrize("penalty", ["lasso", "hard"])
    def test_without_an_end_the_rate_is_held_within_a_tenth(self, penalty: str) -> None:
        table, optimizer = adam_on_table(penalty)
        target = TargetRate(optimizer, 0.1, interval=5)
        train(table, optimizer, target, last=20)
        for step in range(20, 200):
            train(table, optimizer, target, first=step, last=step + 1)
            assert 0.09 <= table.feature_rate <= 0.11

    def test_the_share_falls_along_a_cubic(self) -> None:
        table, optimizer = adam_on_table()
        target = TargetRate(optimizer, 0.2, steps=100, ramp=50, interval=1)
        for t in range(1, 61):
            train(table, optimizer, target, first=t - 1, last=t)
            assert target.scheduled_rate == pytest.approx(0.2 + 0.8 * (1 - min(1.0, t / 50)) ** 3, rel=1e-12)

    def test_a_target_changes_lambda_only(self) -> None:
        """Until it begins to sweep."""
        (ours, optimizer), (theirs, plain) = adam_on_table(), adam_on_table()
        target = TargetRate(optimizer, 0.1, steps=STEPS)
        for step in range(STEPS - 50):
            plain.param_groups[0]["l21"] = optimizer.param_groups[0]["l21"]
            train(ours, optimizer, target, first=step, last=step + 1)
            train(theirs, plain, first=step, last=step + 1)
        keys = torch.arange(2000)
        assert torch.equal(ours.lookup(keys), theirs.lookup(keys))


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    def build() -> tuple[HashEmbedding, GroupOptimizer, TargetRate]:
        table, optimizer = adam_on_table()
        return table, optimizer, TargetRate(optimizer, 0.1, steps=STEPS, sample=200)

    whole, keys = build(), torch.arange(4000)
    train(*whole)
    for cut in (37, 119):
        first, second = build(), build()
        train(*first, last=cut)
        save_checkpoint(tmp_path / f"at-{cut}", first[0], first[1])
        load_checkpoint(tmp_path / f"at-{cut}", second[0], second[1])
        train(*second, first=cut)
        assert torch.equal(whole[0].lookup(keys), second[0].lookup(keys))
        assert numbers_of(whole[2]) == numbers_of(second[2])


TargetMaker = Callable[[GroupOptimizer], SizeTarget]
MAKERS: dict[str, TargetMaker] = {
    "rate": lambda optimizer: TargetRate(optimizer, 0.1, steps=STEPS, sample=200),
    "stream": lambda optimizer: TargetRate(optimizer, 0.1, ramp=80, interval=10, sample=200),
    "bytes": lambda optimizer: TargetBytes(optimizer, "3 kB", steps=STEPS, sample=200),
}


def numbers_of(target: SizeTarget) -> tuple[Any, ...]:
    return target.count, target.l21, target.rate, target.scheduled_rate


def passed_on(table: HashEmbedding, optimizer: GroupOptimizer) -> tuple[Any, Any]:
    """Copy the state dicts of a module and an optimizer, as a framework does that knows no target."""
    file = io.BytesIO()
    torch.save([table.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    return tuple(torch.load(file, weights_only=True))


class TestItsStateIsPartOfTheOptimizers:
    @over("order", ["target first", "optimizer first"])
    @over("kind", MAKERS)
    def test_a_resumed_training_has_the_same_bits(self, kind: str, order: str) -> None:
        whole, keys = adam_on_table(), torch.arange(4000)
        target = MAKERS[kind](whole[1])
        for cut in (0, 37, 119):
            train(*whole, target, first=target.count, last=cut)
            weights, state = passed_on(*whole)
            table, optimizer = adam_on_table()
            again = MAKERS[kind](optimizer) if order == "target first" else None
            table.load_state_dict(weights)
            optimizer.load_state_dict(state)
            again = again or MAKERS[kind](optimizer)
            assert numbers_of(again) == numbers_of(target)
            assert again.count == cut
            train(table, optimizer, again, first=cut, last=cut + 1)
            train(*whole, target, first=cut, last=cut + 1)
            assert torch.equal(whole[0].lookup(keys), table.lookup(keys))
            assert numbers_of(again) == numbers_of(target)
            assert optimizer.param_groups[0]["l21"] == whole[1].param_groups[0]["l21"]

    def test_a_saved_state_does_not_change_with_the_training(self) -> None:
        table, optimizer = adam_on_table()
        target = MAKERS["rate"](optimizer)
        train(table, optimizer, target, last=10)
        saved = optimizer.state_dict()
        train(table, optimizer, target, first=10, last=30)
        optimizer.load_state_dict(saved)
        assert target.count == 10

    def test_a_second_target_begins_again(self) -> None:
        table, optimizer = adam_on_table()
        train(table, optimizer, MAKERS["rate"](optimizer), last=30)
        assert MAKERS["rate"](optimizer).count == 0
        _, state = passed_on(table, optimizer)
        _, other = adam_on_table()
        other.load_state_dict(state)
        assert TargetRate(other, 0.2, steps=STEPS).count == 0

    def test_a_target_that_has_ended_is_not_continued_by_the_next(self) -> None:
        table, optimizer = adam_on_table()
        train(table, optimizer, TargetRate(optimizer, 0.1, steps=20), last=20)
        weights, state = passed_on(table, optimizer)
        table, optimizer = adam_on_table()
        table.load_state_dict(weights)
        optimizer.load_state_dict(state)
        target = TargetRate(optimizer, 0.1, steps=20)
        assert target.count == 0
        train(table, optimizer, target, first=20, last=40)
        assert is_share(table, 0.1)

    def test_each_of_several_targets_has_its_own(self) -> None:
        def built() -> tuple[nn.ModuleList, GroupOptimizer]:
            tables = nn.ModuleList([HashEmbedding(4, std=0.1), HashEmbedding(4, std=0.1, seed=1)])
            return tables, GroupAdam([{"params": table.parameters()} for table in tables], lr=1e-2)

        def targets_of(optimizer: GroupOptimizer) -> list[TargetRate]:
            return [TargetRate(optimizer, rate, steps=50, param_groups=[n]) for n, rate in enumerate((0.1, 0.3))]

        tables, optimizer = built()
        targets = targets_of(optimizer)
        for table, target, steps in zip(tables, targets, (20, 7), strict=True):
            train(table, optimizer, target, last=steps)
        others, again = built()
        others.load_state_dict(tables.state_dict())
        again.load_state_dict(optimizer.state_dict())
        assert list(map(numbers_of, targets_of(again))) == list(map(numbers_of, targets))

    @over("bad", [{"count": -1}, {"count": 1.5}, {"l21": math.nan}, {"rate": "all"}, {"more": 1}])
    def test_a_damaged_state_is_refused(self, bad: dict[str, Any]) -> None:
        table, optimizer = adam_on_table()
        train(table, optimizer, MAKERS["rate"](optimizer), last=3)
        state = optimizer.state_dict()
        state["param_groups"][0]["target"].update(bad)
        with pytest.raises(ValueError, match="size target"):
            optimizer.load_state_dict(state)


@over("sparse", [False, True])
def test_training_after_the_last_step_may_revive_rows_of_a_dense_embedding_until_the_target_settles(
    sparse: bool,
) -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(7, 4, sparse=sparse)
    optimizer = GroupAdam(embedding.parameters(), lr=0.1, l21=1e-3, penalty="hard")
    target = TargetRate(optimizer, 0.3, steps=40)
    for step in range(45):
        optimizer.zero_grad()
        (embedding(torch.tensor([step % 7, (step * 3) % 7] if step < 40 else [0])) - 1).square().mean().backward()
        optimizer.step()
        if step < 40:
            target.step()
            at_the_end = int((embedding.weight != 0).any(1).sum())
    revived = int((embedding.weight != 0).any(1).sum())
    target.settle()
    assert at_the_end == int((embedding.weight != 0).any(1).sum()) == 2
    assert (revived > 2) == (not sparse)


def test_a_target_of_less_than_one_row_keeps_none_and_warns() -> None:
    embedding = nn.Embedding(7, 4, sparse=True)
    optimizer = GroupAdam(embedding.parameters(), l21=1e-3, penalty="hard")
    target = TargetRate(optimizer, 0.05, steps=3)
    for _ in range(3):
        optimizer.zero_grad()
        embedding(torch.arange(7)).square().sum().backward()
        optimizer.step()
        if target.count < 2:
            target.step()
    with pytest.warns(RuntimeWarning, match="nothing will be left"):
        target.step()
    assert not embedding.weight.any()


class TestBadInput:
    @over(
        ("options", "message"),
        [
            *(({"rate": rate}, r"rate must be in \(0, 1\]") for rate in (0, -0.1, 1.1, math.nan)),
            *(({name: bad}, name) for name, bad in (("steps", 0), ("steps", 1.5), ("ramp", -1), ("interval", 0))),
            ({"sample": 0}, "sample"),
            *(({"param_groups": numbers}, "param group") for numbers in ([1], [-1], [])),
        ],
    )
    def test_arguments_out_of_range(self, options: dict[str, Any], message: str) -> None:
        optimizer = GroupAdam(HashEmbedding(4).parameters(), l21=0.5)
        with pytest.raises(ValueError, match=message):
            TargetRate(optimizer, **{"rate": 0.1, **options})
        assert optimizer.param_groups[0]["l21"] == 0.5

    def test_an_optimizer_that_has_no_target(self) -> None:
        with pytest.raises(TypeError, match="an optimizer of sparsegroup, got Adam"):
            TargetRate(torch.optim.Adam([nn.Parameter(torch.ones(2))]), 0.1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"param_groups=\[…\]"):
            TargetRate(GroupAdam([nn.Parameter(torch.ones(2))]), 0.1)
        captured = GroupAdam([nn.Parameter(torch.ones(2))], l21=1e-3)
        captured.param_groups[0]["capturable"] = True
        with pytest.raises(ValueError, match="param group 0 has capturable=True"):
            TargetRate(captured, 0.1)


class TestRowsWithoutAGradient:
    """Rows that were looked up and never had a non-zero gradient are noise, and the first to go."""

    @staticmethod
    def step(table: HashEmbedding, optimizer: GroupOptimizer, pulled: int = 50) -> None:
        """Rows 0 to `pulled` of 100 have a gradient."""
        optimizer.zero_grad()
        vectors = table(torch.arange(100))
        (vectors[:pulled].square().sum() + 0 * vectors[pulled:].sum()).backward()
        optimizer.step()

    @over(("rate", "steps"), [(0.2, None), (0.1, 2)])
    def test_they_do_not_crowd_out_the_others(self, rate: float, steps: int | None) -> None:
        table, optimizer = adam_on_table()
        target = TargetRate(optimizer, rate, steps=steps, interval=1)
        for _ in range(steps or 3):
            self.step(table, optimizer)
            target.step()
        assert table.num_live == 100 * rate
        assert not table.lookup(torch.arange(50, 100)).any()

    def test_they_die_even_if_more_rows_may_live(self) -> None:
        table, optimizer = adam_on_table()
        target = TargetRate(optimizer, 0.5, steps=3)
        for _ in range(3):
            self.step(table, optimizer, pulled=20)
            if target.count < 2:
                target.step()
        with pytest.warns(RuntimeWarning, match=r"0\.5 is more than the groups that have had a gradient: 0\.2 of all"):
            target.step()
        assert table.num_live == 20

    def test_a_size_below_one_row(self) -> None:
        table, optimizer = adam_on_table()
        target = TargetBytes(optimizer, 10, interval=1)
        self.step(table, optimizer)
        with pytest.warns(RuntimeWarning, match="a size of 10 bytes is less than one group: nothing will be left"):
            target.step()
        assert table.num_live == 0
        self.step(table, optimizer)
        target.step()  # warns once


@pytest.mark.parametrize(("seen", "live"), [(40, 40), (200, 60), (1_000, 100)])
def test_the_least_number_of_rows(seen: int, live: int) -> None:
    table, optimizer = adam_on_table()
    target = TargetRate(optimizer, 0.1, steps=20, least=60)
    for _ in range(20):
        optimizer.zero_grad()
        table(torch.arange(seen)).square().sum().backward()
        optimizer.step()
        target.step()
    assert table.num_live == live


def test_sizes() -> None:
    sizes = {5: 5, "5": 5, "200MB": 200_000_000, "1.5 GiB": 3 << 29, "2k": 2000, ".5 kib": 512, "7 B": 7}
    assert {text: bytes_of(text) for text in sizes} == sizes
    for text in ("", "MB", "1 potato", "-5", -5, 0, "0.1 B", True, "1e9", "9e99 TB", "9999999999 GB"):
        with pytest.raises(ValueError, match=r"a size must be"):
            bytes_of(text)


@settings(max_examples=200)
@given(
    critical=st.lists(
        st.lists(st.just(0.0) | st.floats(1e-20, 1e6) | st.integers(1, 3), max_size=15),
        min_size=1,
        max_size=3,
    ),
    share=st.floats(0, 1),
    weight=st.floats(0.5, 100),
    costs=st.tuples(*[st.integers(1, 72)] * 3),
)
def test_no_more_than_the_budget_lives_and_no_group_less_than_could(
    critical: list[list[float]], share: float, weight: float, costs: tuple[int, ...]
) -> None:
    """`l21_for` of parameters whose groups differ in cost: by λ21, equal ones together."""
    parts = [np.array(values, dtype=float) for values in critical]
    censuses = [GroupCensus(one, weight, 0, len(one) * weight, cost) for one, cost in zip(parts, costs, strict=False)]
    values = np.concatenate(parts)
    prices = np.concatenate([np.full(len(one), weight * cost) for one, cost in zip(parts, costs, strict=False)])
    budget = share * prices.sum()
    l21 = l21_for(censuses, [float(cost) for cost in costs[: len(parts)]], budget)
    live = values > l21 if l21 else np.full(len(values), True)  # at 0 all live, also groups without any gradient
    assert prices[live].sum() <= budget * (1 + 1e-6)
    if not live.all():
        next_ones = values == values[~live].max()
        assert prices[live | next_ones].sum() > budget


def test_l21_is_halfway_between_the_last_live_group_and_the_first_zero_one() -> None:
    empty = GroupCensus(np.empty(0), 0.0, 0, 5, 1)
    assert l21_for([], [], 0.0) == l21_for([empty], [1.0], 0.5) == 0.0
    assert l21_for([empty, GroupCensus(np.array([1.0, 2.0]), 1.0, 2, 2, 1)], [1.0, 1.0], 1.0) == 1.5
    cheap, dear = GroupCensus(np.array([1.0, 2.0, 3.0]), 1.0, 3, 3, 1), GroupCensus(np.array([2.5]), 1.0, 1, 1, 10)
    assert l21_for([cheap, dear], [1.0, 10.0], 11.0) == 2.25
    assert l21_for([cheap, GroupCensus(np.empty(0), 1.0, 0, 5, 1)], [24.0, 264.0], 48.0) == 1.5


@pytest.mark.parametrize("steps", [1, 3, 7, 50, 150, 199, 250])
def test_without_an_end_the_rate_holds_from_the_first_steps_on(steps: int) -> None:
    table = HashEmbedding(4)
    optimizer = GroupAdagrad(table.parameters(), penalty="hard")
    target = TargetRate(optimizer, 0.1)
    draw = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        optimizer.zero_grad()
        keys = torch.randint(1 << 40, (256,), generator=draw) // (1 << 28)
        (table(keys) - 1).square().sum().backward()
        optimizer.step()
        target.step()
    assert 0.09 < table.feature_rate < 0.2
