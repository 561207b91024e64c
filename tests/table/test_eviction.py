"""Rows that the table drops: zero or unused ones, and those for which there is no room, in loops of all kinds."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from optimizer_cases import assert_identical
from over import over
from sparsegroup import (
    LRU,
    GroupAdagrad,
    GroupAdam,
    GroupOptimizer,
    GroupSGD,
    HashEmbedding,
    MinCount,
    Probabilistic,
    UnusedFor,
)
from sparsegroup.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from sparsegroup.settings.declared import age_of
from sparsegroup.table import RankingPolicy, RowBlock
from sparsegroup.table.directory.admission import OccurrenceSketch
from sparsegroup.table.files.snapshot import check_state
from table_cases import as_keys, everything

LIMIT = 2_000_000
AT_EVERY_STEP = UnusedFor(steps=1, live=True, every=1)
Trained = tuple[HashEmbedding, GroupOptimizer]


def train(table: HashEmbedding, optimizer: GroupOptimizer, keys: Tensor) -> None:
    optimizer.zero_grad()
    table(keys).square().sum().backward()
    optimizer.step()


def dying(**options: Any) -> Trained:
    """A table all of whose rows become zero at their first step."""
    table = HashEmbedding(4, **options)
    return table, GroupAdam(table.parameters(), l21=1e9)


def capped(max_bytes: int = LIMIT, dim: int = 8, **options: Any) -> Trained:
    table = HashEmbedding(dim, max_bytes=max_bytes, huge_pages=False, seed=3, **options)
    return table, GroupAdam(table.parameters(), lr=1e-2)


def full(dim: int = 8, optimizer_class: type[GroupOptimizer] = GroupAdam) -> Trained:
    """A table at its limit."""
    table, _ = capped(dim=dim)
    optimizer = optimizer_class(table.parameters(), lr=1e-2)
    for step in range(30):
        train(table, optimizer, offered(step))
    return table, optimizer


def offered(step: int, count: int = 2_000) -> Tensor:
    return torch.arange(count) + 1_000 * step


# By age


def test_an_age_is_a_number_of_steps_or_a_time() -> None:
    ages = {"90s": 90, " 30 min": 1_800, "12h": 43_200, "7d": 604_800, "2w": 1_209_600}
    assert {given: age_of(given) for given in ages} == {given: {"seconds": seconds} for given, seconds in ages.items()}
    assert [age_of(given) for given in (0, 5000, "5000")] == [{"steps": count} for count in (0, 5000, 5000)]
    for given in (-1, True, 1.5, "", "d", "7 days", "-3h", "1.5h", None):
        with pytest.raises(ValueError, match="wants a number of steps"):
            age_of(given)


@over(("l21", "live", "goes"), [(1e9, False, True), (0.0, False, False), (0.0, True, True)])
def test_rows_go_when_they_have_not_been_seen_for_so_many_steps_and_return_as_new(
    l21: float, live: bool, goes: bool
) -> None:
    """Zero rows do; live rows only if the policy names them."""
    table = HashEmbedding(4, std=0.5, eviction=UnusedFor(steps=3, live=live, every=1))
    optimizer = GroupAdam(table.parameters(), l21=l21)
    train(table, optimizer, as_keys([1, 2]))
    remains = []
    for _ in range(6):
        train(table, optimizer, as_keys([2]))
        remains.append(1 in table)
    assert remains == [True, True, True, *[not goes] * 3]  # steps 2, 3 and 4 went by without it
    assert 2 in table
    assert (table.num_evicted, table.num_seen, table.num_rows) == (int(goes), 2, 2 - goes)
    if goes:
        assert_identical(table(as_keys([1])).detach(), table.initial(as_keys([1])))
        assert table.num_seen == 2


def test_seconds_are_those_that_the_table_is_given() -> None:
    table, optimizer = dying(eviction=UnusedFor(seconds=3600, every=1))
    table.set_time(1_500_000_000)
    for keys in (as_keys([1, 2]), *[as_keys([2])] * 10):
        train(table, optimizer, keys)
    assert 1 in table  # steps are no seconds
    for seconds, remains in ((1_500_003_599, True), (1_500_003_600, False)):
        table.set_time(seconds)
        train(table, optimizer, as_keys([2]))
        assert (1 in table) is remains
    with pytest.raises(ValueError, match="seconds must be in"):
        table.set_time(-1)


def test_a_policy_is_asked_every_so_many_steps_late_rather_than_not_at_all_and_by_shrink() -> None:
    table, optimizer = dying(eviction=UnusedFor(steps=1, every=5))
    rows = []
    for step in range(12):
        train(table, optimizer, as_keys([100 + step]))
        rows.append(table.num_rows)
    assert rows == [1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 2, 3]  # asked after steps 5 and 10: the last one stays
    optimizer.zero_grad()
    assert table.shrink() == 2
    assert table.num_evicted == 9, "what `shrink` drops does not count"
    assert (UnusedFor(steps=2).every, UnusedFor(seconds=40).every) == (1, 10)
    table = HashEmbedding(4, eviction=UnusedFor(steps=5, live=True, every=10))
    optimizer = GroupAdam(table.parameters())
    train(table, optimizer, torch.arange(100))
    for step in range(2, 30):
        held = table(as_keys([500])) if step % 10 in (9, 0) else None
        train(table, optimizer, as_keys([500]))
        del held
    assert table.num_evicted == 100


embedding: Callable[..., HashEmbedding] = partial(HashEmbedding, 8)


@over(
    ("make", "options", "message"),
    [
        (UnusedFor, {"steps": 1, "seconds": 1}, "one of steps and seconds"),
        (UnusedFor, {"steps": 0}, "steps must be in"),
        (UnusedFor, {"seconds": 1 << 32}, "seconds must be in"),
        (UnusedFor, {"steps": 1, "every": 0}, "every must be >= 1"),
        (MinCount, {"k": 0}, "k must be >= 1, got 0"),
        (MinCount, {"k": 2, "sketch_bytes": 100}, "sketch_bytes must be >= 4,096"),
        (MinCount, {"k": 256, "sketch_bytes": 4096}, "k must be <= 255"),
        *((Probabilistic, {"p": p}, r"p must be in \(0, 1\]") for p in (0, 1.5, float("nan"))),
        (embedding, {"max_bytes": 100}, "max_bytes"),
        (embedding, {"max_bytes": "much"}, "200MB"),
        (embedding, {"ranking": LRU()}, "give max_bytes"),
        (embedding, {"max_bytes": LIMIT, "admission": MinCount(300)}, "k must be <= 255"),
        (embedding, {"admission": "often"}, r"admission must be .* derived from sparsegroup.table.AdmissionPolicy"),
        (embedding, {"eviction": MinCount(2)}, r"eviction must be .* sparsegroup.table.EvictionPolicy, got"),
        (embedding, {"max_bytes": "4MB", "ranking": MinCount}, r"ranking must be .* sparsegroup.table.RankingPolicy"),
    ],
)
def test_bad_arguments_are_refused(make: Callable[..., object], options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make(**options)
    assert MinCount(255, sketch_bytes=4096).k == 255  # the highest


# While gradients are due, and from other threads


def test_rows_do_not_go_while_a_gradient_may_come() -> None:
    """A second lookup before the step, and a graph that somebody holds: the rows stay where they are."""
    table, optimizer = dying(eviction=UnusedFor(steps=1, every=1))
    train(table, optimizer, as_keys([1, 2]))
    optimizer.zero_grad()
    waiting = table(as_keys([2])).sum()
    for _ in range(2):
        train(table, optimizer, as_keys([3]))
    assert 1 in table
    waiting.backward()  # not stale
    optimizer.step()
    train(table, optimizer, as_keys([3]))
    assert 1 not in table


def test_a_gradient_of_rows_that_are_no_longer_is_refused() -> None:
    """It is held beyond its step and brought again, when rows have gone."""
    table = HashEmbedding(2, eviction=AT_EVERY_STEP)
    optimizer = GroupSGD(table.parameters(), lr=0.1)
    train(table, optimizer, as_keys([1, 2]))
    old = table.weight.grad
    for key in (3, 4):
        train(table, optimizer, as_keys([key]))
    assert 1 not in table
    table.weight.grad = old
    before = table.lookup(torch.arange(5))
    with pytest.raises(RuntimeError, match="has dropped rows by itself"):
        optimizer.step()
    assert_identical(before, table.lookup(torch.arange(5)))


# Room


HELD: list[Tensor] = []
"""A user's variable that holds the last loss, and with it its graph."""


