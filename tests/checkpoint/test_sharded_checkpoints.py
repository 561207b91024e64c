"""A checkpoint of a table on some ranks is loaded on any other number of them, bit by bit."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.lr_scheduler import StepLR

from distributed_cases import Ranks
from optimizer_cases import make
from sharded_cases import average_fallback, batches, first_ranks, loss_of, rows_of
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding
from sparsegroup.checkpoint import CheckpointError, Checkpoints, load_checkpoint, save_checkpoint
from sparsegroup.checkpoint.manifest import CHECKPOINT
from sparsegroup.table import MinCount
from sparsegroup.table.sharded.routing import Routing

STEPS = 6


def trained(count: int, options: dict[str, Any]) -> tuple[HashEmbedding, GroupOptimizer] | None:
    group = first_ranks(count) if count else None
    if count and group is None:
        return None
    table = HashEmbedding(4, std=0.5, **options, **({"process_group": group} if count else {}))
    return table, make(GroupAdam, table.parameters(), l21=0.05)


def learn(table: HashEmbedding, optimizer: GroupOptimizer, first: int, last: int) -> None:
    """Steps on the global batches, of which each rank has its part."""
    ranks, rank = (1, 0) if table.across is None else (table.across.shards.ranks, table.across.shards.rank)
    for step, keys in enumerate(batches(2 * STEPS)[first:last], first):
        optimizer.zero_grad()
        own = keys[rank * len(keys) // ranks : (rank + 1) * len(keys) // ranks]
        (loss_of(table(own), own, step) * ranks / len(keys)).backward()
        average_fallback(table)
        optimizer.step()


def written(folder: Path, count: int, options: dict[str, Any], incremental: bool) -> dict[str, Any] | None:
    made = trained(count, options)
    if made is None:
        return None
    table, optimizer = made
    checkpoints = Checkpoints(folder, keep=2)
    learn(table, optimizer, 0, STEPS // 2)
    if incremental:
        checkpoints.save(1, table, optimizer)
        optimizer.zero_grad()
        table.shrink()
    learn(table, optimizer, STEPS // 2, STEPS)
    checkpoints.save(2, table, optimizer)
    return {"rows": rows_of(table), "seen": table.num_seen}


def read(folder: Path, count: int, options: dict[str, Any], goes_on: bool = False) -> dict[str, Any] | None:
    made = trained(count, options)
    if made is None:
        return None
    table, optimizer = made
    checkpoints = Checkpoints(folder)
    path = checkpoints.latest()
    assert path is not None
    assert path.name == "step-000000000002"
    checkpoints.load(path, table, optimizer)
    if goes_on:
        learn(table, optimizer, STEPS, 2 * STEPS)
    return {"rows": rows_of(table), "seen": table.num_seen}


def joined(parts: Any) -> tuple[dict[int, Tensor], int]:
    there = [part for part in parts if part is not None]
    rows = {key: row for part in there for key, row in part["rows"].items()}
    assert len(rows) == sum(len(part["rows"]) for part in there)
    return rows, sum(part["seen"] for part in there)


def on(ranks: Ranks, count: int, function: Any, *arguments: Any) -> tuple[dict[int, Tensor], int]:
    """What a function gives on so many ranks; on this process for 0."""
    return joined(ranks.call(function, *arguments) if count else [function(*arguments)])


def test_a_key_stays_on_its_rank_from_version_to_version() -> None:
    keys = np.arange(1000)
    assert np.bincount(Routing(3).ranks_of(keys)).tolist() == [336, 315, 349]
    assert not Routing(1).ranks_of(keys).any()


@pytest.mark.parametrize(
    ("before", "incremental"), [(0, True), (1, False), (2, True), (3, False), (3, True), (4, True)]
)
def test_any_number_of_ranks_reads_what_any_other_has_written(
    before: int, incremental: bool, tmp_path: Path, four_ranks: Ranks
) -> None:
    options: dict[str, Any] = {}
    rows, seen = on(four_ranks, before, written, tmp_path, before, options, incremental)
    assert any(not row[-4:].any() for row in rows.values())
    for after in range(5):
        found, found_seen = on(four_ranks, after, read, tmp_path, after, options)
        assert found.keys() == rows.keys()
        assert all(torch.equal(row, rows[key]) for key, row in found.items())
        assert found_seen == seen


@pytest.mark.parametrize("options", [{"admission": MinCount(2)}, {"fallback": True}], ids=str)
def test_what_else_a_table_knows_comes_along(options: dict[str, Any], tmp_path: Path, four_ranks: Ranks) -> None:
    _, seen = on(four_ranks, 3, written, tmp_path, 3, options, True)
    results = [on(four_ranks, count, read, tmp_path, count, options, True) for count in (0, 1, 2, 3, 4)]
    for rows, all_seen in results:
        assert all_seen == results[0][1] > seen
        assert rows.keys() == results[0][0].keys()
        for key, row in rows.items():
            torch.testing.assert_close(row, results[0][0][key], rtol=2e-6, atol=2e-6)


def test_the_same_ranks_go_on_with_the_same_bits(tmp_path: Path, four_ranks: Ranks) -> None:
    four_ranks.call(written, tmp_path, 3, {}, True)
    through, _ = joined(four_ranks.call(read, tmp_path, 3, {}, True))
    again, _ = joined(four_ranks.call(read, tmp_path, 3, {}, True))
    assert all(torch.equal(row, through[key]) for key, row in again.items())


def gone_on_with(folder: Path, count: int) -> dict[str, Any] | None:
    """Load, go on, and write what follows."""
    made = trained(count, {})
    if made is None:
        return None
    table, optimizer = made
    checkpoints = Checkpoints(folder, keep=3)
    path = checkpoints.latest()
    assert path is not None
    checkpoints.load(path, table, optimizer)
    learn(table, optimizer, STEPS, STEPS + 1)
    checkpoints.save(3, table, optimizer)
    return {"rows": rows_of(table), "seen": table.num_seen}


@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (3, 2)])
def test_what_other_ranks_write_next_can_be_read(before: int, after: int, tmp_path: Path, four_ranks: Ranks) -> None:
    on(four_ranks, before, written, tmp_path, before, {}, False)
    rows, seen = on(four_ranks, after, gone_on_with, tmp_path, after)
    made = trained(0, {})
    assert made is not None
    table, optimizer = made
    load_checkpoint(Checkpoints(tmp_path).of_step(3), table, optimizer)
    found = rows_of(table)
    assert found.keys() == rows.keys()
    assert all(torch.equal(row, rows[key]) for key, row in found.items())
    assert table.num_seen == seen
    assert (CHECKPOINT.read(Checkpoints(tmp_path).of_step(3)).parent is not None) == (before == after)


def test_more_rows_than_there_is_room_for(tmp_path: Path, four_ranks: Ranks) -> None:
    """On all ranks, or on one of them."""
    rows, _ = on(four_ranks, 3, written, tmp_path, 3, {}, False)
    for count in (0, 1, 2):
        shares = np.bincount(Routing(count or 1).ranks_of(np.array(list(rows))))
        for max_rows in {len(rows) // len(shares) - 1, int(shares.max()) - 1}:
            with pytest.raises((CheckpointError, AssertionError), match=rf"\d+ rows are more than max_rows={max_rows}"):
                on(four_ranks, count, read, tmp_path, count, {"max_rows": max_rows})


@pytest.mark.parametrize(("before", "after"), [(0, 3), (2, 3), (3, 2), (3, 0), (2, 2)])
def test_an_estimate_of_keys_seen_is_not_multiplied(before: int, after: int, tmp_path: Path, four_ranks: Ranks) -> None:
    options = {"max_bytes": "4MB"}
    rows, seen = on(four_ranks, before, written, tmp_path, before, options, True)
    _, found = on(four_ranks, after, read, tmp_path, after, options)
    assert 0.98 * seen < found < 1.02 * seen + (0 if after in (0, before) else len(rows))


def test_a_table_of_ranks_is_copied_as_one_of_them(four_ranks: Ranks) -> None:
    assert four_ranks.call(copied)[:2] == [(0, 2), (1, 2)]


def copied() -> tuple[int, int] | None:
    made = trained(2, {})
    if made is None:
        return None
    ranks = copy.deepcopy(made[0]).table.ranks
    assert ranks is not None
    return ranks.rank, len(ranks.of_all([0], "numbers"))


def half_tracked(folder: Path) -> dict[str, Any] | None:
    """Between two incremental checkpoints, one rank alone reads its rows anew and so stops tracking changes."""
    made = trained(2, {})
    if made is None:
        return None
    table, optimizer = made
    checkpoints = Checkpoints(folder, keep=1)
    learn(table, optimizer, 0, STEPS // 2)
    checkpoints.save(1, table, optimizer)
    if table.across.shards.rank == 0:
        optimizer.zero_grad()
        table.load_state_dict(table.state_dict())
    learn(table, optimizer, STEPS // 2, STEPS)
    checkpoints.save(2, table, optimizer)
    return {"rows": rows_of(table), "seen": table.num_seen}


def test_one_rank_without_tracking_makes_all_write_everything(tmp_path: Path, four_ranks: Ranks) -> None:
    rows, seen = joined(four_ranks.call(half_tracked, tmp_path))
    found, found_seen = on(four_ranks, 1, read, tmp_path, 1, {})
    assert found_seen == seen
    assert found.keys() == rows.keys()
    assert all(torch.equal(row, rows[key]) for key, row in found.items())


class StubbornOnOne(StepLR):
    """A scheduler whose state one rank cannot load."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if dist.get_rank() == 1:
            raise ValueError("no thanks")
        super().load_state_dict(state_dict)


