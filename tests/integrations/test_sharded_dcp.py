"""Models whose tables lie on some ranks in `torch.distributed.checkpoint`, loaded on any other number of them."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from distributed_cases import Ranks
from over import over
from sharded_cases import batches, evenly, first_ranks, rows_of
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding, param_groups
from sparsegroup.integrations import TableLoadPlanner, data_parallel
from sparsegroup.table import MinCount, UnusedFor

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated", "ignore:.*will be removed.*"
)

STEPS = 4
TABLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fallback": {"fallback": True, "field_bits": 2},
    "policies": {"admission": MinCount(2), "eviction": UnusedFor(steps=8)},
}


class Scores(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = HashEmbedding(4, std=0.5, **options)
        self.head = nn.Linear(12, 1)

    def forward(self, keys: Tensor) -> Tensor:
        scores: Tensor = self.head(self.table(keys).flatten(-2)).squeeze(-1)
        return scores


def made(count: int, kind: str) -> tuple[Scores, GroupOptimizer] | None:
    group = first_ranks(count) if count else None
    if count and group is None:
        return None
    model = Scores(**TABLES[kind], process_group=group)
    return model, GroupAdam(param_groups(model, l21=0.01), lr=0.02)


def learn(model: Scores, optimizer: GroupOptimizer, first: int, last: int) -> None:
    across = model.table.across
    group = None if across is None else across.shards.group
    ranks, rank = (1, 0) if group is None else (group.size(), group.rank())
    forward = model if group is None else data_parallel(model, process_group=group)
    for keys in batches(2 * STEPS + 1)[first:last]:
        own = evenly(keys, ranks)[rank]
        optimizer.zero_grad()
        targets = (own.sum(1) % 3 == 0).to(torch.float32)
        loss = (forward(own) - targets).square().sum() * ranks / len(keys)
        loss.backward()
        optimizer.step()


def state_of(model: Scores, optimizer: GroupOptimizer, options: StateDictOptions) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=options), strict=True))


def group_of(model: Scores) -> dict[str, Any]:
    across = model.table.across
    return {"no_dist": True} if across is None else {"process_group": across.shards.group}


def facts(model: Scores, optimizer: GroupOptimizer) -> dict[str, Any]:
    return {
        "rows": rows_of(model.table),
        "seen": model.table.num_seen,
        "steps": [float(entry["step"]) for entry in optimizer.state.values()],
        "weights": [weight.detach().clone() for weight in model.parameters() if weight is not model.table.weight],
    }


def saved(folder: Path, count: int, kind: str, options: StateDictOptions) -> dict[str, Any] | None:
    """Train and save; then what training goes on to."""
    found = made(count, kind)
    if found is None:
        return None
    model, optimizer = found
    learn(model, optimizer, 0, STEPS)
    dcp.save(state_of(model, optimizer, options), checkpoint_id=folder, **group_of(model))
    learn(model, optimizer, STEPS, 2 * STEPS)
    return facts(model, optimizer)


def loaded(folder: Path, count: int, kind: str, options: StateDictOptions, goes_on: bool) -> dict[str, Any] | None:
    found = made(count, kind)
    if found is None:
        return None
    model, optimizer = found
    state = state_of(model, optimizer, options)
    dcp.load(state, checkpoint_id=folder, planner=TableLoadPlanner(), **group_of(model))
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options
    )
    if goes_on:
        learn(model, optimizer, STEPS, 2 * STEPS)
    return facts(model, optimizer)


def on(ranks: Ranks, count: int, function: Any, *arguments: Any) -> dict[str, Any]:
    """What a function gives on so many ranks; on this process for 0."""
    parts = [part for part in (ranks.call(function, *arguments) if count else [function(*arguments)]) if part]
    assert all(isinstance(part, dict) for part in parts), parts
    rows = {key: row for part in parts for key, row in part["rows"].items()}
    assert len(rows) == sum(len(part["rows"]) for part in parts)
    for part in parts:
        assert part["steps"] == parts[0]["steps"]
        assert all(map(torch.equal, part["weights"], parts[0]["weights"]))
    return {**parts[0], "rows": rows, "seen": sum(part["seen"] for part in parts)}


def assert_close(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> None:
    assert ours["rows"].keys() == theirs["rows"].keys()
    for key, row in ours["rows"].items():
        torch.testing.assert_close(row, theirs["rows"][key], rtol=tolerance, atol=tolerance)
    for one, other in zip(ours["weights"], theirs["weights"], strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    assert (ours["seen"], ours["steps"]) == (theirs["seen"], theirs["steps"])


NESTED, FLAT = StateDictOptions(), StateDictOptions(flatten_optimizer_state_dict=True)


@pytest.mark.parametrize(
    ("before", "kind", "options"),
    [
        *((before, "plain", NESTED) for before in (0, 2, 3)),
        *((3, *other) for other in (("plain", FLAT), ("fallback", NESTED), ("policies", NESTED))),
    ],
)
def test_any_number_of_ranks_goes_on_with_what_any_other_has_saved(
    before: int, kind: str, options: StateDictOptions, tmp_path: Path, four_ranks: Ranks
) -> None:
    theirs = saved(tmp_path / "0", 0, kind, options)  # so that one process compiles what all need
    gone_on = on(four_ranks, before, saved, tmp_path / str(before), before, kind, options) if before else theirs
    assert gone_on is not None
    for after in [0, 1, 2, 3]:
        found = on(four_ranks, after, loaded, tmp_path / str(before), after, kind, options, True)
        assert_close(found, gone_on, 0 if after == before else 2e-6)


def loaded_from_the_top(folder: Path, count: int) -> dict[str, Any] | None:
    """A module's state dict as it is, without a dict around it."""
    found = made(count, "plain")
    if found is None:
        return None
    model, _ = found
    state = model.state_dict()
    dcp.load(state, checkpoint_id=folder, planner=TableLoadPlanner(), **group_of(model))
    model.load_state_dict(state)
    weights = [model.head.weight.detach()]
    return {"rows": rows_of(model.table), "seen": model.table.num_seen, "steps": [], "weights": weights}


