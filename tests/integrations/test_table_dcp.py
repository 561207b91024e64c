"""Models with tables in checkpoints of `torch.distributed.checkpoint`: training goes on to the same bits."""

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

from over import over
from sparsegroup import (
    FieldTables,
    GroupAdagrad,
    GroupAdam,
    GroupFTRL,
    GroupOptimizer,
    HashEmbedding,
    MinCount,
    UnusedFor,
    convert,
    param_groups,
)
from sparsegroup.integrations import TableLoadPlanner

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
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(model(keys), torch.rand(8, generator=draw).round()).backward()
        optimizer.step()


def same(one: Any, other: Any) -> None:
    """Nested dicts of tensors, equal to the bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


def goes_on_alike(one: tuple[nn.Module, GroupOptimizer], other: tuple[nn.Module, GroupOptimizer]) -> None:
    for model, optimizer in (one, other):
        train(model, optimizer, 12, seed=2)
    same(sorted_candidates(one[0].state_dict()), sorted_candidates(other[0].state_dict()))
    same(one[1].state_dict(), other[1].state_dict())


def sorted_candidates(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keys that wait for their second occurrence are in no particular order."""
    if "table.candidates" not in state:
        return state
    keys, order = state["table.candidates"].sort()
    return {**state, "table.candidates": keys, "table.candidate_counts": state["table.candidate_counts"][order]}


@pytest.mark.parametrize(("kind", "flat"), [*((kind, False) for kind in TABLES), ("policies", True), ("fields", True)])
def test_training_goes_on_to_the_same_bits(kind: str, flat: bool, tmp_path: Path) -> None:
    model, optimizer = made(kind)
    train(model, optimizer, 12, seed=1)
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    saved = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer, options=options), strict=True))
    dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)

    fresh, its_optimizer = made(kind)
    state = dict(zip(("model", "optimizer"), get_state_dict(fresh, its_optimizer, options=options), strict=True))
    load(state, tmp_path)
    set_state_dict(
        fresh, its_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options
    )
    goes_on_alike((model, optimizer), (fresh, its_optimizer))


@over("optimizer", [GroupAdagrad, GroupFTRL])
@over("full", [False, True])
def test_state_dicts_go_into_a_fresh_model_without_files(optimizer: type[GroupOptimizer], full: bool) -> None:
    options = StateDictOptions(full_state_dict=full, cpu_offload=full)
    model, trained = made(optimizer=optimizer)
    train(model, trained, 12, seed=1)
    fresh, its_optimizer = made(optimizer=optimizer)
    set_model_state_dict(fresh, get_model_state_dict(model, options=options), options=options)
    of_trained = get_optimizer_state_dict(model, trained, options=options)
    set_optimizer_state_dict(fresh, its_optimizer, of_trained, options=options)
    goes_on_alike((model, trained), (fresh, its_optimizer))


class Training(Stateful):
    def __init__(self, model: nn.Module, optimizer: GroupOptimizer) -> None:
        self.parts = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(*self.parts)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(*self.parts, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


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
    same(first[0].table.state_dict(), second[0].table.state_dict())
    assert torch.equal(first[0].head.weight.full_tensor(), second[0].head.weight.full_tensor())


def trained_and_saved(kind: str, folder: Path) -> tuple[Clicks, GroupOptimizer]:
    model, optimizer = made(kind)
    train(model, optimizer, 5, seed=1)
    states = {"optimizer": {"state": optimizer.state_dict()["state"]}}
    dcp.save(model.state_dict(), checkpoint_id=folder / "model", no_dist=True)
    dcp.save(states, checkpoint_id=folder / "optimizer", no_dist=True)
    return model, optimizer


def load(state: dict[str, Any], folder: Path, **options: Any) -> None:
    dcp.load(state, checkpoint_id=folder, no_dist=True, **{"planner": TableLoadPlanner(), **options})


def test_state_dicts_of_a_model_and_of_an_optimizer(tmp_path: Path) -> None:
    model, optimizer = trained_and_saved("plain", tmp_path)
    fresh, its_optimizer = made()
    state = fresh.state_dict()
    with pytest.raises(dcp.api.CheckpointException, match="Size mismatch"):
        load(dict(state), tmp_path / "model", planner=None)
    load(state, tmp_path / "model")
    fresh.load_state_dict(state)
    same(fresh.state_dict(), model.state_dict())
    train(fresh, its_optimizer, 1, seed=3)
    states = {"optimizer": {"state": its_optimizer.state_dict()["state"]}}
    load(states, tmp_path / "optimizer")
    same(states["optimizer"]["state"], optimizer.state_dict()["state"])


def test_an_entry_that_dcp_would_lose_is_named(tmp_path: Path) -> None:
    model, _ = trained_and_saved("policies", tmp_path)
    fresh, _ = made("policies")
    state = fresh.state_dict()
    with pytest.raises(dcp.api.CheckpointException, match=r"state_dict\['table\.\w+'\] = torch\.empty\(0\)"):
        load(state, tmp_path / "model")
    state |= {f"table.{name}": torch.empty(0) for name in ("candidates", "candidate_counts", "counters")}
    load(state, tmp_path / "model")
    fresh.load_state_dict(state)
    same(fresh.state_dict(), model.state_dict())


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
    same(model.state_dict(), before)
    assert model.table.weight.grad is None


def test_keys_and_what_else_a_state_dict_has_are_attributes() -> None:
    table = TABLES["policies"]()
    table(torch.tensor([5, -7]))
    table(torch.tensor([[-7, 5], [8, 2**62]]))
    assert sorted(table.keys.tolist()) == [-7, 5]
    for name, tensor in table.state_dict().items():
        assert name == "weight" or torch.equal(getattr(table, name), tensor)
    assert not hasattr(HashEmbedding(4), "candidates")
