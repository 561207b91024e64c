"""Rows that go by themselves in training loops of all kinds: never a row of another key, never the limit exceeded."""

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from optimizer_cases import assert_identical
from over import over
from sparsegroup import GroupAdagrad, GroupAdam, GroupSGD, HashEmbedding, MinCount, Probabilistic, UnusedFor
from sparsegroup.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from sparsegroup.table import RankingPolicy, RowBlock

LIMIT = 2_000_000
Loop = Callable[[HashEmbedding, GroupAdam, Tensor], None]


def usual(table: HashEmbedding, optimizer: GroupAdam, keys: Tensor) -> None:
    optimizer.zero_grad()
    table(keys).square().sum().backward()
    optimizer.step()


def cleared_late(table: HashEmbedding, optimizer: GroupAdam, keys: Tensor) -> None:
    loss = table(keys).square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def set_to_zero(table: HashEmbedding, optimizer: GroupAdam, keys: Tensor) -> None:
    table(keys).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def twice(table: HashEmbedding, optimizer: GroupAdam, keys: Tensor) -> None:
    optimizer.zero_grad()
    for half in keys.chunk(2):
        table(half).square().sum().backward()
    optimizer.step()


class Held:
    """A user's variable that holds the last loss, and with it its graph."""

    loss: Tensor | None = None


def twice_with_a_loss_held(table: HashEmbedding, optimizer: GroupAdam, keys: Tensor) -> None:
    optimizer.zero_grad()
    for half in keys.chunk(2):
        Held.loss = table(half).square().sum()
        Held.loss.backward()
    optimizer.step()


def by_closure(table: HashEmbedding, optimizer: GroupAdam, keys: Tensor) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = table(keys).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def without_accumulation(table: HashEmbedding, optimizer: GroupAdam, keys: Tensor) -> None:
    (gradient,) = torch.autograd.grad(table(keys).square().sum(), [table.weight])
    table.weight.grad = gradient
    optimizer.step()
    optimizer.zero_grad()


