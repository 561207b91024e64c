"""λ21 by field in one table: what a table for each field would do, whatever the optimizer and the threshold."""

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from family import FAMILY, Member
from field_cases import BITS, FIELDS, Apart, drawn_keys, field_of, keyed, learn
from optimizer_cases import ALLOW_CREATE_GRAPH
from sparsegroup import AfterSightings, GroupAdam, GroupOptimizer, HashEmbedding
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.table.row_fields import FieldClasses, RowFields, fields_of
from sparsegroup.table.table_config import check_fields

pytestmark = ALLOW_CREATE_GRAPH

STEPS = 12
every_member = pytest.mark.parametrize("member", FAMILY.values(), ids=FAMILY)


def gradients(step: int, keys: torch.Tensor, dim: int) -> torch.Tensor:
    """Some hard, some hardly, some not at all."""
    generator = torch.Generator().manual_seed(1000 + step)
    size = (keys % 7 == 0).float() + 0.05 * (keys % 5 != 0)
    return size[:, None] * torch.randn(len(keys), dim, generator=generator)


def compare(pair: Apart, steps: int = STEPS) -> None:
    """Weights, u and the state of all keys, bit for bit."""
    keys = torch.cat([drawn_keys(step) for step in range(steps)]).unique()
    whole = state_by_key(pair.shared, pair.optimizer)
    for number, (table, optimizer) in enumerate(zip(pair.own, pair.optimizers, strict=True)):
        mine = keys[pair.place(keys) == number]
        assert len(mine) > 3
        assert torch.equal(pair.shared.lookup(mine), table.lookup(mine))
        apart = state_by_key(table, optimizer)
        for key in mine.tolist():
            for name, value in apart[key].items():
                assert torch.equal(whole[key][name], value), (key, name)
    assert pair.shared.num_live == sum(table.num_live for table in pair.own)


def state_by_key(table: HashEmbedding, optimizer: GroupOptimizer) -> dict[int, dict[str, torch.Tensor]]:
    state = optimizer.state_dict()["state"][0]
    parts = {name: value for name, value in state.items() if name not in ("keys", "step")}
    return {key: {name: part[row] for name, part in parts.items()} for row, key in enumerate(state["keys"].tolist())}


class TestAsATableForEachField:
    @pytest.mark.parametrize("penalty", ["lasso", "mcp", "hard"])
    @every_member
    def test_steps(self, member: Member, penalty: str) -> None:
        pair = Apart(member, 4, 0.3 * member.gain, {1: 0.6 * member.gain, 3: 0.05 * member.gain}, penalty=penalty)
        for step in range(STEPS):
            keys = drawn_keys(step)
            pair.step(keys, gradients(step, keys, 4))
        compare(pair)
        assert 0 < pair.shared.num_live < pair.shared.num_rows

    @pytest.mark.parametrize("dim", [5, 300])
    @pytest.mark.parametrize("options", [{"norm": "metric"}, {"norm": "s_tilde", "l2": 1e-3}, {"l1": 0.02}])
    def test_sweeps(self, options: dict[str, Any], dim: int) -> None:
        pair = Apart(FAMILY["adam"], dim, 1e-3, {0: 2e-3, 2: 5e-4, 4: 1e-4}, **options)
        for step in range(STEPS):
            keys = drawn_keys(step)
            pair.step(keys, gradients(step, keys, dim))
        pair.set_l21(0.3, {0: 0.05, 2: 0.6, 4: 0.3})
        before = pair.shared.num_live
        pair.sweep()
        compare(pair)
        assert pair.shared.num_live < before

    def test_a_field_may_have_none(self) -> None:
        """λ21 = 0 beside others is what it is alone, and rows of it that were never trained stay."""
        pair = Apart(FAMILY["adam"], 4, 0.3, {2: 0.0}, penalty="hard", l2=1e-6)
        for step in range(STEPS):
            keys = drawn_keys(step)
            pair.step(keys, gradients(step, keys, 4))
        pair.sweep()
        compare(pair)
        counts = pair.shared.field_counts()
        assert counts[2].live == counts[2].rows > counts[1].live

    def test_of_sums_of_lookups(self) -> None:
        """A sum of gradients has lost what came with each of them."""
        table, by_field = HashEmbedding(4, field_bits=BITS), {1: 1e3}
        other = copy.deepcopy(table)
        pairs = [
            (one, GroupAdam([{"params": one.parameters(), "field_l21": by_field}], l21=0.1)) for one in (table, other)
        ]
        for step in range(STEPS):
            lookups = [(keys, gradients(step, keys, 4)) for keys in (drawn_keys(step), drawn_keys(step + 100))]
            learn(*pairs[0], lookups)
            learn(*pairs[1], [(torch.cat([k for k, _ in lookups]), torch.cat([g for _, g in lookups]))])
        keys = torch.cat([drawn_keys(step) for step in range(STEPS)])
        torch.testing.assert_close(table.lookup(keys), other.lookup(keys))
        pairs[0][1].sweep(drop_untrained=True)
        live = table.field_counts()
        assert live[1].live == 0 < live[0].live

    def test_the_same_for_all_is_one_for_all(self) -> None:
        pair = Apart(FAMILY["adam"], 4, 0.3, {1: 0.3})
        plain = HashEmbedding(4, std=0.1, field_bits=BITS)
        optimizer = FAMILY["adam"].build(plain.weight, l21=0.3)
        for step in range(STEPS):
            keys = drawn_keys(step)
            pair.step(keys, gradients(step, keys, 4))
            learn(plain, optimizer, [(keys, gradients(step, keys, 4))])
        assert torch.equal(pair.shared.lookup(keys), plain.lookup(keys))
        assert plain.table.directory.row_fields is None  # who has one λ21 pays for no more

    def test_after_a_checkpoint(self, tmp_path: Any) -> None:
        def build() -> Apart:
            return Apart(FAMILY["adam"], 4, 0.3, {1: 0.6, 3: 0.05})

        whole, first, second = build(), build(), build()
        for step in range(STEPS):
            keys = drawn_keys(step)
            whole.step(keys, gradients(step, keys, 4))
        for step in range(5):
            keys = drawn_keys(step)
            first.step(keys, gradients(step, keys, 4))
        save_checkpoint(tmp_path / "at", first.shared, first.optimizer)
        second.optimizer.param_groups[0]["field_l21"] = {7: 1.0}
        load_checkpoint(tmp_path / "at", second.shared, second.optimizer)
        assert second.optimizer.param_groups[0]["field_l21"] == {1: 0.6, 3: 0.05}
        for step in range(5, STEPS):
            keys = drawn_keys(step)
            learn(second.shared, second.optimizer, [(keys, gradients(step, keys, 4))])
        assert torch.equal(whole.shared.lookup(keys), second.shared.lookup(keys))


