"""Asking for a rate field by field: each lands where it was asked to, and what is shown follows from them."""

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from family import FAMILY, Member
from field_cases import BITS, drawn_keys, field_of
from optimizer_cases import ALLOW_CREATE_GRAPH, backward
from sparsegroup import AfterSightings, GroupAdam, GroupOptimizer, HashEmbedding, TargetRate
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint

pytestmark = ALLOW_CREATE_GRAPH

STEPS = 120
RATES = {1: 0.5, 3: 0.02}
every_member = pytest.mark.parametrize("member", FAMILY.values(), ids=FAMILY)


def train(table: HashEmbedding, optimizer: GroupOptimizer, target: Any, first: int = 0, last: int = STEPS) -> None:
    for step in range(first, last):
        keys = drawn_keys(step)
        vectors = table(keys)
        strength = (keys % 7 == 0).float() + 0.05
        direction = torch.sin((keys % 1000)[:, None] * torch.arange(1.0, vectors.shape[1] + 1))
        backward(optimizer, (strength[:, None] * (vectors - direction).square()).mean())
        optimizer.step()
        target.step()


def build(**options: Any) -> tuple[HashEmbedding, GroupOptimizer, TargetRate]:
    table = HashEmbedding(4, std=0.1, field_bits=BITS)
    optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
    return table, optimizer, TargetRate(optimizer, 0.1, steps=STEPS, **{"fields": RATES, **options})


def check_rates(table: HashEmbedding, rate: float, rates: dict[int, float]) -> None:
    """Each field has as many live rows as were asked for, and so have the others together."""
    counts = table.field_counts()
    for field, its in rates.items():
        assert counts[field].live == pytest.approx(its * counts[field].seen, abs=1)
    others = [count for field, count in counts.items() if field not in rates]
    assert sum(count.live for count in others) == pytest.approx(rate * sum(count.seen for count in others), abs=1)


class TestItLands:
    @pytest.mark.parametrize("penalty", ["lasso", "mcp", "hard"])
    @every_member
    def test_for_each_field(self, member: Member, penalty: str) -> None:
        table = HashEmbedding(4, std=0.1, field_bits=BITS)
        optimizer = member.build(table.weight, penalty=penalty)
        train(table, optimizer, TargetRate(optimizer, 0.1, steps=STEPS, fields=RATES))
        check_rates(table, 0.1, RATES)
        assert all(count.seen > 300 for field, count in table.field_counts().items() if field != 4)

    @pytest.mark.parametrize("rates", [{4: 0.5}, {4: 1.0, 0: 0.3}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.7}])
    def test_for_small_fields_and_for_all(self, rates: dict[int, float]) -> None:
        table, optimizer, target = build(fields=rates)
        train(table, optimizer, target)
        check_rates(table, 0.1, rates)
        assert set(optimizer.param_groups[0]["field_l21"]) == set(rates)

    def test_by_a_sample(self) -> None:
        table, optimizer, target = build(sample=100)
        train(table, optimizer, target)
        check_rates(table, 0.1, RATES)

    def test_in_rows_too_wide_for_the_kernel_of_sweeps(self) -> None:
        table = HashEmbedding(260, std=0.1, field_bits=BITS)
        optimizer = GroupAdam(table.parameters(), lr=1e-2)
        train(table, optimizer, TargetRate(optimizer, 0.1, steps=40, fields=RATES), last=40)
        check_rates(table, 0.1, RATES)

    def test_where_keys_wait_and_rows_go(self) -> None:
        table = HashEmbedding(4, std=0.1, field_bits=BITS, admission=AfterSightings(2))
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        target = TargetRate(optimizer, 0.05, steps=STEPS, fields={1: 0.2})
        for step in range(STEPS):
            train(table, optimizer, target, step, step + 1)
            if step in (60, 100):
                optimizer.zero_grad()
                assert table.shrink()
        check_rates(table, 0.05, {1: 0.2})

    def test_over_two_tables_together(self) -> None:
        tables = [HashEmbedding(4, std=0.1, seed=seed, field_bits=BITS) for seed in range(2)]
        optimizer = GroupAdam([{"params": [table.weight]} for table in tables], lr=1e-2, penalty="hard")
        target = TargetRate(optimizer, 0.1, steps=40, fields={1: 0.4})
        for step in range(40):
            optimizer.zero_grad()
            for number, table in enumerate(tables):
                table(drawn_keys(step + 500 * number)).square().sum().backward()
            optimizer.step()
            target.step()
        counts = [table.field_counts() for table in tables]
        assert sum(c[1].live for c in counts) == pytest.approx(0.4 * sum(c[1].seen for c in counts), abs=1)

    @settings(max_examples=10, deadline=None)
    @given(
        rate=st.floats(0.05, 1),
        fields=st.dictionaries(st.integers(0, 4), st.floats(0.05, 1), min_size=1),
        steps=st.integers(1, 40),
        sample=st.integers(1, 500),
    )
    def test_under_any_schedule(self, rate: float, fields: dict[int, float], steps: int, sample: int) -> None:
        table = HashEmbedding(2, std=0.1, field_bits=BITS)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        target = TargetRate(optimizer, rate, steps=steps, sample=sample, fields=fields)
        with warnings.catch_warnings():  # of fields with less than a row to be left
            warnings.simplefilter("ignore", RuntimeWarning)
            train(table, optimizer, target, last=steps)
        check_rates(table, rate, fields)

    def test_a_stream_without_an_end_is_held(self) -> None:
        table = HashEmbedding(4, std=0.1, field_bits=BITS)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
        target = TargetRate(optimizer, 0.2, interval=5, fields={1: 0.5})
        for step in range(300):
            train(table, optimizer, target, step, step + 1)
            counts = table.field_counts()
            if step > 50:
                assert counts[1].live == pytest.approx(0.5 * counts[1].seen, rel=0.1)


