"""A shuffled log has the rows of the log, each once, in an order that follows from (seed, epoch, block)."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch

from data_cases import CSV, HEADER, good_rows
from over import over
from sparsegroup.data import PreparedLog, ShuffledLog, open_log, prepare
from sparsegroup.data.batches import Bags, Batch, concatenated
from sparsegroup.data.log import Log
from sparsegroup.errors import ClickLogError
from sparsegroup.training.plan import EpochPlan, RankRows


class Everything(Log):
    """Rows of fields, bags, numbers and weights that all say their own number."""

    name, fields, lists, numbers, weighted = "everything", ("one", "many"), ("many",), ("x",), True

    def __init__(self, rows: int, train_rows: int) -> None:
        self._rows, self.train_rows, self.read = rows, train_rows, 0

    def __len__(self) -> int:
        return self._rows

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        for first in range(start, stop, size):
            rows = torch.arange(first, min(first + size, stop))
            self.read = max(self.read, int(rows[-1]) + 1)
            counts = rows % 3
            bags = Bags(
                rows.repeat_interleave(counts), torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
            )
            yield Batch(rows[:, None], rows[:, None].float(), (rows % 2).float(), rows, rows.float(), (bags,))


class Short(Everything):
    """Says that it has more rows than it yields."""

    name = "short"

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        return super().batches(start, min(stop, 90), size)


def order_of(log: Log, start: int = 0, stop: int | None = None, size: int = 7) -> list[int]:
    parts = list(log.batches(start, log.train_rows if stop is None else stop, size))
    assert all(len(part) == size for part in parts[:-1])
    return [row for part in parts for row in part.times.tolist()]


@over(("rows", "buffer"), product([1, 20, 97], [1, 8, 20, 96, 1_000]))
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


class Grouped(Everything):
    """Rows of nine groups."""

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        for batch in super().batches(start, stop, size):
            yield replace(batch, keys=batch.keys % 9)


@over("buffer", [1, 20, 97])
def test_rows_of_a_group_follow_each_other_in_each_block(buffer: int) -> None:
    log = ShuffledLog(Grouped(120, 97), buffer, seed=3, group="one")
    order = order_of(log)
    assert sorted(order) == list(range(97))
    for begin, end in pairwise(log.edges):
        groups = [row % 9 for row in order[begin:end]]
        assert sum(left != right for left, right in pairwise(groups)) == len(set(groups)) - 1
    assert order_of(log, 13, 60) == order[13:60]
    if buffer > 20:
        assert order != sorted(order, key=lambda row: (order.index(row % 9), row))  # a group's rows are shuffled
        firsts = {order_of(ShuffledLog(Grouped(120, 97), 97, epoch=epoch, group="one"))[0] % 9 for epoch in range(60)}
        assert firsts == set(range(9))


def test_epochs_and_seeds_differ_and_are_the_same_again() -> None:
    orders = [
        order_of(ShuffledLog(Everything(300, 300), 50, seed=seed, epoch=epoch))
        for seed in (0, 1)
        for epoch in (0, 1, 2)
    ]
    assert len(set(map(tuple, orders))) == 6
    assert orders[4] == order_of(ShuffledLog(Everything(300, 300), 50, seed=1, epoch=1))
    whole = order_of(ShuffledLog(Everything(300, 300), 300))
    assert max(abs(place - row) for place, row in enumerate(whole)) > 200


def test_all_of_a_row_goes_with_it() -> None:
    whole = concatenated(list(ShuffledLog(Everything(90, 80), 30).batches(0, 80, 9)))
    rows = whole.times
    assert whole.weights is not None
    for part in (whole.keys[:, 0], whole.numbers[:, 0], whole.weights):
        assert torch.equal(part.long(), rows)
    assert torch.equal(whole.labels.long(), rows % 2)
    for place, row in enumerate(rows.tolist()):
        bag = whole.bags[0].keys[whole.bags[0].offsets[place] : whole.bags[0].offsets[place + 1]]
        assert bag.tolist() == [row] * (row % 3)


def test_it_reads_no_more_than_three_blocks_ahead_and_nothing_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Everything(400, 400)
    shuffled = ShuffledLog(log, 20, seed=1)
    edge = shuffled.edges[3]
    assert len(order_of(shuffled, edge - 7, edge - 2)) == 5
    assert log.read == edge
    monkeypatch.setattr("sparsegroup.data.order._READ", 10)
    log = Everything(1_000, 1_000)
    for number, _ in enumerate(ShuffledLog(log, 50, epoch=2).batches(0, 1_000, 10)):
        assert log.read <= 10 * number + 4 * 50
    assert log.read == 1_000


def test_raw_and_prepared_come_in_the_same_order(tmp_path) -> None:
    (tmp_path / "log.csv").write_bytes(HEADER + b"\n".join(good_rows(500)) + b"\n")
    prepare([tmp_path / "log.csv"], tmp_path / "prepared", CSV)
    raw, prepared = open_log(tmp_path / "log.csv", format=CSV), PreparedLog(tmp_path / "prepared")
    parts = [concatenated(list(ShuffledLog(log, 60).batches(100, log.train_rows, 32))) for log in (raw, prepared)]
    for name in ("keys", "numbers", "labels", "times"):
        assert torch.equal(*(getattr(part, name) for part in parts))


def test_numbers_out_of_range_are_refused_and_a_view_may_be_of_a_view() -> None:
    log = Everything(10, 8)
    with pytest.raises(ValueError, match="buffer must be >= 1, got 0"):
        ShuffledLog(log, 0)
    with pytest.raises(ValueError, match=r"rows must be in \[0, 10\], got 11"):
        ShuffledLog(log, 5, rows=11)
    with pytest.raises(ValueError, match="seed and epoch must be >= 0, got 0 and -1"):
        ShuffledLog(log, 5, epoch=-1)
    assert sorted(order_of(ShuffledLog(ShuffledLog(log, 5), 5, seed=1))) == list(range(8))


@over(("buffer", "ranks"), product([0, 8, 1_000], [1, 2]))
def test_fewer_rows_than_the_log_says_are_an_error_with_its_name(buffer: int, ranks: int) -> None:
    plan = EpochPlan(100, 7, shuffle_buffer=buffer)
    with pytest.raises(ClickLogError, match=r"^short: \d+ rows were read where its length says \d+$"):
        list(RankRows(plan, Short(120, 100), ranks - 1, ranks).of_epoch(0, 0))
    rows = RankRows(plan, Everything(120, 100), ranks - 1, ranks)
    assert sum(map(len, rows.of_epoch(0, 0))) == 100 // ranks
