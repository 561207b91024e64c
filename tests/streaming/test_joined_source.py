"""Impressions and clicks are joined as a plain loop over the rows joins them, through any order of blocks and kills."""

import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_cases import written
from over import over
from sparsegroup.data import open_log
from sparsegroup.data.raw.files import LogPaths
from sparsegroup.data.raw.raw_log import RawLog
from sparsegroup.data.schema import LogFormat
from sparsegroup.streaming.sources import Block, EndOfStream, FilesSource, JoinedSource, Source, StreamError, joined
from sparsegroup.streaming.sources.records import frame_of
from sparsegroup.streaming.sources.source import block_of
from stream_cases import Reader, batch_of, drained

Row = tuple[int, int, int]
"""Number, key and time."""
Blocks = Sequence[Sequence[Row]]
JOINED = LogFormat("log", "label", ("user",), numbers=("n",), time="ts")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "_GRACE", 0.0)
    monkeypatch.setattr(joined, "BLOCK_ROWS", 5)


class Listed(Source):
    """Blocks of rows: as many of them are there as `there` has for its name, or all."""

    def __init__(self, name: str, blocks: Blocks, there: dict[str, int] | None = None, ends: bool = False) -> None:
        self.name, self._blocks, self._there, self._ends = name, blocks, there, ends
        self._next = 0

    def first_rows(self, path: Path, rows: int, patience: float) -> LogPaths:
        raise NotImplementedError

    def open(self, format: LogFormat, position: Any = None) -> None:
        self._format, self._next = format, position or 0

    def read(self, timeout: float) -> Block | None:
        if self._next < (len(self._blocks) if self._there is None else self._there[self.name]):
            return self.again(self._next)
        if self._ends:
            raise EndOfStream
        return None

    def again(self, span: Any) -> Block:
        self._next = span + 1
        rows = [
            (number, {"n": str(number), "user": f"u{key}", "ts": str(at)}, b"")
            for number, key, at in self._blocks[span]
        ]
        texts = partial(frame_of, rows, self._format)
        return block_of(texts, self._format, span, self._next, 2e9, self.name)

    def close(self) -> None:
        pass


def joined_of(
    impressions: Blocks,
    clicks: Blocks,
    window: int,
    there: dict[str, int] | None = None,
    ends: bool = False,
    **options: Any,
) -> JoinedSource:
    sides = Listed("impressions", impressions, there, ends), Listed("clicks", clicks, there, ends)
    return JoinedSource(*sides, ["user"], window, **{"time": "ts", **options})


def opened(source: JoinedSource) -> JoinedSource:
    source.open(JOINED)
    return source


def expected(
    impressions: Blocks, clicks: Blocks, order: Sequence[tuple[str, int]], window: int, late_window: int | None
) -> list[tuple[int, int]]:
    """Number and label of the rows that are given, by a loop over rows; `late_window` None drops late clicks."""
    clock = kept = -(1 << 62)
    waiting: list[Row] = []
    read: list[Row] = []
    negatives: list[Row] = []
    late: list[Row] = []
    found: list[tuple[int, int]] = []
    given = 0
    for side, place in order:
        if side == "given":
            found += [(row[0], 1) for row in late]
            late.clear()
            twice: list[int] = []
            while given < place:
                number, key, at = row = waiting.pop(0)
                assert at + window < clock
                clicks_of = [then for _, other, then in read if key == other and then >= max(at, kept)]
                label = any(then <= at + window for then in clicks_of)
                found.append((number, int(label)))
                if not label and any(then <= at + window + (late_window or 0) for then in clicks_of):
                    twice.append(number)
                elif not label:
                    negatives.append(row)
                given += 1
            found += [(number, 1) for number in twice]
            continue
        rows = (impressions if side == "impressions" else clicks)[place]
        clock = max([clock, *(at for _, _, at in rows)])
        if side == "impressions":
            waiting += rows
        else:
            read += rows
            for row in list(negatives) if late_window is not None else ():
                in_time = row[2] >= clock - window - late_window
                if in_time and any(key == row[1] and at >= row[2] for _, key, at in rows):
                    negatives.remove(row)
                    late.append(row)
        kept = max(kept, min([clock - window, *(at for _, _, at in waiting)]))
    assert not any(at + window < clock for _, _, at in waiting[:1])
    return found


