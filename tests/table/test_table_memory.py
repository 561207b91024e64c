"""What a table takes of memory, which is requested before it is written to; many keys; the same bits on two threads."""

import ctypes
import sys
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from distributed_cases import in_a_new_process
from family import FAMILY
from optimizer_cases import ALLOW_CREATE_GRAPH, KINDS, assert_identical, make
from over import over
from sparsegroup import GroupAdam, GroupRowWiseAdagrad, HashEmbedding, HashEmbeddingBag
from sparsegroup.kernels.cpu import threads as helpers
from sparsegroup.rules import is_of_group
from sparsegroup.table.rows.pages import MappedPages
from table_cases import REGULARIZED, everything, learn, pull, random_keys, threads

pytestmark = ALLOW_CREATE_GRAPH


def test_what_a_large_lookup_leaves_is_counted_and_limited() -> None:
    limit = 4_000_000
    table, limited = HashEmbedding(64).eval(), HashEmbedding(8, max_bytes=limit)
    optimizer = GroupAdam(limited.parameters())
    for count, least, most in ((1000, 1, 1 << 19), (1 << 20, 0, 256 << 20), (1000, 1, 1 << 19)):
        table(torch.arange(count))
        assert least <= table.memory().scratch <= most
        limited(torch.arange(count))[:100].sum().backward()
        assert limited.memory().total <= limit
        optimizer.step()
        optimizer.zero_grad()
        assert limited.memory().total <= limit


@over("training", [True, False])
def test_a_lookup_of_many_keys_goes_in_pieces(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.randint(-300, 300, (1_000,), generator=torch.Generator().manual_seed(1))
    results = []
    for chunk in (1 << 18, 64):
        table = HashEmbedding(3)
        table(keys[:200])
        monkeypatch.setattr("sparsegroup.table.lookup.lookup.CHUNK", chunk)
        vectors = table.train(training)(keys)
        vectors.backward(torch.arange(3_000.0).view(1_000, 3))
        gradient = table.weight.grad.coalesce()
        results.append((vectors.detach(), table.num_rows, gradient.indices(), gradient.values()))
    assert_identical(*results)


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


@over("cls", [*KINDS, GroupRowWiseAdagrad])
@over("dtype", [torch.float32, torch.float64])
def test_parts_are_the_weight_u_and_the_moments(cls: type, dtype: torch.dtype) -> None:
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.whole
def test_shrinking_gives_memory_back_to_the_operating_system() -> None:
    in_a_new_process(
        """
        import os, torch
        from sparsegroup import GroupSGD, HashEmbedding

        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE")

        def train(table, keys):
            optimizer = GroupSGD([table.weight], lr=0.1, l21=1e9)
            for part in keys.split(4096):
                optimizer.zero_grad()
                table(part).sum().backward()
                optimizer.step()
            optimizer.zero_grad()

        for huge_pages in (True, False):
            table = HashEmbedding(64, huge_pages=huge_pages)
            train(table, torch.arange(8192))
            start = resident()
            train(table, torch.arange(150_000))
            grown = resident() - start
            assert table.shrink() == 150_000
            kept = resident() - start
            assert grown > 140_000 * 64 * 4, grown
            assert kept < 0.3 * grown, (grown, kept)
            memory = table.memory()
            assert memory.rows < 0.3 * grown
            assert 150_000 <= memory.dropped <= 150_000 * 64
            assert table(torch.arange(100)).any()
        """
    )


UNIT = 2 << 20
PAGE = 2 * UNIT + UNIT // 4
"""The last huge page of each is not whole."""

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems hand memory out when it is written to")


@pytest.fixture
def pages() -> MappedPages:
    made = MappedPages(PAGE, huge=True)
    made.resize(2)
    return made


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What a helping thread has been asked to do."""
    submitted: list[Any] = []
    monkeypatch.setattr(helpers, "submit", submitted.append)
    helpers.set_num_threads(2)
    yield submitted
    helpers.set_num_threads(None)


@on_linux
def test_memory_that_is_handed_out_keeps_its_content(pages: MappedPages, jobs: list[Any]) -> None:
    view = np.frombuffer((ctypes.c_char * PAGE).from_address(int(pages.addresses[1])), np.uint8)
    view[:100] = 7
    for _ in range(2):
        pages.prefault(0, 2 * PAGE)
    (hand_out,) = jobs
    hand_out()
    assert (view[:100] == 7).all()
    assert not view[100:].any()
    pages.resize(0)
    hand_out()  # late: nothing is there any more


@on_linux
def test_a_growing_table_requests_memory_for_its_next_rows_once_and_again_after_it_was_given_back(
    jobs: list[Any],
) -> None:
    """With one thread it requests none."""
    table, keys = HashEmbedding(64, std=0.1, seed=1), torch.arange(150_000)
    pages = table.table.storage.rows.pages  # type: ignore[attr-defined]
    used = (150_000 * 256) % pages.page_bytes
    assert used > 2 * UNIT
    for number in (2, 2, 1):
        helpers.set_num_threads(number)
        for part in keys.split(10_000):
            table(part)
        found = [address for job in jobs if job.func.__name__ == "_hand_out" for address, _ in job.args[0]]
        assert len(found) == len(set(found))
        begin = int(pages.addresses[1])
        assert {begin + at for at in range(UNIT, used, UNIT) if number > 1} <= set(found)
        assert torch.equal(table.lookup(keys), table.initial(keys))
        table.assign(keys, torch.zeros(150_000, 64))
        assert table.shrink() == 150_000
        jobs.clear()


@over(
    ("name", "state_dtype"),
    [*((name, None) for name in ("sgd", "adam", "ftrl", "adahessian")), ("adam", torch.bfloat16)],
)
def test_the_same_keys_and_seeds_give_the_same_bits_in_the_same_order_with_one_and_with_two_threads(
    name: str, state_dtype: torch.dtype | None
) -> None:
    """Of a table, and of bags with weights."""
    member, options = FAMILY[name], {"l1": 0.01, "l21": 0.5, "l2": 0.01, "state_dtype": state_dtype}

    def run(count: int) -> object:
        torch.manual_seed(0)
        with threads(count):
            table, bag = HashEmbedding(8, seed=1), HashEmbeddingBag(8, mode="sum", seed=1)
            optimizer, other = (member.build(each.weight, **options) for each in (table, bag))
            generator = torch.Generator().manual_seed(0)
            pool = random_keys(12_000, seed=2)
            for _ in range(3):
                keys = pool[(len(pool) * torch.rand(9000, generator=generator) ** 3).long()].view(-1, 9)
                learn(table, optimizer, pull(keys, 8))
                other.zero_grad()
                weights = torch.randn(keys.shape, generator=generator)
                loss = bag(keys.flatten(), torch.arange(0, 9000, 5), weights.flatten()).square().sum()
                loss.backward(create_graph=member.second_order)
                other.step()
            return everything(table, optimizer), everything(bag, other), [keys for keys, _ in table.items()]

    first = run(1)
    assert_identical(run(1), first)
    assert_identical(run(2), first)
