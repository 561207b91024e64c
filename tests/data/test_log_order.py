"""Other orders of a log's rows: shuffled, and dealt to ranks so that each row is trained on once; and batches cut anew.

The order of a shuffled log follows from (seed, epoch, block).
"""

import gzip
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from data_cases import CSV, HEADER, good_rows, write, written
from over import over
from sparsegroup.data import Log, LogView, MemoryLog, ShuffledLog, open_log, prepare
from sparsegroup.data.batches import Bags, Batch, concatenated, rebatched
from sparsegroup.data.keys import keys_of
from sparsegroup.data.order import LogPart
from sparsegroup.data.raw import encode
from sparsegroup.data.schema import LogFormat
from sparsegroup.errors import ClickLogError
from sparsegroup.training.plan import EarlierRanks, EpochPlan, RankRows

# Bags

Lists = list[list[int]]


def random_lists(rows: int, seed: int) -> Lists:
    generator = random.Random(seed)
    return [[generator.randrange(1 << 62) for _ in range(generator.choice([0, 0, 1, 2, 7]))] for _ in range(rows)]


def bags_of(lists: Lists) -> Bags:
    flat = [key for keys in lists for key in keys]
    return Bags(torch.tensor(flat, dtype=torch.int64), torch.tensor([0, *map(len, lists)]).cumsum(0))


def lists_of(bags: Bags) -> Lists:
    assert bags.offsets[0] == 0
    assert bags.offsets[-1] == len(bags.keys)
    return [bags.keys[a:b].tolist() for a, b in zip(bags.offsets[:-1], bags.offsets[1:], strict=True)]


def batch_of_lists(columns: Sequence[Lists], weights: Tensor) -> Batch:
    rows = torch.arange(len(columns[0]))
    return Batch(rows[:, None], rows[:, None].float(), rows.float(), rows, weights, tuple(map(bags_of, columns)))


