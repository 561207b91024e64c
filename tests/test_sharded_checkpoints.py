"""A checkpoint of a table on some ranks is loaded on any other number of them, bit by bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from distributed_cases import Ranks
from optimizer_cases import make
from sharded_cases import average_fallback, batches, first_ranks, loss_of, rows_of
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding
from sparsegroup.checkpoint import Checkpoints
from sparsegroup.table import AfterSightings

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


@pytest.mark.parametrize("incremental", [False, True], ids=["whole", "incremental"])
@pytest.mark.parametrize("before", range(5))
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


@pytest.mark.parametrize(
    "options", [{"admission": AfterSightings(2)}, {"pack_dead": True}, {"fallback": True}], ids=str
)
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