def twice_with_a_loss_held(table: HashEmbedding, optimizer: GroupOptimizer, keys: Tensor) -> None:
    for number, half in enumerate(keys.chunk(2)):
        HELD[:] = [table(half).square().sum()]
        if number == 0:
            optimizer.zero_grad(set_to_none=False)  # late
        HELD[0].backward()
    optimizer.step()


def without_accumulation(table: HashEmbedding, optimizer: GroupOptimizer, keys: Tensor) -> None:
    (table.weight.grad,) = torch.autograd.grad(table(keys).square().sum(), [table.weight])
    optimizer.step()
    optimizer.zero_grad()


def test_every_loop_makes_room() -> None:
    """The same rows remain after each of them, with the same vectors."""
    found = []
    for loop in (train, twice_with_a_loss_held, without_accumulation):
        table = HashEmbedding(8, max_bytes=LIMIT, huge_pages=False, eviction=UnusedFor(steps=30, every=7), seed=1)
        optimizer = GroupAdam(table.parameters(), lr=1e-2, l21=1e-5)
        for step in range(60):
            loop(table, optimizer, torch.arange(1_000) + 700 * step)
            assert table.memory().total <= LIMIT, loop
        assert table.num_evicted > 10_000
        assert table.contains(torch.arange(1_000) + 700 * 59).all()
        found.append(table.lookup(torch.arange(45_000)))
        torch.testing.assert_close(found[0], found[-1], rtol=1e-5, atol=1e-6, msg=loop.__name__)


