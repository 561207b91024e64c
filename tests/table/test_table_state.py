"""State of tables and their optimizers: saved, loaded, and refused where it is broken."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from family import FAMILY, Member
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from over import over
from sparsegroup import GroupOptimizer, HashEmbedding
from table_cases import REGULARIZED, as_keys, everything, keys_in, learn, optimizer_state, pull, stream, through_a_file
from table_pairs import every_member

pytestmark = ALLOW_CREATE_GRAPH

DIM = 3
NAN, INF = float("nan"), float("inf")


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


@over("optimizer_first", [False, True])
@every_member
def test_state_is_by_key_under_torchs_names_and_resuming_from_it_equals_not_stopping(
    member: Member, optimizer_first: bool
) -> None:
    """Bit for bit, in whatever order rows are stored; also where the table has rows and state before."""
    table, optimizer = trained(member, slice(6))
    module_state, state = through_a_file((table.state_dict(), optimizer.state_dict()))
    entry = state["state"][0]
    assert entry.keys() == {"step", "keys", "u"} | TORCHS_NAMES[member.rule]
    assert module_state.keys() == {"keys", "weight", "dropped"}
    assert entry["step"] == 6
    for keys in (entry["keys"], module_state["keys"]):
        assert keys.dtype == torch.int64
        assert sorted(keys.tolist()) == keys_in(stream(steps=12, dim=DIM)[:6]).tolist()
    for name in entry.keys() - {"step", "keys"}:
        assert (entry[name].shape, entry[name].dtype) == ((table.num_rows, DIM), torch.float32)
    assert_identical(module_state["weight"], table.lookup(module_state["keys"]))
    before = everything(table, optimizer)
    go(table, optimizer, slice(6, 12))

    other = HashEmbedding(DIM, std=0.1)
    resumed = member.build(other.weight)  # the regularizer comes with the state
    if not optimizer_first:
        learn(other, resumed, pull(as_keys([1, 2, 3, -1, 12345]), DIM))
        shuffled = torch.randperm(len(entry["keys"]), generator=torch.Generator().manual_seed(0))
        entry.update({name: value[shuffled] for name, value in entry.items() if name != "step"})
        module_state.update({name: module_state[name].flip(0) for name in ("keys", "weight")})
    loads = [(other, module_state), (resumed, state)]
    for target, its_state in loads[::-1] if optimizer_first else loads:
        target.load_state_dict(its_state)  # type: ignore[attr-defined]
    assert_identical(everything(other, resumed), before)
    go(other, resumed, slice(6, 12))
    assert_identical(everything(other, resumed), everything(table, optimizer))


@over(
    ("source", "target"),
    [(torch.float32, torch.float64), (torch.float64, torch.float32), (torch.float32, torch.float32)],
)
def test_a_loaded_state_takes_the_dtype_of_the_table_and_shares_no_memory_with_its_source(
    source: torch.dtype, target: torch.dtype
) -> None:
    table, optimizer = trained(FAMILY["adam"], slice(4), source)
    optimizer.zero_grad()
    table.assign(as_keys([7, 8]), torch.zeros(2, DIM, dtype=source))
    assert table.shrink() == 2
    other, loaded = trained(FAMILY["adam"], slice(1), target)
    other.load_state_dict(table.state_dict())
    loaded.load_state_dict(optimizer.state_dict())
    keys = table.state_dict()["keys"]
    assert_identical(other.lookup(keys), table.lookup(keys).to(target))
    assert other.state_dict()["dropped"].tolist() == [7, 8]
    assert other.num_seen == table.num_seen == table.num_rows + 2
    ours, theirs = optimizer_state(loaded), optimizer_state(optimizer)
    assert {value.dtype for name, value in ours.items() if name not in ("step", "keys")} == {target}
    assert_identical(ours, {n: v.to(target) if v.is_floating_point() and n != "step" else v for n, v in theirs.items()})
    before = everything(table, optimizer)
    go(other, loaded, slice(4, 8))
    assert_identical(everything(table, optimizer), before)


@every_member
def test_rows_that_a_loaded_optimizer_state_does_not_have_start_afresh(member: Member) -> None:
    """An older state of the optimizer: the rows that have come since keep their weights and lose their moments."""
    late = as_keys([3, 4])
    table = HashEmbedding(DIM, std=0.1, dtype=torch.float64)
    optimizer = member.build(table.weight, **REGULARIZED)
    learn(table, optimizer, pull(as_keys([1, 2]), DIM))
    older, expected = copy.deepcopy(optimizer.state_dict()), optimizer_state(optimizer)
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


def with_bad_vector(state: dict[str, Tensor], value: float) -> dict[str, Tensor]:
    vectors = state["weight"].double()
    vectors[2, 1] = value
    return {**state, "weight": vectors}


DAMAGED: tuple[tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str], ...] = (
    (lambda state: {**state, "weight": state["weight"][:, :2]}, "weight"),
    (lambda state: {**state, "weight": state["weight"][:-1]}, "weight"),
    (lambda state: {**state, "keys": state["keys"].double()}, "keys"),
    (lambda state: with_bad_vector(state, NAN), "1 of 5 vectors have NaN.*key 13 "),
    (lambda state: with_bad_vector(state, -INF), "1 of 5 vectors.*key 13 "),
    (lambda state: with_bad_vector(state, 1e300), "13"),  # beyond float32
    (lambda state: {**state, "fallback": torch.full((1, 3), NAN)}, "fallback has NaN"),
    (lambda state: {**state, "fallback": torch.zeros(2, 3)}, "fallback must have shape"),
)


def filled(keys: list[int]) -> HashEmbedding:
    table = HashEmbedding(DIM, std=0.1, fallback=True)
    table(as_keys(keys))
    assert table.fallback is not None
    table.fallback.data.fill_(keys[0])
    return table


def in_a_model(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"0.{name}": value for name, value in state.items()}


@over("strict", [True, False])
@over(("damage", "message"), DAMAGED)
def test_a_damaged_state_is_refused_before_anything_changes(
    damage: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str, strict: bool
) -> None:
    table, state = filled([1, 2]), damage(filled([11, 12, 13, 14, 15]).state_dict())
    before = copy.deepcopy(table.state_dict())
    with pytest.raises(RuntimeError, match=message):
        nn.Sequential(table).load_state_dict(in_a_model(state), strict=strict)
    assert_identical(table.state_dict(), before)


@over("name", ["weights", "rank_0_of_2.key", "head.weight"])
def test_unknown_and_missing_entries_are_named(name: str) -> None:
    """As of every module: what is known is loaded, and `strict` decides whether the others are an error."""
    table, other = filled([1, 2]), nn.Sequential(filled([3]))
    state = in_a_model({**table.state_dict(), name: torch.zeros(2)})
    assert other.load_state_dict(state, strict=False).unexpected_keys == [f"0.{name}"]
    assert_identical(other[0].state_dict(), table.state_dict())
    with pytest.raises(RuntimeError, match=rf'Unexpected key\(s\) in state_dict: "0.{name}"'):
        other.load_state_dict(state)
    for missing in (("keys",), ("keys", "dropped")):
        state = {entry: value for entry, value in filled([4]).state_dict().items() if entry not in missing}
        with pytest.raises(RuntimeError, match=r"Missing key.*keys"):
            other.load_state_dict(in_a_model(state))
        assert_identical(other[0].keys, table.keys)


BROKEN: tuple[tuple[Callable[[dict[str, Any]], Any], str], ...] = (
    (lambda entry: entry.update(exp_avg=entry["exp_avg"][:, :2]), "exp_avg"),
    (lambda entry: entry.update(exp_avg=entry["exp_avg"][:-1]), "exp_avg"),
    (lambda entry: entry.pop("exp_avg_sq"), "exp_avg_sq"),
    (lambda entry: entry.update(other=entry["exp_avg"]), "other"),
    (lambda entry: entry.pop("keys"), "keys"),
    (lambda entry: entry.pop("step"), "step"),
    (lambda entry: [entry.pop("exp_avg"), entry.pop("exp_avg_sq")], "exp_avg"),  # of another rule
)


@over(("change", "message"), BROKEN)
def test_a_broken_optimizer_state_is_refused_and_changes_nothing(change: Callable[..., Any], message: str) -> None:
    table, optimizer = trained(FAMILY["adam"], slice(4))
    state = copy.deepcopy(optimizer.state_dict())
    go(table, optimizer, slice(4, 6))
    before = everything(table, optimizer)
    change(state["state"][0])
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.load_state_dict(state)
    assert_identical(everything(table, optimizer), before)
