"""What a table refuses, in words that help, with nothing changed; gradients that are not finite."""

import copy
import math
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from family import FAMILY, Member
from optimizer_cases import ALL, ALLOW_CREATE_GRAPH, assert_identical, backward, make
from sparsegroup import GroupAdam, GroupMomentum, GroupOptimizer, HashEmbedding, HashEmbeddingBag
from table_cases import EDGES, REGULARIZED, KeyedEmbedding, as_keys, crowded, everything, learn, pull, random_keys

pytestmark = ALLOW_CREATE_GRAPH

NAN, INF = math.nan, math.inf
DIM = 3
every_member = pytest.mark.parametrize("member", FAMILY.values(), ids=FAMILY)


def trained(**options: Any) -> tuple[HashEmbedding, GroupOptimizer]:
    """A table with eleven rows, two steps old, without gradients."""
    table = HashEmbedding(DIM, std=0.5, dtype=torch.float64, **options)
    optimizer = GroupAdam([table.weight], lr=0.1, **REGULARIZED)
    for _ in range(2):
        learn(table, optimizer, pull(as_keys(EDGES), DIM))
    optimizer.zero_grad()
    return table, optimizer


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


class TestArguments:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *[("dim", value) for value in (0, -1, 2.5, "8", None, True)],
            *[("std", value) for value in (-0.1, NAN, INF, "0.1", None, True)],
            *[("init", value) for value in ("xavier", None, 1)],
            *[("seed", value) for value in (1.5, "0", None)],
            *[("max_rows", value) for value in (-1, 0, 2.5, "many")],
            *[("field_bits", value) for value in (-1, 65, 1.5, None)],
            *[("nonfinite", value) for value in ("ignore", None, True)],
            *[("dtype", value) for value in (torch.float16, torch.bfloat16, torch.int64, torch.complex64, "float32")],
            *[("device", value) for value in ("meta", "xpu", torch.device("meta"))],
        ],
    )
    @pytest.mark.parametrize("cls", [HashEmbedding, HashEmbeddingBag])
    def test_a_bad_argument_is_named(self, cls: type[HashEmbedding], name: str, value: object) -> None:
        with pytest.raises((ValueError, TypeError), match=name):
            cls(**{"dim": DIM, name: value})

    @pytest.mark.parametrize("mode", ["max", None, 1])
    def test_a_bad_mode_is_named(self, mode: object) -> None:
        with pytest.raises((ValueError, TypeError), match="mode"):
            HashEmbeddingBag(DIM, mode=mode)

    def test_good_ones_are_taken(self) -> None:
        for options in (
            {"device": "cpu"},
            {"device": torch.device("cpu"), "dtype": torch.float64},
            {"huge_pages": False, "max_rows": 1, "field_bits": 8, "seed": 2**63 - 1},
        ):
            assert HashEmbedding(1, **options)(as_keys([3])).shape == (1, 1)