class TestSchedule:
    def test_one_for_all_fields_is_one_for_all(self) -> None:
        """The same rate in one table with one field and under plain `TargetRate`: the same λ21, and the same bits."""
        runs = []
        for fields in (None, {9: 0.7}):  # which no key is of
            table, optimizer, target = build(fields=fields)
            train(table, optimizer, target)
            runs.append((table, target))
        (plain, theirs), (ours, its) = runs
        keys = torch.cat([drawn_keys(step) for step in range(STEPS)]).unique()
        assert torch.equal(plain.lookup(keys), ours.lookup(keys))
        assert theirs.l21 == its.l21
        assert its.field_l21 == {9: 0.0}
        assert its.scheduled_rate == pytest.approx(theirs.scheduled_rate, rel=1e-12)

    def test_what_is_shown_follows_from_the_fields(self) -> None:
        table, optimizer, target = build(ramp=60, interval=1)
        for step in range(STEPS):
            train(table, optimizer, target, step, step + 1)
            counts, ahead = table.field_counts(), (1 - min(1.0, (step + 1) / 60)) ** 3
            asked = [(RATES.get(field, 0.1), count.seen) for field, count in counts.items()]
            expected = sum((rate + (1 - rate) * ahead) * seen for rate, seen in asked) / table.num_seen
            assert target.scheduled_rate == pytest.approx(expected, rel=1e-9)
            assert target.rate is not None
        assert table.feature_rate == pytest.approx(target.scheduled_rate, abs=3 / table.num_seen)

    def test_a_second_pass_goes_on_at_the_rates_of_the_first(self) -> None:
        table, optimizer, target = build()
        train(table, optimizer, target)
        again = TargetRate(optimizer, 0.1, steps=STEPS, fields=RATES)
        train(table, optimizer, again, STEPS, STEPS + 10)
        counts = table.field_counts()
        for field, rate in RATES.items():
            assert counts[field].live == pytest.approx(rate * counts[field].seen, rel=0.3)

    def test_a_plain_target_forgets_the_fields(self) -> None:
        table, optimizer, target = build()
        train(table, optimizer, target, last=60)
        TargetRate(optimizer, 0.1, steps=STEPS)
        assert "field_l21" not in optimizer.param_groups[0]

    def test_less_than_a_row_is_said(self) -> None:
        table, optimizer, target = build(fields={4: 0.01})
        with pytest.warns(RuntimeWarning, match=r"a feature rate of 0\.01 in field 4 is less than one group"):
            train(table, optimizer, target)
        assert table.field_counts()[4].live == 0


class TestResume:
    @pytest.mark.parametrize("cut", [1, 37, 96, 119])
    def test_bit_for_bit(self, cut: int, tmp_path: Any) -> None:
        whole = build(sample=50)
        train(*whole)
        first = build(sample=50)
        train(*first, last=cut)
        save_checkpoint(tmp_path / "at", first[0], first[1], extra=first[2].state_dict())
        second = build(sample=50)
        second[2].load_state_dict(load_checkpoint(tmp_path / "at", second[0], second[1]).extra)
        train(*second, first=cut)
        keys = torch.cat([drawn_keys(step) for step in range(STEPS)])
        assert torch.equal(whole[0].lookup(keys), second[0].lookup(keys))
        assert whole[2].state_dict() == second[2].state_dict()
        assert whole[1].param_groups[0]["field_l21"] == second[1].param_groups[0]["field_l21"]

    def test_with_other_fields(self) -> None:
        *_, target = build()
        *_, other = build(fields={2: 0.5})
        before = other.state_dict()
        with pytest.raises(ValueError, match=r"a target with the fields \[1, 3\], this one has \[2\]"):
            other.load_state_dict(target.state_dict())
        assert other.state_dict() == before


class TestBadInput:
    @pytest.mark.parametrize("rate", [0, -0.1, 1.1, math.nan, "a", True])
    def test_a_rate_out_of_range(self, rate: Any) -> None:
        with pytest.raises(ValueError, match=r"fields: the rate of field 3 must be in \(0, 1\], got"):
            build(fields={3: rate})

    @pytest.mark.parametrize(
        ("fields", "error", "message"),
        [
            ({"C3": 0.5}, TypeError, "numbers of fields, ints >= 0, for keys, got 'C3'"),
            ({-1: 0.5}, TypeError, "got -1"),
            ([0.5], TypeError, "fields must map numbers of fields to rates"),
            ({256: 0.5}, ValueError, r"there is no field 256 \(param group 0\)"),
        ],
    )
    def test_no_fields(self, fields: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            build(fields=fields)

    def test_keys_without_fields(self) -> None:
        optimizer = GroupAdam(HashEmbedding(4).parameters(), l21=0.5)
        with pytest.raises(ValueError, match="give HashEmbedding field_bits > 0"):
            TargetRate(optimizer, 0.1, fields={1: 0.5})
        assert optimizer.param_groups[0]["l21"] == 0.5  # nothing has changed

    def test_no_table(self) -> None:
        optimizer = GroupAdam([nn.Parameter(torch.ones(2))], l21=0.5)
        with pytest.raises(ValueError, match="param group 0 has no HashEmbedding"):
            TargetRate(optimizer, 0.1, fields={1: 0.5})

    def test_keys_of_a_field_are_its(self) -> None:
        assert set(field_of(drawn_keys(0)).tolist()) == {0, 1, 2, 3, 4}
