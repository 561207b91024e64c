"""Packed rows in sweeps, censuses, policies, copies and checkpoints."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from optimizer_cases import assert_identical
from packed_cases import KEYS, MAKES, Make, pack, packed, pair, round_in_place, train
from sparsegroup import GroupAdagrad, GroupAdam, GroupOptimizer, GroupSGD, HashEmbedding, TargetRate, UnseenFor
from sparsegroup.checkpoint import Checkpoints, load_checkpoint
from sparsegroup.table import RowBlock, upkeep
from table_cases import everything


def trained(
    make: Make, steps: int = 40, **settings: Any
) -> tuple[tuple[HashEmbedding, GroupOptimizer], tuple[HashEmbedding, GroupOptimizer]]:
    """Two tables of the same rows: with dead ones rounded in place, and with dead ones packed."""
    (plain, its), (packing, other) = pair(make, **settings)
    for step in range(steps):
        train(plain, its, step)
        train(packing, other, step)
    round_in_place(plain, its, packing.table.directory.steps)
    its.zero_grad()
    pack(packing, other)
    assert packed(packing) > 20
    return (plain, its), (packing, other)


def held(table: HashEmbedding, optimizer: GroupOptimizer) -> dict[str, Any]:
    """All that there is, but for the counts of steps, which a table keeps that packs."""
    content = everything(table, optimizer)
    content["table"].pop("turnover", None)
    return content


# Without a gradient


@pytest.mark.parametrize(("make", "settings"), MAKES)
def test_a_census_finds_packed_rows(make: Make, settings: dict[str, Any]) -> None:
    """All rows, or a sample of them, by their numbers behind the others."""
    (plain, its), (packing, other) = trained(make, **settings)
    ours, theirs = (optimizer.census(0, 0, (0,))[0] for optimizer in (its, other))
    assert (ours.live, ours.seen, ours.weight) == (theirs.live, theirs.seen, theirs.weight)
    for keys in (KEYS, KEYS[:7]):
        keys = keys[plain.contains(keys)]
        of_plain, of_packing = (table.table.find(keys.numpy()) for table in (plain, packing))
        np.testing.assert_array_equal(ours.critical[of_plain], theirs.critical[of_packing])
    train(packing, other, 41)  # so that slots are empty
    everyone = other.census(0, 0, (0,))[0].critical
    sample = other.census(0, 50, (0, 3))[0]
    assert len(sample.critical) == 50
    assert np.isin(sample.critical, everyone).all()
    assert sample.weight == packing.num_rows / 50


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize(("make", "settings"), MAKES)
def test_a_sweep_reaches_packed_rows(make: Make, settings: dict[str, Any], drops: bool) -> None:
    """Those that a smaller λ lets live have their place again; exact, with u and moments."""
    (plain, its), (packing, other) = trained(make, **settings)
    before = packed(packing)
    for optimizer in (its, other):
        optimizer.param_groups[0]["l21"] /= 4
        optimizer.sweep(drop_untrained=drops)
    assert 0 < packed(packing) < before
    assert plain.num_live == packing.num_live > plain.num_rows - before
    assert_identical(held(plain, its), held(packing, other))


@pytest.mark.parametrize("rate", [0.3, 0.03])
def test_a_target_is_met(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PACK_EVERY", 8)
    monkeypatch.setattr(upkeep, "FEWEST_DEAD", 10)
    table = HashEmbedding(4, std=0.1, pack_dead=True)
    optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
    target = TargetRate(optimizer, rate, steps=200, sample=500)
    most = 0
    for step in range(200):
        keys = torch.from_numpy((np.random.default_rng(step).random(500) ** 2 * 5000).astype(np.int64))
        optimizer.zero_grad()
        (table(keys) * torch.sin(keys[:, None] * torch.arange(1.0, 5.0))).sum().backward()
        optimizer.step()
        target.step()
        most = max(most, packed(table))
    assert most > 500
    assert packed(table) > 100
    assert table.feature_rate == pytest.approx(rate, rel=0.02)


# Policies, vectors that are set, other optimizers


def test_shrinking_drops_packed_rows() -> None:
    table, optimizer = trained(GroupAdam, lr=0.02, l21=1.0)[1]
    rows, live, seen = table.num_rows, table.num_live, table.num_seen
    train(table, optimizer, 3)
    optimizer.zero_grad()
    assert table.shrink() == rows - table.num_live
    assert table.num_rows == table.num_live
    assert table.num_live >= live - 30
    assert packed(table) == 0
    assert table.num_seen == seen
    assert len(table.state_dict()["dropped"]) == rows - table.num_rows


def test_a_policy_sees_packed_rows() -> None:
    class LargeResidual:
        """Rows go by a part that packed rows have."""

        def evicts(self, rows: RowBlock) -> np.ndarray:
            assert rows.parts == ("weight", "u", "exp_avg", "exp_avg_sq")
            assert not rows.part("weight")[~rows.live()].any()
            return np.isin(rows.keys, gone) & (np.abs(rows.part("u")).max(1) > 0)

    gone = KEYS[:150].numpy()
    (plain, its), (packing, other) = trained(GroupAdam, lr=0.02, l21=3.0)
    counts = []
    for table, optimizer in ((plain, its), (packing, other)):
        object.__setattr__(table.table.config, "eviction", LargeResidual())
        counts.append(table.shrink())
        assert optimizer is not None
    assert counts[0] == counts[1] > 10
    assert packed(packing) > 0
    assert_identical(held(plain, its), held(packing, other))


def test_vectors_can_be_set_of_packed_rows() -> None:
    (plain, its), (packing, other) = trained(GroupAdam, lr=0.02, l21=3.0)
    vectors = torch.randn(len(KEYS), 4, generator=torch.Generator().manual_seed(0))
    for table in (plain, packing):
        table.assign(KEYS, vectors)
        assert table.num_live == len(KEYS)
    assert packed(packing) == 0
    assert_identical(held(plain, its), held(packing, other))


@pytest.mark.parametrize("make", [GroupAdagrad, GroupSGD])
def test_another_optimizer_starts_afresh(make: Make) -> None:
    (plain, _), (packing, _) = trained(GroupAdam, lr=0.02, l21=3.0)
    its, other = (make(table.parameters(), lr=0.02, l21=1.0) for table in (plain, packing))
    train(plain, its, 41)
    train(packing, other, 41)
    assert packed(packing) == 0
    assert_identical(held(plain, its), held(packing, other))


# Copies


def test_state_dicts_hold_packed_rows_as_any_others() -> None:
    (plain, its), (packing, other) = trained(GroupAdam, lr=0.02, l21=3.0)
    assert_identical(held(plain, its), held(packing, other))
    for packs in (False, True):
        table = HashEmbedding(4, std=0.05, field_bits=2, pack_dead=packs)
        optimizer = GroupAdam(table.parameters(), lr=0.02, l21=3.0)
        table.load_state_dict(packing.state_dict())
        optimizer.load_state_dict(other.state_dict())
        assert packed(table) == 0
        assert_identical(held(plain, its), held(table, optimizer))
    packing.load_state_dict(plain.state_dict())
    other.load_state_dict(its.state_dict())
    assert_identical(held(plain, its), held(packing, other))


def test_copies_hold_packed_rows() -> None:
    table, optimizer = trained(GroupAdam, lr=0.02, l21=3.0)[1]
    for other, its in (copy.deepcopy((table, optimizer)), pickle.loads(pickle.dumps((table, optimizer)))):
        assert_identical(held(table, optimizer), held(other, its))
        train(other, its, 41)
        pack(other, its)
        assert packed(other) > 20


# Checkpoints


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PACK_EVERY", 6)
    monkeypatch.setattr(upkeep, "FEWEST_DEAD", 5)


def fresh(packs: bool = True) -> tuple[HashEmbedding, GroupOptimizer]:
    return pair(GroupAdam, lr=0.02, l21=3.0, penalty="hard")[packs]


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("cut", [18, 19, 22, 31])
def test_training_goes_on_the_same(
    cut: int, incremental: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit as without a checkpoint: rows are packed at the same steps, and a sample finds the same ones."""
    small(monkeypatch)
    whole, saved, loaded = fresh(), fresh(), fresh()
    checkpoints = Checkpoints(tmp_path, incremental=incremental)
    for step in range(cut):
        train(*whole, step)
        if incremental and step % 4 == 1:
            checkpoints.save(step, *saved)
        train(*saved, step)
    path = checkpoints.save(cut, *saved)
    load_checkpoint(path, *loaded)
    assert packed(loaded[0]) == packed(whole[0]) > 10
    samples: list[list[Tensor]] = [[], [], []]
    for step in range(cut, cut + 30):
        for (table, optimizer), found in zip((whole, saved, loaded), samples, strict=True):
            train(table, optimizer, step)
            found.append(torch.from_numpy(optimizer.census(0, 40, (step,))[0].critical))
            if step % 9 == 0:
                optimizer.sweep(drop_untrained=True)
    for (table, optimizer), found in zip((saved, loaded), samples[1:], strict=True):
        assert packed(table) == packed(whole[0])
        assert_identical(held(*whole), held(table, optimizer))
        assert_identical(samples[0], found)


