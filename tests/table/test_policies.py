"""Admission and eviction policies, also from outside the package, against plain counts; sketches of what came."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from optimizer_cases import assert_identical
from over import over
from sparsegroup import GroupAdam, HashEmbedding, MinCount, Probabilistic
from sparsegroup.table import AdmissionPolicy, Candidates, EvictionPolicy, RowBlock
from sparsegroup.table.directory.admission import OccurrenceSketch
from sparsegroup.table.directory.buckets import NEW, OLD
from sparsegroup.table.directory.seen import HyperLogLog
from table_cases import as_keys, everything, random_keys

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass
class NthOccurrence(AdmissionPolicy):
    """A key gets a row when it comes for the n-th time."""

    n: int

    def admits(self, candidates: Candidates) -> Bools:
        return candidates.counts >= self.n


@dataclass
class SmallNorm(EvictionPolicy):
    """Rows whose vector is shorter than a bound are dropped, and key 19 always."""

    bound: float

    def evicts(self, rows: RowBlock) -> Bools:
        assert rows.parts == ("weight",)
        return (np.linalg.norm(rows.part("weight"), axis=1) < self.bound) | (rows.keys == 19)


class WrongAnswer(AdmissionPolicy, EvictionPolicy):
    def admits(self, candidates: Candidates) -> object:
        return candidates.counts

    def evicts(self, rows: RowBlock) -> object:
        return np.zeros(3, np.bool_)


def admit_later(n: int = 2, **options: object) -> HashEmbedding:
    return HashEmbedding(4, std=0.5, seed=1, admission=NthOccurrence(n), **options)


@over("admission", [NthOccurrence(3), MinCount(3)])
def test_a_key_gets_its_row_at_its_nth_occurrence_in_training(admission: AdmissionPolicy) -> None:
    """Against a plain count. Two occurrences in one lookup count once."""
    table, counts = HashEmbedding(4, std=0.5, admission=admission, field_bits=2), Counter[int]()
    pool, rng = random_keys(300), np.random.default_rng(0)
    for _ in range(20):
        keys = pool[torch.from_numpy(rng.integers(0, 300, 60))]
        counts.update(set(keys.tolist()))
        vectors = table(keys)
        has_row = torch.tensor([counts[key] >= 3 for key in keys.tolist()])
        expected = table.initial(keys) * has_row.unsqueeze(1)
        for found in (vectors.detach(), table.lookup(keys), table.eval()(keys).detach()):
            assert_identical(found, expected)
        table.train()
        assert table.num_seen == len(counts)
        assert table.num_rows == sum(count >= 3 for count in counts.values())
        fields = table.field_counts().values()
        assert (sum(f.seen for f in fields), sum(f.rows for f in fields)) == (table.num_seen, table.num_rows)


def test_keys_that_wait_get_no_gradient_and_the_others_train_as_ever() -> None:
    table, plain = admit_later(), HashEmbedding(4, std=0.5, seed=1)
    known, new = random_keys(90).split((50, 40))
    with torch.no_grad():
        table(known)
        table(known)
    for keys, one in ((torch.cat([known, new, known]), table), (known, plain)):
        optimizer = GroupAdam(one.parameters(), lr=0.1, l21=0.1)
        one(keys)[: len(known)].square().sum().backward()
        assert len(one.weight.grad._indices()[0]) == len(known)
        optimizer.step()
    assert_identical(table.lookup(known), plain.lookup(known))
    assert (table.num_rows, table.num_seen) == (50, 90)


def test_assigned_keys_need_no_admission_and_evicted_ones_wait_again() -> None:
    table = admit_later()
    table(as_keys([1, 2]))
    table.assign(as_keys([2, 3]), torch.ones(2, 4))
    assert table.contains(as_keys([1, 2, 3])).tolist() == [False, True, True]
    assert (table.num_rows, table.num_seen) == (2, 3)
    table.assign(as_keys([2]), torch.zeros(1, 4))
    assert table.shrink() == 1
    for rows in (1, 2):
        table(as_keys([2]))
        assert (table.num_rows, table.num_seen) == (rows, 3)


def test_wrong_answers_are_refused() -> None:
    table = HashEmbedding(4, admission=WrongAnswer())
    with pytest.raises(ValueError, match=r"WrongAnswer.admits must give bool \[2\], got int64 \[2\]"):
        table(as_keys([1, 2]))
    assert (table.num_rows, table.num_seen) == (0, 0)
    table = HashEmbedding(4, eviction=WrongAnswer())
    table(as_keys([1, 2]))
    with pytest.raises(ValueError, match=r"WrongAnswer.evicts must give bool \[2\], got bool \[3\]"):
        table.shrink()
    assert table.num_rows == 2


class Refusing(EvictionPolicy):
    """Raises, until it is told otherwise."""

    every, unit, fails = 1, "steps", True

    def evicts(self, rows: RowBlock) -> Bools:
        if self.fails:
            raise ArithmeticError("of the policy")
        return rows.keys < 3


def test_a_policy_that_raises_in_a_lookup_changes_nothing_and_is_called_again() -> None:
    policy = Refusing()
    table = HashEmbedding(3, eviction=policy)
    optimizer = GroupAdam(table.parameters())
    table(torch.arange(8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    before = everything(table, optimizer)
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="of the policy"):
            table(torch.arange(5, 20))
        assert_identical(everything(table, optimizer), before)
    policy.fails = False
    table(torch.arange(5, 20))
    assert (table.num_rows, table.num_evicted) == (17, 3)


def test_small_rows_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In several blocks; live ones too, which then are not counted as live any more."""
    monkeypatch.setattr("sparsegroup.table.directory.directory.ROWS_AT_A_TIME", 7)
    table = HashEmbedding(2, eviction=SmallNorm(3.0))
    keys, norms = torch.arange(20), torch.linspace(0, 5, 20)
    table.assign(keys, norms.unsqueeze(1) * torch.tensor([[0.6, 0.8]]))
    stays, before = (norms >= 3) & (keys != 19), table.lookup(keys)
    assert table.shrink() == int((~stays).sum())
    assert_identical(table.lookup(keys), before * stays.unsqueeze(1))
    assert (table.num_rows, table.num_live, table.num_seen) == (int(stays.sum()), int(stays.sum()), 20)


