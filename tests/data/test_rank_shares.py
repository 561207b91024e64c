"""The rows of an epoch are dealt to ranks so that each is trained on once, also where their number changes."""

import gzip
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_cases import CSV, HEADER, good_rows, write, written
from over import over
from sparsegroup.data import Log, LogView, MemoryLog, open_log, prepare
from sparsegroup.data.batches import Batch
from sparsegroup.data.order import LogPart
from sparsegroup.data.raw import columnar, encode
from sparsegroup.training.plan import EarlierRanks, EpochPlan, RankRows


def counting_log(rows: int) -> MemoryLog:
    return MemoryLog("log", ("a",), np.arange(rows)[:, None], np.zeros(rows, np.float32), rows)


class Chunked(LogView):
    """A log that is read in chunks."""

    def __init__(self, log: Log, chunk: int) -> None:
        super().__init__(log)
        self.chunk = chunk

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        return self.log.batches(start, stop, size)

    def chunk_starts(self) -> np.ndarray:
        return np.arange(0, len(self), self.chunk)


def steps_of(
    log: Log, plan: EpochPlan, ranks: int, step: int = 0, before: Sequence[EarlierRanks] = ()
) -> list[list[list[int]]]:
    """The row numbers of each batch, from a step on, of each rank."""
    return [
        [batch.times.tolist() for batch in RankRows(plan, log, rank, ranks).of_epoch(1, step, before)]
        for rank in range(ranks)
    ]


@st.composite
def epochs(draw: st.DrawFn) -> tuple[EpochPlan, int, list[tuple[int, float]]]:
    plan = EpochPlan(draw(st.integers(1, 400)), 17, shuffle_buffer=draw(st.sampled_from([0, 1, 10, 1000])), seed=3)
    counts = draw(st.lists(st.tuples(st.integers(1, 5), st.floats(0, 1)), min_size=1, max_size=4))
    return plan, draw(st.sampled_from([1, 7, 50, 300])), counts


@given(epochs())
@settings(max_examples=30)
def test_each_row_is_trained_on_once_whatever_numbers_of_ranks_follow_each_other(
    epoch: tuple[EpochPlan, int, list[tuple[int, float]]],
) -> None:
    plan, chunk, counts = epoch
    log, before, trained, step = Chunked(counting_log(500), chunk), list[EarlierRanks](), Counter[int](), 0
    for ranks, part in [*counts, (3, 1.0)]:
        batches = steps_of(log, plan, ranks, step, before)
        assert [len(one) for one in batches] == [plan.epoch_steps - step] * ranks
        made = int(part * (plan.epoch_steps - step))
        taken = [sum(map(len, one[:made])) for one in batches]
        trained.update(row for one in batches for batch in one[:made] for row in batch)
        step += made
        before.append(EarlierRanks(1, step, tuple(taken)))
    assert trained == Counter(range(plan.rows))


@pytest.mark.parametrize("buffer", [0, 40])
def test_an_epoch_is_resumed_at_any_step_with_the_same_batches(buffer: int) -> None:
    log, plan = Chunked(counting_log(300), 11), EpochPlan(250, 16, shuffle_buffer=buffer, seed=1)
    whole = steps_of(log, plan, 2)
    for step in (1, 7, plan.epoch_steps):
        assert steps_of(log, plan, 2, step) == [one[step:] for one in whole]
    assert steps_of(log, plan, 1) == [
        [batch.times.tolist() for batch in plan.batches(log, 1)]
    ]  # one rank has the log's own order