class TestFieldsOfRows:
    @settings(max_examples=30, deadline=None)
    @given(seed=st.integers(0, 1000), admits=st.booleans())
    def test_are_those_of_the_keys_whatever_happens(self, seed: int, admits: bool) -> None:
        rng = np.random.default_rng(seed)
        admission = AfterSightings(2) if admits else None
        table = HashEmbedding(2, field_bits=BITS, admission=admission)
        directory = table.table.directory
        known = directory.fields(BITS)
        for step in range(20):
            deed = rng.integers(5)
            if deed < 3:
                table(drawn_keys(int(rng.integers(100)), int(rng.integers(1, 200))))
            elif deed == 3:
                keys = drawn_keys(step, 8).unique()
                table.assign(keys, torch.zeros(len(keys), 2))
            else:
                table.shrink()
            keys = directory.keys()
            assert directory.fields(BITS) is known  # it was told, and has not looked
            np.testing.assert_array_equal(known.of(slice(None)), fields_of(keys, BITS))
            np.testing.assert_array_equal(known.counts, np.bincount(fields_of(keys, BITS), minlength=1 << BITS))
            seen = directory.seen_by_field(BITS)
            counted = table.field_counts()
            assert {field: int(seen[field]) for field in np.flatnonzero(seen)} == {
                f: c.seen for f, c in counted.items()
            }

    @pytest.mark.parametrize("bits", [1, 8, 9, 16])
    def test_of_an_index(self, bits: int) -> None:
        table = HashEmbedding(1, field_bits=bits)
        keys = torch.randint(-(2**63), 2**63 - 1, (5000,), generator=torch.Generator().manual_seed(0))
        table(keys)
        fields = table.table.directory.fields(bits)
        expected = fields_of(table.table.directory.keys(), bits)
        np.testing.assert_array_equal(fields.of(slice(None)), expected)
        assert fields.nbytes == 5000 * (1 if bits <= 8 else 2)
        assert table.memory().index > table.table.directory.index.bytes

    def test_a_sample_is_of_its_class(self) -> None:
        rng = np.random.default_rng(0)
        fields = RowFields(BITS)
        of_rows = rng.choice([0, 1, 2, 3], p=[0.6, 0.39, 0.0099, 0.0001], size=200_000)
        keys = keyed(torch.from_numpy(of_rows), torch.arange(200_000)).numpy()
        classes = FieldClasses([1, 2, 3, 9], BITS)
        for first in range(0, 200_000, 50_000):
            fields.add(keys[first : first + 50_000], np.arange(first, first + 50_000))
            found = fields.draw(classes, 100, np.random.default_rng(first))
            for number, rows in enumerate(found):
                field = (0, 1, 2, 3, 9)[number]
                assert (of_rows[rows] == field).all()
                there = np.flatnonzero(of_rows[: first + 50_000] == field)
                assert len(rows) == min(100, len(there))
                if len(there) <= 100:
                    np.testing.assert_array_equal(rows, there)
        again = RowFields(BITS)
        again.add(keys, np.arange(200_000))
        for ours, theirs in zip(found, again.draw(classes, 100, np.random.default_rng(150_000)), strict=True):
            np.testing.assert_array_equal(ours, theirs)  # what was asked before does not matter

    def test_every_row_of_a_common_class_is_as_likely(self) -> None:
        fields = RowFields(BITS)
        fields.add(keyed(torch.arange(1000) % 3, torch.arange(1000)).numpy(), np.arange(1000))
        classes = FieldClasses([1, 2], BITS)
        drawn = [fields.draw(classes, 20, np.random.default_rng(seed))[1] for seed in range(500)]
        counts = np.bincount(np.concatenate(drawn), minlength=1000)[1::3]
        assert counts.mean() == pytest.approx(500 * 20 / 333, rel=0.01)
        assert counts.std() == pytest.approx(np.sqrt(counts.mean()), rel=0.2)