def test_many_waiting_keys_are_found_as_fast_as_few_and_admitted_ones_are_forgotten() -> None:
    """Their index goes on growing as they come; where it did not, a lookup took as long as there were keys."""
    table, keys = HashEmbedding(4, admission=MinCount(2), huge_pages=False), torch.arange(400_000) * 977
    for part in keys.split(100_000):
        table(part)
        old, new = table.table.directory.occurrences._index.state[[OLD, NEW]]
        assert old == new
    assert 24 < table.table.directory.occurrences.nbytes / 400_000 < 48
    waiting = table.memory().dropped
    table(keys[:396_000])
    assert table.num_rows == 396_000
    assert table.memory().dropped < waiting / 10
    table(keys[396_000:])
    assert table.num_rows == table.num_seen == 400_000


@over("options", [{}, {"max_bytes": "20MB", "huge_pages": False}])
def test_a_share_is_admitted_at_each_occurrence_and_the_seed_decides_which(options: dict[str, object]) -> None:
    keys = random_keys(20_000)
    table, same, other = (HashEmbedding(4, admission=Probabilistic(0.25, seed=s), **options) for s in (3, 3, 4))
    for count in range(1, 4):
        for one in (table, same, other):
            one(keys.flip(0) if one is same else keys)
        assert table.num_rows / len(keys) == pytest.approx(1 - 0.75**count, abs=0.02)
        assert torch.equal(table.contains(keys), same.contains(keys))
        assert not torch.equal(table.contains(keys), other.contains(keys))
    assert table.num_seen == pytest.approx(len(keys), rel=0.03 if options else 0)


def test_max_rows_counts_the_admitted_ones() -> None:
    table = admit_later(max_rows=3)
    table(as_keys([1, 2, 3]))
    table(as_keys([4, 5, 6, 7]))
    with pytest.raises(RuntimeError, match="max_rows=3, it has 0 rows and this lookup brings 4 new keys"):
        table(as_keys([1, 2, 3, 4, 10]))
    assert (table.num_rows, table.num_seen) == (0, 7)
    table(as_keys([1, 2, 3]))
    assert table.num_rows == 3


# What a table knows of keys in memory that does not grow: how many there were, and how often each has come


ERROR = 1.04 / HyperLogLog.shape(0)[1] ** 0.5