def given_rows(blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """Numbers and labels."""
    batches = [block.encode().batch for block in blocks]
    return [
        (int(number), int(label))
        for batch in batches
        for number, label in zip(batch.numbers[:, 0].tolist(), batch.labels.tolist(), strict=True)
    ]


def order_of(blocks: Sequence[Block]) -> list[tuple[str, int]]:
    """What was read and given, in order."""
    found: list[tuple[str, int]] = []
    for block in blocks:
        found += [(side, span) for side, span, _ in block.span[0]]
        found.append(("given", block.span[1]))
    return found


def random_rows(generator: random.Random, count: int, first: int, disorder: int) -> list[list[Row]]:
    """Blocks of rows, whose times grow but for some disorder."""
    rows = [
        (first + number, generator.randrange(12), 1000 + 2 * number + generator.randint(-disorder, disorder))
        for number in range(count)
    ]
    blocks: list[list[Row]] = []
    while rows:
        size = generator.randint(1, 9)
        blocks.append(rows[:size])
        rows = rows[size:]
    return blocks


@given(
    seed=st.integers(0, 10**6),
    window=st.sampled_from([0, 7, 30]),
    late_window=st.sampled_from([None, 0, 20, 100]),
    disorder=st.sampled_from([0, 3, 40]),
)
@settings(max_examples=4)
def test_rows_and_labels_are_the_loops_through_kills(
    seed: int, window: int, late_window: int | None, disorder: int
) -> None:
    generator = random.Random(seed)
    impressions = random_rows(generator, 100, 0, disorder)
    clicks = random_rows(generator, 100, 10_000, disorder)
    there = {"impressions": 0, "clicks": 0}
    late = {"late": "drop" if late_window is None else "positive", "late_window": late_window}
    reader = Reader(lambda: joined_of(impressions, clicks, window, there, **late), JOINED, seed)
    for _ in range(80):
        match generator.choices(["impressions", "clicks", "read", "checkpoint", "kill"], [3, 3, 5, 2, 1])[0]:
            case "impressions" | "clicks" as side:
                most = len(impressions if side == "impressions" else clicks)
                there[side] = min(there[side] + generator.randint(1, 4), most)
            case "read":
                reader.read(generator.randint(1, 6))
            case "checkpoint":
                reader.checkpoint()
            case "kill":
                reader.kill()
    there |= {"impressions": len(impressions), "clicks": len(clicks)}
    reader.read(1000)
    order = order_of(reader.blocks)
    for side in there:
        places = [place for one, place in order if one == side]
        assert places == list(range(len(places)))
    rows = given_rows(reader.blocks)
    assert rows == expected(impressions, clicks, order, window, late_window)
    numbers = [number for number, _ in rows]
    if late_window is None:
        assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 90 - window - disorder


def test_files_are_joined_by_the_time_that_their_first_rows_show(tmp_path: Path) -> None:
    generator = random.Random(0)
    files = {name: tmp_path / f"{name}.csv" for name in ("impressions", "clicks")}
    lines: dict[str, list[str]] = {"impressions": ["id,site,price,ts"], "clicks": ["ts,id"]}
    at, times, clicked = 1_760_000_000, list[int](), dict[int, int]()
    for number in range(600):
        at += generator.randrange(20)
        times.append(at)
        lines["impressions"].append(f"i{number},s{number % 7},{number}.5,{at}")
        if number % 3 == 0:
            clicked[number] = at + generator.randrange(200)
    lines["clicks"] += sorted(f"{then},i{number}" for number, then in clicked.items())
    for name, path in files.items():
        written(path, "\n".join(lines[name][:200]) + "\n")

    def source() -> JoinedSource:
        sources = [FilesSource(path, every=0.0) for path in files.values()]
        return JoinedSource(sources[0], sources[1], ["id"], 120)

    log = open_log(source().first_rows(tmp_path / "head", 100, 0.0), exclude=["id"])
    assert isinstance(log, RawLog)
    assert (log.timed, log.numbers) == (True, ("price",))
    reader = Reader(source, log.format)
    for most in (3, 100):
        reader.read(most)
        reader.checkpoint()
        reader.kill()
    for name, path in files.items():
        written(path, "\n".join(lines[name]) + "\n")
    reader.read(1000)
    reader.kill()
    batch = batch_of(reader.blocks)
    numbers = [int(price) for price in batch.numbers[:, 0].tolist()]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 550
    assert batch.labels.tolist() == [clicked.get(number, 1 << 60) - times[number] <= 120 for number in numbers]
    with pytest.raises(StreamError, match="no column is known to be the time; name it with `time`"):
        source().open(LogFormat("log", "label", ("user",)))


def test_the_rest_is_given_when_both_have_ended() -> None:
    source = opened(joined_of([[(0, 1, 100), (1, 2, 101)], [(2, 3, 102)]], [[(9, 2, 103)]], 50, ends=True))
    assert given_rows(drained(source, rows=3)) == [(0, 0), (1, 1), (2, 0)]
    with pytest.raises(EndOfStream):
        source.read(0.0)


def test_with_a_source_that_can_be_read_once_what_waited_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Listed, "is_replayable", False)
    there = {"impressions": 3, "clicks": 1}
    impressions = [[(0, 1, 100), (1, 2, 101)], [(2, 3, 160)], [(3, 4, 300)], [(4, 5, 400)], [(5, 5, 460)]]
    before, after = (joined_of(impressions, [[(9, 2, 103)]], 50, there) for _ in range(2))
    assert not before.is_replayable
    blocks = drained(opened(before))
    assert given_rows(blocks) == [(0, 0), (1, 1), (2, 0)]
    there["impressions"] = 4
    after.open(JOINED, json.loads(json.dumps(blocks[-1].position)))
    assert given_rows(drained(after)) == []
    there["impressions"] = 5
    assert given_rows(drained(after)) == [(4, 0)]