class TestKeys:
    @pytest.mark.parametrize(
        "keys",
        [
            torch.tensor([1, 2], dtype=torch.int32),
            torch.tensor([1, 2], dtype=torch.uint8),
            torch.tensor([1.0, 2.0]),
            torch.tensor([True]),
            torch.tensor([1, 2], dtype=torch.uint64),
        ],
        ids=lambda keys: str(keys.dtype),
    )
    @pytest.mark.parametrize("call", ["forward", "lookup", "contains", "initial"])
    def test_of_another_dtype_are_refused_with_its_name(self, keys: Tensor, call: str) -> None:
        table, optimizer = trained()
        with refused(table, optimizer, TypeError, f"int64.*{keys.dtype}"):
            getattr(table, call)(keys)

    @pytest.mark.parametrize("keys", [[1, 2], np.array([1, 2]), 5, None, "key"], ids=lambda keys: type(keys).__name__)
    def test_that_are_no_tensor_are_refused(self, keys: object) -> None:
        table, optimizer = trained()
        with refused(table, optimizer, TypeError, f"int64.*{type(keys).__name__}|{type(keys).__name__}.*int64"):
            table(keys)

    @pytest.mark.parametrize("call", ["forward", "lookup", "contains"])
    def test_on_another_device_are_refused_with_both_names(self, call: str) -> None:
        table, optimizer = trained()
        with refused(table, optimizer, ValueError, "(?i)meta.*cpu|cpu.*meta"):
            getattr(table, call)(torch.empty(2, dtype=torch.int64, device="meta"))

    def test_in_bags_must_fit_their_offsets_and_weights(self) -> None:
        table = HashEmbeddingBag(DIM, mode="sum", dtype=torch.float64)
        keys = as_keys([1, 2, 3])
        bad: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
            ((keys,), {}, "offsets"),
            ((keys, as_keys([1, 2])), {}, "offsets"),
            ((keys, as_keys([0, 2, 1])), {}, "offsets"),
            ((keys, as_keys([0, 4])), {}, "offsets"),
            ((keys, as_keys([0, -1])), {}, "offsets"),
            ((keys, as_keys([[0, 1]])), {}, "offsets"),
            ((keys, torch.tensor([0.0, 1.0])), {}, "offsets"),
            ((keys.view(1, 3), as_keys([0])), {}, "offsets"),
            ((keys.view(1, 1, 3),), {}, "keys|dimension"),
            ((as_keys([1])[0],), {}, "keys|dimension"),
            ((keys, as_keys([0])), {"per_sample_weights": torch.ones(2, dtype=torch.float64)}, "per_sample_weights"),
            ((keys.view(1, 3),), {"per_sample_weights": torch.ones(3, dtype=torch.float64)}, "per_sample_weights"),
        ]
        for positional, named, match in bad:
            with pytest.raises((ValueError, TypeError), match=match):
                table(*positional, **named)
        assert table.num_seen == 0
        mean = HashEmbeddingBag(DIM)
        with pytest.raises(ValueError, match=r"per_sample_weights.*sum"):
            mean(keys.view(1, 3), per_sample_weights=torch.ones(1, 3))


class TestFull:
    @pytest.mark.parametrize("limit", [11, 12, 15])
    def test_a_full_table_inserts_nothing_of_the_batch(self, limit: int) -> None:
        table, optimizer = trained(max_rows=limit)
        keys = torch.arange(100, 100 + limit - 11 + 1)
        with pytest.raises(RuntimeError, match=rf"max_rows.*{limit}|{limit}.*max_rows"):
            table(keys)
        assert (table.num_rows, table.num_seen) == (11, 11)
        assert not table.contains(keys).any()
        if limit > 11:
            table(keys[1:].repeat(3))
        assert table.num_rows == limit
        learn(table, optimizer, pull(as_keys(EDGES), DIM))
        table.eval()
        assert not table(keys[:1]).any(), "looking up goes on"

    def test_dropped_rows_make_room(self) -> None:
        table, optimizer = trained(max_rows=11)
        optimizer.param_groups[0]["l21"] = 1e9
        learn(table, optimizer, pull(as_keys(EDGES[:3]), DIM))
        optimizer.zero_grad()
        with pytest.raises(RuntimeError, match="max_rows"):
            table(as_keys([1000]))
        assert table.shrink() == 3
        table(as_keys([1000, 1001, 1002]))
        assert (table.num_rows, table.num_seen) == (11, 14)
        with pytest.raises(RuntimeError, match="max_rows"):
            table(as_keys(EDGES[:1]))

    def test_keys_made_to_crowd_in_the_index_are_found_or_refused(self) -> None:
        """Whoever can choose all keys can make all of them crowd: at once, and a few at a time."""
        for size in (30_000, 1000):
            table, optimizer = trained()
            for part in crowded(30_000).split(size):
                before = everything(table, optimizer)
                try:
                    table(part)
                except RuntimeError as error:
                    if "index" not in str(error):
                        raise
                    assert_identical(everything(table, optimizer), before)
                    break
            keys = torch.cat([crowded(30_000), as_keys(EDGES)])
            found = keys[table.contains(keys)]
            assert len(found) == table.num_rows == table.num_seen
            assert_identical(table.lookup(found[: -len(EDGES)]), table.initial(found[: -len(EDGES)]))
            learn(table, optimizer, pull(as_keys([1, 99]), DIM))

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets Linux's limits")
    def test_out_of_memory_leaves_the_table_intact(self) -> None:
        in_a_new_process(
            """
            import resource, torch
            from sparsegroup import GroupAdam, HashEmbedding

            table = HashEmbedding(256)
            optimizer = GroupAdam([table.weight], lr=0.1, l21=0.01)

            def train(keys):
                optimizer.zero_grad()
                table(keys).sum().backward()
                optimizer.step()

            def usage(name):
                return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024

            train(torch.arange(2000))
            room = 256 << 20
            resource.setrlimit(resource.RLIMIT_DATA, (usage("VmData") + room, resource.RLIM_INFINITY))
            known = 2000
            try:
                table(torch.arange(known, known + 1_000_000))
            except MemoryError:
                assert table.num_rows == table.num_seen == known, (table.num_rows, table.num_seen)
            else:
                raise SystemExit("a gigabyte is not so small")
            try:
                while known < 4_000_000:
                    with torch.no_grad():
                        table(torch.arange(known, known + 1000))
                    known += 1000
            except MemoryError as error:
                print("refused", error)
            else:
                raise SystemExit("no MemoryError")
            resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            assert table.num_rows == table.num_seen == known, (table.num_rows, table.num_seen, known)
            assert not table.contains(torch.arange(known, known + 1000)).any()
            keys = torch.arange(2000, known)
            for part in keys.split(5000):
                assert torch.equal(table.lookup(part), table.initial(part))
            train(torch.arange(known - 500, known + 500))
            assert table.num_rows == known + 500
            """
        )


