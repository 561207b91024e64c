"""The rows of an epoch are dealt to ranks so that each is trained on once, also where their number changes."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegroup.data.log import Log
from sparsegroup.data.memory_log import MemoryLog
from sparsegroup.data.rank_shares import RankShares, Stand


def counting_log(rows: int) -> MemoryLog:
    return MemoryLog("log", ("a",), np.arange(rows)[:, None], np.zeros(rows, np.float32), rows)


def rows_of(log: Log, start: int = 0, stop: int | None = None) -> list[int]:
    """The numbers of rows of a log, in its order."""
    return [row for batch in log.batches(start, len(log) if stop is None else stop, 7) for row in batch.times.tolist()]


@st.composite
def epochs(draw: st.DrawFn) -> tuple[int, int, Sequence[tuple[int, float]]]:
    rows = draw(st.integers(1, 400))
    counts = draw(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), min_size=1, max_size=4))
    return rows, draw(st.sampled_from([0, 1, 10, 1000])), counts


@given(epochs())
@settings(deadline=None, max_examples=60)
def test_each_row_is_trained_on_once(epoch: tuple[int, int, Sequence[tuple[int, float]]]) -> None:
    rows, buffer, counts = epoch
    log, before, trained = counting_log(500), list[Stand](), Counter[int]()
    for ranks, part in counts:
        shares = RankShares(log, rows, ranks, buffer, seed=3, epoch=1, before=tuple(before)).shares
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= max(1, rows // (16 * ranks)) or before
        taken = [int(part * size) for size in sizes]
        for share, count in zip(shares, taken, strict=True):
            trained.update(rows_of(share, 0, count))
        before.append(Stand(taken))
    for share in RankShares(log, rows, 3, buffer, seed=3, epoch=1, before=tuple(before)).shares:
        trained.update(rows_of(share))
    assert trained == Counter(range(rows))


def test_a_share_is_read_from_any_row_on() -> None:
    share = RankShares(counting_log(300), 250, 2, buffer=40, seed=1).shares[1]
    whole = rows_of(share)
    assert whole != sorted(whole)
    assert all(rows_of(share, start, stop) == whole[start:stop] for start, stop in ((0, 5), (39, 81), (100, 125)))


@pytest.mark.parametrize("buffer", [0, 20])
def test_ranks_are_at_the_same_time_of_the_log(buffer: int) -> None:
    shares = RankShares(counting_log(1000), 1000, 4, buffer).shares
    halves = [rows_of(share)[: len(share) // 2] for share in shares]
    assert max(max(half) for half in halves) < 500 + 16 + 4 * buffer


def test_shares_are_shuffled_differently() -> None:
    first, second = (rows_of(share) for share in RankShares(counting_log(64), 64, 2, buffer=32).shares)
    assert [row // 2 for row in first] != [row // 2 for row in second]
