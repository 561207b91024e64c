"""State of tables and their optimizers: saved, loaded, copied, and refused where it is broken."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from family import FAMILY, Member
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from over import over
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding, HashEmbeddingBag
from table_cases import (
    REGULARIZED,
    as_keys,
    everything,
    keys_in,
    learn,
    optimizer_state,
    pull,
    stream,
    table_state,
    through_a_file,
)
from table_pairs import every_member, one_of_each_kind

pytestmark = ALLOW_CREATE_GRAPH

DIM = 3


def trained(member: Member, steps: slice, dtype: torch.dtype = torch.float32) -> tuple[HashEmbedding, GroupOptimizer]:
    table = HashEmbedding(DIM, std=0.1, dtype=dtype)
    optimizer = member.build(table.weight, **REGULARIZED)
    go(table, optimizer, steps)
    return table, optimizer


def go(table: HashEmbedding, optimizer: GroupOptimizer, steps: slice) -> None:
    for lookups in stream(steps=12, dim=DIM)[steps]:
        learn(table, optimizer, lookups)


TORCHS_NAMES = {
    "sgd": set(),
    "momentum": {"momentum_buffer"},
    "adagrad": {"sum"},
    "adam": {"exp_avg", "exp_avg_sq"},
    "amsgrad": {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    "adahessian": {"exp_avg", "exp_avg_sq"},
    "ftrl": {"sum"},
    "rowwise_adagrad": {"group_sum"},
}


@every_member
def test_state_is_by_key_under_torchs_names(member: Member) -> None:
    table, optimizer = trained(member, slice(4))
    module_state, state = table.state_dict(), optimizer.state_dict()["state"][0]
    assert state.keys() == {"step", "keys", "u"} | TORCHS_NAMES[member.rule]
    assert module_state.keys() == {"keys", "weight", "dropped"}
    assert state["step"] == 4
    for keys in (state["keys"], module_state["keys"]):
        assert keys.dtype == torch.int64
        assert sorted(keys.tolist()) == keys_in(stream(steps=12, dim=DIM)[:4]).tolist()
    for name in state.keys() - {"step", "keys"}:
        assert (state[name].shape, state[name].dtype) == ((table.num_rows, DIM), torch.float32)
    assert_identical(module_state["weight"], table.lookup(module_state["keys"]))


@over("optimizer_first", [False, True])
@every_member
def test_resuming_from_a_file_equals_not_stopping(member: Member, optimizer_first: bool) -> None:
    """Bit for bit, in whatever order rows are stored; also where the table has rows and state before."""
    table, optimizer = trained(member, slice(6))
    module_state, state = through_a_file((table.state_dict(), optimizer.state_dict()))
    before = everything(table, optimizer)
    go(table, optimizer, slice(6, 12))

    other = HashEmbedding(DIM, std=0.1)
    resumed = member.build(other.weight)  # the regularizer comes with the state
    if not optimizer_first:
        learn(other, resumed, pull(as_keys([1, 2, 3, -1, 12345]), DIM))
        entry = state["state"][0]
        shuffled = torch.randperm(len(entry["keys"]), generator=torch.Generator().manual_seed(0))
        entry.update({name: value[shuffled] for name, value in entry.items() if name != "step"})
        module_state.update({name: module_state[name].flip(0) for name in ("keys", "weight")})
    loads = [(other, module_state), (resumed, state)]
    for target, its_state in loads[::-1] if optimizer_first else loads:
        target.load_state_dict(its_state)  # type: ignore[attr-defined]
    assert_identical(everything(other, resumed), before)
    go(other, resumed, slice(6, 12))
    assert_identical(everything(other, resumed), everything(table, optimizer))


@one_of_each_kind
@over(
    "copied", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item)), lambda item: through_a_file(item, False)]
)
def test_a_copy_of_table_and_optimizer_trains_on_alike(member: Member, copied: Callable[[Any], Any]) -> None:
    table, optimizer = trained(member, slice(6))
    twin_model, twin = copied((nn.ModuleDict({"table": table}), optimizer))
    assert twin.param_groups[0]["params"][0] is twin_model["table"].weight
    go(table, optimizer, slice(6, 12))
    before = everything(table, optimizer)
    go(twin_model["table"], twin, slice(6, 12))
    assert_identical(everything(twin_model["table"], twin), before)
    go(twin_model["table"], twin, slice(0, 3))
    assert_identical(everything(table, optimizer), before)


def test_a_copy_of_the_table_alone_starts_with_a_new_optimizer() -> None:
    table, _ = trained(FAMILY["adam"], slice(6), torch.float64)
    twin = copy.deepcopy(table)
    assert_identical(table_state(twin), table_state(table))
    weights = nn.Embedding.from_pretrained(table.state_dict()["weight"], freeze=False, sparse=True)
    keys = table.state_dict()["keys"]
    (lookup,) = pull(keys, DIM)
    learn(twin, GroupAdam([twin.weight], l21=0.1), [lookup])
    by_row = type(lookup)(torch.arange(len(keys)), lookup.gradient, lookup.hessian)
    learn(weights, GroupAdam([weights.weight], l21=0.1), [by_row])
    torch.testing.assert_close(twin.lookup(keys), weights.weight.detach(), rtol=1e-12, atol=1e-12)


def test_the_state_of_a_model_has_its_table_under_a_prefix() -> None:
    model = nn.ModuleDict({"words": HashEmbeddingBag(DIM), "head": nn.Linear(DIM, 1)})
    model["words"](as_keys([[1, 2]]))
    names = {"words.keys", "words.weight", "words.dropped", "head.weight", "head.bias"}
    assert model.state_dict().keys() == names
    other = nn.ModuleDict({"words": HashEmbeddingBag(DIM, seed=9), "head": nn.Linear(DIM, 1)})
    assert not any(other.load_state_dict(model.state_dict()))
    assert_identical(table_state(other["words"]), table_state(model["words"]))


@over(("source", "target"), [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_a_loaded_state_takes_the_dtype_of_the_table(source: torch.dtype, target: torch.dtype) -> None:
    table, optimizer = trained(FAMILY["adam"], slice(4), source)
    other, loaded = trained(FAMILY["adam"], slice(1), target)
    other.load_state_dict(table.state_dict())
    loaded.load_state_dict(optimizer.state_dict())
    keys = table.state_dict()["keys"]
    assert_identical(other.lookup(keys), table.lookup(keys).to(target))
    ours, theirs = optimizer_state(loaded), optimizer_state(optimizer)
    assert {value.dtype for name, value in ours.items() if name not in ("step", "keys")} == {target}
    assert_identical(ours, {n: v.to(target) if v.is_floating_point() and n != "step" else v for n, v in theirs.items()})


@every_member
def test_rows_that_a_loaded_optimizer_state_does_not_have_start_afresh(member: Member) -> None:
    """An older state of the optimizer: the rows that have come since keep their weights and lose their moments."""
    keys, late = as_keys([1, 2]), as_keys([3, 4])
    table = HashEmbedding(DIM, std=0.1, dtype=torch.float64)
    optimizer = member.build(table.weight, **REGULARIZED)
    learn(table, optimizer, pull(keys, DIM))
    older = copy.deepcopy(optimizer.state_dict())
    expected = optimizer_state(optimizer)
    learn(table, optimizer, pull(late, DIM))
    weights = table.lookup(late)
    optimizer.load_state_dict(older)
    assert_identical(table.lookup(late), weights)
    table(late)
    initial = member.optimizer.rule.initial_state(optimizer.param_groups[0])
    after = optimizer_state(optimizer)
    assert after["keys"].tolist() == [1, 2, 3, 4]
    assert after["step"] == 1
    for name in after.keys() - {"step", "keys"}:
        assert_identical(after[name][:2], expected[name], name)
        assert_identical(after[name][2:], torch.full((2, DIM), initial.get(name, 0.0), dtype=torch.float64), name)


def test_a_loaded_state_shares_no_memory_with_its_source() -> None:
    table, optimizer = trained(FAMILY["adam"], slice(4))
    optimizer.param_groups[0].update(l21=0.5, norm="metric", lr=0.25)
    other, loaded = trained(FAMILY["adam"], slice(1))
    other.load_state_dict(table.state_dict())
    loaded.load_state_dict(optimizer.state_dict())
    group = loaded.param_groups[0]
    assert (group["l21"], group["norm"], group["lr"]) == (0.5, "metric", 0.25)
    before = everything(table, optimizer)
    go(other, loaded, slice(4, 8))
    assert_identical(everything(table, optimizer), before)


# What is refused


def with_bad_vector(state: dict[str, Tensor], value: float) -> dict[str, Tensor]:
    vectors = state["weight"].clone()
    vectors[2, 1] = value
    return {**state, "weight": vectors}


DAMAGED: dict[str, tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "another dimension": (lambda state: {**state, "weight": state["weight"][:, :2]}, "weight"),
    "fewer rows": (lambda state: {**state, "weight": state["weight"][:-1]}, "weight"),
    "keys of another dtype": (lambda state: {**state, "keys": state["keys"].double()}, "keys"),
    "a NaN": (lambda state: with_bad_vector(state, float("nan")), "1 of 5 vectors have NaN.*key 13 "),
    "an infinite vector": (lambda state: with_bad_vector(state, -float("inf")), "1 of 5 vectors.*key 13 "),
    "one beyond float32": (lambda state: with_bad_vector({**state, "weight": state["weight"].double()}, 1e300), "13"),
    "a NaN in the fallback": (
        lambda state: {**state, "fallback": torch.full((1, 3), float("nan"))},
        "fallback has NaN",
    ),
    "a fallback of another shape": (lambda state: {**state, "fallback": torch.zeros(2, 3)}, "fallback must have shape"),
}


def filled(keys: list[int]) -> HashEmbedding:
    table = HashEmbedding(DIM, std=0.1, fallback=True)
    table(as_keys(keys))
    assert table.fallback is not None
    table.fallback.data.fill_(keys[0])
    return table


@over("strict", [True, False])
@over(("damage", "message"), DAMAGED.values())
def test_a_damaged_state_is_refused_before_anything_changes(
    damage: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str, strict: bool
) -> None:
    table, state = filled([1, 2]), damage(filled([11, 12, 13, 14, 15]).state_dict())
    before = copy.deepcopy(table.state_dict())
    with pytest.raises(RuntimeError, match=message):
        nn.Sequential(table).load_state_dict({f"0.{name}": value for name, value in state.items()}, strict=strict)
    assert_identical(table.state_dict(), before)


@over("missing", [("keys",), ("keys", "dropped")])
def test_the_state_of_an_embedding_is_refused_and_changes_nothing(missing: tuple[str, ...]) -> None:
    (table, optimizer), (other, _) = (trained(FAMILY["adam"], slice(steps)) for steps in (4, 6))
    before = everything(table, optimizer)
    with pytest.raises(RuntimeError, match=r"Missing key.*keys"):
        table.load_state_dict({name: value for name, value in other.state_dict().items() if name not in missing})
    assert_identical(everything(table, optimizer), before)


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another dimension": (lambda entry: entry.update(exp_avg=entry["exp_avg"][:, :2]), "exp_avg"),
    "fewer rows": (lambda entry: entry.update(exp_avg=entry["exp_avg"][:-1]), "exp_avg"),
    "missing": (lambda entry: entry.pop("exp_avg_sq"), "exp_avg_sq"),
    "unknown": (lambda entry: entry.update(other=entry["exp_avg"]), "other"),
    "no keys": (lambda entry: entry.pop("keys"), "keys"),
    "no step": (lambda entry: entry.pop("step"), "step"),
    "of another rule": (lambda entry: [entry.pop("exp_avg"), entry.pop("exp_avg_sq")], "exp_avg"),
}


@over(("change", "message"), BROKEN.values())
def test_a_broken_optimizer_state_is_refused_and_changes_nothing(change: Callable[..., Any], message: str) -> None:
    table, optimizer = trained(FAMILY["adam"], slice(4))
    state = copy.deepcopy(optimizer.state_dict())
    go(table, optimizer, slice(4, 6))
    before = everything(table, optimizer)
    change(state["state"][0])
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.load_state_dict(state)
    assert_identical(everything(table, optimizer), before)
    go(table, optimizer, slice(6, 8))


@over("name", ["weights", "rank_0_of_2.key", "head.weight"])
def test_unknown_entries_are_named(name: str) -> None:
    """As of every module: what is known is loaded, and `strict` decides whether the others are an error."""
    table, other = filled([1, 2]), nn.Sequential(filled([3]))
    state = {f"0.{entry}": value for entry, value in {**table.state_dict(), name: torch.zeros(2)}.items()}
    assert other.load_state_dict(state, strict=False).unexpected_keys == [f"0.{name}"]
    assert_identical(other[0].state_dict(), table.state_dict())
    with pytest.raises(RuntimeError, match=rf'Unexpected key\(s\) in state_dict: "0.{name}"'):
        other.load_state_dict(state)


@pytest.mark.parametrize("training", [True, False])
def test_a_lookup_of_many_keys_goes_in_chunks(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    keys = torch.randint(-300, 300, (1_000,), generator=torch.Generator().manual_seed(1))
    results = []
    for chunk in (1 << 18, 64):
        table = HashEmbedding(3)
        table(keys[:200])
        table.train(training)
        monkeypatch.setattr("sparsegroup.table.lookup.lookup.CHUNK", chunk)
        vectors = table(keys)
        vectors.backward(torch.arange(3_000.0).view(1_000, 3))
        gradient = table.weight.grad.coalesce()
        results.append((vectors.detach(), table.num_rows, gradient.indices(), gradient.values()))
    assert_identical(*results)
