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
from sparsegroup import GroupAdam, GroupOptimizer, GroupSGD, HashEmbedding, HashEmbeddingBag
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
from table_pairs import one_of_each_kind

pytestmark = ALLOW_CREATE_GRAPH

every_member = over("member", FAMILY.values())
DIM, FIELD_BITS = 3, 3


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
    n = table.num_rows
    assert state.keys() == {"step", "keys", "u"} | TORCHS_NAMES[member.rule]
    assert module_state.keys() == {"keys", "weight", "dropped"}
    assert state["step"] == 4
    for keys in (state["keys"], module_state["keys"]):
        assert keys.dtype == torch.int64
        assert sorted(keys.tolist()) == keys_in(stream(steps=12, dim=DIM)[:4]).tolist()
    for name in state.keys() - {"step", "keys"}:
        assert (state[name].shape, state[name].dtype) == ((n, DIM), torch.float32)
    assert_identical(module_state["weight"], table.lookup(module_state["keys"]))


@over(
    ("member", "optimizer_first", "elsewhere"),
    [
        (member, first, elsewhere)
        for member in FAMILY.values()
        for first in (False, True)
        for elsewhere in (False, True)
        if first != elsewhere or member.rule == "adam"
    ],
)
def test_resuming_from_a_file_equals_not_stopping(member: Member, optimizer_first: bool, elsewhere: bool) -> None:
    """Bit for bit; also where the table that is loaded into has rows and state of its own."""
    table, optimizer = trained(member, slice(6))
    module_state, state = through_a_file((table.state_dict(), optimizer.state_dict()))
    go(table, optimizer, slice(6, 12))

    other = HashEmbedding(DIM, std=0.1)
    resumed = member.build(other.weight)  # the regularizer comes with the state
    if elsewhere:
        learn(other, resumed, pull(as_keys([1, 2, 3, -1, 12345]), DIM))
    if optimizer_first:
        resumed.load_state_dict(state)
    other.load_state_dict(module_state)
    if not optimizer_first:
        resumed.load_state_dict(state)
    go(other, resumed, slice(6, 12))
    assert_identical(everything(other, resumed), everything(table, optimizer))


@every_member
def test_the_order_of_rows_in_a_state_means_nothing(member: Member) -> None:
    table, optimizer = trained(member, slice(6))
    module_state, state = through_a_file((table.state_dict(), optimizer.state_dict()))
    entry = state["state"][0]
    shuffled = torch.randperm(len(entry["keys"]), generator=torch.Generator().manual_seed(0))
    entry.update({name: value[shuffled] for name, value in entry.items() if name != "step"})
    module_state.update({name: module_state[name].flip(0) for name in ("keys", "weight")})
    other = HashEmbedding(DIM, std=0.1)
    resumed = member.build(other.weight)
    other.load_state_dict(module_state)
    resumed.load_state_dict(state)
    assert_identical(everything(other, resumed), everything(table, optimizer))


@one_of_each_kind
@over(
    "copied", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item)), lambda item: through_a_file(item, False)]
)
def test_a_copy_of_table_and_optimizer_trains_on_alike(member: Member, copied: Callable[[Any], Any]) -> None:
    table, optimizer = trained(member, slice(6))
    model = nn.ModuleDict({"table": table})
    twin_model, twin = copied((model, optimizer))
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
    ours, theirs = GroupAdam([twin.weight], l21=0.1), GroupAdam([weights.weight], l21=0.1)
    keys = table.state_dict()["keys"]
    learn(twin, ours, pull(keys, DIM))
    learn(
        weights,
        theirs,
        [type(lookup)(torch.arange(len(keys)), lookup.gradient, lookup.hessian) for lookup in pull(keys, DIM)],
    )
    torch.testing.assert_close(twin.lookup(keys), weights.weight.detach(), rtol=1e-12, atol=1e-12)