def in_a_new_process(script: str) -> None:
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_forked_child_may_look_but_neither_insert_nor_step() -> None:
    in_a_new_process(
        """
        import os, torch
        from sparsegroup import GroupAdam, HashEmbedding

        torch.set_num_threads(1)
        table = HashEmbedding(3)
        optimizer = GroupAdam([table.weight], lr=0.1, l21=0.01)
        keys = torch.arange(100)

        def train(keys):
            optimizer.zero_grad()
            table(keys).sum().backward()
            optimizer.step()

        train(keys)
        table(keys).sum().backward()
        before = table.lookup(keys)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert torch.equal(table.lookup(keys), before)
                assert torch.equal(table.eval()(keys + 50)[:50], before[50:])
                table.train()
                for forbidden in (lambda: table(keys + 50), optimizer.step):
                    try:
                        forbidden()
                    except RuntimeError as error:
                        assert "fork" in str(error), error
                    else:
                        raise AssertionError("allowed")
                assert torch.equal(table.lookup(keys), before)
                code = 0
            except BaseException as error:
                print(repr(error), flush=True)
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert torch.equal(table.lookup(keys), before)
        assert table.num_rows == 100
        train(keys + 50)
        assert table.num_rows == 150
        """
    )


class TestMoves:
    MOVES: tuple[Callable[[nn.Module], nn.Module], ...] = (
        lambda module: module.to("meta"),
        lambda module: module.float(),
        lambda module: module.half(),
        lambda module: module.bfloat16(),
        lambda module: module.to(torch.float16),
        lambda module: module.to_empty(device="meta"),
    )

    @pytest.mark.parametrize("number", range(len(MOVES)))
    def test_to_another_device_or_dtype_is_refused(self, number: int) -> None:
        table, optimizer = trained()
        with refused(
            table, optimizer, (RuntimeError, ValueError, TypeError, NotImplementedError), "HashEmbedding|table"
        ):
            self.MOVES[number](nn.ModuleDict({"table": table}))

    def test_to_where_it_is_changes_nothing(self) -> None:
        table, optimizer = trained()
        before = everything(table, optimizer)
        assert table.cpu() is table
        assert table.to("cpu") is table
        assert table.double() is table
        assert table.to(torch.device("cpu"), torch.float64) is table
        assert_identical(everything(table, optimizer), before)
        assert optimizer.param_groups[0]["params"][0] is table.weight
        learn(table, optimizer, pull(as_keys([1, 99]), DIM))