@over("count", [0, 1, 10, 1_000, 300_000])
def test_distinct_keys_are_counted_within_three_errors(count: int) -> None:
    counter = HyperLogLog(0)
    keys = random_keys(count, count).numpy()
    counter.add(keys)
    assert abs(counter.total(0) - count) <= max(3 * ERROR * count, 0.5)
    before = counter.total(0)
    counter.add(keys[: count // 2])  # again
    assert counter.total(0) == before


def test_the_error_is_what_is_said() -> None:
    """Over many sets of keys: standard deviation and bias of the relative error."""
    errors = []
    for seed in range(60):
        counter = HyperLogLog(0)
        counter.add(np.random.default_rng(seed).integers(-(2**63), 2**63, 20_000))
        errors.append(counter.total(0) / 20_000 - 1)
    assert np.std(errors) < 1.3 * ERROR
    assert abs(np.mean(errors)) < 3 * ERROR / np.sqrt(60)
    assert pytest.approx(0.008, abs=2e-4) == ERROR
    assert pytest.approx(0.016, abs=4e-4) == 1.04 / HyperLogLog.shape(8)[1] ** 0.5


def test_a_limited_table_counts_features_by_field() -> None:
    table, counter = HashEmbedding(8, max_bytes="4MB", field_bits=4, huge_pages=False), HyperLogLog(4)
    low = random_keys(60_000, 3) & ((1 << 60) - 1)
    for field, count in ((1, 300), (2, 40_000), (15, 5_000)):
        keys = low[:count] | ((field << 60) - (1 << 64) * (field > 7))
        table(keys)
        counter.add(keys.numpy())
    seen, counts = counter.estimates(), table.field_counts()
    np.testing.assert_allclose(seen[[1, 2, 15]], [300, 40_000, 5_000], rtol=0.06)
    assert np.flatnonzero(seen).tolist() == [1, 2, 15] == sorted(counts)
    assert counter.total(0) == round(seen.sum()) == table.num_seen
    assert [counts[field].seen for field in (1, 2, 15)] == pytest.approx(seen[[1, 2, 15]], abs=1)
    assert sum(count.rows for count in counts.values()) == table.num_rows < 40_000


# Occurrences


def false_positive_rate(distinct: int, width: int) -> float:
    """As `OccurrenceSketch` says."""
    return float((1 - np.exp(-distinct / width)) ** 4)


def note(sketch: OccurrenceSketch, keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
    sketch.note(keys, counts, np.zeros(len(keys), np.bool_))


@over("load", [0.25, 1.0])
def test_false_positives_are_as_many_as_is_said(load: float) -> None:
    width = 1 << 14
    sketch, count = OccurrenceSketch(4 * width), int(load * width) - 1
    keys = random_keys(count + 100_000, 7).numpy()
    note(sketch, keys[:count], np.ones(count, np.int64))
    found = float((sketch.stored(keys[count:]) > 0).mean())
    assert found == pytest.approx(false_positive_rate(count, width), rel=0.15, abs=1e-3)


def test_a_sketch_forgets() -> None:
    """It is halved after as many occurrences as a row has counters: a stream of new keys does not fill it."""
    width = 1 << 12
    sketch, often, admitted = OccurrenceSketch(4 * width), np.arange(10) + (1 << 40), []
    note(sketch, often, np.full(10, 6))
    for batch in range(50):
        keys = random_keys(512, 1000 + batch).numpy()
        counts = sketch.stored(keys)
        admitted.append((counts > 0).mean())
        note(sketch, keys, counts + 1)
    assert np.mean(admitted) < false_positive_rate(width, width)
    assert (sketch.stored(often) < 6).all()


def test_a_sketch_admits_as_exact_counts_do_while_it_is_large_and_never_late() -> None:
    exact, large, small = (HashEmbedding(4, seed=1, admission=MinCount(2, size)) for size in (None, 1 << 22, 4096))
    rng = np.random.default_rng(3)
    for step in range(30):
        keys = torch.from_numpy(rng.zipf(1.3, 500).astype(np.int64))
        torch.testing.assert_close(exact(keys), large(keys), rtol=0, atol=0)
        if step < 2:  # 1,000 occurrences: not halved yet
            small(keys)
            assert small.contains(keys[exact.contains(keys)]).all()
    assert exact.num_rows == large.num_rows > 0
    assert large.num_seen == pytest.approx(exact.num_seen, rel=0.03)
    assert small.memory().dropped == 4096 + (1 << 14)  # and the count of distinct keys