def test_the_state_of_a_model_has_its_table_under_a_prefix() -> None:
    model = nn.ModuleDict({"words": HashEmbeddingBag(DIM), "head": nn.Linear(DIM, 1)})
    model["words"](as_keys([[1, 2]]))
    names = {"words.keys", "words.weight", "words.dropped", "head.weight", "head.bias"}
    assert model.state_dict().keys() == names
    other = nn.ModuleDict({"words": HashEmbeddingBag(DIM, seed=9), "head": nn.Linear(DIM, 1)})
    assert not any(other.load_state_dict(model.state_dict()))
    assert_identical(table_state(other["words"]), table_state(model["words"]))


@over("source", [torch.float32, torch.float64])
def test_a_loaded_state_takes_the_dtype_of_the_table(source: torch.dtype) -> None:
    target = torch.float32 if source == torch.float64 else torch.float64
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
    module_state, state = table.state_dict(), optimizer.state_dict()
    other, loaded = trained(FAMILY["adam"], slice(1))
    other.load_state_dict(module_state)
    loaded.load_state_dict(state)
    before = everything(table, optimizer)
    go(other, loaded, slice(4, 8))
    assert_identical(everything(table, optimizer), before)


def test_a_scheduler_and_the_regularizer_come_with_the_state() -> None:
    _, optimizer = trained(FAMILY["adam"], slice(2))
    optimizer.param_groups[0].update(l21=0.5, norm="metric", lr=0.25)
    other = HashEmbedding(DIM)
    loaded = GroupAdam([other.weight])
    loaded.load_state_dict(through_a_file(optimizer.state_dict()))
    group = loaded.param_groups[0]
    assert (group["l21"], group["norm"], group["lr"]) == (0.5, "metric", 0.25)


def broken_modules() -> dict[str, Callable[[dict[str, Any]], Any]]:
    return {
        "other dimension": lambda state: state.update(weight=state["weight"][:, :2]),
        "fewer rows": lambda state: state.update(weight=state["weight"][:-1]),
        "no keys": lambda state: state.pop("keys"),
        "keys of another dtype": lambda state: state.update(keys=state["keys"].double()),
        "of nn.Embedding": lambda state: [state.pop("keys"), state.pop("dropped")],
    }


@over("broken", broken_modules())
def test_a_broken_module_state_is_refused_and_changes_nothing(broken: str) -> None:
    table, optimizer = trained(FAMILY["adam"], slice(4))
    state = copy.deepcopy(table.state_dict())
    go(table, optimizer, slice(4, 6))
    before = everything(table, optimizer)
    broken_modules()[broken](state)
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        table.load_state_dict(state)
    assert_identical(everything(table, optimizer), before)
    go(table, optimizer, slice(6, 8))


def broken_optimizers() -> dict[str, tuple[Callable[[dict[str, Any]], Any], str]]:
    return {
        "other dimension": (lambda entry: entry.update(exp_avg=entry["exp_avg"][:, :2]), "exp_avg"),
        "fewer rows": (lambda entry: entry.update(exp_avg=entry["exp_avg"][:-1]), "exp_avg"),
        "missing": (lambda entry: entry.pop("exp_avg_sq"), "exp_avg_sq"),
        "unknown": (lambda entry: entry.update(other=entry["exp_avg"]), "other"),
        "no keys": (lambda entry: entry.pop("keys"), "keys"),
        "no step": (lambda entry: entry.pop("step"), "step"),
    }


@over("broken", broken_optimizers())
def test_a_broken_optimizer_state_is_refused_and_changes_nothing(broken: str) -> None:
    change, match = broken_optimizers()[broken]
    table, optimizer = trained(FAMILY["adam"], slice(4))
    state = copy.deepcopy(optimizer.state_dict())
    go(table, optimizer, slice(4, 6))
    before = everything(table, optimizer)
    change(state["state"][0])
    with pytest.raises((ValueError, TypeError), match=match):
        optimizer.load_state_dict(state)
    assert_identical(everything(table, optimizer), before)
    go(table, optimizer, slice(6, 8))


