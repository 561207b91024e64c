"""The index against keys that somebody has chosen so that they collide."""

import numpy as np
import pytest
from numba import njit

from over import over
from sparsegroup.table.directory.buckets import hash_of, home, mixed, secret_of
from sparsegroup.table.directory.index import Index, Removal
from sparsegroup.table.sharded.routing import Routing, Sorter

NO_SECRET = (0, 1)
"""With which the hash of a key is what the mixing makes of it, which everybody can read."""

COUNT = 20_000


def _inverse(value: np.ndarray) -> np.ndarray:
    """The keys that the public mixing makes `value`, uint64, of: what an attacker works out."""
    with np.errstate(over="ignore"):
        for factor in (0xC4CEB9FE1A85EC53, 0xFF51AFD7ED558CCD):
            value = value ^ (value >> np.uint64(33))
            value = value * np.uint64(pow(factor, -1, 1 << 64))
        return (value ^ (value >> np.uint64(33))).view(np.int64)


@njit
def _hash_all(keys: np.ndarray, state: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(keys)):
        out[i] = hash_of(keys[i], secret_of(state))


def _distinct_homes(index: Index, keys: np.ndarray) -> int:
    hashes = np.empty_like(keys)
    _hash_all(keys, index.state, hashes)
    return len(np.unique((hashes * index.buckets) >> 32))


@over("shift", [0, 16, 32])
def test_keys_chosen_for_one_home_or_neighbouring_ones_spread_as_any_do(shift: int) -> None:
    wanted = np.arange(COUNT, dtype=np.uint64) << np.uint64(shift)
    keys, random = _inverse(wanted), np.random.default_rng(0).integers(-(2**63), 2**63, COUNT)
    np.testing.assert_array_equal(mixed(keys), wanted)
    without = Index(huge_pages=False, buckets=10_000, secret=NO_SECRET)
    assert _distinct_homes(without, keys) < 200  # so they would crowd
    index = Index(huge_pages=False, buckets=10_000)
    assert _distinct_homes(index, keys) > 0.9 * _distinct_homes(index, random)


@over("place", [0, 1, 2, 99])
def test_a_key_that_is_there_already_is_named_and_those_before_it_are_added(place: int) -> None:
    keys, index = np.arange(100) * 7919, Index(huge_pages=False)
    index.reserve(101)
    index.insert(keys[[place]], np.array([500]))
    with pytest.raises(ValueError, match=f"key {keys[place]} appears twice"):
        index.insert(keys, np.arange(100))
    np.testing.assert_array_equal(index.find(keys)[: place + 1], [*range(place), 500])
    assert (index.find(keys)[place + 1 :] == -1).all()


@over("count", [0, 1, 63, 64, 65, 40_000])
@over("share", [0.0, 0.1, 0.7, 1.0])
def test_an_index_loses_rows_in_place(count: int, share: float) -> None:
    """What stays is found at its new number, what goes is not found, and new keys can come; also while it grows."""
    rng = np.random.default_rng(count)
    keys = rng.permutation(np.arange(10 * count, dtype=np.int64))[:count] * 7919 - 3
    index = Index(huge_pages=False)
    index.reserve(count)
    index.insert(keys, np.arange(count))
    kept = rng.random(count) < share
    buckets = index.buckets
    removal = Removal(index, kept)
    gone, rows = removal.keys, removal.rows
    removal.run()
    assert (index.num_keys, index.buckets) == (kept.sum(), buckets)
    np.testing.assert_array_equal(keys[rows], gone)
    np.testing.assert_array_equal(np.sort(rows), np.flatnonzero(~kept))
    np.testing.assert_array_equal(index.find(keys[kept]), np.arange(kept.sum()))
    assert (index.find(keys[~kept]) == -1).all()
    index.reserve(count)
    index.insert(gone, np.arange(len(gone)) + index.num_keys)
    assert (index.find(keys) >= 0).all()


def test_keys_that_crowd_are_found_in_a_copy_and_after_a_removal() -> None:
    keys = _inverse(np.arange(300, dtype=np.uint64) * np.uint64(2**64 // 40 // 300))
    index = Index(huge_pages=False, secret=NO_SECRET)  # in which they have few homes, and are stored far behind them
    index.insert(keys, np.arange(300))
    np.testing.assert_array_equal(index.with_buckets(index.buckets * 2).find(keys), np.arange(300))
    kept = np.arange(300) % 2 == 0
    Removal(index, kept).run()
    np.testing.assert_array_equal(index.find(keys[kept]), np.arange(150))
    assert (index.find(keys[~kept]) == -1).all()


@over("crowd", [1, 5, 300, 3_000])
def test_an_index_grows_behind_keys_that_crowd_at_its_end(crowd: int) -> None:
    """The last home is theirs, so that they fill a run of buckets behind it, which growing moves."""
    last = _inverse(np.uint64(2**64 - 1) - np.arange(crowd, dtype=np.uint64))
    keys = np.concatenate([last, np.random.default_rng(crowd).integers(-(2**63), 2**63, COUNT)])
    index = Index(huge_pages=False, secret=NO_SECRET)
    for start in range(0, len(keys), 500):
        some = keys[start : start + 500]
        index.reserve(start + len(some))
        index.insert(some, np.arange(start, start + len(some)))
        index.settle(len(some))
        np.testing.assert_array_equal(index.find(last[:start]), np.arange(min(start, crowd)))
    np.testing.assert_array_equal(index.find(keys), np.arange(len(keys)))


@njit
def _homes(hashes: np.ndarray, old: int, new: int, frontier: int, out: np.ndarray) -> None:
    for i in range(len(hashes)):
        out[i] = home(hashes[i], (old, new, frontier))


@over("buckets", [1024, 2**31 - 1, 2**31, 2**31 + 2**30, 2**32])
def test_homes_of_an_index_of_any_size(buckets: int) -> None:
    old, frontier = buckets * 4 // 5, buckets // 3
    at_frontier = -(-(frontier << 32) // old)
    hashes = np.array([0, 1, 2**16, at_frontier - 1, at_frontier, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])
    found = np.empty(len(hashes), np.int64)
    _homes(hashes, old, buckets, frontier, found)
    expected = [(h * old >> 32) if h * old >> 32 < frontier else h * buckets >> 32 for h in hashes.tolist()]
    assert found.tolist() == expected
    assert expected[-1] == buckets - 1


def test_distinct_keys_come_in_order_of_appearance_whatever_share_of_the_batch_before_was_distinct() -> None:
    rng, sorter = np.random.default_rng(0), Sorter(Routing(1), scratch_bytes=1 << 30)
    for size, different in [
        (5000, 1),
        (5000, 4000),
        (8, 8),
        (20_000, 10**9),
        (0, 1),
        (20_000, 3),
        (3000, 10**9),
        (1, 1),
    ]:
        keys = rng.integers(0, different, size) - 1
        plan = sorter.sort(keys)
        np.testing.assert_array_equal(plan.keys, list(dict.fromkeys(keys.tolist())))
        np.testing.assert_array_equal(plan.keys[plan.inverse], keys)
