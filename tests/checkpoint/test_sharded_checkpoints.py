"""A checkpoint of a table on some ranks is loaded on any other number of them, bit by bit."""

from collections.abc import Callable
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
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding, param_groups
from sparsegroup.checkpoint import CheckpointError, Checkpoints, load_checkpoint, save_checkpoint
from sparsegroup.checkpoint.manifest import CHECKPOINT
from sparsegroup.table import MinCount
from sparsegroup.table.sharded.routing import Routing

STEPS = 6
Rows = dict[int, Tensor]


def with_table(count: int, options: dict[str, Any], function: Callable[..., Any], *arguments: Any) -> Any:
    """`function(table, optimizer, *arguments)` with a new table on so many ranks; None on the other ones."""
    group = first_ranks(count) if count else None
    if count and group is None:
        return None
    table = HashEmbedding(4, std=0.5, **options, **({"process_group": group} if count else {}))
    return function(table, make(GroupAdam, param_groups(table, l21=0.05)), *arguments)


def on(ranks: Ranks, count: int, function: Any, *arguments: Any, **options: Any) -> tuple[Rows, int]:
    """The rows and the keys seen that a function leaves on so many ranks; on this process for 0."""
    given = (count, options, function, *arguments)
    parts = [part for part in (ranks.call(with_table, *given) if count else [with_table(*given)]) if part is not None]
    rows = {key: row for part in parts for key, row in part[0].items()}
    assert len(rows) == sum(len(part[0]) for part in parts)
    return rows, sum(part[1] for part in parts)


def assert_same_rows(found: tuple[Rows, int], expected: tuple[Rows, int]) -> None:
    assert found[0].keys() == expected[0].keys()
    assert all(torch.equal(row, expected[0][key]) for key, row in found[0].items())
    assert found[1] == expected[1]


