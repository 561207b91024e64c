"""Dead rows in half the bytes: packed between steps, and back when training asks for them."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from optimizer_cases import assert_identical
from packed_cases import KEYS, MAKES, Make, gradients, pack, packed, pair, round_in_place, train
from sparsegroup import GroupAdagrad, GroupAdam, GroupFTRL, GroupSGD, HashEmbedding
from table_cases import everything


@pytest.mark.parametrize(("make", "settings"), MAKES)
def test_packing_only_rounds(make: Make, settings: dict[str, Any]) -> None:
    """Bit for bit what rows do whose state is rounded in place: vectors, u and moments, which rows there are."""
    (plain, its), (packing, other) = pair(make, **settings)
    most = came_back = 0
    for step in range(80):
        train(plain, its, step)
        before = packed(packing)
        train(packing, other, step)
        came_back += before - packed(packing)
        if step % 7 == 3:
            round_in_place(plain, its, packing.table.directory.steps)
            pack(packing, other)
            most = max(most, packed(packing))
            assert packing.num_live == packing.num_rows - packed(packing)
        assert_identical(plain.lookup(KEYS), packing.lookup(KEYS))
        assert torch.equal(plain.contains(KEYS), packing.contains(KEYS))
        for name in ("num_rows", "num_live", "num_seen", "feature_rate", "field_counts"):
            ours, theirs = (getattr(table, name) for table in (plain, packing))
            assert ours() == theirs() if callable(ours) else ours == theirs
    assert most > 50
    assert came_back > 50
    held = everything(packing, other)
    assert held["table"].pop("turnover").tolist() == [80, 0, 0, 0, 0]
    assert_identical(everything(plain, its), held)
    live = [
        {key: row.tolist() for keys, rows in table.items() for key, row in zip(keys.tolist(), rows, strict=True)}
        for table in (plain, packing)
    ]
    assert live[0] == live[1]


@pytest.mark.parametrize(("make", "settings"), MAKES)
def test_rounding_is_to_a_neighbour(make: Make, settings: dict[str, Any]) -> None:
    """A packing changes u and moments of dead rows by less than a bfloat16's spacing, and no others."""
    table, optimizer = pair(make, **settings)[1]
    for step in range(40):
        train(table, optimizer, step)
    before = everything(table, optimizer)
    pack(table, optimizer)
    after = everything(table, optimizer)
    assert 20 < packed(table) < table.num_rows
    assert_identical(before["table"], after["table"])
    dead = ~before["table"]["weight"].any(1)
    for name, value in before["optimizer"].items():
        now = after["optimizer"][name]
        if value.ndim == 2:
            assert torch.equal(value[~dead], now[~dead]), name
            assert (value - now).abs().le(value.abs() / 128).all(), name
        else:
            assert_identical(value, now)
    assert (before["optimizer"]["u"] != after["optimizer"]["u"]).any()


def test_the_same_rows_live_but_for_the_rounding() -> None:
    (plain, its), (packing, other) = pair(GroupAdam, lr=0.02, l21=1.0)
    for step in range(150):
        train(plain, its, step)
        train(packing, other, step)
        if step % 10 == 5:
            pack(packing, other)
    ours, theirs = plain.lookup(KEYS), packing.lookup(KEYS)
    assert (ours.any(1) == theirs.any(1)).float().mean() > 0.97
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.02)


def test_a_packed_row_comes_back_when_its_gradients_insist() -> None:
    table = HashEmbedding(4, std=0.0, pack_dead=True)
    optimizer = GroupSGD(table.parameters(), lr=1.0, l21=4.5, penalty="hard")
    keys = KEYS[:50]
    lived = []
    for _ in range(6):
        pack(table, optimizer)
        optimizer.zero_grad()
        table(keys).sum().backward()
        optimizer.step()
        lived.append(table.num_live)
    assert lived == [0, 0, 0, 0, 50, 50]  # ‖u‖ = 2 t > √4 · 4.5
    pack(table, optimizer)
    assert packed(table) == 0


def test_evaluation_gives_zeros_and_leaves_rows_packed() -> None:
    table, optimizer = pair(GroupSGD, l21=1e3)[1]
    train(table, optimizer, 0)
    pack(table, optimizer)
    count = packed(table)
    assert count > 5
    table.eval()
    assert torch.equal(table(KEYS), table.lookup(KEYS))
    assert packed(table) == count
    table.train()
    table(KEYS)
    assert packed(table) == 0


def test_keys_are_not_counted_or_admitted_anew() -> None:
    """A packed key is not new: no policy is asked, and nobody counts it as seen again."""

    class Asked:
        def __init__(self) -> None:
            self.keys: list[int] = []

        def admits(self, keys: np.ndarray, sights: np.ndarray) -> np.ndarray:
            self.keys += keys.tolist()
            return np.ones(len(keys), np.bool_)

    table = HashEmbedding(4, std=0.0, pack_dead=True, admission=Asked(), max_rows=len(KEYS))
    optimizer = GroupSGD(table.parameters(), l21=1e3)
    for chunk in (KEYS[:300], KEYS[:300], KEYS):
        optimizer.zero_grad()
        table(chunk).sum().backward()
        optimizer.step()
        pack(table, optimizer)
        assert packed(table) == table.num_rows == table.num_seen == len(chunk)
    policy = table.table.config.admission
    assert isinstance(policy, Asked)
    assert sorted(policy.keys) == sorted(KEYS.tolist())
    with pytest.raises(RuntimeError, match="the table is full: max_rows=400, it has 400 rows"):
        table(torch.tensor([123]))
    assert packed(table) == 400


