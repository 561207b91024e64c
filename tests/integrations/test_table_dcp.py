"""Models with tables in checkpoints of `torch.distributed.checkpoint`: training goes on to the same bits."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

from distributed_cases import Ranks
from optimizer_cases import assert_identical
from over import over
from sharded_cases import batches, evenly, first_ranks, rows_of
from sparsegroup import (
    FieldTables,
    GroupAdagrad,
    GroupAdam,
    GroupFTRL,
    GroupOptimizer,
    HashEmbedding,
    MinCount,
    TargetRate,
    UnusedFor,
    convert,
    param_groups,
)
from sparsegroup.integrations import TableLoadPlanner, data_parallel
from table_cases import take_step

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated", "ignore:.*will be removed.*"
)

FIELDS = torch.tensor([0, 1, 1]) << 56
TABLES: dict[str, Any] = {
    "plain": lambda: HashEmbedding(4),
    "fallback": lambda: HashEmbedding(4, fallback=True, field_bits=2),
    "policies": lambda: HashEmbedding(4, admission=MinCount(2), eviction=UnusedFor(steps=8)),
    "limit": lambda: HashEmbedding(4, max_bytes="4MB", admission=MinCount(2, sketch_bytes=4096)),
    "fields": lambda: FieldTables(4, {0: 4, 1: 2}),
    "converted": lambda: convert(nn.Embedding(60, 4), rows="none"),
}


class Clicks(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = table
        self.head = nn.Linear(12, 1)

    def forward(self, keys: Tensor) -> Tensor:
        logits: Tensor = self.head(self.table(keys).flatten(-2)).squeeze(-1)
        return logits


def made(kind: str = "plain", optimizer: type[GroupOptimizer] = GroupAdam) -> tuple[Clicks, GroupOptimizer]:
    model = Clicks(TABLES[kind]())
    return model, optimizer(param_groups(model, l21=0.02), lr=0.02)


def train(model: nn.Module, optimizer: GroupOptimizer, steps: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        keys = torch.randint(0, 60, (8, 3), generator=draw) | FIELDS
        take_step(
            optimizer, functional.binary_cross_entropy_with_logits(model(keys), torch.rand(8, generator=draw).round())
        )


def goes_on_alike(one: tuple[nn.Module, GroupOptimizer], other: tuple[nn.Module, GroupOptimizer]) -> None:
    for model, optimizer in (one, other):
        train(model, optimizer, 12, seed=2)
    assert_identical(sorted_candidates(one[0].state_dict()), sorted_candidates(other[0].state_dict()))
    assert_identical(one[1].state_dict(), other[1].state_dict())


def sorted_candidates(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keys that wait for their second occurrence are in no particular order."""
    if "table.candidates" not in state:
        return state
    keys, order = state["table.candidates"].sort()
    return {**state, "table.candidates": keys, "table.candidate_counts": state["table.candidate_counts"][order]}


def states_of(model: nn.Module, optimizer: GroupOptimizer, options: StateDictOptions | None = None) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=options), strict=True))


def set_states(
    model: nn.Module, optimizer: GroupOptimizer, state: dict[str, Any], options: StateDictOptions | None = None
) -> None:
    of_model, of_optimizer = state["model"], state["optimizer"]
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer, options=options)


def load(state: dict[str, Any], folder: Path) -> None:
    dcp.load(state, checkpoint_id=folder, no_dist=True, planner=TableLoadPlanner())


@over(
    ("kind", "flat", "steps"),
    [*((kind, False, 12) for kind in TABLES), ("policies", True, 12), ("fields", True, 12), ("plain", False, 0)],
)
def test_training_goes_on_to_the_same_bits(kind: str, flat: bool, steps: int, tmp_path: Path) -> None:
    trained, fresh, options = made(kind), made(kind), StateDictOptions(flatten_optimizer_state_dict=flat)
    folder = tmp_path / f"{kind}{flat}{steps}"
    train(*trained, steps, seed=1)
    dcp.save(states_of(*trained, options), checkpoint_id=folder, no_dist=True)
    state = states_of(*fresh, options)
    load(state, folder)
    set_states(*fresh, state, options)
    goes_on_alike(trained, fresh)


