"""Admission and eviction policies from outside the package."""

import copy
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from optimizer_cases import assert_identical
from over import over
from sparsegroup import GroupAdam, GroupSGD, HashEmbedding, MinCount, Probabilistic
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.kernels.cpu import threads
from sparsegroup.table import AdmissionPolicy, EvictionPolicy, RowBlock
from sparsegroup.table.directory.buckets import NEW, OLD
from table_cases import random_keys

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass
class NthOccurrence(AdmissionPolicy):
    """A key gets a row when it comes for the n-th time."""

    n: int

    def admits(self, keys: Int64s, counts: Int64s) -> Bools:
        return counts >= self.n


@dataclass
class SmallNorm(EvictionPolicy):
    """Rows whose vector is shorter than a bound are dropped."""

    bound: float

    def evicts(self, rows: RowBlock) -> Bools:
        return np.linalg.norm(rows.part("weight"), axis=1) < self.bound


class NeverUpdated(EvictionPolicy):
    """Rows that no step has touched since they came are dropped, odd keys always."""

    def evicts(self, rows: RowBlock) -> Bools:
        untouched = (rows.part("u") == 0).all(axis=1) if "u" in rows.parts else np.ones(len(rows), np.bool_)
        return untouched | (rows.keys % 2 == 1)


def keys_of(*keys: int) -> Tensor:
    return torch.tensor(keys, dtype=torch.int64)


def admit_later(n: int = 3, **options: object) -> HashEmbedding:
    return HashEmbedding(4, std=0.5, seed=1, admission=NthOccurrence(n), **options)


@over("admission", [NthOccurrence(3), MinCount(3), MinCount(1)])
def test_a_key_gets_its_row_at_its_nth_occurrence(admission: AdmissionPolicy) -> None:
    table, n = HashEmbedding(4, std=0.5, admission=admission), 1 if admission == MinCount(1) else 3
    for count in range(1, 5):
        vectors = table(keys_of(7, 7, -1))  # twice in one lookup counts once
        expected = table.initial(keys_of(7, 7, -1)) if count >= n else torch.zeros(3, 4)
        assert_identical(vectors.detach(), expected)
        assert (table.num_seen, table.num_rows, table.num_live) == ((2, 2, 2) if count >= n else (2, 0, 0))


def test_evaluation_and_inspection_do_not_count() -> None:
    table = admit_later(2)
    table(keys_of(5))
    table.eval()
    for _ in range(3):
        assert not table(keys_of(5)).any()
        assert not table.lookup(keys_of(5)).any()
    table.train()
    assert table.num_rows == 0
    table(keys_of(5))
    assert table.num_rows == 1


def test_keys_that_wait_get_no_gradient_and_the_others_train_as_ever() -> None:
    table, plain = admit_later(2), HashEmbedding(4, std=0.5, seed=1)
    known, new = random_keys(90).split((50, 40))
    with torch.no_grad():
        table(known)
        table(known)
    optimizers = [GroupAdam(t.parameters(), lr=0.1, l21=0.1) for t in (table, plain)]
    for keys, t, optimizer in ((torch.cat([known, new, known]), table, optimizers[0]), (known, plain, optimizers[1])):
        t(keys)[: len(known)].square().sum().backward()
        assert len(t.weight.grad._indices()[0]) == len(known)
        optimizer.step()
    assert_identical(table.lookup(known), plain.lookup(known))
    assert (table.num_rows, table.num_seen) == (50, 90)


def test_assigned_keys_need_no_admission_and_evicted_ones_wait_again() -> None:
    table = admit_later(2)
    table(keys_of(1, 2))
    table.assign(keys_of(2, 3), torch.ones(2, 4))
    assert table.contains(keys_of(1, 2, 3)).tolist() == [False, True, True]
    assert (table.num_rows, table.num_seen) == (2, 3)
    table.assign(keys_of(2), torch.zeros(1, 4))
    assert table.shrink() == 1
    for rows in (1, 2):
        table(keys_of(2))
        assert (table.num_rows, table.num_seen) == (rows, 3)


def test_max_rows_counts_the_admitted_ones() -> None:
    table = admit_later(2, max_rows=3)
    table(keys_of(1, 2, 3))
    table(keys_of(4, 5, 6, 7))
    with pytest.raises(RuntimeError, match="max_rows=3, it has 0 rows and this lookup brings 4 new keys"):
        table(keys_of(1, 2, 3, 4, 10))
    assert (table.num_rows, table.num_seen) == (0, 7)
    table(keys_of(1, 2, 3))
    assert table.num_rows == 3