@over("seed", range(4))
def test_rows_cut_anywhere_and_put_together_at_any_size_are_the_same_rows(seed: int) -> None:
    generator = random.Random(seed)
    columns: list[Lists] = [random_lists(60, seed), [[]] * 60, random_lists(60, seed + 100)]
    whole = batch_of_lists(columns, torch.rand(60, generator=torch.Generator().manual_seed(seed)))
    borders = [0, *sorted(generator.randrange(61) for _ in range(generator.randrange(9))), 60]
    parts = [whole[a:b] for a, b in pairwise(borders)]
    for size in (1, 7, 59, 60, 100):
        batches = list(rebatched(iter(parts), size))
        assert [len(batch) for batch in batches] == [size] * (60 // size) + [60 % size] * (60 % size > 0)
        for number, column in enumerate(columns):
            assert [keys for batch in batches for keys in lists_of(batch.bags[number])] == column
        for name in ("labels", "times", "weights"):
            assert torch.equal(torch.cat([getattr(batch, name) for batch in batches]), getattr(whole, name))


def test_a_logs_bags_are_those_of_a_plain_reading(tmp_path: Path) -> None:
    generator = random.Random(3)
    words = ["", "a", "日本", "b c", "d"]
    rows = [
        [
            "|".join(generator.choices(words, k=generator.randrange(5))),
            generator.choice(words),
            "&".join(["m"] * (i % 4)),
        ]
        for i in range(90)
    ]
    lines = ["label,tags,word,more"] + [f"{i % 2},{','.join(row)}" for i, row in enumerate(rows)]
    path = written(tmp_path / "log.csv", "\n".join(lines))
    # The bags come in the order of the lists, which need not be that of the fields.
    log_format = LogFormat("log", "label", ("tags", "word", "more"), lists={"more": "&", "tags": "|"})
    # What is empty or missing is one value, the empty string.
    expected = {
        name: [keys_of(row[field].split(separator), field).tolist() for row in rows]
        for field, name, separator in ((0, "tags", "|"), (2, "more", "&"))
    }
    prepared, _ = prepare([path], tmp_path / "out", log_format, chunk_bytes=300)
    for log in (prepared, open_log(path, format=log_format, chunk_bytes=300)):
        assert (log.fields, log.lists) == (("tags", "word", "more"), ("more", "tags"))
        for start, stop, size in ((0, 90, 7), (31, 77, 20)):
            batches = list(log.batches(start, stop, size))
            for number, name in enumerate(log.lists):
                assert [keys for b in batches for keys in lists_of(b.bags[number])] == expected[name][start:stop]
            single = torch.cat([batch.keys for batch in batches])
            assert single.tolist() == keys_of([row[1] for row in rows[start:stop]], 1)[:, None].tolist()
    with pytest.raises(ValueError, match="lists must be fields, got 'b', which is none"):
        LogFormat("log", "label", ("a",), lists={"b": "|"})


# Shuffled logs


class Everything(Log):
    """Rows of fields, bags, numbers and weights that all say their own number; `ends` after some of them."""

    name, fields, lists, numbers, weighted = "everything", ("one", "many"), ("many",), ("x",), True

    def __init__(self, rows: int, train_rows: int, groups: int = 1 << 62, ends: int = 1 << 62) -> None:
        self._rows, self.train_rows, self.read, self._groups, self._ends = rows, train_rows, 0, groups, ends

    def __len__(self) -> int:
        return self._rows

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        stop = min(stop, self._ends)
        for first in range(start, stop, size):
            rows = torch.arange(first, min(first + size, stop))
            self.read = max(self.read, int(rows[-1]) + 1)
            bags = bags_of([[row] * (row % 3) for row in rows.tolist()])
            keys = rows[:, None] % self._groups
            yield Batch(keys, rows[:, None].float(), (rows % 2).float(), rows, rows.float(), (bags,))


def order_of(log: Log, start: int = 0, stop: int | None = None, size: int = 7) -> list[int]:
    parts = list(log.batches(start, log.train_rows if stop is None else stop, size))
    assert all(len(part) == size for part in parts[:-1])
    return [row for part in parts for row in part.times.tolist()]


@over(("rows", "buffer"), [(1, 1), (1, 20), (20, 8), (20, 20), (97, 1), (97, 8), (97, 20), (97, 96), (97, 1_000)])
def test_it_is_a_permutation_and_any_part_of_it_is_the_same(rows: int, buffer: int) -> None:
    log = ShuffledLog(Everything(120, rows), buffer, seed=3, epoch=1)
    order = order_of(log)
    assert sorted(order) == list(range(rows))
    assert order_of(log, 0, 120) == [*order, *range(rows, 120)]
    draw = np.random.default_rng(0)
    for _ in range(10):
        start, stop = sorted(draw.integers(0, rows + 1, 2).tolist())
        assert order_of(log, start, stop, int(draw.integers(1, 30))) == order[start:stop]
    assert max(abs(place - row) for place, row in enumerate(order)) < buffer
    assert buffer < 20 or rows < 20 or order != list(range(rows))


@pytest.mark.parametrize("length", [0, 3, 400])
def test_a_block_holds_no_more_bytes_than_memory_is_meant_for_it(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(Everything):
        def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
            self.sizes = {*getattr(self, "sizes", ()), size}
            for batch in super().batches(start, stop, size):
                bags = bags_of([[row] * (length + row % 2) for row in batch.times.tolist()])
                yield replace(batch, bags=(bags,))

    monkeypatch.setattr("sparsegroup.data.log.BLOCK_BYTES", 100_000)
    monkeypatch.setattr("sparsegroup.data.order._READ_BYTES", 20_000)
    log = Long(3000, 3000)
    assert log.row_bytes == pytest.approx(8 * (length + 0.5) + 8 + 4 + 4 + 8 + 4 + 8, abs=1)
    shuffled = ShuffledLog(log, 2000, seed=3)
    rows = np.diff(shuffled.edges)
    assert rows.max() <= shuffled.buffer == min(2000, 100_000 // log.row_bytes)
    assert shuffled.buffer == ShuffledLog(LogPart(log, 10, 2000), 2000).buffer  # a rank's part
    assert sorted(order_of(shuffled, size=11)) == [*range(3000)]
    assert max(log.sizes - {1000, 11}) * log.row_bytes <= 20_000


@over("buffer", [1, 20, 97])
def test_rows_of_a_group_follow_each_other_in_each_block(buffer: int) -> None:
    log = ShuffledLog(Everything(120, 97, groups=9), buffer, seed=3, group="one")
    order = order_of(log)
    assert sorted(order) == list(range(97))
    for begin, end in pairwise(log.edges):
        groups = [row % 9 for row in order[begin:end]]
        assert sum(left != right for left, right in pairwise(groups)) == len(set(groups)) - 1
    assert order_of(log, 13, 60) == order[13:60]
    if buffer > 20:
        assert order != sorted(order, key=lambda row: (order.index(row % 9), row))  # a group's rows are shuffled
        logs = (ShuffledLog(Everything(120, 97, groups=9), 97, epoch=epoch, group="one") for epoch in range(60))
        assert {order_of(log)[0] % 9 for log in logs} == set(range(9))


def test_epochs_and_seeds_differ_and_are_the_same_again() -> None:
    def order(**options: int) -> tuple[int, ...]:
        return tuple(order_of(ShuffledLog(Everything(300, 300), **{"buffer": 50, **options})))

    orders = {(seed, epoch): order(seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1, 2)}
    assert len(set(orders.values())) == 6
    assert orders[1, 1] == order(seed=1, epoch=1)
    assert max(abs(place - row) for place, row in enumerate(order(buffer=300))) > 200
    nested = ShuffledLog(ShuffledLog(Everything(10, 8), 5), 5, seed=1)  # a view may be of a view
    assert sorted(order_of(nested)) == list(range(8))


def test_all_of_a_row_goes_with_it() -> None:
    whole = concatenated(list(ShuffledLog(Everything(90, 80), 30).batches(0, 80, 9)))
    rows = whole.times
    assert whole.weights is not None
    for part in (whole.keys[:, 0], whole.numbers[:, 0], whole.weights):
        assert torch.equal(part.long(), rows)
    assert torch.equal(whole.labels.long(), rows % 2)
    assert lists_of(whole.bags[0]) == [[row] * (row % 3) for row in rows.tolist()]


def test_it_reads_no_more_than_three_blocks_ahead_and_nothing_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Everything(400, 400)
    shuffled = ShuffledLog(log, 20, seed=1)
    edge, log.read = shuffled.edges[3], 0  # a few rows were measured
    assert len(order_of(shuffled, edge - 7, edge - 2)) == 5
    assert log.read == edge
    monkeypatch.setattr("sparsegroup.data.order._READ", 10)
    log = Everything(1_000, 1_000)
    shuffled, log.read = ShuffledLog(log, 50, epoch=2), 0
    for number, _ in enumerate(shuffled.batches(0, 1_000, 10)):
        assert log.read <= 10 * number + 4 * 50
    assert log.read == 1_000


@over(
    ("options", "message"),
    [
        ({"buffer": 0}, "buffer must be >= 1, got 0"),
        ({"rows": 11}, r"rows must be in \[0, 10\], got 11"),
        ({"epoch": -1}, "seed and epoch must be >= 0, got 0 and -1"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ShuffledLog(Everything(10, 8), **{"buffer": 5, **options})


@over(("buffer", "ranks"), product([0, 8, 1_000], [1, 2]))
def test_fewer_rows_than_the_log_says_are_an_error_with_its_name(buffer: int, ranks: int) -> None:
    plan = EpochPlan(100, 7, shuffle_buffer=buffer)
    with pytest.raises(ClickLogError, match=r"^everything: \d+ rows were read where its length says \d+$"):
        list(RankRows(plan, Everything(120, 100, ends=90), ranks - 1, ranks).of_epoch(0, 0))
    rows = RankRows(plan, Everything(120, 100), ranks - 1, ranks)
    assert sum(map(len, rows.of_epoch(0, 0))) == 100 // ranks


# Ranks


class Chunked(LogView):
    """A log of so many rows that is read in chunks."""

    def __init__(self, rows: int, chunk: int) -> None:
        super().__init__(MemoryLog("log", ("a",), np.arange(rows)[:, None], np.zeros(rows, np.float32), rows))
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
@settings(max_examples=20)
def test_each_row_is_trained_on_once_whatever_numbers_of_ranks_follow_each_other(
    epoch: tuple[EpochPlan, int, list[tuple[int, float]]],
) -> None:
    plan, chunk, counts = epoch
    log, before, trained, step = Chunked(500, chunk), list[EarlierRanks](), Counter[int](), 0
    for ranks, part in [*counts, (3, 1.0)]:
        batches = steps_of(log, plan, ranks, step, before)
        assert [len(one) for one in batches] == [plan.epoch_steps - step] * ranks
        made = int(part * (plan.epoch_steps - step))
        assert steps_of(log, plan, ranks, step + made, before) == [one[made:] for one in batches]  # it is resumed
        taken = [sum(map(len, one[:made])) for one in batches]
        trained.update(row for one in batches for batch in one[:made] for row in batch)
        step += made
        before.append(EarlierRanks(1, step, tuple(taken)))
    assert trained == Counter(range(plan.rows))
    assert steps_of(log, plan, 1) == [[batch.times.tolist() for batch in plan.batches(log, 1)]]  # the log's own order


@over(("chunk", "ranks"), [(1, 7), (10, 2), (10, 4), (30, 3), (900, 2)])
def test_steps_are_shared_evenly_and_ranks_are_at_the_same_time_of_the_log(chunk: int, ranks: int) -> None:
    for buffer in (0, 20):
        batches = steps_of(Chunked(1_000, chunk), EpochPlan(1_000, 50, shuffle_buffer=buffer), ranks)
        rows = [sum(map(len, one)) for one in batches]
        assert max(rows) - min(rows) <= chunk + ranks
        assert all(abs(len(batch) - 50 / ranks) <= 1 + chunk // 20 for one in batches for batch in one)
        if chunk == 10:
            assert all(
                abs(row - 50 * step) <= 4 * 50 for one in batches for step, batch in enumerate(one) for row in batch
            )


def test_shares_are_shuffled_differently_in_each_epoch() -> None:
    log, plan = Chunked(64, 32), EpochPlan(64, 64, shuffle_buffer=32)
    orders = [next(RankRows(plan, log, rank, 2).of_epoch(epoch, 0)).times for epoch in (0, 1) for rank in (0, 1)]
    assert len({tuple((rows - rows.min()).tolist()) for rows in orders}) == 4


# What is read

ROWS = 800


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
