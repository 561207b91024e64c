"""What a table refuses, in words that help, with nothing changed; gradients that are not finite; state."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from family import FAMILY, Member
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical, backward
from over import over
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding, HashEmbeddingBag
from table_cases import (
    EDGES,
    REGULARIZED,
    KeyedEmbedding,
    as_keys,
    edges_trained,
    everything,
    keys_in,
    learn,
    optimizer_state,
    pull,
    random_keys,
    stream,
    take_step,
    through_a_file,
)
from table_pairs import one_of_each_kind

pytestmark = ALLOW_CREATE_GRAPH

NAN, INF = math.nan, math.inf
DIM = 3


@contextmanager
def refused(
    table: HashEmbedding, optimizer: GroupOptimizer, error: type[Exception] | tuple[type[Exception], ...], match: str
) -> Iterator[None]:
    """The body raises `error`, nothing has changed, and training goes on."""
    before = everything(table, optimizer)
    with pytest.raises(error, match=match):
        yield
    assert_identical(everything(table, optimizer), before)
    optimizer.zero_grad()
    learn(table, optimizer, pull(as_keys([1, 99]), DIM))


@over(
    ("name", "value"),
    [
        *[("dim", value) for value in (0, 2.5, "8", None, True)],
        *[("std", value) for value in (-0.1, NAN, INF, "0.1", None, True)],
        *[("init", value) for value in ("xavier", None)],
        *[("seed", value) for value in (1.5, "0", None)],
        *[("max_rows", value) for value in (0, 2.5, "many", 10_000_000_001)],
        *[("field_bits", value) for value in (-1, 65, 1.5, None)],
        *[("nonfinite", value) for value in ("ignore", None, True)],
        *[("dtype", value) for value in (torch.int64, torch.complex64, "float32")],
        *[("device", value) for value in ("meta", "xpu")],
        *[("mode", value) for value in ("median", None)],
    ],
)
def test_a_bad_argument_is_named(name: str, value: object) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        HashEmbeddingBag(**{"dim": DIM, name: value})


@over("call", ["forward", "lookup", "contains", "initial"])
def test_keys_that_are_not_of_int64_on_the_cpu_are_refused_by_what_they_are(call: str) -> None:
    table, optimizer = edges_trained()
    for dtype in (torch.int16, torch.float32, torch.uint64):
        with refused(table, optimizer, TypeError, f"int64.*{dtype}"):
            getattr(table, call)(torch.tensor([1, 0], dtype=dtype))
    for keys in ([1, 2], np.array([1, 2]), None):
        with refused(table, optimizer, TypeError, f"int64.*{type(keys).__name__}|{type(keys).__name__}.*int64"):
            getattr(table, call)(keys)
    if call != "initial":
        with refused(table, optimizer, ValueError, "(?i)meta.*cpu|cpu.*meta"):
            getattr(table, call)(torch.empty(2, dtype=torch.int64, device="meta"))


def test_in_bags_must_fit_their_offsets_and_weights() -> None:
    table = HashEmbeddingBag(DIM, mode="sum", dtype=torch.float64)
    keys = as_keys([1, 2, 3])
    bad: list[tuple[tuple[Any, ...], str]] = [
        *[
            ((keys, offsets), "offsets")
            for offsets in (None, as_keys([1, 2]), as_keys([0, 2, 1]), as_keys([0, 4]), as_keys([0, -1]))
        ],
        ((keys, as_keys([[0, 1]])), "offsets"),
        ((keys, torch.tensor([0.0, 1.0])), "offsets"),
        ((keys, as_keys([])), "keys need at least one bag|offsets"),
        ((keys.view(1, 3), as_keys([0])), "offsets"),
        ((keys.view(1, 1, 3),), "keys|dimension"),
        ((as_keys([1])[0],), "keys|dimension"),
        ((keys, as_keys([0]), torch.ones(2)), "per_sample_weights"),
        ((keys.view(1, 3), None, torch.ones(3)), "per_sample_weights"),
    ]
    for arguments, match in bad:
        with pytest.raises((ValueError, TypeError), match=match):
            table(*arguments)
    assert table.num_seen == 0
    with pytest.raises(NotImplementedError, match=r"per_sample_weights.*sum"):
        HashEmbeddingBag(DIM)(keys.view(1, 3), per_sample_weights=torch.ones(1, 3))


def test_a_conversion_to_what_a_table_is_changes_nothing() -> None:
    table, optimizer = edges_trained()
    before = everything(table, optimizer)
    assert table.cpu() is table.to("cpu") is table.double() is table.to(torch.device("cpu"), torch.float64) is table
    assert_identical(everything(table, optimizer), before)
    assert optimizer.param_groups[0]["params"][0] is table.weight


@over(
    ("options", "match"),
    [
        ({"groups": "columns"}, "groups='rows'"),
        ({"groups": torch.zeros(11, dtype=torch.int64)}, "groups"),
        ({"weight_decay": 0.1}, "weight_decay"),
    ],
)
def test_other_groups_and_weight_decay_are_refused(options: dict[str, Any], match: str) -> None:
    """By the constructor, and by the step before a dense parameter of another group is updated."""
    table, first = edges_trained()
    dense = nn.Parameter(torch.ones(2, 2))
    before = everything(table, first)
    with pytest.raises(ValueError, match=match):
        GroupAdam([{"params": [dense]}, {"params": [table.weight], **options}])
    assert_identical(everything(table, first), before)
    optimizer = GroupAdam([{"params": [dense]}, {"params": [table.weight]}])
    optimizer.param_groups[1].update(options)
    with pytest.raises(ValueError, match=match):
        take_step(optimizer, table(as_keys(EDGES)).square().sum() + dense.square().sum())
    assert_identical(dense.detach(), torch.ones(2, 2))


@over("is_copy", [False, True])
@one_of_each_kind
def test_a_second_optimizer_starts_afresh_and_the_first_one_is_told(member: Member, is_copy: bool) -> None:
    """Also one of a copy of the table without its optimizer."""
    original = HashEmbedding(DIM, std=0.5, dtype=torch.float64)
    first = member.build(original.weight, **REGULARIZED)
    for _ in range(3):
        learn(original, first, pull(as_keys(EDGES), DIM))
    table, fresh = copy.deepcopy(original) if is_copy else original, HashEmbedding(DIM, dtype=torch.float64)
    fresh.assign(as_keys(EDGES), table.lookup(as_keys(EDGES)))
    second, its = (member.build(one.weight, l21=0.05) for one in (table, fresh))
    for one, optimizer in ((table, second), (fresh, its)):
        learn(one, optimizer, pull(as_keys(EDGES), DIM))
    assert_identical(everything(table, second), everything(fresh, its))
    if is_copy:
        learn(original, first, pull(as_keys(EDGES), DIM))
    else:
        before = everything(table, second)
        with pytest.raises(RuntimeError, match="optimizer"):
            learn(table, first, pull(as_keys(EDGES), DIM))
        assert_identical(everything(table, second), before)
    learn(table, second, pull(as_keys(EDGES), DIM))
    assert second.state_dict()["state"][0]["step"] == 2


def test_inspection_needs_a_size_of_batches_and_fields() -> None:
    for bad in (0, 1.5):
        with pytest.raises((ValueError, TypeError), match="batch_size"):
            next(iter(HashEmbedding(DIM).items(bad)))
    with pytest.raises(ValueError, match="field_bits"):
        HashEmbedding(DIM).field_counts()


def test_shrink_waits_for_pending_gradients() -> None:
    table, optimizer = edges_trained()
    table(as_keys(EDGES[:3])).sum().backward()
    before = everything(table, optimizer)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="grad"):
            table.shrink()
        assert_identical(everything(table, optimizer), before)
        optimizer.step()
        before = everything(table, optimizer)
    optimizer.zero_grad()
    assert table.shrink() == 0


@over("set_to_none", [True, False])
def test_a_gradient_that_was_set_to_zero_is_not_pending(set_to_none: bool) -> None:
    table, optimizer = edges_trained()
    other, reference = edges_trained()
    learn(table, optimizer, pull(as_keys(EDGES), DIM))
    learn(other, reference, pull(as_keys(EDGES), DIM))
    optimizer.zero_grad(set_to_none)
    with torch.no_grad():
        for one in (table, other):
            one.assign(as_keys(EDGES[:4]), torch.zeros(4, DIM, dtype=torch.float64))
    reference.zero_grad()
    assert table.shrink() == other.shrink() == 4
    for one, its in ((table, optimizer), (other, reference)):
        learn(one, its, pull(as_keys(EDGES), DIM))
    assert_identical(table.lookup(as_keys(EDGES)), other.lookup(as_keys(EDGES)))


def test_a_lookup_from_before_shrink_has_no_way_back() -> None:
    table, optimizer = edges_trained()
    loss = table(as_keys([5, 1])).square().sum()
    optimizer.param_groups[0]["l21"] = 1e9
    learn(table, optimizer, pull(as_keys([0, 1]), DIM))
    optimizer.zero_grad()
    assert table.shrink() == 2
    with refused(table, optimizer, RuntimeError, "shrink"):
        loss.backward()


# Gradients that are not finite

BAD = (0, 2**63 - 1)


def give(table: nn.Module, optimizer: GroupOptimizer, bad: float | None, others: Tensor | None = None) -> None:
    """Gradients for all keys; those of `BAD` are bad in one element, key 0 is also looked up with a good one."""
    (lookup,) = pull(as_keys([*EDGES, 0]), DIM)
    gradient = lookup.gradient.clone()
    if bad is not None:
        gradient[0, 1], gradient[EDGES.index(BAD[1]), 2] = bad, -bad
    vectors = table(lookup.keys)
    moved = vectors - vectors.detach()
    loss = (gradient * moved).sum() + moved.square().sum() / 2
    backward(optimizer, loss if others is None else loss + others.square().sum())


@over("bad", [NAN, INF])
@one_of_each_kind
def test_they_raise_before_anything_is_changed(member: Member, bad: float) -> None:
    dense = [nn.Parameter(torch.ones(2, DIM, dtype=torch.float64)) for _ in range(2)]
    good, table = (HashEmbedding(DIM, std=0.5, dtype=torch.float64) for _ in range(2))
    optimizer = member.optimizer(
        [{"params": [p], **REGULARIZED} for p in (dense[0], good.weight, table.weight, dense[1])],
        **{"lr": member.lr, **member.hyperparameters, **member.only_ours},
    )

    def give_all(value: float | None) -> None:
        give(table, optimizer, value, torch.cat([good(as_keys([3, 4])), *dense]))

    def all_of_it() -> list[Any]:
        of_dense = copy.deepcopy([(p.detach(), dict(optimizer.state[p])) for p in dense])
        return [everything(good, optimizer, 1), everything(table, optimizer, 2), of_dense]

    for _ in range(2):
        give_all(None)
        optimizer.step()
    give_all(bad)
    before = all_of_it()
    with pytest.raises(FloatingPointError) as error:
        optimizer.step()
    assert all(str(key) in str(error.value) for key in BAD)
    assert str(2**62) not in str(error.value)
    assert_identical(all_of_it(), before)
    assert table.skipped_rows == 0
    give_all(None)
    optimizer.step()
    assert optimizer.state_dict()["state"][2]["step"] == 3


@one_of_each_kind
def test_skipping_leaves_those_rows_and_updates_the_others(member: Member) -> None:
    table = HashEmbedding(DIM, std=0.5, dtype=torch.float64, nonfinite="skip")
    oracle = KeyedEmbedding(table)
    ours, theirs = (member.build(module.weight, **REGULARIZED) for module in (table, oracle))
    for value in (None, NAN, None):
        give(table, ours, value)
        ours.step()
        state = theirs.state[oracle.weight]
        before = {name: tensor.clone() for name, tensor in state.items() if name != "step"}
        weight = oracle.weight.detach().clone()
        give(oracle, theirs, None)
        theirs.step()
        if value is not None:  # an embedding's rows are spared by putting them back
            rows = oracle.rows(as_keys(BAD))
            oracle.weight.data[rows] = weight[rows]
            for name, tensor in before.items():
                state[name][rows] = tensor[rows]
    keys = as_keys(oracle.row_of)
    torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=1e-12, atol=1e-12)
    assert table.skipped_rows == 2
    assert ours.state_dict()["state"][0]["step"] == 3


def test_many_bad_keys_are_counted_and_some_are_named() -> None:
    """When one table raises, what another would skip is not counted; all of its rows may be bad."""
    table, skipping = HashEmbedding(DIM), HashEmbedding(DIM, nonfinite="skip")
    optimizer = GroupAdam([skipping.weight, table.weight], l21=0.1)
    keys = random_keys(5000)
    (table(keys) * NAN + skipping(keys) * NAN).sum().backward()
    with pytest.raises(FloatingPointError, match="and 4,995 more") as error:
        optimizer.step()
    assert len(str(error.value)) < 2000
    assert skipping.skipped_rows == 0
    table.weight.grad = None
    for skipped in (5000, 10_000):
        optimizer.step()
        assert skipping.skipped_rows == skipped


def test_a_sum_that_overflows_is_not_finite_and_a_dense_parameter_is_as_in_torch() -> None:
    """Each gradient of a key is finite, their sum over its lookups is not."""
    table, dense = HashEmbedding(DIM), nn.Parameter(torch.ones(2))
    optimizer = GroupAdam([dense, table.weight])
    (table(as_keys([4, 4, 5])) * torch.tensor([[3e38], [3e38], [1.0]])).sum().backward()
    with pytest.raises(FloatingPointError, match=r"\b4\b"):
        optimizer.step()
    optimizer.zero_grad()
    (dense * NAN).sum().backward()
    table(as_keys([1])).sum().backward()
    optimizer.step()
    assert dense.isnan().all()


# State of tables and their optimizers: saved, loaded, and refused where it is broken


def trained(member: Member, steps: slice, dtype: torch.dtype = torch.float32) -> tuple[HashEmbedding, GroupOptimizer]:
    table = HashEmbedding(DIM, std=0.1, dtype=dtype)
    optimizer = member.build(table.weight, **REGULARIZED)
    go(table, optimizer, steps)
    return table, optimizer


def go(table: HashEmbedding, optimizer: GroupOptimizer, steps: slice) -> None:
    for lookups in stream(steps=12, dim=DIM)[steps]:
        learn(table, optimizer, lookups)


@over(("member", "optimizer_first"), [(FAMILY["adam"], False), (FAMILY["rowwise_adagrad"], True)])
def test_state_is_by_key_under_torchs_names_and_resuming_from_it_equals_not_stopping(
    member: Member, optimizer_first: bool
) -> None:
    """Bit for bit, in whatever order rows are stored; also where the table has rows and state before."""
    table, optimizer = trained(member, slice(6))
    module_state, state = through_a_file((table.state_dict(), optimizer.state_dict()))
    entry = state["state"][0]
    assert entry.keys() == {"step", "keys", "u", *member.optimizer.rule.state}
    assert module_state.keys() == {"keys", "weight", "dropped"}
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


@over(("source", "target"), [(torch.float32, torch.float64), (torch.float64, torch.float32)])
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


@one_of_each_kind
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


@over("name", ["weights", "rank_0_of_2.key"])
def test_unknown_and_missing_entries_are_named(name: str) -> None:
    """As of every module: what is known is loaded, and `strict` decides whether the others are an error."""
    table, other = filled([1, 2]), nn.Sequential(filled([3]))
    state = in_a_model({**table.state_dict(), name: torch.zeros(2)})
    assert other.load_state_dict(state, strict=False).unexpected_keys == [f"0.{name}"]
    assert_identical(other[0].state_dict(), table.state_dict())
    with pytest.raises(RuntimeError, match=rf'Unexpected key\(s\) in state_dict: "0.{name}"'):
        other.load_state_dict(state)
    for missing in ("fallback", "keys"):
        with pytest.raises(RuntimeError, match=f"Missing key.*{missing}"):
            table.load_state_dict({entry: value for entry, value in table.state_dict().items() if entry != missing})


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