def test_a_state_of_another_rule_is_refused() -> None:
    table, optimizer = trained(FAMILY["adam"], slice(4))
    before = everything(table, optimizer)
    other = HashEmbedding(DIM)
    sgd = GroupSGD([other.weight], l21=0.1)
    learn(other, sgd, pull(as_keys([1]), DIM))
    with pytest.raises(ValueError, match="exp_avg"):
        optimizer.load_state_dict(sgd.state_dict())
    assert_identical(everything(table, optimizer), before)


@pytest.mark.parametrize("training", [True, False])
def test_a_lookup_of_many_keys_goes_in_chunks(monkeypatch: pytest.MonkeyPatch, training: bool) -> None:
    keys = torch.randint(-300, 300, (1_000,), generator=torch.Generator().manual_seed(1))
    whole, chunked = HashEmbedding(3), HashEmbedding(3)
    results = []
    for table, chunk in ((whole, 1 << 18), (chunked, 64)):
        table(keys[:200])
        table.train(training)
        monkeypatch.setattr("sparsegroup.table.lookup.lookup.CHUNK", chunk)
        vectors = table(keys)
        vectors.backward(torch.arange(3_000.0).view(1_000, 3))
        gradient = table.weight.grad.coalesce()
        results.append((vectors.detach(), table.num_rows, gradient.indices(), gradient.values()))
    for one, other in zip(*results, strict=True):
        assert one == other if isinstance(one, int) else torch.equal(one, other)


def _with_bad_vector(state: dict[str, Tensor], value: float) -> dict[str, Tensor]:
    vectors = state["weight"].clone()
    vectors[2, 1] = value
    return {**state, "weight": vectors}


DAMAGED: dict[str, tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "a NaN": (lambda state: _with_bad_vector(state, float("nan")), "1 of 5 vectors have NaN.*key 13 "),
    "an infinite vector": (lambda state: _with_bad_vector(state, -float("inf")), "1 of 5 vectors.*key 13 "),
    "one beyond float32": (lambda state: _with_bad_vector({**state, "weight": state["weight"].double()}, 1e300), "13"),
    "a NaN in the fallback": (
        lambda state: {**state, "fallback": torch.full((1, 3), float("nan"))},
        "fallback has NaN",
    ),
    "a fallback of another shape": (lambda state: {**state, "fallback": torch.zeros(2, 3)}, "fallback must have shape"),
}


def _filled(keys: list[int]) -> HashEmbedding:
    table = HashEmbedding(3, std=0.1, fallback=True)
    table(as_keys(keys))
    assert table.fallback is not None
    table.fallback.data.fill_(keys[0])
    return table


@over("strict", [True, False])
@over(("damage", "message"), DAMAGED.values())
def test_a_damaged_state_is_refused_before_anything_changes(
    damage: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str, strict: bool
) -> None:
    table, state = _filled([1, 2]), damage(_filled([11, 12, 13, 14, 15]).state_dict())
    before = copy.deepcopy(table.state_dict())
    with pytest.raises(RuntimeError, match=message):
        nn.Sequential(table).load_state_dict({f"0.{name}": value for name, value in state.items()}, strict=strict)
    assert_identical(table.state_dict(), before)


@over("name", ["weights", "rank_0_of_2.key", "head.weight"])
def test_unknown_entries_are_named(name: str) -> None:
    """As of every module: what is known is loaded, and `strict` decides whether the others are an error."""
    table, other = _filled([1, 2]), nn.Sequential(_filled([3]))
    state = {f"0.{entry}": value for entry, value in {**table.state_dict(), name: torch.zeros(2)}.items()}
    assert other.load_state_dict(state, strict=False).unexpected_keys == [f"0.{name}"]
    assert_identical(other[0].state_dict(), table.state_dict())
    with pytest.raises(RuntimeError, match=rf'Unexpected key\(s\) in state_dict: "0.{name}"'):
        other.load_state_dict(state)