class TestOptimizers:
    @pytest.mark.parametrize("cls", ALL)
    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"groups": "columns"}, "groups='rows'"),
            ({"groups": "all"}, "groups='rows'"),
            ({"groups": 1}, "groups='rows'"),
            ({"groups": torch.zeros(11, dtype=torch.int64)}, "groups"),
            ({"weight_decay": 0.1}, "weight_decay"),
        ],
        ids=str,
    )
    def test_other_groups_and_weight_decay_are_refused(
        self, cls: type[GroupOptimizer], options: dict[str, Any], match: str
    ) -> None:
        """By the constructor or by the step, and then before a dense parameter beside the table is updated."""
        table, first = trained()
        dense = nn.Parameter(torch.ones(2, 2))
        before = everything(table, first)

        def train() -> None:
            optimizer = make(cls, [{"params": [dense]}, {"params": [table.weight], **options}])
            backward(optimizer, table(as_keys(EDGES)).square().sum() + dense.square().sum())
            optimizer.step()

        with pytest.raises(ValueError, match=match):
            train()
        assert_identical(dense.detach(), torch.ones(2, 2))
        assert_identical(everything(table, first), before)

    @every_member
    def test_a_second_optimizer_starts_afresh_and_the_first_one_is_told(self, member: Member) -> None:
        table = HashEmbedding(DIM, std=0.5, dtype=torch.float64)
        first = member.build(table.weight, **REGULARIZED)
        for _ in range(3):
            learn(table, first, pull(as_keys(EDGES), DIM))
        start = table.lookup(as_keys(EDGES))

        second = member.build(table.weight, l21=0.05)
        learn(table, second, pull(as_keys(EDGES), DIM))
        embedding = nn.Embedding.from_pretrained(start, freeze=False, sparse=True)
        fresh = member.build(embedding.weight, l21=0.05)
        (lookup,) = pull(as_keys(EDGES), DIM)
        learn(embedding, fresh, [type(lookup)(torch.arange(len(EDGES)), lookup.gradient, lookup.hessian)])
        torch.testing.assert_close(table.lookup(as_keys(EDGES)), embedding.weight.detach(), rtol=1e-12, atol=1e-12)
        assert second.state_dict()["state"][0]["step"] == 1

        before = everything(table, second)
        with pytest.raises(RuntimeError, match="optimizer"):
            learn(table, first, pull(as_keys(EDGES), DIM))
        assert_identical(everything(table, second), before)
        learn(table, second, pull(as_keys(EDGES), DIM))
        assert second.state_dict()["state"][0]["step"] == 2

    def test_an_argument_that_has_become_bad_stops_the_whole_step(self) -> None:
        table, optimizer = trained()
        table(as_keys(EDGES)).sum().backward()
        before = everything(table, optimizer)
        for name, value in (("l21", -1.0), ("lr", NAN), ("betas", (1.0, 0.9)), ("norm", "t"), ("groups", "columns")):
            good = optimizer.param_groups[0][name]
            optimizer.param_groups[0][name] = value
            with pytest.raises((ValueError, TypeError), match=name):
                optimizer.step()
            optimizer.param_groups[0][name] = good
            assert_identical(everything(table, optimizer)["table"], before["table"])
        assert_identical(everything(table, optimizer), before)
        optimizer.step()