@over("ranking", [None, LRU()])
def test_a_limit_is_never_exceeded_and_rows_go_by_rank(ranking: LRU | None) -> None:
    """Zero rows first, then those that came least often (LFU, the default), or that have not come for longest (LRU)."""
    table, optimizer = capped(ranking=ranking, fallback=ranking is not None)
    dead, important, idle = (-torch.arange(1, 3001)).split(1000)
    for _ in range(1 if ranking else 5):
        train(table, optimizer, torch.cat([dead, important]))
    train(table, optimizer, idle)
    table.assign(dead, torch.zeros(1000, 8))
    for step in range(60):
        keys = offered(step)
        train(table, optimizer, torch.cat([keys, important]) if ranking else keys)
        seen = 1_000 * step + 5_000
        assert table.memory().total <= LIMIT, step
        assert abs(table.num_seen - seen) <= 0.05 * seen
        assert table.contains(idle).all() or not table.contains(dead).any()
    assert table.contains(important).all()
    assert not table.contains(idle).any()
    assert table.num_evicted > 20_000
    assert table.num_rows > 0.6 * LIMIT / 160  # what there is room for is used
    assert table.num_evicted + table.num_rows + table.num_refused >= seen


class Periodic(RankingPolicy):
    """Every 16th row is of low rank."""

    def ranks(self, rows: RowBlock) -> np.ndarray[Any, Any]:
        return np.where(rows.keys % 16 == 0, 1, 100).astype(np.int64)


def test_rows_in_a_pattern_go_as_many_as_are_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """In several blocks, of which each has both ranks."""
    monkeypatch.setattr("sparsegroup.table.directory.directory.ROWS_AT_A_TIME", 5_000)
    table, step, before = HashEmbedding(1, max_bytes=LIMIT, huge_pages=False, ranking=Periodic()), 0, 0
    optimizer = GroupSGD(table.parameters())
    while not table.num_evicted:
        before = table.num_rows
        train(table, optimizer, torch.arange(500) + 500 * step)
        step += 1
    assert before > 10_000
    assert 0.08 * before < table.num_evicted < 0.14 * before


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


