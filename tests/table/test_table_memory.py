"""What a table takes of memory, many keys, and the same bits whatever the threads."""

import sys
import tracemalloc

import numpy as np
import pytest
import torch

from distributed_cases import in_a_new_process
from optimizer_cases import ALL, ALLOW_CREATE_GRAPH, assert_identical, make
from over import over
from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag
from sparsegroup.rules import is_of_group
from table_cases import REGULARIZED, as_keys, crowded, everything, kill, learn, pull, random_keys, threads
from table_pairs import one_of_each_kind

pytestmark = ALLOW_CREATE_GRAPH


@over(("count", "slots"), [(1000, 2048), (1025, 4096), (200_000, 1 << 19)])
def test_a_lookup_clears_no_more_slots_than_its_own_keys_need(count: int, slots: int) -> None:
    table = HashEmbedding(4)
    table(torch.arange(200_000))
    seen = table.table._lookup._scratch.seen
    seen[:] = -1
    table(torch.arange(count))
    assert np.flatnonzero(seen != -1).max() < slots
    assert (seen[:slots] != -1).all()


def test_what_a_large_lookup_leaves_is_counted_and_limited() -> None:
    table = HashEmbedding(64).eval()
    table(torch.arange(1000))
    assert 0 < table.memory().scratch <= 1 << 19
    table(torch.arange(1 << 20))
    assert table.memory().scratch <= 256 << 20
    table(torch.arange(1000))
    assert table.memory().scratch <= 1 << 19


def test_a_limit_of_bytes_holds_after_a_large_lookup() -> None:
    limit = 4_000_000
    table = HashEmbedding(8, max_bytes=limit)
    optimizer = GroupAdam(table.parameters())
    for keys in (torch.arange(1_000_000), torch.arange(100)):
        table(keys)[:100].sum().backward()
        assert table.memory().total <= limit
        optimizer.step()
        optimizer.zero_grad()
    assert table.memory().total <= limit


def test_items_copy_each_row_once() -> None:
    """What a batch allocates does not grow with the rows that are read ahead for the batches after it."""
    table, batch_size = HashEmbedding(8), 100
    table(torch.arange(50_000))
    batches = table.items(batch_size)
    next(batches)
    tracemalloc.start()
    for _ in range(20):
        next(batches)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * batch_size * (8 * 4 + 8)


@over("cls", ALL)
def test_parts_are_the_weight_u_and_the_moments(cls: type) -> None:
    for dtype in (torch.float32, torch.float64):
        table = HashEmbedding(5, dtype=dtype)
        optimizer = make(cls, [table.weight], **REGULARIZED)
        table(random_keys(30))
        assert table.memory().parts == {"weight": 30 * 5 * dtype.itemsize}
        learn(table, optimizer, pull(random_keys(30), 5))
        memory = table.memory()
        expected = dict.fromkeys(("weight", "u", *cls.rule.state), 30 * 5 * dtype.itemsize)
        if dtype == torch.float32:
            expected.update({name: 30 * 4 for name in cls.rule.state if is_of_group(name)})
        assert memory.parts == expected
        assert memory.total == memory.index + memory.rows + memory.dropped + memory.scratch
        assert memory.rows >= sum(memory.parts.values())
        assert memory.index >= 30 * 8


def test_it_shrinks_with_the_table_and_keeps_a_little_for_the_dropped_keys() -> None:
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
@over("huge_pages", [True, False])
@pytest.mark.whole
def test_shrinking_gives_memory_back_to_the_operating_system(huge_pages: bool) -> None:
    in_a_new_process(
        f"""
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
    )


KEYS = {
    "crowded in one hash": crowded(4000),
    "consecutive": torch.arange(-60_000, 60_000),
    "random": random_keys(100_000, seed=9),
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


@over("name", KEYS)
def test_every_key_stays_findable_while_the_table_grows(name: str) -> None:
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


@one_of_each_kind
def test_the_same_keys_and_seeds_give_the_same_bits_in_the_same_order_with_one_and_with_two_threads(member) -> None:
    def run(count: int) -> object:
        with threads(count):
            table = HashEmbedding(8, seed=1)
            optimizer = member.build(table.weight, l1=0.01, l21=0.5, l2=0.01)
            generator = torch.Generator().manual_seed(0)
            pool = random_keys(12_000, seed=2)
            for _ in range(3):
                keys = pool[(len(pool) * torch.rand(9000, generator=generator) ** 3).long()].view(-1, 9)
                learn(table, optimizer, pull(keys, 8))
            return everything(table, optimizer), torch.cat([keys for keys, _ in table.items()])

    first = run(1)
    assert_identical(run(1), first)
    assert_identical(run(2), first)


def test_a_bag_gives_the_same_bits_with_one_and_with_two_threads() -> None:
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
                table(keys, torch.arange(0, 12_000, 5), per_sample_weights=weights).square().sum().backward()
                optimizer.step()
            return everything(table, optimizer)

    assert_identical(run(2), run(1))
