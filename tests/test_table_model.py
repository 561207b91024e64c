"""A table against a dict of vectors, whatever is done to it in whatever order; saving, loading, copying."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from torch import nn

from family import FAMILY, Member
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from sparsegroup import GroupAdam, GroupOptimizer, GroupSGD, HashEmbedding, HashEmbeddingBag
from table_cases import (
    EDGES,
    REGULARIZED,
    KeyedEmbedding,
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

pytestmark = ALLOW_CREATE_GRAPH

every_member = pytest.mark.parametrize("member", FAMILY.values(), ids=FAMILY)
DIM, FIELD_BITS = 3, 3
POOL = (*EDGES[:5], 2, 3, 2**61, 2**61 + 1, -(2**40))
keys_lists = st.lists(st.sampled_from(POOL), min_size=1, max_size=6)


def new_table() -> HashEmbedding:
    return HashEmbedding(DIM, std=0.1, seed=5, field_bits=FIELD_BITS, dtype=torch.float64)


def field_of(key: int) -> int:
    return (key % 2**64) >> (64 - FIELD_BITS)


class TableMachine(RuleBasedStateMachine):
    """A table and its optimizer beside a dict of rows of `nn.Embedding`, the set of dropped keys and an optimizer."""

    @initialize(member=st.sampled_from(list(FAMILY.values())))
    def start(self, member: Member) -> None:
        self.member = member
        self.table = new_table()
        self.optimizer = member.build(self.table.weight)
        self.model = KeyedEmbedding(self.table)
        self.reference = member.build(self.model.weight)
        self.dropped: set[int] = set()
        self.t = 0

    def insert(self, keys: list[int]) -> None:
        self.model.insert(as_keys(keys))
        self.dropped.difference_update(keys)

    @rule(keys=keys_lists, graph=st.booleans())
    def look_up_in_training(self, keys: list[int], graph: bool) -> None:
        self.insert(keys)
        with torch.set_grad_enabled(graph):
            vectors = self.table(as_keys(keys))
        assert vectors.requires_grad == graph
        torch.testing.assert_close(vectors.detach(), self.model.lookup(as_keys(keys)), rtol=1e-9, atol=1e-9)

    @rule(keys=keys_lists)
    def look_up_in_evaluation(self, keys: list[int]) -> None:
        self.table.eval()
        vectors = self.table(as_keys([keys]))
        self.table.train()
        torch.testing.assert_close(vectors.detach()[0], self.model.lookup(as_keys(keys)), rtol=1e-9, atol=1e-9)

    @rule(batches=st.lists(keys_lists, min_size=1, max_size=3), l21=st.sampled_from([0.0, 0.1, 1e6]))
    def step(self, batches: list[list[int]], l21: float) -> None:
        """1e6 kills every row it reaches; with 0 those rows come back."""
        self.t += 1
        self.insert([key for keys in batches for key in keys])
        lookups = [pull(as_keys(keys), DIM, 1.0 + i + self.t % 3)[0] for i, keys in enumerate(batches)]
        for module, optimizer in ((self.table, self.optimizer), (self.model, self.reference)):
            optimizer.param_groups[0]["l21"] = l21
            learn(module, optimizer, lookups)
            optimizer.zero_grad()

    @rule()
    def shrink(self) -> None:
        dead = [key for key in self.model.row_of if not self.model.lookup(as_keys([key])).any()]
        assert self.table.shrink() == len(dead)
        self.model.forget(dead)
        self.dropped.update(dead)

    @precondition(lambda self: self.dropped)
    @rule(data=st.data())
    def a_dropped_key_returns_as_new(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.dropped)))
        self.insert([key])
        torch.testing.assert_close(self.table(as_keys([key])).detach(), self.table.initial(as_keys([key])))

    @rule(other=keys_lists, optimizer_first=st.booleans(), file=st.booleans())
    def load_into_a_table_with_other_contents(self, other: list[int], optimizer_first: bool, file: bool) -> None:
        table = new_table()
        optimizer = self.member.build(table.weight, l1=0.5)
        learn(table, optimizer, pull(as_keys([*other, 77, 78]), DIM))
        optimizer.zero_grad()
        states = copy.deepcopy((self.table.state_dict(), self.optimizer.state_dict()))
        module_state, optimizer_state = through_a_file(states) if file else states
        if optimizer_first:
            optimizer.load_state_dict(optimizer_state)
        table.load_state_dict(module_state)
        if not optimizer_first:
            optimizer.load_state_dict(optimizer_state)
        self.table, self.optimizer = table, optimizer

    @rule(copied=st.sampled_from([copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))]))
    def go_on_with_a_copy(self, copied: Callable[[Any], Any]) -> None:
        original = self.table, self.optimizer
        self.table, self.optimizer = copied(original)
        learn(*original, pull(as_keys([*POOL, 77]), DIM))  # which the copy must not feel

    @invariant()
    def they_agree(self) -> None:
        pool, known = as_keys([*POOL, 77, 78]), set(self.model.row_of)
        expected = self.model.lookup(pool)
        torch.testing.assert_close(self.table.lookup(pool), expected, rtol=1e-9, atol=1e-9)
        live = {key for key, vector in zip(pool.tolist(), expected, strict=True) if vector.any()}
        seen = known | self.dropped

        assert self.table.contains(pool).tolist() == [key in known for key in pool.tolist()]
        assert [key in self.table for key in pool.tolist()] == [key in known for key in pool.tolist()]
        assert (self.table.num_rows, self.table.num_live, self.table.num_seen) == (len(known), len(live), len(seen))
        assert len(self.table) == len(known)
        assert self.table.feature_rate == (len(live) / len(seen) if seen else 0.0)

        batches = list(self.table.items(batch_size=3))
        assert all(1 <= len(keys) == len(vectors) <= 3 for keys, vectors in batches)
        listed = [key for keys, _ in batches for key in keys.tolist()]
        assert sorted(listed) == sorted(live)
        for keys, vectors in batches:
            assert_identical(vectors, self.table.lookup(keys))

        counts = self.table.field_counts()
        assert counts.keys() == {field_of(key) for key in seen}
        for field, count in counts.items():
            of_field = [{key for key in keys if field_of(key) == field} for keys in (seen, known, live)]
            assert (count.seen, count.rows, count.live) == tuple(map(len, of_field))

    @invariant()
    def the_optimizers_agree(self) -> None:
        ours, theirs = optimizer_state(self.optimizer), self.reference.state.get(self.model.weight, {})
        keys = ours.pop("keys", as_keys([]))
        assert ours.keys() == theirs.keys()
        if ours:
            assert ours.pop("step") == theirs["step"]
            assert sorted(self.model.row_of) == keys.tolist()
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name][self.model.rows(keys)], rtol=1e-9, atol=1e-9)


TestTable = TableMachine.TestCase
TestTable.settings = settings(
    derandomize=True, deadline=None, max_examples=30, stateful_step_count=25, database=None, print_blob=False
)


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


@every_member
@pytest.mark.parametrize("optimizer_first", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["fresh", "used"])
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


@every_member
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item)), lambda item: through_a_file(item, False)],
    ids=["deepcopy", "pickle", "torch.save"],
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


@pytest.mark.parametrize("source", [torch.float32, torch.float64])
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


@pytest.mark.parametrize("broken", broken_modules())
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


@pytest.mark.parametrize("broken", broken_optimizers())
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
        monkeypatch.setattr("sparsegroup.table.row_lookup.CHUNK", chunk)
        vectors = table(keys)
        vectors.backward(torch.arange(3_000.0).view(1_000, 3))
        gradient = table.weight.grad.coalesce()
        results.append((vectors.detach(), table.num_rows, gradient.indices(), gradient.values()))
    for one, other in zip(*results, strict=True):
        assert one == other if isinstance(one, int) else torch.equal(one, other)