class TestBadInput:
    @pytest.mark.parametrize(
        ("by_field", "error", "message"),
        [
            ({300: 0.1}, ValueError, r"has the fields 0 to 255, there is no field 300 \(param group 0"),
            ({1: -0.1}, ValueError, r"field_l21\[1\]"),
            ({1: "a"}, TypeError, r"field_l21\[1\]"),
            ({"C3": 0.1}, TypeError, "numbers of fields, ints >= 0, for keys, got 'C3'"),
            ({-1: 0.1}, TypeError, "got -1"),
            ([0.1], TypeError, "field_l21 must be a dict, field → λ21, got list"),
        ],
    )
    def test_in_a_param_group(self, by_field: Any, error: type[Exception], message: str) -> None:
        table = HashEmbedding(4, field_bits=BITS)
        with pytest.raises(error, match=message):
            GroupAdam([{"params": table.parameters(), "field_l21": by_field}])
        optimizer = GroupAdam(table.parameters())
        optimizer.param_groups[0]["field_l21"] = by_field
        table(drawn_keys(0)).sum().backward()
        before = table.lookup(drawn_keys(0))
        with pytest.raises(error, match=message):
            optimizer.step()
        assert torch.equal(table.lookup(drawn_keys(0)), before)

    def test_keys_without_fields(self) -> None:
        with pytest.raises(ValueError, match="give HashEmbedding field_bits > 0"):
            GroupAdam([{"params": HashEmbedding(4).parameters(), "field_l21": {1: 0.1}}])

    def test_a_table_on_a_device(self) -> None:
        config = dataclasses.replace(HashEmbedding(4, field_bits=BITS).table.config, on_device=True)
        with pytest.raises(
            ValueError, match=r"needs a HashEmbedding on the CPU, .* \(param group 0\); or give each field"
        ):
            check_fields(config, [1], "param group 0")

    def test_a_table_that_may_take_so_many_bytes(self) -> None:
        with pytest.raises(ValueError, match="memory for each row that max_bytes=10,000,000 does not count"):
            GroupAdam(
                [{"params": HashEmbedding(4, field_bits=BITS, max_bytes="10MB").parameters(), "field_l21": {1: 0.1}}]
            )

    def test_no_table(self) -> None:
        with pytest.raises(ValueError, match="there is none in param group 0"):
            GroupAdam([{"params": [torch.nn.Parameter(torch.ones(2))], "field_l21": {1: 0.1}}])

    def test_a_change_is_felt(self) -> None:
        table = HashEmbedding(4, field_bits=BITS)
        optimizer = GroupAdam([{"params": table.parameters(), "field_l21": {1: 0.0}}])
        keys = drawn_keys(0)
        learn(table, optimizer, [(keys, torch.ones(len(keys), 4))])
        optimizer.param_groups[0]["field_l21"][1] = 1e3
        learn(table, optimizer, [(keys, torch.ones(len(keys), 4))])
        live = table.lookup(keys).any(1)
        assert torch.equal(live, field_of(keys) != 1)
        assert len(table.field_counts()) == FIELDS
