"""A table against a dict of vectors, whatever is done to it in whatever order."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from family import FAMILY, Member
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from sparsegroup import HashEmbedding
from table_cases import EDGES, KeyedEmbedding, as_keys, learn, optimizer_state, pull, through_a_file

pytestmark = ALLOW_CREATE_GRAPH

DIM, FIELD_BITS = 3, 3
POOL = (*EDGES[:5], 2, 3, 2**61, 2**61 + 1, -(2**40))
COPIES = (
    copy.deepcopy,
    lambda item: pickle.loads(pickle.dumps(item)),
    lambda item: through_a_file(item, weights_only=False),
)
keys_lists = st.lists(st.sampled_from(POOL), max_size=6)


def new_table() -> HashEmbedding:
    return HashEmbedding(DIM, std=0.1, seed=5, field_bits=FIELD_BITS, dtype=torch.float64)


def field_of(key: int) -> int:
    return (key % 2**64) >> (64 - FIELD_BITS)


class TableMachine(RuleBasedStateMachine):
    """A table and its optimizer beside a dict of rows of `nn.Embedding`, the set of dropped keys and an optimizer."""

    @initialize(member=st.sampled_from([FAMILY[name] for name in ("sgd", "adam", "ftrl", "adahessian")]))
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

    @rule(copied=st.sampled_from(COPIES))
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
TestTable.settings = settings(max_examples=15, stateful_step_count=15)