def saved_from_the_top(folder: Path, count: int) -> dict[str, Any] | None:
    found = made(count, "plain")
    if found is None:
        return None
    model, optimizer = found
    learn(model, optimizer, 0, STEPS)
    dcp.save(model.state_dict(), checkpoint_id=folder, **group_of(model))
    rows = {key: row[-4:] for key, row in rows_of(model.table).items()}
    return {"rows": rows, "seen": model.table.num_seen, "steps": [], "weights": [model.head.weight.detach()]}


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 0)])
def test_state_dicts_on_the_top_level(before: int, after: int, tmp_path: Path, four_ranks: Ranks) -> None:
    theirs = on(four_ranks, before, saved_from_the_top, tmp_path, before)
    assert_close(on(four_ranks, after, loaded_from_the_top, tmp_path, after), theirs, 0)


def state_files(count: int) -> tuple[bytes, bytes] | None:
    """What `torch.save` makes of a model's and an optimizer's state dict."""
    found = made(count, "policies")
    if found is None:
        return None
    learn(*found, 0, STEPS)
    files = [io.BytesIO(), io.BytesIO()]
    for part, file in zip(found, files, strict=True):
        torch.save(part.state_dict(), file)
    return files[0].getvalue(), files[1].getvalue()


def loaded_files(files: list[tuple[bytes, bytes]], count: int) -> dict[str, Any] | str | None:
    """The facts, or what goes wrong."""
    found = made(count, "policies")
    if found is None:
        return None
    model, optimizer = found
    rank = 0 if model.table.across is None else model.table.across.shards.rank
    of_model, of_optimizer = (torch.load(io.BytesIO(one)) for one in files[rank % len(files)])
    said = []
    for part, state in ((model, of_model), (optimizer, of_optimizer)):
        try:
            part.load_state_dict(state)
        except (RuntimeError, ValueError) as error:
            said.append(str(error))
    assert not said or not model.table.num_rows
    return "; ".join(said) or facts(model, optimizer)


def test_plain_state_dicts_go_to_the_ranks_that_they_are_of(four_ranks: Ranks) -> None:
    theirs = state_files(0)
    assert theirs is not None
    parts = [part for part in four_ranks.call(state_files, 2) if part]
    own = on(four_ranks, 2, loaded_files, parts, 2)
    whole = loaded_files([theirs], 0)
    assert isinstance(whole, dict)
    for count in (2, 3):
        assert_close(on(four_ranks, count, loaded_files, [theirs], count), whole, 0)
    assert_close(own, whole, 2e-6)


@over("count", [0, 1, 2, 3])
def test_the_state_dict_of_another_rank_is_refused(count: int, four_ranks: Ranks) -> None:
    parts = [part for part in four_ranks.call(state_files, 2) if part][::-1]
    for rank, said in enumerate(four_ranks.call(loaded_files, parts, count) if count else [loaded_files(parts, 0)]):
        assert (said is None) == (0 < count <= rank)
        if said is not None:
            who = "all ranks" if count < 2 else f"rank {rank} of {count}"
            wrong = rf"contains only the rows of rank {(rank + 1) % 2} of 2, and this is {who}: .*TableLoadPlanner"
            assert re.search(rf"table {wrong}", said), said
            assert re.search(rf"state 'rank_._of_2.keys' {wrong}", said), said


def test_a_checkpoint_without_a_part(tmp_path: Path) -> None:
    entries = {"keys": torch.arange(3), "dropped": torch.arange(0), "weight": torch.ones(3, 4)}
    dcp.save(
        {"model": {f"rank_1_of_2.{name}": one for name, one in entries.items()}}, checkpoint_id=tmp_path, no_dist=True
    )
    state = {"model": HashEmbedding(4).state_dict()}
    with pytest.raises(
        dcp.api.CheckpointException, match="not hold all of 'model': the rows of rank 0 of 2 are missing"
    ):
        dcp.load(state, checkpoint_id=tmp_path, planner=TableLoadPlanner(), no_dist=True)