def learn(table: HashEmbedding, optimizer: GroupOptimizer, first: int, last: int) -> tuple[Rows, int]:
    """Steps on the global batches, of which each rank has its part; gives its rows, and the keys it has seen."""
    ranks, rank = (1, 0) if table.across is None else (table.across.shards.ranks, table.across.shards.rank)
    for step, keys in enumerate(batches(2 * STEPS)[first:last], first):
        optimizer.zero_grad()
        own = keys[rank * len(keys) // ranks : (rank + 1) * len(keys) // ranks]
        (loss_of(table(own), own, step) * ranks / len(keys)).backward()
        average_fallback(table)
        optimizer.step()
    return rows_of(table), table.num_seen


def written(table: HashEmbedding, optimizer: GroupOptimizer, folder: Path, incremental: bool) -> tuple[Rows, int]:
    checkpoints = Checkpoints(folder, keep=2)
    learn(table, optimizer, 0, STEPS // 2)
    if incremental:
        checkpoints.save(1, table, optimizer)
        optimizer.zero_grad()
        table.shrink()
    left = learn(table, optimizer, STEPS // 2, STEPS)
    checkpoints.save(2, table, optimizer)
    return left


def read(
    table: HashEmbedding, optimizer: GroupOptimizer, folder: Path, steps: int = 0, saves: bool = False
) -> tuple[Rows, int]:
    """Load the checkpoint of step 2, go on, and write what follows."""
    checkpoints = Checkpoints(folder, keep=3)
    path = checkpoints.latest()
    assert path is not None
    assert path.name == "step-000000000002"
    checkpoints.load(path, table, optimizer)
    left = learn(table, optimizer, STEPS, STEPS + steps)
    if saves:
        checkpoints.save(3, table, optimizer)
    return left


def test_a_key_stays_on_its_rank_from_version_to_version() -> None:
    keys = np.arange(1000)
    assert np.bincount(Routing(3).ranks_of(keys)).tolist() == [336, 315, 349]
    assert not Routing(1).ranks_of(keys).any()


@pytest.mark.parametrize(
    ("before", "incremental", "afters"),
    [(0, True, (1, 3)), (2, False, (0, 4, 2)), (3, True, (2, 3, 0)), (4, True, (4, 1))],
)
def test_any_number_of_ranks_reads_what_any_other_has_written_and_writes_what_follows(
    before: int, incremental: bool, afters: tuple[int, ...], tmp_path: Path, four_ranks: Ranks
) -> None:
    expected = on(four_ranks, before, written, tmp_path, incremental)
    assert any(not row[-4:].any() for row in expected[0].values())
    for after in afters:
        assert_same_rows(on(four_ranks, after, read, tmp_path), expected)
    left = on(four_ranks, afters[-1], read, tmp_path, 1, True)
    last = Checkpoints(tmp_path).of_step(3)
    found = with_table(0, {}, lambda table, optimizer: load_checkpoint(last, table, optimizer) and rows_of(table))
    assert_same_rows((found, left[1]), left)
    assert (CHECKPOINT.read(last).parent is not None) == (before == afters[-1])


@pytest.mark.parametrize("options", [{"admission": MinCount(2)}, {"fallback": True}], ids=str)
def test_what_else_a_table_knows_comes_along(options: dict[str, Any], tmp_path: Path, four_ranks: Ranks) -> None:
    _, seen = on(four_ranks, 3, written, tmp_path, True, **options)
    results = [on(four_ranks, count, read, tmp_path, STEPS, **options) for count in (0, 2, 3)]
    for rows, all_seen in results:
        assert all_seen == results[0][1] > seen
        assert rows.keys() == results[0][0].keys()
        for key, row in rows.items():
            torch.testing.assert_close(row, results[0][0][key], rtol=2e-6, atol=2e-6)
    assert_same_rows(on(four_ranks, 3, read, tmp_path, STEPS, **options), results[2])


def test_more_rows_than_there_is_room_for(tmp_path: Path, four_ranks: Ranks) -> None:
    """On all ranks, or on one of them."""
    rows, _ = on(four_ranks, 3, written, tmp_path, False)
    for count in (0, 2):
        shares = np.bincount(Routing(count or 1).ranks_of(np.array(list(rows))))
        for max_rows in {len(rows) // len(shares) - 1, int(shares.max()) - 1}:
            with pytest.raises((CheckpointError, AssertionError), match=rf"\d+ rows are more than max_rows={max_rows}"):
                on(four_ranks, count, read, tmp_path, max_rows=max_rows)


@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 2), (2, 2)])
def test_an_estimate_of_keys_seen_is_not_multiplied(before: int, after: int, tmp_path: Path, four_ranks: Ranks) -> None:
    rows, seen = on(four_ranks, before, written, tmp_path, True, max_bytes="4MB")
    _, found = on(four_ranks, after, read, tmp_path, max_bytes="4MB")
    assert 0.98 * seen < found < 1.02 * seen + (0 if after == before else len(rows))


def half_tracked(table: HashEmbedding, optimizer: GroupOptimizer, folder: Path) -> tuple[Rows, int]:
    """Between two incremental checkpoints, only one rank loads its rows again and so stops tracking changes."""
    checkpoints = Checkpoints(folder, keep=1)
    learn(table, optimizer, 0, STEPS // 2)
    checkpoints.save(1, table, optimizer)
    if table.across.shards.rank == 0:
        optimizer.zero_grad()
        table.load_state_dict(table.state_dict())
    left = learn(table, optimizer, STEPS // 2, STEPS)
    checkpoints.save(2, table, optimizer)
    return left


def test_one_rank_without_tracking_makes_all_write_everything(tmp_path: Path, four_ranks: Ranks) -> None:
    expected = on(four_ranks, 2, half_tracked, tmp_path)
    assert_same_rows(on(four_ranks, 1, read, tmp_path), expected)


class StubbornOnOne(StepLR):
    """A scheduler whose state one rank cannot load."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if dist.get_rank() == 1:
            raise ValueError("no thanks")
        super().load_state_dict(state_dict)


def loaded_on_one(table: HashEmbedding, optimizer: GroupOptimizer, folder: Path) -> str:
    scheduler = StubbornOnOne(optimizer, 3)
    learn(table, optimizer, 0, 1)
    save_checkpoint(folder / "one", table, optimizer, scheduler)
    before = learn(table, optimizer, 1, 2)
    optimizer.param_groups[0]["lr"] = 0.125
    with pytest.raises(CheckpointError, match="no thanks") as caught:
        load_checkpoint(folder / "one", table, optimizer, scheduler)
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert_same_rows((rows_of(table), table.num_seen), before)
    return str(caught.value)


def test_a_load_that_fails_on_one_rank_changes_nothing_on_any(tmp_path: Path, four_ranks: Ranks) -> None:
    first, second, *_ = four_ranks.call(with_table, 2, {}, loaded_on_one, tmp_path)
    assert first == f"rank 1 of 2: CheckpointError: {second}"


def followed_by_one(table: HashEmbedding, optimizer: GroupOptimizer, folder: Path) -> None:
    save_checkpoint(folder / "first", table, optimizer, track=True)
    parent = folder / "first" if table.across.shards.rank else None
    with pytest.raises(CheckpointError, match="follows another checkpoint on each rank, or none on some"):
        save_checkpoint(folder / "second", table, optimizer, parent=parent)
    assert not (folder / "second").exists()


def test_a_checkpoint_follows_the_same_one_on_all_ranks(tmp_path: Path, four_ranks: Ranks) -> None:
    four_ranks.call(with_table, 2, {}, followed_by_one, tmp_path)