def test_vectors_that_are_set_or_loaded_leave_room_for_their_state() -> None:
    table, optimizer = capped()
    with pytest.raises(RuntimeError, match="within max_bytes=2,000,000 there is room for"):
        table.assign(torch.arange(20_000), torch.ones(20_000, 8))
    assert table.num_rows == 0
    table.assign(torch.arange(5_000), torch.ones(5_000, 8))
    large = HashEmbedding(8)
    large(torch.arange(100_000))
    with pytest.raises(RuntimeError, match="100,000 are to be set; none was"):
        table.load_state_dict(large.state_dict())
    assert (table.num_rows, table.num_seen) == (5_000, 5_000)
    train(table, optimizer, torch.arange(5_000))
    assert table.memory().total <= LIMIT


@over("dim", [1, 8])
def test_a_regularizer_that_comes_late_finds_room_for_u_and_copies_stay_within_the_limit(dim: int) -> None:
    table, optimizer = full(dim)
    copies = [copy.deepcopy(table)]
    for model_first in (True, False):
        other, its = capped(dim=dim)
        loads = [(other, table), (its, optimizer)]
        for target, source in loads if model_first else loads[::-1]:
            target.load_state_dict(copy.deepcopy(source.state_dict()))  # type: ignore[attr-defined]
            assert other.memory().total <= LIMIT, model_first
        copies.append(other)
    for other in copies:
        assert other.memory().total <= LIMIT
        assert_identical(other.lookup(torch.arange(50_000)), table.lookup(torch.arange(50_000)))
    optimizer.param_groups[0]["l21"] = 1e-6
    train(table, optimizer, torch.arange(500))
    assert "u" in table.memory().parts
    assert table.memory().total <= LIMIT


def test_an_optimizer_with_more_state_is_refused_where_there_is_no_room_for_it() -> None:
    table, _ = full(optimizer_class=GroupAdagrad)
    other = GroupAdam(table.parameters(), l21=1e-6)
    with pytest.raises(RuntimeError, match=r"max_bytes=2,000,000 are enough for [\d,]+ rows, and the table has"):
        train(table, other, torch.arange(50))
    assert table.memory().total <= LIMIT
    assert "exp_avg" not in table.memory().parts


# Copies and checkpoints


def by_age() -> Trained:
    """With keys that wait, counted exactly."""
    return dying(admission=MinCount(2), eviction=UnusedFor(steps=4, every=3))


def with_sketch() -> Trained:
    return capped(1_500_000, admission=MinCount(2))


@pytest.mark.parametrize(
    ("make", "way"),
    [(by_age, "copy"), (by_age, "incremental"), (with_sketch, "state_dict"), (with_sketch, "incremental")],
)
def test_training_goes_on_the_same_after_a_copy(make: Callable[[], Trained], way: str, tmp_path: Path) -> None:
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
        noted = {name: note.tolist() for name, note in one.table.directory.occurrences.content().items()}
        counts.append((one.num_rows, one.num_seen, one.num_evicted, one.num_refused, noted))
    assert counts[0] == counts[1]
    assert counts[0][2] > 0
    keys = torch.arange(40_000)
    assert torch.equal(table.contains(keys), other.contains(keys))
    assert_identical(table.lookup(keys), other.lookup(keys))