@over(("optimizer", "full"), [(GroupAdagrad, True), (GroupFTRL, False)])
def test_state_dicts_go_into_a_fresh_model_without_files(optimizer: type[GroupOptimizer], full: bool) -> None:
    options = StateDictOptions(full_state_dict=full, cpu_offload=full)
    (model, trained), (fresh, its_optimizer) = made(optimizer=optimizer), made(optimizer=optimizer)
    train(model, trained, 12, seed=1)
    set_model_state_dict(fresh, get_model_state_dict(model, options=options), options=options)
    of_trained = get_optimizer_state_dict(model, trained, options=options)
    set_optimizer_state_dict(fresh, its_optimizer, of_trained, options=options)
    goes_on_alike((model, trained), (fresh, its_optimizer))


class Training(Stateful):
    def __init__(self, model: nn.Module, optimizer: GroupOptimizer) -> None:
        self.parts = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        return states_of(*self.parts)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_states(*self.parts, state)


@pytest.fixture
def world_of_one(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world_of_one")
def test_a_sharded_head_beside_a_table_as_a_stateful(tmp_path: Path) -> None:
    def sharded() -> tuple[Clicks, GroupOptimizer]:
        model = Clicks(HashEmbedding(4))
        fully_shard(model.head)
        return model, GroupAdam(param_groups(model, l21=0.02), lr=0.02)

    first, second = sharded(), sharded()
    assert isinstance(first[0].head.weight, DTensor)
    train(*first, 12, seed=1)
    dcp.save({"training": Training(*first)}, checkpoint_id=tmp_path / "checkpoint")
    dcp.load({"training": Training(*second)}, checkpoint_id=tmp_path / "checkpoint", planner=TableLoadPlanner())
    for model, optimizer in (first, second):
        train(model, optimizer, 12, seed=2)
    assert_identical(first[0].table.state_dict(), second[0].table.state_dict())
    assert torch.equal(first[0].head.weight.full_tensor(), second[0].head.weight.full_tensor())


def test_an_entry_that_dcp_would_lose_is_named(tmp_path: Path) -> None:
    (model, optimizer), (fresh, _) = made("policies"), made("policies")
    train(model, optimizer, 5, seed=1)
    dcp.save(model.state_dict(), checkpoint_id=tmp_path, no_dist=True)
    state = fresh.state_dict()
    with pytest.raises(dcp.api.CheckpointException, match=r"state_dict\['table\.\w+'\] = torch\.empty\(0\)"):
        load(state, tmp_path)
    state |= {f"table.{name}": torch.empty(0) for name in ("candidates", "candidate_counts", "counters")}
    load(state, tmp_path)
    fresh.load_state_dict(state)
    assert_identical(fresh.state_dict(), model.state_dict())


def test_other_modules_keys_keep_their_size(tmp_path: Path) -> None:
    """A memory with buffers that are called like a table's is loaded in place, or refused, as DCP does."""
    saved = {"memory": {"keys": torch.arange(5), "weight": torch.ones(5, 2)}}
    dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)
    other = {"memory": {"keys": torch.arange(4), "weight": torch.ones(4, 2)}}
    with pytest.raises(dcp.api.CheckpointException, match="Size mismatch"):
        load(other, tmp_path)