def test_of_two_backlogs_impressions_do_not_run_ahead_of_their_clicks_and_positions_do_not_grow() -> None:
    impressions = [[(number, number, 1000 + number)] for number in range(160)]
    clicks = [[(number, number, 1002 + number)] for number in range(0, 160, 2)]
    source = opened(joined_of(impressions, clicks, 5, late="positive", late_window=10))
    blocks = drained(source)
    rows = given_rows(blocks)
    assert rows == [(number, int(number % 2 == 0)) for number in range(len(rows))]
    assert len(rows) > 150
    assert source.clicks_unmatched == 0
    sizes = [len(json.dumps(block.position)) for block in blocks]
    half = len(sizes) // 2
    assert max(sizes[half:]) < 1.1 * max(sizes[:half])
    assert max(sizes) < 30_000


@over("window", [0, 10])
def test_each_click_of_a_backlog_gives_one_positive_row(window: int) -> None:
    """In its window it makes the label 1; later it gives another row, also if the impression still waits."""
    impressions = [
        [(10 * block + one, 10 * block + one, 1000 + 10 * block) for one in range(10)] for block in range(40)
    ]
    clicks = [[(0, number, 1000 + number // 10 * 10 + number % 40)] for number in range(0, 400, 7)]
    clicks.sort(key=lambda rows: rows[0][2])
    impressions.append([(400, 400, 5000)])
    source = opened(joined_of(impressions, clicks, window, late="positive", late_window=10_000))
    rows = given_rows(drained(source))
    assert sorted(number for number, label in rows if label) == list(range(0, 400, 7))
    in_time = [number for number in range(0, 400, 7) if number % 40 <= window]
    assert sorted(number for number, label in rows if not label) == [n for n in range(400) if n not in in_time]
    assert source.clicks_late == len(clicks) - len(in_time)


def test_rows_without_a_key_or_a_time_are_bad(tmp_path: Path) -> None:
    lines = b"user,ts,n\nu1,2026-01-01T00:00:00,1\n,2026-01-01,2\nu2,soon,3\nu3,4000000000000,4\nu4,1767225700000,5\n"
    files = [
        written(tmp_path / "impressions.csv", lines),
        written(tmp_path / "clicks.csv", b"ts\tuser\n1767225605.5\tu1\n1767300000\tu9\n"),
    ]
    source = JoinedSource(*map(FilesSource, files), ["user"], 60, time="ts")
    log = open_log(source.first_rows(tmp_path / "head", 100, 0.0), columns="categorical")
    assert (len(log), log.positives, log.fields) == (5, 1, ("user", "n"))  # type: ignore[attr-defined]
    source.open(LogFormat("log", "label", ("user",), numbers=("n",)))
    (block,) = drained(source, rows=5)
    assert given_rows([block]) == [(1, 1), (5, 0)]
    bad = block.encode().bad
    assert [(line, reason) for line, reason, _ in bad] == [
        (3, "no 'user', by which clicks are joined"),
        (4, "'ts' is no time"),
        (5, "'ts' is more than a day after the row was read"),
    ]
    assert all(text.startswith(f"{files[0]}: ") for _, _, text in bad)
    source.close()


@over(
    ("options", "message"),
    [
        ({"on": []}, "`on` names one column"),
        ({"window": -1}, "`window` is a number of seconds >= 0, got -1"),
        ({"late": "no"}, "`late` is drop or positive, got 'no'"),
        ({"label": "bought"}, "the labels are in the column 'bought', and the format has them in 'label'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    sides, arguments = (Listed("impressions", []), Listed("clicks", [])), {"on": ["user"], "window": 5, **options}
    with pytest.raises(StreamError, match=message):
        opened(JoinedSource(*sides, **arguments))