@over(("chunk", "ranks"), [(1, 7), (10, 2), (30, 3), (900, 2)])
def test_steps_are_shared_evenly(chunk: int, ranks: int) -> None:
    batches = steps_of(Chunked(counting_log(1_000), chunk), EpochPlan(1_000, 50), ranks)
    rows = [sum(map(len, one)) for one in batches]
    assert max(rows) - min(rows) <= chunk + ranks
    assert all(abs(len(batch) - 50 / ranks) <= 1 + chunk // 20 for one in batches for batch in one)


@pytest.mark.parametrize("buffer", [0, 20])
def test_ranks_are_at_the_same_time_of_the_log(buffer: int) -> None:
    for one in steps_of(Chunked(counting_log(1_000), 10), EpochPlan(1_000, 40, shuffle_buffer=buffer), 4):
        for step, batch in enumerate(one):
            assert all(abs(row - 40 * step) <= 4 * 40 for row in batch)


def test_shares_are_shuffled_differently_in_each_epoch() -> None:
    log, plan = Chunked(counting_log(64), 32), EpochPlan(64, 64, shuffle_buffer=32)
    orders = [next(RankRows(plan, log, rank, 2).of_epoch(epoch, 0)).times for epoch in (0, 1) for rank in (0, 1)]
    assert len({tuple((rows - rows.min()).tolist()) for rows in orders}) == 4


# What is read

ROWS = 2_000


def text(rows: int = ROWS) -> bytes:
    return HEADER + b"".join(line + b"\n" for line in good_rows(rows))


def columnar_log(folder: Path, suffix: str) -> Log:
    frame = pl.DataFrame({"label": [i % 2 for i in range(ROWS)], "a": [f"v{i}" for i in range(ROWS)]})
    return open_log(write(frame, folder / f"log{suffix}", 20), columns="categorical")


def many_compressed(folder: Path) -> Log:
    (folder / "logs").mkdir()
    for number in range(20):
        written(folder / "logs" / f"{number}.csv.gz", gzip.compress(text(100)))
    return open_log(folder / "logs", format=CSV, chunk_bytes=600)


LOGS: dict[str, Callable[[Path], Log]] = {
    "csv": lambda folder: open_log(written(folder / "log.csv", text()), format=CSV, chunk_bytes=600),
    "many compressed": many_compressed,
    "parquet": lambda folder: columnar_log(folder, ".parquet"),
    "arrow": lambda folder: columnar_log(folder, ".arrow"),
    "prepared": lambda folder: prepare([written(folder / "log.csv", text())], folder / "out", CSV, chunk_bytes=600)[0],
}


class Reads:
    """Counts the chunks that are parsed, by their first line and file, and the row groups that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chunks = Counter[Any]()
        encode_chunk, group = encode.encode_chunk, pq.ParquetFile.read_row_group

        def encoded(file: Any, chunk: Any, *arguments: Any) -> Any:
            self.chunks[chunk.line] += 1
            return encode_chunk(file, chunk, *arguments)

        def read_row_group(file: Any, number: int, **options: Any) -> Any:
            self.chunks[file.metadata.num_rows, number] += 1
            return group(file, number, **options)

        monkeypatch.setattr(encode, "encode_chunk", encoded)
        monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)

    def of(self, batches: Iterator[Batch]) -> tuple[int, int]:
        """How many rows batches have, and how many chunks are read for them."""
        self.chunks.clear()
        return sum(map(len, batches)), self.chunks.total()


@pytest.mark.parametrize("name", LOGS)
def test_what_a_rank_reads_no_other_does(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, reads = LOGS[name](tmp_path), Reads(monkeypatch)
    rows, chunks = reads.of(log.batches(0, log.train_rows, 64))
    for buffer in (0, 100):
        plan = EpochPlan(log.train_rows, 50, shuffle_buffer=buffer)
        shares = [reads.of(RankRows(plan, log, rank, 2).of_epoch(0, 0)) for rank in range(2)]
        assert sum(share[0] for share in shares) == rows == log.train_rows
        assert sum(share[1] for share in shares) <= chunks + 2  # one may be cut in two
    if name == "csv":  # nothing after the requested chunk is read
        assert reads.of(LogPart(log, 500, 1, 1).batches(0, 2, 2))[1] <= 2


def test_a_chunk_of_a_row_group_is_read_from_any_row_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "_ROWS", 7)
    for suffix in (".parquet", ".arrow"):
        log = columnar_log(tmp_path, suffix)
        assert log.chunk_starts().tolist() == list(range(0, ROWS, 20))
        for start in (0, 6, 7, 13, 20, 33, 1_999):
            assert next(log.batches(start, start + 1, 1)).times.tolist() == [start + 1]