@over("loop", [usual, cleared_late, set_to_zero, twice, twice_with_a_loss_held, by_closure, without_accumulation])
def test_every_loop_makes_room(loop: Loop) -> None:
    """The same rows are there after each of them, with the same vectors."""
    found = []
    for one in (usual, loop):
        table = HashEmbedding(8, max_bytes=LIMIT, huge_pages=False, eviction=UnusedFor(steps=30, every=7), seed=1)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, l21=1e-5)
        for step in range(60):
            one(table, optimizer, torch.arange(1_000) + 700 * step)
            assert table.memory().total <= LIMIT
        assert table.num_evicted > 10_000
        assert table.contains(torch.arange(1_000) + 700 * 59).all()
        found.append(table.lookup(torch.arange(45_000)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_late_moves_its_own_row() -> None:
    """Of `autograd.grad`, stepped with after later lookups: nothing goes until it has been."""
    found = []
    for eviction in (None, UnusedFor(steps=1, live=True, every=1)):
        table = HashEmbedding(2, std=0.1, eviction=eviction)
        optimizer = GroupSGD(table.parameters(), lr=0.1)
        usual(table, optimizer, torch.tensor([1]))  # type: ignore[arg-type]
        optimizer.zero_grad()
        (late,) = torch.autograd.grad(table(torch.tensor([2])).sum(), [table.weight])
        vectors = table(torch.tensor([3]))
        table.weight.grad = late
        optimizer.step()
        optimizer.zero_grad()
        vectors.sum().backward()
        optimizer.step()
        found.append(table.lookup(torch.tensor([2, 3])))
    assert_identical(*found)


def test_a_gradient_of_rows_that_are_no_longer_is_refused() -> None:
    """It is kept beyond its step and brought again, when rows have gone."""
    table = HashEmbedding(2, eviction=UnusedFor(steps=1, live=True, every=1))
    optimizer = GroupSGD(table.parameters(), lr=0.1)
    usual(table, optimizer, torch.tensor([1, 2]))  # type: ignore[arg-type]
    old = table.weight.grad
    for key in (3, 4):
        usual(table, optimizer, torch.tensor([key]))  # type: ignore[arg-type]
    assert 1 not in table
    table.weight.grad = old
    before = table.lookup(torch.arange(5))
    with pytest.raises(RuntimeError, match="has dropped rows by itself"):
        optimizer.step()
    assert_identical(before, table.lookup(torch.arange(5)))


@over("eviction", [None, UnusedFor(steps=1, live=True, every=1)])
def test_a_thread_may_look_up_while_another_trains(eviction: Any) -> None:
    table = HashEmbedding(4, eviction=eviction)
    optimizer = GroupAdam(table.parameters())
    stop = threading.Event()

    def look_up() -> None:
        while not stop.is_set():
            with torch.no_grad():
                table(torch.randint(2_000, (64,)))

    thread = threading.Thread(target=look_up)
    thread.start()
    try:
        for _ in range(300):
            usual(table, optimizer, torch.randint(2_000, (64,)))
    finally:
        stop.set()
        thread.join()
    assert table.lookup(torch.arange(2_000)).isfinite().all()


# The limit


def full(dim: int = 8, optimizer: Any = GroupAdam, **options: Any) -> tuple[HashEmbedding, Any]:
    table = HashEmbedding(dim, max_bytes=LIMIT, huge_pages=False, **options)
    its = optimizer(table.parameters(), lr=1e-2)
    for step in range(30):
        usual(table, its, torch.arange(2_000) + 1_500 * step)
    return table, its


@over("dim", [1, 8])
def test_a_regularizer_that_comes_late_finds_room_for_u(dim: int) -> None:
    table, optimizer = full(dim)
    optimizer.param_groups[0]["l21"] = 1e-6
    usual(table, optimizer, torch.arange(500))
    assert "u" in table.memory().parts
    assert table.memory().total <= LIMIT


def test_an_optimizer_with_more_state_is_refused_where_there_is_no_room_for_it() -> None:
    table, _ = full(optimizer=GroupAdagrad)
    other = GroupAdam(table.parameters(), l21=1e-6)
    with pytest.raises(RuntimeError, match=r"max_bytes=2,000,000 are enough for [\d,]+ rows, and the table has"):
        usual(table, other, torch.arange(50))
    assert table.memory().total <= LIMIT
    assert "exp_avg" not in table.memory().parts


@over("dim", [1, 2, 8])
def test_copies_stay_within_the_limit(dim: int) -> None:
    table, optimizer = full(dim)
    copies = [copy.deepcopy(table)]
    for order in ("model first", "optimizer first"):
        other = HashEmbedding(dim, max_bytes=LIMIT, huge_pages=False)
        its = GroupAdam(other.parameters(), lr=1e-2)
        loads = [
            lambda other=other: other.load_state_dict(copy.deepcopy(table.state_dict())),
            lambda its=its: its.load_state_dict(copy.deepcopy(optimizer.state_dict())),
        ]
        for load in loads if order == "model first" else loads[::-1]:
            load()
            assert other.memory().total <= LIMIT, order
        copies.append(other)
    for other in copies:
        assert other.memory().total <= LIMIT
        assert_identical(other.lookup(torch.arange(50_000)), table.lookup(torch.arange(50_000)))


def test_vectors_that_are_set_leave_room_for_their_state() -> None:
    table = HashEmbedding(8, max_bytes=LIMIT, huge_pages=False)
    optimizer = GroupAdam(table.parameters())
    with pytest.raises(RuntimeError, match="there is room for"):
        table.assign(torch.arange(20_000), torch.ones(20_000, 8))
    assert table.num_rows == 0
    table.assign(torch.arange(5_000), torch.ones(5_000, 8))
    usual(table, optimizer, torch.arange(5_000))
    assert table.memory().total <= LIMIT


def test_a_load_that_is_too_large_changes_nothing() -> None:
    large = HashEmbedding(8)
    large(torch.arange(100_000))
    table = HashEmbedding(8, max_bytes=LIMIT, huge_pages=False)
    table(torch.arange(5))
    with pytest.raises(RuntimeError, match="100,000 are to be set; none was"):
        table.load_state_dict(large.state_dict())
    assert (table.num_rows, table.num_seen) == (5, 5)


def test_a_larger_checkpoint_is_cut_to_the_limit(tmp_path: Path) -> None:
    large = HashEmbedding(8, huge_pages=False)
    optimizer = GroupAdam(large.parameters())
    usual(large, optimizer, torch.arange(40_000))
    usual(large, optimizer, torch.arange(1_000))
    save_checkpoint(tmp_path / "large", large, optimizer)
    table = HashEmbedding(8, max_bytes=LIMIT, huge_pages=False)
    load_checkpoint(tmp_path / "large", table, GroupAdam(table.parameters()))
    assert table.memory().total <= LIMIT
    assert table.num_evicted == 40_000 - table.num_rows
    assert table.num_seen == pytest.approx(40_000, rel=0.03)


def test_keys_that_waited_elsewhere_are_not_remembered_under_a_limit() -> None:
    waiting = HashEmbedding(8, admission=MinCount(2))
    waiting(torch.arange(200_000))
    table = HashEmbedding(8, max_bytes=LIMIT, huge_pages=False)
    table.load_state_dict(waiting.state_dict())
    assert table.memory().total <= LIMIT
    assert table.num_seen == pytest.approx(200_000, rel=0.03)
    optimizer = GroupAdam(table.parameters())
    for step in range(20):
        usual(table, optimizer, torch.arange(2_000) + 1_000 * step)
        assert table.memory().total <= LIMIT


# What goes, and what is known of it


class Periodic(RankingPolicy):
    """Every 16th row is of low rank."""

    def ranks(self, rows: RowBlock) -> np.ndarray[Any, Any]:
        return np.where(rows.keys % 16 == 0, 1, 100).astype(np.int64)


def test_rows_in_a_pattern_go_as_many_as_are_to_go() -> None:
    table = HashEmbedding(1, max_bytes=30_000_000, huge_pages=False, ranking=Periodic())
    optimizer = GroupSGD(table.parameters())
    step, before = 0, 0
    while not table.num_evicted:
        before = table.num_rows
        usual(table, optimizer, torch.arange(50_000) + 50_000 * step)  # type: ignore[arg-type]
        step += 1
    assert 0.08 * before < table.num_evicted < 0.14 * before


def test_incremental_checkpoints_know_what_came_and_went(tmp_path: Path) -> None:
    """A key that was looked up but not stepped with, and one that came and went in between."""
    table = HashEmbedding(4, eviction=UnusedFor(steps=3, live=True, every=1))
    optimizer = GroupAdam(table.parameters())
    checkpoints = Checkpoints(tmp_path)
    usual(table, optimizer, torch.arange(100))
    checkpoints.save(1, table, optimizer)
    usual(table, optimizer, torch.arange(1, 101))  # 100 comes
    for _ in range(5):
        with torch.no_grad():
            table(torch.tensor([1]))
        usual(table, optimizer, torch.arange(2, 100))
    assert 1 in table
    assert 100 not in table
    folder = checkpoints.save(2, table, optimizer)
    other = HashEmbedding(4, eviction=UnusedFor(steps=3, live=True, every=1))
    load_checkpoint(folder, other, GroupAdam(other.parameters()))
    mine, its = table.state_dict(), other.state_dict()
    assert mine.keys() == its.keys()
    for name in mine:
        assert torch.equal(mine[name], its[name]), name
    assert table.num_seen == other.num_seen == 101


def test_occurrences_that_are_looked_up_ahead_count_once() -> None:
    table = HashEmbedding(4, admission=MinCount(2), eviction=UnusedFor(steps=1, every=1))
    optimizer = GroupAdam(table.parameters())
    usual(table, optimizer, torch.arange(10))
    for step in range(4):
        keys = torch.arange(5_000) + 10_000 * (step + 1)
        optimizer.zero_grad()
        vectors = table(keys)
        table.prefetch(keys + 10_000)
        vectors.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        table.shrink()
    assert table.num_rows == 0


def test_a_policy_is_asked_late_rather_than_not_at_all() -> None:
    table = HashEmbedding(4, eviction=UnusedFor(steps=5, live=True, every=10))
    optimizer = GroupAdam(table.parameters())
    usual(table, optimizer, torch.arange(100))
    for step in range(2, 30):
        held = table(torch.tensor([500])) if step % 10 in (9, 0) else None
        usual(table, optimizer, torch.tensor([500]))
        del held
    assert table.num_evicted == 100


def test_chance_stays_what_it_is_under_a_limit() -> None:
    admitted = []
    for options in ({}, {"max_bytes": LIMIT}):
        table = HashEmbedding(4, admission=Probabilistic(0.01), huge_pages=False, **options)
        for _ in range(300):
            table(torch.arange(500))
        admitted.append(table.num_rows)
    assert abs(admitted[0] - admitted[1]) < 40
    assert admitted[0] > 400
    with pytest.raises(ValueError, match="k must be <= 255"):
        HashEmbedding(4, admission=MinCount(300), max_bytes=LIMIT)


def test_the_count_of_features_never_shrinks() -> None:
    table = HashEmbedding(4, max_bytes="20MB", huge_pages=False)
    optimizer = GroupAdam(table.parameters(), l21=1e9)
    usual(table, optimizer, torch.arange(50_000))
    seen = table.num_seen
    optimizer.zero_grad()
    assert table.shrink() > 0
    assert table.num_seen >= seen


@over(
    ("changes", "message"),
    [
        ({"clock": torch.zeros(0, dtype=torch.int64)}, "clock: 1 number"),
        ({"clock": torch.tensor([1 << 40])}, "clock: numbers from 0"),
        ({"last_used": None}, "are also needed"),
        ({"counters": torch.tensor([1])}, "counters: 4 number"),
    ],
)
def test_notes_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    table = HashEmbedding(4, eviction=UnusedFor(steps=1))
    usual(table, GroupAdam(table.parameters()), torch.arange(3))
    state = {name: value for name, value in {**table.state_dict(), **changes}.items() if value is not None}
    with pytest.raises(RuntimeError, match=message):
        table.load_state_dict(state)
    assert table.num_rows == 3


class NoMemory(RankingPolicy):
    """A ranking for which there is no memory."""

    def ranks(self, rows: RowBlock) -> Any:
        raise MemoryError("no memory for ranks")


def test_a_load_without_memory_to_cut_the_rows_changes_nothing(tmp_path: Path) -> None:
    large = HashEmbedding(8, huge_pages=False)
    optimizer = GroupAdam(large.parameters(), lr=0.5)
    usual(large, optimizer, torch.arange(40_000))
    save_checkpoint(tmp_path / "large", large, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
    table = HashEmbedding(8, max_bytes=LIMIT, huge_pages=False, ranking=NoMemory())
    own = GroupAdam(table.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(own, 0.5)
    usual(table, own, torch.arange(5))

    def everything() -> list[Any]:
        return copy.deepcopy([table.state_dict(), own.state_dict(), scheduler.state_dict()])

    before, numbers = everything(), torch.get_rng_state()
    with pytest.raises(MemoryError, match="no memory for ranks"):
        load_checkpoint(tmp_path / "large", table, own, scheduler)
    assert_identical(everything(), before)
    assert torch.equal(torch.get_rng_state(), numbers)
    usual(table, own, torch.arange(5))