class TestShrink:
    def test_it_waits_for_pending_gradients(self) -> None:
        table, optimizer = trained()
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

    def test_a_lookup_from_before_it_has_no_way_back(self) -> None:
        table, optimizer = trained()
        loss = table(as_keys([5, 1])).square().sum()
        optimizer.param_groups[0]["l21"] = 1e9
        learn(table, optimizer, pull(as_keys([0, 1]), DIM))
        optimizer.zero_grad()
        assert table.shrink() == 2
        before = everything(table, optimizer)
        with pytest.raises(RuntimeError, match="shrink"):
            loss.backward()
        assert table.weight.grad is None
        assert_identical(everything(table, optimizer), before)
        table(as_keys([5, 1])).sum().backward()
        optimizer.step()

    def test_a_row_that_returns_has_no_past(self) -> None:
        """Start, residual and moments are those of a key never seen."""
        table, optimizer = trained()
        optimizer.param_groups[0]["l21"] = 1e9
        learn(table, optimizer, pull(as_keys([0, 1]), DIM))
        optimizer.zero_grad()
        optimizer.param_groups[0]["l21"] = 0.02
        assert table.shrink() == 2
        learn(table, optimizer, pull(as_keys([1, 12345]), DIM))

        twin, twin_optimizer = trained()
        learn(twin, twin_optimizer, pull(as_keys([7]), DIM))  # the step count counts
        twin_optimizer.zero_grad()
        learn(twin, twin_optimizer, pull(as_keys([54321, 12345]), DIM))
        after, expected = everything(table, optimizer)["optimizer"], everything(twin, twin_optimizer)["optimizer"]
        at, there = (entry["keys"].tolist().index(12345) for entry in (after, expected))
        for name in after.keys() - {"step", "keys", "u"}:
            assert_identical(after[name][at], expected[name][there], name)
        returned, new = after["keys"].tolist().index(1), expected["keys"].tolist().index(54321)
        for name in after.keys() - {"step", "keys", "u"}:
            assert_identical(after[name][returned], expected[name][new], name)


def test_batches_of_items_hold_at_least_one() -> None:
    table, _ = trained()
    for bad in (0, -1, 1.5):
        with pytest.raises((ValueError, TypeError), match="batch_size"):
            next(iter(table.items(bad)))


def test_field_counts_need_fields() -> None:
    table, optimizer = trained()
    with refused(table, optimizer, ValueError, "field_bits"):
        table.field_counts()