def test_a_fresh_optimizers_state_changes_nothing() -> None:
    model, optimizer = made()
    model(torch.arange(30).view(10, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    get_optimizer_state_dict(model, optimizer)
    assert_identical(model.state_dict(), before)
    assert model.table.weight.grad is None


def test_the_state_of_a_size_target_is_in_the_optimizers() -> None:
    (model, optimizer), (fresh, other) = made(), made()
    target, again = (TargetRate(one, 0.3, steps=20) for one in (optimizer, other))
    for seed in range(3):
        train(model, optimizer, 1, seed=seed)
        target.step()
    set_states(fresh, other, states_of(model, optimizer))
    assert (again.l21, again.rate, again.scheduled_rate) == (target.l21, target.rate, target.scheduled_rate)
    assert again.count == 3


# Tables that lie on some ranks, loaded on any other number of them

STEPS = 4
SHARDED: dict[str, dict[str, Any]] = {
    "plain": {},
    "fallback": {"fallback": True, "field_bits": 2},
    "policies": {"admission": MinCount(2), "eviction": UnusedFor(steps=8)},
}


def on_ranks(count: int, kind: str) -> tuple[Clicks, GroupOptimizer] | None:
    group = first_ranks(count) if count else None
    if count and group is None:
        return None
    torch.manual_seed(0)
    model = Clicks(HashEmbedding(4, std=0.5, **SHARDED[kind], process_group=group))
    return model, GroupAdam(param_groups(model, l21=0.01), lr=0.02)


def learn(model: Clicks, optimizer: GroupOptimizer, first: int, last: int) -> None:
    across = model.table.across
    group = None if across is None else across.shards.group
    ranks, rank = (1, 0) if group is None else (group.size(), group.rank())
    forward = model if group is None else data_parallel(model, process_group=group)
    for keys in batches(2 * STEPS + 1)[first:last]:
        own = evenly(keys, ranks)[rank]
        targets = (own.sum(1) % 3 == 0).to(torch.float32)
        loss = (forward(own) - targets).square().sum() * ranks / len(keys)
        take_step(optimizer, loss)


def group_of(model: Clicks) -> dict[str, Any]:
    across = model.table.across
    return {"no_dist": True} if across is None else {"process_group": across.shards.group}


def facts(model: Clicks, optimizer: GroupOptimizer) -> dict[str, Any]:
    return {
        "rows": rows_of(model.table),
        "seen": model.table.num_seen,
        "steps": [float(entry["step"]) for entry in optimizer.state.values()],
        "weights": [weight.detach().clone() for weight in model.parameters() if weight is not model.table.weight],
    }


def saved(folder: Path, count: int, kind: str, options: StateDictOptions | None) -> dict[str, Any] | None:
    """Train and save; then what training goes on to. Without options, only the model's state dict, as it is."""
    found = on_ranks(count, kind)
    if found is None:
        return None
    model, optimizer = found
    learn(model, optimizer, 0, STEPS)
    state = model.state_dict() if options is None else states_of(model, optimizer, options)
    dcp.save(state, checkpoint_id=folder, **group_of(model))
    if options is None:
        rows = {key: row[-4:] for key, row in rows_of(model.table).items()}
        return facts(model, optimizer) | {"rows": rows, "steps": []}
    learn(model, optimizer, STEPS, 2 * STEPS)
    return facts(model, optimizer)


def loaded(folder: Path, count: int, kind: str, options: StateDictOptions | None) -> dict[str, Any] | None:
    """Load into a fresh model, and go on."""
    found = on_ranks(count, kind)
    if found is None:
        return None
    model, optimizer = found
    state = model.state_dict() if options is None else states_of(model, optimizer, options)
    dcp.load(state, checkpoint_id=folder, planner=TableLoadPlanner(), **group_of(model))
    if options is None:
        model.load_state_dict(state)
        return facts(model, optimizer) | {"steps": []}
    set_states(model, optimizer, state, options)
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
    ("before", "after", "kind", "options"),
    [
        (0, (3,), "policies", NESTED),
        (2, (2, 3), "plain", FLAT),
        (3, (0, 1), "fallback", NESTED),
        (3, (2,), "plain", None),
    ],
)
def test_any_number_of_ranks_goes_on_with_what_any_other_has_saved(
    before: int, after: tuple[int, ...], kind: str, options: StateDictOptions | None, tmp_path: Path, four_ranks: Ranks
) -> None:
    theirs = saved(tmp_path / "0", 0, kind, options)  # so that one process compiles what all need
    gone_on = on(four_ranks, before, saved, tmp_path / str(before), before, kind, options) if before else theirs
    assert gone_on is not None
    for count in after:
        found = on(four_ranks, count, loaded, tmp_path / str(before), count, kind, options)
        assert_close(found, gone_on, 0 if count == before or options is None else 2e-6)


def state_files(count: int) -> tuple[bytes, bytes] | None:
    """What `torch.save` makes of a model's and an optimizer's state dict."""
    found = on_ranks(count, "policies")
    if found is None:
        return None
    learn(*found, 0, STEPS)
    files = [io.BytesIO(), io.BytesIO()]
    for part, file in zip(found, files, strict=True):
        torch.save(part.state_dict(), file)
    return files[0].getvalue(), files[1].getvalue()


def loaded_files(files: list[tuple[bytes, bytes]], count: int) -> dict[str, Any] | str | None:
    """The facts, or what goes wrong."""
    found = on_ranks(count, "policies")
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
