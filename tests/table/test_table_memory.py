"""What a table takes of memory, which is requested before it is written to; many keys; the same bits on two threads."""

import ctypes
import sys
from typing import Any

import numpy as np
import pytest
import torch

from distributed_cases import in_a_new_process
from family import FAMILY
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from over import over
from sparsegroup import GroupAdam, GroupRowWiseAdagrad, HashEmbedding, HashEmbeddingBag
from sparsegroup.kernels.cpu import threads as helpers
from sparsegroup.rules import is_of_group
from sparsegroup.table.rows.pages import MappedPages
from table_cases import REGULARIZED, everything, learn, pull, random_keys, threads

pytestmark = ALLOW_CREATE_GRAPH


@pytest.mark.usefixtures("two_threads")
def test_what_a_large_lookup_leaves_is_counted_and_limited() -> None:
    limit = 4_000_000
    table, limited = HashEmbedding(64).eval(), HashEmbedding(8, max_bytes=limit)
    optimizer = GroupAdam(limited.parameters())
    for count, least, most in ((1000, 1, 1 << 19), (1 << 20, 0, 256 << 20), (1000, 1, 1 << 19)):
        table(torch.arange(count))
        assert least <= table.memory().scratch <= most
        limited(torch.arange(count))[:100].sum().backward()
        assert limited.memory().total <= limit
        limited.prefetch(torch.arange(count))
        assert limited.memory().total <= limit
        optimizer.step()
        optimizer.zero_grad()
        assert limited.memory().total <= limit


@over(("cls", "dtype"), [(GroupAdam, torch.float64), (GroupAdam, torch.float32), (GroupRowWiseAdagrad, torch.float32)])
def test_parts_are_the_weight_u_and_the_moments(cls: type, dtype: torch.dtype) -> None:
    table = HashEmbedding(5, dtype=dtype)
    optimizer = cls([table.weight], **REGULARIZED)
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


@pytest.mark.skipif(sys.platform != "linux", reason="other systems hand memory out when it is written to")
@pytest.mark.usefixtures("two_threads")
def test_memory_that_is_handed_out_keeps_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    size = (4 << 20) + (1 << 19)  # the last huge page of each is not whole
    pages, jobs = MappedPages(size, huge=True), list[Any]()
    monkeypatch.setattr(helpers, "submit", jobs.append)
    pages.resize(2)
    view = np.frombuffer((ctypes.c_char * size).from_address(int(pages.addresses[1])), np.uint8)
    view[:100] = 7
    for _ in range(2):
        pages.prefault(0, 2 * size)
    (hand_out,) = jobs  # once
    hand_out()
    assert (view[:100] == 7).all()
    assert not view[100:].any()
    pages.resize(0)
    hand_out()  # late: nothing is there any more


@over(("name", "state_dtype"), [("adam", None), ("adahessian", None), ("adam", torch.bfloat16)])
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
