"""Rows that go by themselves: dead ones that nobody asks for, and those for which there is no room."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from optimizer_cases import assert_identical
from over import over
from sparsegroup import LRU, GroupAdagrad, GroupAdam, GroupOptimizer, HashEmbedding, MinCount, UnusedFor
from sparsegroup.checkpoint import Checkpoints, load_checkpoint
from sparsegroup.table.directory.index import Index, keep_rows
from sparsegroup.table.files.snapshot import check_state

Make = Callable[..., GroupOptimizer]
NO_PENALTY = {"lr": 0.1}


def keys_of(*keys: int) -> Tensor:
    return torch.tensor(keys, dtype=torch.int64)


def train(table: HashEmbedding, optimizer: GroupOptimizer, keys: Tensor) -> None:
    optimizer.zero_grad()
    table(keys).square().sum().backward()
    optimizer.step()


def dying(**options: Any) -> tuple[HashEmbedding, GroupOptimizer]:
    """A table all of whose rows die at their first step."""
    table = HashEmbedding(4, **options)
    return table, GroupAdam(table.parameters(), l21=1e9)


def capped(max_bytes: int = 2_000_000, **options: Any) -> tuple[HashEmbedding, GroupOptimizer]:
    table = HashEmbedding(8, max_bytes=max_bytes, huge_pages=False, seed=3, **options)
    return table, GroupAdam(table.parameters(), lr=1e-2)


# The index


@over("count", [0, 1, 63, 64, 65, 5_000, 40_000])
@over("share", [0.0, 0.1, 0.7, 1.0])
def test_an_index_loses_rows_where_it_is(count: int, share: float) -> None:
    """What stays is found at its new number, what goes is not found, and new keys can come; also while it grows."""
    rng = np.random.default_rng(count)
    keys = rng.permutation(np.arange(10 * count, dtype=np.int64))[:count] * 7919 - 3
    index = Index(huge_pages=False)
    index.reserve(count)
    index.insert(keys, np.arange(count))
    kept = rng.random(count) < share
    buckets = index.buckets
    gone, rows = keep_rows(index, kept)
    assert index.num_keys == kept.sum()
    assert index.buckets == buckets
    assert sorted(zip(gone.tolist(), rows.tolist(), strict=True)) == sorted(
        zip(keys[~kept].tolist(), np.flatnonzero(~kept).tolist(), strict=True)
    )
    np.testing.assert_array_equal(index.find(keys[kept]), np.arange(kept.sum()))
    assert (index.find(keys[~kept]) == -1).all()
    index.reserve(count)
    index.insert(gone, np.arange(len(gone)) + index.num_keys)
    assert (index.find(keys) >= 0).all()


NO_SECRET = (0, 1)
"""With which the hash of a key is what it is mixed to."""


def test_keys_that_crowd_are_found_after_a_removal() -> None:
    """Many keys of one home, so that they lie far behind it, and half of them go."""
    from sparsegroup.table.directory.buckets import mixed

    wanted, keys, key = 300, [], 0
    while len(keys) < wanted:
        key += 1
        if int(mixed(np.array([key]))[0]) >> 32 < (1 << 32) // 40:
            keys.append(key)
    index = Index(huge_pages=False, secret=NO_SECRET)
    index.insert(np.array(keys), np.arange(wanted))
    kept = np.arange(wanted) % 2 == 0
    keep_rows(index, kept)
    np.testing.assert_array_equal(index.find(np.array(keys)[kept]), np.arange(wanted // 2))
    assert (index.find(np.array(keys)[~kept]) == -1).all()


# By age


def test_dead_rows_go_when_they_have_not_been_seen_for_so_many_steps() -> None:
    table, optimizer = dying(eviction=UnusedFor(steps=3, every=1))
    train(table, optimizer, keys_of(1, 2))
    gone_at = []
    for _ in range(6):
        train(table, optimizer, keys_of(2))
        gone_at.append(1 in table)
    assert gone_at == [True, True, True, False, False, False]  # steps 2, 3 and 4 went by without it
    assert 2 in table
    assert (table.num_evicted, table.num_seen, table.num_rows) == (1, 2, 1)


def test_live_rows_stay_unless_they_are_named() -> None:
    for live, expected in ((False, True), (True, False)):
        table = HashEmbedding(4, eviction=UnusedFor(steps=2, live=live, every=1))
        optimizer = GroupAdam(table.parameters())
        train(table, optimizer, keys_of(1, 2))
        for _ in range(5):
            train(table, optimizer, keys_of(2))
        assert (1 in table) is expected


def test_seconds_are_those_that_the_table_is_told() -> None:
    table, optimizer = dying(eviction=UnusedFor(seconds=3600, every=1))
    table.set_time(1_500_000_000)
    train(table, optimizer, keys_of(1, 2))
    for _ in range(10):
        train(table, optimizer, keys_of(2))
    assert 1 in table  # steps are no seconds
    table.set_time(1_500_003_599)
    train(table, optimizer, keys_of(2))
    assert 1 in table
    table.set_time(1_500_003_600)
    train(table, optimizer, keys_of(2))
    assert 1 not in table
    with pytest.raises(ValueError, match="seconds must be in"):
        table.set_time(-1)


def test_a_policy_is_asked_every_so_many_steps() -> None:
    table, optimizer = dying(eviction=UnusedFor(steps=1, every=5))
    train(table, optimizer, keys_of(1))
    rows = []
    for step in range(11):
        train(table, optimizer, keys_of(100 + step))
        rows.append(table.num_rows)
    assert rows == [2, 3, 4, 5, 2, 3, 4, 5, 6, 2, 3]  # asked after steps 5 and 10: the last one stays


def test_an_evicted_key_that_returns_is_new() -> None:
    table, optimizer = dying(std=0.5, eviction=UnusedFor(steps=1, every=1))
    train(table, optimizer, keys_of(1))
    for _ in range(3):
        train(table, optimizer, keys_of(2))
    assert_identical(table(keys_of(1)).detach(), table.initial(keys_of(1)))
    assert table.num_seen == 2


def test_shrink_asks_the_policy_too() -> None:
    table, optimizer = dying(eviction=UnusedFor(steps=2, every=1_000_000))
    train(table, optimizer, keys_of(1))
    for _ in range(3):
        train(table, optimizer, keys_of(2))
    optimizer.zero_grad()
    assert table.shrink() == 1
    assert 1 not in table
    assert table.num_evicted == 0


@over(
    ("options", "message"),
    [
        ({}, "one of steps and seconds"),
        ({"steps": 1, "seconds": 1}, "one of steps and seconds"),
        ({"steps": 0}, "steps must be in"),
        ({"seconds": 1 << 32}, "seconds must be in"),
        ({"steps": 1, "every": 0}, "every must be >= 1"),
    ],
)
def test_bad_ages_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UnusedFor(**options)


def test_rows_do_not_go_while_a_gradient_may_come() -> None:
    """A second lookup before the step, and a graph that is kept: the rows stay where they are until it is gone."""
    table, optimizer = dying(eviction=UnusedFor(steps=1, every=1))
    train(table, optimizer, keys_of(1, 2))
    optimizer.zero_grad()
    waiting = table(keys_of(2)).sum()
    train(table, optimizer, keys_of(3))
    train(table, optimizer, keys_of(3))
    assert 1 in table
    waiting.backward()  # not stale
    optimizer.step()
    train(table, optimizer, keys_of(3))
    assert 1 not in table


def test_a_lookup_ahead_outlasts_an_eviction() -> None:
    """What `prefetch` has found under old numbers is looked up anew."""
    big = torch.arange(5_000)
    tables = []
    for ahead in (False, True):
        table, optimizer = dying(std=0.5, eviction=UnusedFor(steps=1, every=1))
        for step in range(6):
            keys = big + 1_000 * step
            optimizer.zero_grad()
            vectors = table(keys)
            if ahead:
                table.prefetch(keys + 1_000)
            vectors.square().sum().backward()
            optimizer.step()
        tables.append(table)
    plain, looked_ahead = tables
    optimizer.zero_grad()
    for table in tables:
        table.zero_grad()
        table(big)  # whatever is due is done
    keys = torch.arange(12_000)
    assert plain.num_evicted > 0
    assert_identical(plain.lookup(keys), looked_ahead.lookup(keys))


# Room


def offered(step: int, count: int = 2_000) -> Tensor:
    return torch.arange(count, dtype=torch.int64) + 1_000 * step


@over("ranking", [None, LRU()])
@over("fallback", [False, True])
def test_a_limit_is_never_exceeded(ranking: Any, fallback: bool) -> None:
    table, optimizer = capped(ranking=ranking, fallback=fallback)
    seen = 0
    for step in range(60):
        train(table, optimizer, offered(step))
        seen = 1_000 * step + 2_000
        assert table.memory().total <= 2_000_000, step
        assert abs(table.num_seen - seen) <= 0.05 * seen
    assert table.num_evicted > 20_000
    assert table.num_rows > 0.6 * 2_000_000 / 160  # what there is room for is used
    assert table.num_evicted + table.num_rows + table.num_refused >= seen


def test_a_larger_limit_holds_more_rows() -> None:
    small, large = capped(1_500_000), capped(3_000_000)
    for table, optimizer in (small, large):
        for step in range(60):
            train(table, optimizer, offered(step))
    assert large[0].num_rows > 1.7 * small[0].num_rows


def test_dead_rows_go_first_then_those_that_are_not_used() -> None:
    table, optimizer = capped(ranking=LRU())
    dead, used, idle = torch.arange(1000), torch.arange(1000, 2000), torch.arange(2000, 3000)
    train(table, optimizer, torch.cat([dead, used, idle]))
    table.assign(dead, torch.zeros(1000, 8))
    step = 0
    while table.num_evicted == 0:
        step += 1
        train(table, optimizer, torch.cat([used, torch.arange(10_000 * step, 10_000 * step + 500)]))
    assert not table.contains(dead).any() or table.contains(idle).all()
    while table.contains(idle).any():
        step += 1
        train(table, optimizer, torch.cat([used, torch.arange(10_000 * step, 10_000 * step + 500)]))
        assert step < 100
    assert table.contains(used).all()
    assert not table.contains(dead).any()


def test_rows_that_came_often_outlast_those_that_came_lately() -> None:
    table, optimizer = capped()  # LFU
    often = torch.arange(1000)
    for _ in range(5):
        train(table, optimizer, often)
    for step in range(1, 60):
        train(table, optimizer, torch.arange(10_000 * step, 10_000 * step + 500))
    assert table.num_evicted > 0
    assert table.contains(often).all()


def test_a_batch_too_large_is_trained_as_far_as_there_is_room() -> None:
    """Refused keys give zeros and no gradient, are counted, and the others train as ever."""
    table, optimizer = capped(1_000_000, std=0.5)
    keys = torch.arange(50_000)
    vectors = table(keys)
    has_row = table.contains(keys)
    assert 0 < has_row.sum() < 10_000
    assert table.num_refused == 50_000 - has_row.sum()
    assert not vectors[~has_row].any()
    vectors.sum().backward()
    optimizer.step()
    assert table.memory().total <= 1_000_000
    with pytest.raises(RuntimeError, match="within max_bytes=1,000,000 there is room for"):
        table.assign(torch.arange(50_000) + 10**6, torch.ones(50_000, 8))


@over("make", [GroupAdam, GroupAdagrad])
def test_a_limit_that_is_not_reached_changes_nothing(make: Make) -> None:
    plain = HashEmbedding(8, seed=3)
    limited = HashEmbedding(8, seed=3, max_bytes="100MB", eviction=UnusedFor(steps=10**6))
    for table in (plain, limited):
        optimizer = make(table.parameters(), lr=0.1, l21=1e-3)
        for step in range(20):
            train(table, optimizer, offered(step, 300))
    keys = torch.arange(20_000)
    assert_identical(plain.lookup(keys), limited.lookup(keys))
    assert limited.num_evicted == limited.num_refused == 0


def test_bad_limits_are_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        HashEmbedding(8, max_bytes=100)
    with pytest.raises(ValueError, match="200MB"):
        HashEmbedding(8, max_bytes="much")
    with pytest.raises(ValueError, match="give max_bytes"):
        HashEmbedding(8, ranking=LRU())


# Copies and checkpoints


def by_age() -> tuple[HashEmbedding, GroupOptimizer]:
    return dying(eviction=UnusedFor(steps=4, every=3))


def with_sketch() -> tuple[HashEmbedding, GroupOptimizer]:
    return capped(1_500_000, admission=MinCount(2))


@pytest.mark.parametrize("make", [by_age, capped, with_sketch])
@pytest.mark.parametrize("way", ["checkpoint", "incremental", "state_dict", "copy"])
def test_training_goes_on_the_same_after_a_copy(
    make: Callable[[], tuple[HashEmbedding, GroupOptimizer]], way: str, tmp_path: Path
) -> None:
    """Bit for bit: the same rows go at the same steps, and the same are counted."""
    table, optimizer = make()
    checkpoints = Checkpoints(tmp_path)
    for step in range(33):
        if step in (20, 26) and way == "incremental":
            checkpoints.save(step, table, optimizer)
        train(table, optimizer, offered(step // 2))
    if way == "copy":
        other, other_optimizer = copy.deepcopy((table, optimizer))
    else:
        other, other_optimizer = make()
        if way == "state_dict":
            other.load_state_dict(copy.deepcopy(table.state_dict()))
            other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        else:
            load_checkpoint(checkpoints.save(33, table, optimizer), other, other_optimizer)
    counts = []
    for one, its in ((table, optimizer), (other, other_optimizer)):
        for step in range(33, 60):
            train(one, its, offered(step // 2))
        counts.append((one.num_rows, one.num_seen, one.num_evicted, one.num_refused, one.memory().dropped))
    assert counts[0] == counts[1]
    assert counts[0][2] > 0
    keys = torch.arange(40_000)
    assert torch.equal(table.contains(keys), other.contains(keys))
    assert_identical(table.lookup(keys), other.lookup(keys))


def test_state_that_does_not_fit_changes_nothing() -> None:
    table, optimizer = with_sketch()
    train(table, optimizer, keys_of(1, 2))
    train(table, optimizer, keys_of(1, 2))
    state = table.state_dict()
    other = HashEmbedding(8, admission=MinCount(2, sketch_bytes=8192), seed=3)
    other(keys_of(5))
    other(keys_of(5))
    with pytest.raises(RuntimeError, match="sketch: uint8"):
        other.load_state_dict(state)
    assert 5 in other
    assert 1 not in other
    with pytest.raises(RuntimeError, match="last_used"):
        table.load_state_dict({**state, "last_used": state["last_used"][:1]})
    assert 1 in table


def test_memory_is_given_back() -> None:
    table, optimizer = dying(eviction=UnusedFor(steps=1, every=1), huge_pages=False)
    train(table, optimizer, torch.arange(400_000))
    before = table.memory()
    train(table, optimizer, keys_of(1))
    optimizer.zero_grad()
    train(table, optimizer, keys_of(1))
    after = table.memory()
    assert table.num_rows == 1
    assert after.rows + after.index < (before.rows + before.index) / 20


def test_uses_of_other_rows_are_refused_whatever_number_of_rows_a_file_names() -> None:
    """The check takes no memory for the rows."""
    config = HashEmbedding(3, eviction=UnusedFor(steps=5)).table.config
    notes = {"clock": np.array([7]), "last_used": np.zeros(3, np.int64), "times_used": np.zeros(3, np.int64)}
    check_state(notes, config, 3)
    with pytest.raises(ValueError, match=r"last_used, times_used: int64 \[100000000000000\] is expected"):
        check_state(notes, config, 10**14)