@pytest.mark.parametrize("size", [7, 1000])
def test_it_is_what_counting_says(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a plain count, with lookups of more keys than are looked up at a time too."""
    monkeypatch.setattr("sparsegroup.table.lookup.lookup.CHUNK", size)
    table, counts = admit_later(3, field_bits=2), Counter[int]()
    pool, rng = random_keys(300), np.random.default_rng(0)
    for _ in range(20):
        keys = pool[torch.from_numpy(rng.integers(0, 300, 60))]
        counts.update(set(keys.tolist()))
        vectors = table(keys)
        has_row = torch.tensor([counts[key] >= 3 for key in keys.tolist()])
        assert_identical(vectors.detach(), table.initial(keys) * has_row.unsqueeze(1))
        assert table.num_seen == len(counts)
        assert table.num_rows == sum(count >= 3 for count in counts.values())
        fields = table.field_counts().values()
        assert (sum(f.seen for f in fields), sum(f.rows for f in fields)) == (table.num_seen, table.num_rows)


@pytest.fixture
def two_threads() -> Iterator[None]:
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(None)


@pytest.mark.usefixtures("two_threads")
def test_a_prefetch_counts_once() -> None:
    table, keys = admit_later(2), torch.arange(5000)
    for count in (1, 2):
        table.prefetch(keys)
        assert bool(table(keys).any()) == (count == 2)
    assert (table.num_rows, table.num_seen) == (5000, 5000)


@pytest.mark.parametrize("way", ["copy", "pickle", "state dict", "checkpoint", "changes"])
def test_waiting_keys_go_on_waiting(way: str, tmp_path: Path) -> None:
    table, plain = admit_later(3), HashEmbedding(4, std=0.5, seed=1)
    optimizer = GroupSGD(table.parameters(), lr=0.1)
    table(keys_of(1, 2))
    save_checkpoint(tmp_path / "one", table, optimizer, track=True)
    table(keys_of(2, 3))
    other = admit_later(3)
    if way == "copy":
        other = copy.deepcopy(table)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(table))
    elif way == "state dict":
        other.load_state_dict(table.state_dict())
        plain.load_state_dict(table.state_dict())
        plain(keys_of(2, 4))
        assert (plain.num_rows, plain.num_seen) == (2, 4), "without the policy, those that wait are admitted"
    else:
        save_checkpoint(tmp_path / "two", table, optimizer, parent=tmp_path / "one" if way == "changes" else None)
        load_checkpoint(tmp_path / "two", other, GroupSGD(other.parameters(), lr=0.1))
    assert (other.num_rows, other.num_seen) == (0, 3)
    other(keys_of(1, 2, 3, 4))
    assert other.contains(keys_of(1, 2, 3, 4)).tolist() == [False, True, False, False]
    assert other.num_seen == 4


class WrongAnswer(AdmissionPolicy, EvictionPolicy):
    def admits(self, keys: Int64s, counts: Int64s) -> object:
        return counts

    def evicts(self, rows: RowBlock) -> object:
        return np.zeros(3, np.bool_)


def test_wrong_answers_and_wrong_policies_are_refused() -> None:
    table = HashEmbedding(4, admission=WrongAnswer())
    with pytest.raises(ValueError, match=r"WrongAnswer.admits must give bool \[2\], got int64 \[2\]"):
        table(keys_of(1, 2))
    assert (table.num_rows, table.num_seen) == (0, 0)
    table = HashEmbedding(4, eviction=WrongAnswer())
    table(keys_of(1, 2))
    with pytest.raises(ValueError, match=r"WrongAnswer.evicts must give bool \[2\], got bool \[3\]"):
        table.shrink()
    assert table.num_rows == 2
    for name, given in (("admission", "often"), ("eviction", MinCount(2)), ("ranking", MinCount)):
        base = f"{name.capitalize()}Policy"
        with pytest.raises(TypeError, match=f"{name} must be of a class derived from sparsegroup.table.{base}, got"):
            HashEmbedding(4, max_bytes="4MB", **{name: given})


def test_small_rows_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In several blocks; live ones too, which then are not counted as live any more."""
    monkeypatch.setattr("sparsegroup.table.directory.directory.ROWS_AT_A_TIME", 7)
    table = HashEmbedding(2, eviction=SmallNorm(3.0))
    keys = torch.arange(20)
    table.assign(keys, torch.linspace(0, 5, 20).unsqueeze(1) * torch.tensor([[0.6, 0.8]]))
    stays = torch.linspace(0, 5, 20) >= 3
    before = table.lookup(keys)
    assert table.shrink() == int((~stays).sum())
    assert_identical(table.lookup(keys), before * stays.unsqueeze(1))
    assert (table.num_rows, table.num_live, table.num_seen) == (int(stays.sum()), int(stays.sum()), 20)
    table(keys[:1])
    assert_identical(table.lookup(keys[:1]), table.initial(keys[:1]))
    assert table.num_seen == 20


def test_untouched_rows_are_evicted() -> None:
    table = HashEmbedding(2, eviction=NeverUpdated())
    optimizer = GroupAdam(table.parameters(), lr=0.1, l2=0.1)
    table(keys_of(4))
    table(keys_of(1, 2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert table.shrink() == 3
    assert table.contains(keys_of(1, 2, 3, 4)).tolist() == [False, True, False, False]


def test_waiting_features_teach_the_fallback_vector() -> None:
    table = HashEmbedding(4, std=0.5, admission=MinCount(2), fallback=True)
    assert table.fallback is not None
    optimizer = GroupAdam([{"params": [table.weight]}, {"params": [table.fallback]}], lr=0.1)
    (table(torch.arange(10)) - 1).square().sum().backward()
    optimizer.step()
    assert table.num_rows == 0
    assert (table.fallback > 0).all()
    table.eval()
    assert torch.equal(table(torch.tensor([77])), table.fallback)


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
def test_a_share_is_admitted_at_each_occurrence(options: dict[str, object]) -> None:
    table = HashEmbedding(4, admission=Probabilistic(0.25, seed=3), **options)
    keys = random_keys(20_000)
    for count in range(1, 4):
        table(keys)
        assert table.num_rows / len(keys) == pytest.approx(1 - 0.75**count, abs=0.02)
    assert table.num_seen == pytest.approx(len(keys), rel=0.03 if options else 0)


def test_the_seed_decides_which_ones() -> None:
    keys = random_keys(1_000)
    one, same, other, all_of_them = (
        HashEmbedding(4, admission=Probabilistic(p, seed=s)) for p, s in ((0.5, 1), (0.5, 1), (0.5, 2), (1.0, 0))
    )
    for table in (one, other, all_of_them):
        table(keys)
    for part in keys.split(100):
        same(part)
    assert torch.equal(one.contains(keys), same.contains(keys))
    assert not torch.equal(one.contains(keys), other.contains(keys))
    assert all_of_them.num_rows == 1_000
    for p in (0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"p must be in \(0, 1\]"):
            Probabilistic(p)
