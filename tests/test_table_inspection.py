"""What a table tells about itself, where its rows start, and that it finds every key among many."""

import math
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from family import FAMILY
from optimizer_cases import ALL, ALLOW_CREATE_GRAPH, assert_identical, make
from sparsegroup import (
    GroupAdam,
    GroupMomentum,
    GroupSGD,
    HashEmbedding,
    HashEmbeddingBag,
    param_groups,
    sparsity_report,
)
from table_cases import EDGES, INT64, REGULARIZED, as_keys, crowded, everything, learn, pull, random_keys, stream

pytestmark = ALLOW_CREATE_GRAPH


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def kill(table: HashEmbedding, keys: Tensor) -> None:
    """Make the rows of `keys` zero."""
    optimizer = GroupSGD([table.weight], lr=0.1, l21=1e9)
    learn(table, optimizer, pull(keys, table.weight.shape[1]))
    optimizer.zero_grad()
    assert not table.lookup(keys).any()


class TestLookup:
    @pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3), (2, 1, 3), (0,), (2, 0)])
    def test_the_shape_of_the_keys_gains_the_dimension(self, shape: tuple[int, ...]) -> None:
        table = HashEmbedding(4)
        keys = random_keys(math.prod(shape)).view(shape)
        for vectors in (table(keys), table.lookup(keys), table.initial(keys), table.eval()(keys)):
            assert (vectors.shape, vectors.dtype) == ((*shape, 4), torch.float32)
            assert_identical(vectors, table.initial(keys))
        assert table.num_rows == keys.numel()

    def test_keys_of_any_memory_layout_are_read_and_not_written(self) -> None:
        table = HashEmbedding(3)
        keys = random_keys(24).view(4, 6)
        before = keys.clone()
        for view in (keys.t(), keys[::2, 1::2], keys[:1].expand(3, 6), keys.flatten()[5:6]):
            assert_identical(table(view), table.initial(view.contiguous()))
        assert_identical(keys, before)
        assert table.num_rows == 24

    def test_every_64_bit_value_is_a_key(self) -> None:
        table = HashEmbedding(2)
        keys = as_keys(EDGES)
        assert not table.contains(keys).any()
        assert_identical(table(keys), table.initial(keys))
        assert table.contains(keys).all()
        assert all(key in table for key in EDGES)
        assert 2 not in table
        assert table.num_rows == len(EDGES) == table(keys).unique(dim=0).shape[0]

    def test_in_training_a_new_key_gets_its_row_also_without_a_graph(self) -> None:
        table = HashEmbedding(2)
        with torch.no_grad():
            table(as_keys([5]))
        with torch.inference_mode():
            table(as_keys([6]))
        assert (5 in table, 6 in table, table.num_rows) == (True, True, 2)

    def test_in_evaluation_an_unknown_key_gives_zeros_and_leaves_no_trace(self) -> None:
        table = HashEmbedding(2)
        table(as_keys([1]))
        table.eval()
        for vectors in (table(as_keys([[7, 1, -7]])), table.lookup(as_keys([[7, 1, -7]]))):
            assert_identical(
                vectors, torch.stack([torch.zeros(2), table.initial(as_keys([1]))[0], torch.zeros(2)])[None]
            )
        assert (table.num_rows, table.num_seen, table.num_live) == (1, 1, 1)
        assert not table.contains(as_keys([7, -7])).any()
        table.train()
        assert_identical(table(as_keys([7])), table.initial(as_keys([7])))

    def test_looking_up_by_key_never_inserts_and_has_no_graph(self) -> None:
        table = HashEmbedding(2)
        table(as_keys([3]))
        assert table.training
        vectors = table.lookup(as_keys([3, 4]))
        assert not vectors.requires_grad
        assert not vectors[1].any()
        vectors.fill_(9.0)
        assert_identical(table.lookup(as_keys([3])), table.initial(as_keys([3])))
        assert table.initial(as_keys([4])).any()
        assert table.num_rows == 1

    def test_a_key_may_be_asked_for_as_a_number(self) -> None:
        table = HashEmbedding(2)
        table(as_keys([INT64.min, 3]))
        assert 3 in table
        assert np.int64(INT64.min) in table
        assert INT64.max not in table