def test_incremental_checkpoints_know_what_came_and_went(tmp_path: Path) -> None:
    """A key that was looked up but not stepped with, and one that came and went in between."""
    table, other = (HashEmbedding(4, eviction=UnusedFor(steps=3, live=True, every=1)) for _ in range(2))
    optimizer = GroupAdam(table.parameters())
    checkpoints = Checkpoints(tmp_path)
    train(table, optimizer, torch.arange(100))
    checkpoints.save(1, table, optimizer)
    train(table, optimizer, torch.arange(1, 101))  # 100 comes
    for _ in range(5):
        with torch.no_grad():
            table(as_keys([1]))
        train(table, optimizer, torch.arange(2, 100))
    assert 1 in table
    assert 100 not in table
    load_checkpoint(checkpoints.save(2, table, optimizer), other, GroupAdam(other.parameters()))
    assert_identical(other.state_dict(), table.state_dict())
    assert table.num_seen == other.num_seen == 101


class NoMemory(RankingPolicy):
    """A ranking for which there is no memory."""

    def ranks(self, rows: RowBlock) -> Any:
        raise MemoryError("no memory for ranks")


def test_a_larger_checkpoint_is_cut_to_the_limit_or_changes_nothing(tmp_path: Path) -> None:
    large = HashEmbedding(8, seed=3, huge_pages=False)
    optimizer = GroupAdam(large.parameters(), lr=0.5)
    train(large, optimizer, torch.arange(40_000))
    train(large, optimizer, torch.arange(1_000))
    save_checkpoint(tmp_path / "large", large, optimizer)
    table, own = capped()
    load_checkpoint(tmp_path / "large", table, own)
    assert table.memory().total <= LIMIT
    assert table.num_evicted == 40_000 - table.num_rows
    assert table.num_seen == pytest.approx(40_000, rel=0.03)

    table, own = capped(ranking=NoMemory())
    train(table, own, torch.arange(5))
    before = everything(table, own)
    with pytest.raises(MemoryError, match="no memory for ranks"):
        load_checkpoint(tmp_path / "large", table, own)
    assert_identical(everything(table, own), before)
    train(table, own, torch.arange(5))


def test_keys_that_waited_elsewhere_are_admitted_without_the_policy_and_not_remembered_under_a_limit() -> None:
    waiting = HashEmbedding(8, admission=MinCount(2))
    waiting(torch.arange(200_000))
    (table, _), plain = capped(), HashEmbedding(8)
    for other in (table, plain):
        other.load_state_dict(waiting.state_dict())
    assert table.memory().total <= LIMIT
    assert table.num_seen == pytest.approx(200_000, rel=0.03)
    plain(as_keys([2, -1]))
    assert (plain.num_rows, plain.num_seen) == (2, 200_001)


@over(
    ("changes", "message"),
    [
        ({"clock": torch.zeros(0, dtype=torch.int64)}, "clock: 1 number"),
        ({"clock": torch.tensor([1 << 40])}, "clock: numbers from 0"),
        ({"last_used": None}, "are also needed"),
        ({"last_used": torch.zeros(1, dtype=torch.int64)}, "last_used"),
        ({"counters": torch.tensor([1])}, "counters: 4 number"),
        ({"sketch": torch.zeros(OccurrenceSketch.shape(8192), dtype=torch.uint8)}, r"sketch: uint8 .* the size it had"),
    ],
)
def test_notes_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    options = {"admission": MinCount(1, sketch_bytes=4096)} if "sketch" in changes else {}
    table = HashEmbedding(4, eviction=UnusedFor(steps=1), **options)
    train(table, GroupAdam(table.parameters()), torch.arange(3))
    state = {name: value for name, value in {**table.state_dict(), **changes}.items() if value is not None}
    with pytest.raises(RuntimeError, match=message):
        table.load_state_dict(state)
    assert table.num_rows == 3


def test_uses_of_other_rows_are_refused_whatever_number_of_rows_a_file_names() -> None:
    """The check takes no memory for the rows."""
    config = HashEmbedding(3, eviction=UnusedFor(steps=5)).table.config
    notes = {"clock": np.array([7]), "last_used": np.zeros(3, np.int64), "times_used": np.zeros(3, np.int64)}
    check_state(notes, config, 3)
    with pytest.raises(ValueError, match=r"last_used, times_used: int64 \[100000000000000\] is expected"):
        check_state(notes, config, 10**14)