def loaded_on_one(folder: Path) -> str:
    made = trained(2, {})
    if made is None:
        return ""
    table, optimizer = made
    scheduler = StubbornOnOne(optimizer, 3)
    learn(table, optimizer, 0, 1)
    save_checkpoint(folder / "one", table, optimizer, scheduler)
    learn(table, optimizer, 1, 2)
    optimizer.param_groups[0]["lr"] = 0.125
    before = rows_of(table)
    with pytest.raises(CheckpointError, match="no thanks") as caught:
        load_checkpoint(folder / "one", table, optimizer, scheduler)
    assert optimizer.param_groups[0]["lr"] == 0.125
    after = rows_of(table)
    assert after.keys() == before.keys()
    assert all(torch.equal(row, before[key]) for key, row in after.items())
    return str(caught.value)


def test_a_load_that_fails_on_one_rank_changes_nothing_on_any(tmp_path: Path, four_ranks: Ranks) -> None:
    first, second, *_ = four_ranks.call(loaded_on_one, tmp_path)
    assert first == f"rank 1 of 2: CheckpointError: {second}"


def followed_by_one(folder: Path) -> None:
    made = trained(2, {})
    if made is None:
        return
    table, optimizer = made
    save_checkpoint(folder / "first", table, optimizer, track=True)
    parent = folder / "first" if table.across.shards.rank else None
    with pytest.raises(CheckpointError, match="follows another checkpoint on each rank, or none on some"):
        save_checkpoint(folder / "second", table, optimizer, parent=parent)
    assert not (folder / "second").exists()


def test_a_checkpoint_follows_the_same_one_on_all_ranks(tmp_path: Path, four_ranks: Ranks) -> None:
    four_ranks.call(followed_by_one, tmp_path)