class TestStart:
    def test_it_depends_on_seed_and_key_and_not_on_arrival(self) -> None:
        """Whatever the order, the batches, the shape, the other keys and the number of threads."""
        keys = random_keys(5000)
        at_once = HashEmbedding(6, seed=7)
        expected = at_once.initial(keys)
        assert_identical(at_once(keys), expected)
        one_by_one, backwards, split, doubled = (HashEmbedding(6, seed=7) for _ in range(4))
        for key in keys[:50]:
            one_by_one(key)
        backwards(keys.flip(0))
        for part in keys.split(777):
            split(part)
        doubled(keys.repeat(2).view(2, -1))
        assert_identical(one_by_one.lookup(keys[:50]), expected[:50])
        for table in (backwards, split, doubled):
            assert_identical(table.lookup(keys), expected)
        for count in (1, 2):
            with threads(count):
                table = HashEmbedding(6, seed=7)
                assert_identical(table(keys), expected)
                assert_identical(table.initial(keys), expected)

    def test_asking_for_starts_inserts_nothing_and_training_does_not_change_them(self) -> None:
        table = HashEmbedding(3)
        keys = random_keys(20)
        before = table.initial(keys)
        assert table.num_seen == 0
        learn(table, GroupAdam([table.weight]), pull(keys, 3))
        assert_identical(table.initial(keys), before)
        assert (table.lookup(keys) != before).any()

    def test_the_global_generator_is_neither_read_nor_moved(self) -> None:
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = HashEmbedding(3)(as_keys([1, 2]))
        assert_identical(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert_identical(HashEmbedding(3)(as_keys([1, 2])), first)

    @pytest.mark.parametrize("seed", [1, 2**31, 2**63 - 1])
    def test_another_seed_gives_other_starts(self, seed: int) -> None:
        keys = random_keys(2000)
        a, b = HashEmbedding(4).initial(keys), HashEmbedding(4, seed=seed).initial(keys)
        assert (a != b).any(dim=1).all()
        assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 0.05

    def test_float64_has_the_same_starts_in_more_digits(self) -> None:
        keys = random_keys(2000)
        coarse, fine = (
            HashEmbedding(4, std=1.0, dtype=dtype).initial(keys) for dtype in (torch.float32, torch.float64)
        )
        torch.testing.assert_close(coarse.double(), fine, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("std", [0.01, 2.5])
    @pytest.mark.parametrize("init", ["normal", "uniform"])
    @pytest.mark.parametrize("dim", [1, 3, 8])
    def test_it_is_distributed_as_it_says(self, init: str, std: float, dim: int) -> None:
        """On consecutive keys, which a weak hash would show in."""
        values = HashEmbedding(dim, std=std, init=init).initial(torch.arange(-20_000, 20_000))
        assert len(values.unique(dim=0)) > 39_000
        standard = values.double().flatten().numpy() / std
        assert abs(standard.mean()) < 4 / math.sqrt(standard.size)
        assert standard.std() == pytest.approx(1, rel=0.02)
        width = math.sqrt(3)
        expected = stats.norm() if init == "normal" else stats.uniform(-width, 2 * width)
        assert stats.kstest(standard, expected.cdf).pvalue > 1e-3

    @pytest.mark.parametrize(
        "keys", [torch.arange(4096), torch.arange(4096) << 32, torch.arange(4096) << 52, random_keys(4096)]
    )
    def test_elements_keys_and_neighbours_are_uncorrelated(self, keys: Tensor) -> None:
        values = HashEmbedding(6).initial(keys).double().numpy()
        bound = 4.5 / math.sqrt(len(values))
        between_elements = np.corrcoef(values.T) - np.eye(6)
        assert np.abs(between_elements).max() < bound
        between_neighbours = [
            np.corrcoef(values[:-step].flatten(), values[step:].flatten())[0, 1] for step in (1, 2, 64)
        ]
        assert np.abs(between_neighbours).max() < bound


class TestCounts:
    def test_an_empty_table_has_nothing(self) -> None:
        table = HashEmbedding(3, field_bits=4)
        counts = table.num_rows, table.num_live, table.num_seen, len(table), table.skipped_rows, table.feature_rate
        assert counts == (0, 0, 0, 0, 0, 0.0)
        assert list(table.items()) == []
        assert table.field_counts() == {}
        assert table.shrink() == 0
        assert table.lookup(as_keys([1])).tolist() == [[0.0, 0.0, 0.0]]
        assert table.contains(as_keys([])).shape == (0,)

    def test_a_module_that_is_empty_is_not_false(self) -> None:
        """`len()` makes an empty container false; `module or default` must not lose a module."""
        assert HashEmbedding(3)

    def test_the_feature_rate_is_over_keys_ever_seen(self) -> None:
        table = HashEmbedding(3)
        keys = random_keys(20)
        table(keys)
        assert (table.num_seen, table.num_live, table.feature_rate) == (20, 20, 1.0)
        kill(table, keys[:15])
        assert (table.num_seen, table.num_rows, table.num_live, table.feature_rate) == (20, 20, 5, 0.25)
        assert table.shrink() == 15
        assert (table.num_seen, table.num_rows, table.num_live, table.feature_rate) == (20, 5, 5, 0.25)
        table(keys[:10])
        assert (table.num_seen, table.num_rows, table.num_live, table.feature_rate) == (20, 15, 15, 0.75)
        assert table.shrink() == 0

    def test_rows_that_live_again_are_counted_again(self) -> None:
        table = HashEmbedding(3)
        optimizer = GroupMomentum([table.weight], lr=0.1, l21=1e6)
        learn(table, optimizer, pull(as_keys([1, 2]), 3))
        assert table.num_live == 0
        optimizer.param_groups[0]["l21"] = 0.0
        learn(table, optimizer, pull(as_keys([2]), 3))
        assert (table.num_live, table.feature_rate) == (1, 0.5)

    def test_contains_has_the_shape_of_the_keys(self) -> None:
        table = HashEmbedding(3)
        table(as_keys([1, 4]))
        found = table.contains(as_keys([1, 2, 3, 4]).view(2, 2))
        assert found.dtype == torch.bool
        assert found.tolist() == [[True, False], [False, True]]

    @pytest.mark.parametrize("batch_size", [1, 7, 100, 65536])
    def test_items_are_the_live_rows_once_each_in_batches(self, batch_size: int) -> None:
        table = HashEmbedding(3)
        keys = random_keys(100)
        table(keys)
        kill(table, keys[::4])
        batches = list(table.items(batch_size))
        assert all(1 <= len(found) == len(vectors) <= batch_size for found, vectors in batches)
        found = torch.cat([found for found, _ in batches])
        vectors = torch.cat([vectors for _, vectors in batches])
        assert sorted(found.tolist()) == sorted(set(keys.tolist()) - set(keys[::4].tolist()))
        assert_identical(vectors, table.lookup(found))
        vectors.zero_()
        assert table.num_live == 75
        assert table.lookup(found).any(dim=1).all(), "they are copies"

    @pytest.mark.parametrize("field_bits", [1, 5, 16])
    def test_counts_per_field_are_by_the_top_bits(self, field_bits: int) -> None:
        table = HashEmbedding(3, field_bits=field_bits)
        keys = random_keys(400)
        table(keys)
        kill(table, keys[:100])
        table.shrink()
        kill(table, keys[100:150])
        fields = [(key % 2**64) >> (64 - field_bits) for key in keys.tolist()]
        counts = table.field_counts()
        assert counts.keys() == set(fields)
        for field, count in counts.items():
            expected = [fields[start:].count(field) for start in (0, 100, 150)]
            assert [count.seen, count.rows, count.live] == expected

    def test_the_optimizer_regularizes_a_table_as_an_embedding(self) -> None:
        model = nn.ModuleDict({"table": HashEmbedding(3), "bag": HashEmbeddingBag(2), "head": nn.Linear(3, 1)})
        groups = param_groups(model, l21=0.25)
        assert [(group["l21"], group["param_names"]) for group in GroupAdam(groups).param_groups] == [
            (0.25, ["table.weight", "bag.weight"]),
            (0.0, ["head.weight", "head.bias"]),
        ]

    def test_a_report_counts_its_rows(self) -> None:
        table = HashEmbedding(3)
        table(as_keys([1, 2, 3, 4]))
        kill(table, as_keys([2, 4, 5]))
        (entry,) = sparsity_report(GroupAdam(table.named_parameters()))
        assert (entry.name, entry.shape, entry.groups, entry.zero_groups) == ("weight", (5, 3), 5, 3)
        assert entry.live_rate == pytest.approx(0.4)

    def test_its_description_names_what_it_is(self) -> None:
        table = HashEmbedding(3)
        table(as_keys([1, 2]))
        assert "HashEmbedding(" in repr(table)
        assert isinstance(repr(table.weight), str)
        assert isinstance(str(table.memory()), str)


class TestMemory:
    @pytest.mark.parametrize("cls", ALL)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_parts_are_the_weight_u_and_the_moments(self, cls: type, dtype: torch.dtype) -> None:
        table = HashEmbedding(5, dtype=dtype)
        optimizer = make(cls, [table.weight], **REGULARIZED)
        learn(table, optimizer, pull(random_keys(30), 5))
        memory = table.memory()
        names = {"weight", "u", *cls.rule.state}
        assert memory.parts == dict.fromkeys(names, 30 * 5 * dtype.itemsize)
        assert memory.total == memory.index + memory.rows + memory.dropped
        assert memory.rows >= sum(memory.parts.values())
        assert memory.index >= 30 * 8

    def test_before_any_step_there_is_only_the_weight(self) -> None:
        table = HashEmbedding(5)
        table(random_keys(30))
        assert table.memory().parts == {"weight": 30 * 5 * 4}

    def test_it_shrinks_with_the_table_and_keeps_a_little_for_the_dropped_keys(self) -> None:
        table = HashEmbedding(64)
        keys = random_keys(100_000)
        for part in keys.split(10_000):
            table(part)
        kill(table, keys[1000:])
        before = table.memory()
        assert table.shrink() == 99_000
        after = table.memory()
        assert after.rows < before.rows / 2
        assert after.index < before.index
        assert 99_000 <= after.dropped <= 99_000 * 64
        assert after.parts["weight"] == 1000 * 64 * 4
        assert table.num_seen == 100_000
        assert_identical(table.lookup(keys[:1000]), table.initial(keys[:1000]))
        assert_identical(table(keys[5000:9000]), table.initial(keys[5000:9000]))
        assert (table.num_rows, table.num_seen) == (5000, 100_000)

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    @pytest.mark.parametrize("huge_pages", [True, False])
    def test_shrinking_gives_memory_back_to_the_operating_system(self, huge_pages: bool) -> None:
        script = f"""
            import os, torch
            from sparsegroup import GroupSGD, HashEmbedding

            def resident():
                return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

            table = HashEmbedding(64, huge_pages={huge_pages})
            optimizer = GroupSGD([table.weight], lr=0.1, l21=1e9)

            def train(keys):
                for part in keys.split(4096):
                    optimizer.zero_grad()
                    table(part).sum().backward()
                    optimizer.step()
                optimizer.zero_grad()

            train(torch.arange(8192))
            start = resident()
            train(torch.arange(150_000))
            grown = resident() - start
            assert table.shrink() == 150_000
            kept = resident() - start
            assert grown > 140_000 * 64 * 4, grown
            assert kept < 0.3 * grown, (grown, kept)
            assert table(torch.arange(100)).any()
        """
        run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr


KEYS = {
    "crowded in one hash": crowded(4000),
    "consecutive": torch.arange(-150_000, 150_000),
    "random": random_keys(300_000, seed=9),
    "multiples of 2^32": torch.arange(-50_000, 50_000) << 32,
    "equal low bits": (torch.arange(-30_000, 30_000) << 44) | 0xABCDEF,
    "equal high bits": torch.arange(60_000) + (0x7FFF_FFFF << 32),
    "even in all halves": torch.arange(60_000) * ((1 << 33) + 2),
    "bit reversed": torch.from_numpy(
        np.array([int(f"{i:064b}"[::-1], 2) for i in range(40_000)], dtype=np.uint64).view(np.int64)
    ),
    "powers of two and their neighbours": as_keys(
        sorted({sign * (1 << bit) + near for bit in range(63) for near in range(-40, 41) for sign in (1, -1)})
    ),
}


class TestManyKeys:
    @pytest.mark.parametrize("name", KEYS)
    def test_every_key_stays_findable_while_the_table_grows(self, name: str) -> None:
        keys = KEYS[name][torch.randperm(len(KEYS[name]), generator=torch.Generator().manual_seed(0))]
        table = HashEmbedding(2)
        parts = keys.split(len(keys) // 5 + 1)
        for number, part in enumerate(parts):
            table(part)
            done = torch.cat(parts[: number + 1])
            assert table.num_rows == table.num_seen == len(done)
            assert table.contains(done).all()
            assert not table.contains(torch.cat([*parts[number + 1 :], as_keys([])])).any()
        assert_identical(table.lookup(keys), table.initial(keys))
        listed = torch.cat([found for found, _ in table.items()])
        assert_identical(listed.sort().values, keys.sort().values)

    def test_they_stay_findable_through_deaths_and_returns(self) -> None:
        """A quarter dies, is dropped and returns: the places they leave are used again, and nothing is lost."""
        keys = random_keys(40_000, seed=3)
        table = HashEmbedding(2)
        table(keys)
        for cycle in range(4):
            part = keys[cycle::4]
            kill(table, part)
            assert table.shrink() == len(part)
            assert table.contains(keys).sum() == len(keys) - len(part)
            table(part.flip(0)[::2])
            table(part)
            assert_identical(table.lookup(keys), table.initial(keys))
            assert (table.num_rows, table.num_seen) == (len(keys), len(keys))


class TestDeterminism:
    @pytest.mark.parametrize("member", FAMILY.values(), ids=FAMILY)
    def test_the_same_keys_and_seeds_give_the_same_bits_with_one_and_with_two_threads(self, member) -> None:
        def run(count: int) -> object:
            with threads(count):
                table = HashEmbedding(8, seed=1)
                optimizer = member.build(table.weight, l1=0.01, l21=0.5, l2=0.01)
                generator = torch.Generator().manual_seed(0)
                pool = random_keys(12_000, seed=2)
                for _ in range(3):
                    keys = pool[(len(pool) * torch.rand(9000, generator=generator) ** 3).long()].view(-1, 9)
                    learn(table, optimizer, pull(keys, 8))
                return everything(table, optimizer)

        first = run(1)
        assert_identical(run(1), first)
        assert_identical(run(2), first)

    def test_a_bag_gives_the_same_bits_with_one_and_with_two_threads(self) -> None:
        def run(count: int) -> object:
            with threads(count):
                table = HashEmbeddingBag(8, mode="sum", seed=1)
                optimizer = GroupAdam([table.weight], l21=0.01)
                generator = torch.Generator().manual_seed(0)
                pool = random_keys(6000, seed=2)
                for _ in range(3):
                    keys = pool[torch.randint(0, len(pool), (12_000,), generator=generator)]
                    weights = torch.randn(12_000, generator=generator)
                    optimizer.zero_grad()
                    bags = table(keys, torch.arange(0, 12_000, 5), per_sample_weights=weights)
                    bags.square().sum().backward()
                    optimizer.step()
                return everything(table, optimizer)

        assert_identical(run(2), run(1))

    def test_two_runs_list_their_rows_in_the_same_order(self) -> None:
        def run() -> list[int]:
            table = HashEmbedding(3)
            optimizer = GroupAdam([table.weight], l21=0.1)
            for lookups in stream(dim=3):
                learn(table, optimizer, lookups)
            return torch.cat([keys for keys, _ in table.items()]).tolist()

        assert run() == run()