@pytest.mark.parametrize("first", [False, True])
def test_checkpoints_go_from_tables_that_pack_to_those_that_do_not(first: bool, tmp_path: Path) -> None:
    table, optimizer = fresh(first)
    checkpoints = Checkpoints(tmp_path)
    for step in range(30):
        train(table, optimizer, step)
    optimizer.zero_grad()
    if first:
        pack(table, optimizer)
    for step in range(30, 34):  # changes that the second and third hold
        path = checkpoints.save(step, table, optimizer)
        train(table, optimizer, step)
    assert len(checkpoints.paths()) == 4
    path = checkpoints.save(34, table, optimizer)
    for packs in (first, not first):
        other, its = fresh(packs)
        load_checkpoint(path, other, its)
        assert packed(other) == (packed(table) if packs else 0)
        assert_identical(held(table, optimizer), held(other, its))
        train(other, its, 34)


def test_a_checkpoint_after_a_packing_holds_all_rows(tmp_path: Path) -> None:
    table, optimizer = fresh()
    checkpoints = Checkpoints(tmp_path)
    train(table, optimizer, 0)
    checkpoints.save(1, table, optimizer)
    assert table.table.changes is not None
    pack(table, optimizer)
    assert table.table.changes is None
    other, its = fresh()
    load_checkpoint(checkpoints.save(2, table, optimizer), other, its)
    assert_identical(held(table, optimizer), held(other, its))


def test_dropped_packed_rows_are_gone_from_a_later_checkpoint(tmp_path: Path) -> None:
    table, optimizer = trained(GroupAdam, lr=0.02, l21=3.0)[1]
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, table, optimizer)
    assert table.shrink() > 20
    path = checkpoints.save(2, table, optimizer)
    assert len(checkpoints.paths()) == 2
    other, its = pair(GroupAdam, lr=0.02, l21=3.0)[1]
    load_checkpoint(path, other, its)
    assert_identical(held(table, optimizer), held(other, its))


# Bad arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.float64}, r"needs a table of float32 in the host's memory, got torch.float64 on cpu"),
        ({"max_bytes": "1GB"}, "cannot be combined with max_bytes"),
        ({"eviction": UnseenFor(steps=3)}, "cannot be combined with UnseenFor, which asks when rows were seen"),
    ],
)
def test_what_cannot_be_combined_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HashEmbedding(4, pack_dead=True, **options)