class TestNotFinite:
    """Gradients of keys 0 and INT64.max are bad, in one element each; the others are good."""

    BAD = (0, 2**63 - 1)

    def give(self, table: nn.Module, optimizer: GroupOptimizer, bad: float | None, extra: Tensor | None = None) -> None:
        """Gradients for all keys, one of the bad ones looked up twice, once with a good gradient."""
        keys = as_keys([*EDGES, 0])
        (lookup,) = pull(keys, DIM)
        gradient = lookup.gradient.clone()
        if bad is not None:
            gradient[0, 1], gradient[EDGES.index(2**63 - 1), 2] = bad, -bad
        vectors = table(keys)
        moved = vectors - vectors.detach()
        loss = (gradient * moved).sum() + moved.square().sum() / 2
        backward(optimizer, loss if extra is None else loss + extra.square().sum())

    @pytest.mark.parametrize("bad", [NAN, INF, -INF])
    @every_member
    def test_they_raise_before_anything_is_changed(self, member: Member, bad: float) -> None:
        dense_before, dense_after = (nn.Parameter(torch.ones(2, 2, dtype=torch.float64)) for _ in range(2))
        good, table = (HashEmbedding(DIM, std=0.5, dtype=torch.float64) for _ in range(2))
        optimizer = member.build(table.weight, **REGULARIZED)
        optimizer = type(optimizer)(
            [{"params": [p], **REGULARIZED} for p in (dense_before, good.weight, table.weight, dense_after)],
            **{"lr": member.lr, **member.hyperparameters, **member.only_ours},
        )

        def give(value: float | None) -> None:
            self.give(table, optimizer, value, extra=torch.cat([good(as_keys([3, 4])), dense_before, dense_after]))

        dense_before.data, dense_after.data = (torch.ones(2, DIM, dtype=torch.float64) for _ in range(2))
        for _ in range(2):
            give(None)
            optimizer.step()
        give(bad)
        everything_before = (
            everything(good, optimizer, 1),
            everything(table, optimizer, 2),
            [p.detach().clone() for p in (dense_before, dense_after)],
            [copy.deepcopy(dict(optimizer.state[p])) for p in (dense_before, dense_after)],
        )
        with pytest.raises(FloatingPointError) as error:
            optimizer.step()
        assert all(str(key) in str(error.value) for key in self.BAD)
        assert str(2**62) not in str(error.value)
        assert_identical(
            (
                everything(good, optimizer, 1),
                everything(table, optimizer, 2),
                [p.detach().clone() for p in (dense_before, dense_after)],
                [copy.deepcopy(dict(optimizer.state[p])) for p in (dense_before, dense_after)],
            ),
            everything_before,
        )
        assert table.skipped_rows == 0
        give(None)
        optimizer.step()
        assert optimizer.state_dict()["state"][2]["step"] == 3

    @staticmethod
    def tensors(module: nn.Module, optimizer: GroupOptimizer) -> list[Tensor]:
        state = optimizer.state[module.weight]
        return [module.weight.detach(), *(value for name, value in state.items() if name != "step")]

    @pytest.mark.parametrize("bad", [NAN, INF])
    @every_member
    def test_skipping_leaves_those_rows_and_updates_the_others(self, member: Member, bad: float) -> None:
        table = HashEmbedding(DIM, std=0.5, dtype=torch.float64, nonfinite="skip")
        oracle = KeyedEmbedding(table)
        ours, theirs = (member.build(module.weight, **REGULARIZED) for module in (table, oracle))
        for module, optimizer in ((table, ours), (oracle, theirs)):
            self.give(module, optimizer, None)
            optimizer.step()
            if module is oracle:
                rows = oracle.rows(as_keys(self.BAD))
                kept = [tensor[rows].clone() for tensor in self.tensors(oracle, theirs)]
            self.give(module, optimizer, bad if module is table else None)
            optimizer.step()
            if module is oracle:  # an embedding's rows are spared by putting them back
                for tensor, values in zip(self.tensors(oracle, theirs), kept, strict=True):
                    tensor[rows] = values
            self.give(module, optimizer, None)
            optimizer.step()
        keys = as_keys(oracle.row_of)
        torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=1e-12, atol=1e-12)
        assert table.skipped_rows == 2
        assert ours.state_dict()["state"][0]["step"] == 3

    def test_many_bad_keys_are_counted_and_some_are_named(self) -> None:
        table = HashEmbedding(DIM)
        optimizer = GroupAdam([table.weight])
        keys = random_keys(5000)
        (table(keys) * NAN).sum().backward()
        with pytest.raises(FloatingPointError) as error:
            optimizer.step()
        assert len(str(error.value)) < 2000
        assert re.search(r"5000|49\d\d more", str(error.value).replace(",", ""))
        assert any(str(key) in str(error.value) for key in keys.tolist())
        assert_identical(table.lookup(keys), table.initial(keys))

    def test_what_one_table_skips_is_not_counted_when_another_raises(self) -> None:
        skipping, raising = HashEmbedding(DIM, nonfinite="skip"), HashEmbedding(DIM)
        optimizer = GroupAdam([skipping.weight, raising.weight])
        keys = as_keys([1, 2])
        (skipping(keys) * NAN + raising(keys) * NAN).sum().backward()
        with pytest.raises(FloatingPointError):
            optimizer.step()
        assert skipping.skipped_rows == 0
        assert optimizer.state_dict()["state"] == {}

    def test_all_rows_may_be_skipped(self) -> None:
        table = HashEmbedding(DIM, nonfinite="skip")
        optimizer = GroupAdam([table.weight], l21=0.1)
        keys = random_keys(500)
        for step in (1, 2):
            optimizer.zero_grad()
            (table(keys) * INF).sum().backward()
            optimizer.step()
            assert table.skipped_rows == 500 * step
        assert_identical(table.lookup(keys), table.initial(keys))

    def test_a_sum_that_overflows_is_not_finite(self) -> None:
        """Each gradient is finite, their sum over the lookups of a key is not."""
        table = HashEmbedding(DIM)
        optimizer = GroupMomentum([table.weight])
        vectors = table(as_keys([4, 4, 5]))
        (vectors * torch.tensor([[3e38], [3e38], [1.0]])).sum().backward()
        with pytest.raises(FloatingPointError, match=r"\b4\b"):
            optimizer.step()

    def test_a_dense_parameter_is_still_as_in_torch(self) -> None:
        table, _ = trained()
        dense = nn.Parameter(torch.ones(2))
        optimizer = GroupAdam([dense, table.weight])
        (dense * NAN).sum().backward()
        table(as_keys([1])).sum().backward()
        optimizer.step()
        assert dense.isnan().all()
