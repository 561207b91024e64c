"""The rows of an epoch are dealt to ranks so that each is trained on once, also where their number changes."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsegroup.data.batches import Batch
from sparsegroup.data.log import Log, LogView, MemoryLog
from sparsegroup.data.order import RankShares, ShuffledLog, Stand


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


def trained_on(log: Log, rows: int, buffer: int, counts: Sequence[tuple[int, float]]) -> Counter[int]:
    """How often each row is trained on, by several numbers of ranks, each through a part of what it is dealt, and 3."""
    before, trained = list[Stand](), Counter[int]()
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
    return trained


@given(epochs())
@settings(max_examples=60)
def test_each_row_is_trained_on_once(epoch: tuple[int, int, Sequence[tuple[int, float]]]) -> None:
    rows, buffer, counts = epoch
    assert trained_on(counting_log(500), rows, buffer, counts) == Counter(range(rows))


def test_a_share_is_read_from_any_row_on() -> None:
    share = RankShares(counting_log(300), 250, 2, buffer=40, seed=1).shares[1]
    whole = rows_of(share)
    assert whole != sorted(whole)
    assert all(rows_of(share, start, stop) == whole[start:stop] for start, stop in ((0, 5), (39, 81), (100, 125)))


@pytest.mark.parametrize("buffer", [0, 20])
def test_ranks_are_at_the_same_time_of_the_log(buffer: int) -> None:
    shares = RankShares(counting_log(1000), 1000, 4, buffer).shares
    halves = [rows_of(share)[: len(share) // 2] for share in shares]
    assert max(max(half) for half in halves) <= 500 + 4 * (16 + buffer)


def test_shares_are_shuffled_differently() -> None:
    first, second = (rows_of(share) for share in RankShares(counting_log(64), 64, 2, buffer=32).shares)
    assert [row // 2 for row in first] != [row // 2 for row in second]


class Chunked(LogView):
    """A log that is read in chunks."""

    def __init__(self, log: Log, chunk: int) -> None:
        super().__init__(log)
        self.chunk = chunk

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        return self.log.batches(start, stop, size)

    def cuts(self, longest: int) -> np.ndarray:
        return np.arange(0, len(self), self.chunk)


@given(epochs(), st.integers(1, 300))
@settings(max_examples=40)
def test_the_same_of_a_log_that_is_read_in_chunks(
    epoch: tuple[int, int, Sequence[tuple[int, float]]], chunk: int
) -> None:
    rows, buffer, counts = epoch
    assert trained_on(Chunked(counting_log(500), chunk), rows, buffer, counts) == Counter(range(rows))


@pytest.mark.parametrize("buffer", [0, 20])
@pytest.mark.parametrize("ranks", [2, 7])
def test_ranks_stay_at_the_same_time_where_their_number_changes(buffer: int, ranks: int) -> None:
    log = Chunked(counting_log(4_000), 10)
    before = (Stand([300] * 4), Stand([200] * 3))
    shares = RankShares(log, 4_000, ranks, buffer, before=before).shares
    whole = [rows_of(share) for share in shares]
    assert max(map(len, whole)) - min(map(len, whole)) <= 0.05 * 2_200 / ranks + 1
    for place in range(0, min(map(len, whole)) - 10, 10):
        now = [sorted(rows[place : place + 10])[5] for rows in whole]
        assert max(now) - min(now) <= 150 + ranks * (10 + 2 * buffer)
    assert min(map(min, whole)) >= 1_800 - 7 * (10 + 2 * buffer)


def test_blocks_that_had_been_begun_come_first() -> None:
    log, begun = counting_log(400), list[int]()
    for share in RankShares(log, 400, 2, buffer=50, seed=1).shares:
        assert isinstance(share, ShuffledLog)
        begun += rows_of(share, 60, next(edge for edge in share.edges if edge >= 60))
    (rest,) = RankShares(log, 400, 1, buffer=50, seed=1, before=(Stand((60, 60)),)).shares
    assert rows_of(rest)[: len(begun)] == begun != []
