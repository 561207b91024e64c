"""What a table knows of keys in memory that does not grow: how many there were, and how often each has come."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from over import over
from sparsegroup import HashEmbedding, MinCount
from sparsegroup.table.directory.admission import OccurrenceSketch
from sparsegroup.table.directory.seen import HyperLogLog
from table_cases import random_keys

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


def test_a_sketch_never_counts_too_few() -> None:
    sketch, rng, exact = OccurrenceSketch(1 << 16), np.random.default_rng(0), np.zeros(3_000, np.int64)
    for _ in range(4):  # 12,000 occurrences: less than a row's counters, so that nothing is halved
        distinct = np.unique(rng.choice(3_000, 3_000, replace=True))
        counts = sketch.stored(distinct)
        assert (counts >= exact[distinct]).all()
        note(sketch, distinct, counts + 1)
        exact[distinct] += 1
    assert (sketch.stored(np.arange(3_000)) == exact).mean() > 0.99
    note(sketch, np.array([5]), np.array([10**9]))
    assert sketch.stored(np.array([5])).tolist() == [255], "counters stop at their highest"


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