@pytest.mark.parametrize("make", [GroupAdagrad, GroupAdam, GroupFTRL, GroupSGD])
def test_rows_that_were_never_updated_are_known_again(make: Make) -> None:
    """Also where what the state begins with is no bfloat16."""
    settings: dict[str, Any] = {"initial_accumulator_value": 0.1} if make in (GroupAdagrad, GroupFTRL) else {}
    table, optimizer = pair(make, std=0.0, lr=0.1, l21=2.0, **settings)[1]
    optimizer.zero_grad()
    vectors = table(KEYS)
    vectors[:200].sum().backward()
    optimizer.step()
    before = everything(table, optimizer)
    optimizer.zero_grad()
    del vectors
    pack(table, optimizer)
    assert packed(table) >= 200
    state = everything(table, optimizer)["optimizer"]
    untouched = torch.isin(state["keys"], KEYS[200:])
    for name, value in before["optimizer"].items():
        if value.ndim == 2:
            assert torch.equal(value[untouched], state[name][untouched]), name
    critical = optimizer.census(0, 0, (0,))[0].critical
    assert (critical == 0).sum() == 200


def test_a_rounding_is_by_chance_and_right_on_average() -> None:
    table = HashEmbedding(1, std=0.0, pack_dead=True)
    optimizer = GroupSGD(table.parameters(), lr=1.0, l21=1e3)
    optimizer.zero_grad()
    keys = torch.arange(20_000)
    (table(keys) * 1.001).sum().backward()
    optimizer.step()
    pack(table, optimizer)
    state = optimizer.state_dict()["state"][0]
    values, counts = state["u"].abs().unique(return_counts=True)
    assert values.tolist() == [1.0, 1.0078125]
    assert counts[1] / 20_000 == pytest.approx(0.001 * 128, rel=0.1)
    again = copy.deepcopy(state)
    table(keys)
    pack(table, optimizer)
    assert_identical(again, optimizer.state_dict()["state"][0])  # a bfloat16 stays as it is


# By itself


def test_rows_are_packed_between_steps() -> None:
    """Where they are many, every 64 steps, and never while a gradient may come."""
    table = HashEmbedding(4, pack_dead=True)
    optimizer = GroupAdam(table.parameters(), l21=1e9)
    keys = torch.arange(4000)
    seen = []
    for step in range(130):
        optimizer.zero_grad()
        table(keys if step == 0 else keys[:10]).sum().backward()
        optimizer.step()
        seen.append(packed(table))
    assert [0, *np.flatnonzero(np.diff(seen)) + 1] == [0, 64]
    assert seen[64] == 3990
    assert table.num_rows == 4000
    assert table.num_evicted == 0
    optimizer.zero_grad()
    waiting = table(keys).sum()
    for _ in range(130):
        optimizer.zero_grad()
        table(keys[:10]).sum().backward()
        optimizer.step()
    assert packed(table) == 0
    waiting.backward()


def test_a_lookup_ahead_outlasts_a_packing() -> None:
    results = []
    for ahead in (False, True):
        table = HashEmbedding(4, std=0.0, pack_dead=True)
        optimizer = GroupSGD(table.parameters(), lr=1.0, l21=3.0, penalty="hard")
        for step in range(6):
            keys = torch.arange(5_000) + 1_000 * step
            optimizer.zero_grad()
            vectors = table(keys)
            if ahead:
                table.prefetch(keys + 1_000)
            (vectors * gradients(keys, step, 4)).sum().backward()
            del vectors
            optimizer.step()
            table.table.pack_dead()
        results.append(everything(table, optimizer))
        assert packed(table) > 100
    keep = ("keys", "weight")
    have = torch.isin(results[1]["table"]["keys"], results[0]["table"]["keys"])
    for name in keep:
        assert_identical(results[0]["table"][name], results[1]["table"][name][have])


@pytest.mark.parametrize("dim", [8, 16])
def test_a_dead_row_takes_at_most_half_of_a_live_one(dim: int) -> None:
    count = 150_000
    table = HashEmbedding(dim, pack_dead=True, huge_pages=False)
    optimizer = GroupAdam(table.parameters(), l21=1e-9)
    keys = torch.arange(count)
    for l21 in (1e-9, 1e9):
        optimizer.param_groups[0]["l21"] = l21
        optimizer.zero_grad()
        table(keys).sum().backward()
        optimizer.step()
        if table.num_live:
            live = table.memory().total
    pack(table, optimizer)
    memory = table.memory()
    assert packed(table) == count
    assert memory.packed >= count * dim * 6
    assert memory.total <= live / 2
