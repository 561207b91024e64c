"""A raw log gives the batches of what `prepare` makes of it, whatever its format, compression, chunks and bad rows.

It is sent to other processes as what it knows, as other logs are. A command opens it as rarely as it can.
"""

import gzip
import pickle
import random
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pyarrow.fs as fs
import pytest

from command import Run
from data_cases import (
    AGENTS,
    CSV,
    HEADER,
    INTEGERS,
    PRICES,
    assert_same,
    avazu_log,
    compress,
    criteo_log,
    good_rows,
    ipinyou_log,
    rows_of,
    write,
    written,
)
from estimator_cases import rows
from sparsegroup.data import (
    ClickLogError,
    FrameLog,
    Log,
    PreparedLog,
    RawLog,
    ShuffledLog,
    SyntheticConfig,
    open_log,
    prepare,
    synthetic_log,
)
from sparsegroup.data.batches import Batch
from sparsegroup.data.formats import avazu, criteo
from sparsegroup.data.raw import raw_log as raw_log_module
from sparsegroup.data.raw.encode import encode_chunk
from sparsegroup.data.raw.files import RawFile, raw_file, source_of
from sparsegroup.data.schema import LogFormat, format_for_kinds

HOURS = [f"1410{day}{hour:02}" for day in (21, 22, 23) for hour in range(24)]
RICH = LogFormat(
    "log", "y", ("tags", "a", "more"), ("n",), {"more": ";", "tags": "|"}, "t", weight="w", test_fraction=0.3
)


def rich_log(path: Path, rows: int = 83) -> Path:
    generator = random.Random(1)
    lines = ["y,a,n,t,w,tags,more"]
    for i in range(rows):
        tags = "|".join(f"g{generator.randrange(9)}" for _ in range(generator.randrange(5)))
        more = ";".join("xyz"[: generator.randrange(4)])
        lines.append(f"{i % 2},a{i % 5},{i}.5,{i},{generator.random() * 3:.3f},{tags},{more}")
    return written(path, "\n".join(lines))


def csv_log(path: Path, rows: int = 83) -> Path:
    return written(path, HEADER + b"\n".join(good_rows(rows)) + b"\n")


def split_log(path: Path) -> Path:
    lines = ["label,a,ts,split"] + [f"{i % 2},v{i % 5},{i},{0 if i < 50 else 1 if i < 61 else 2}" for i in range(83)]
    return written(path, "\n".join(lines))


def svm_log(path: Path) -> Path:
    return written(path, "".join(f"{i % 2} {i % 3}:1 {i % 7}:1 \n" for i in range(83)))


def agents_log(path: Path, rows: int) -> Path:
    agents, prices = list(AGENTS), list(PRICES)
    return ipinyou_log(path, [(agents[i % len(agents)], prices[i % 5]) for i in range(rows)])


def columnar_log(path: Path, spoilt: int = 1000) -> Path:
    """A row whose time is `spoilt` in each eleven has no label."""
    rows = range(83)
    labels = [2 if i % 11 == spoilt else i % 2 for i in rows]
    frame = pl.DataFrame(
        {"label": labels, "a": [f"v{i % 5}" for i in rows], "n": [i / 2 for i in rows], "ts": list(rows)}
    )
    return write(frame, path, 10)


Case = Callable[[Path], tuple[list[Path], LogFormat | None]]
CASES: dict[str, Case] = {
    "avazu": lambda at: ([avazu_log(at / "train.csv", HOURS)], None),
    "avazu of one day": lambda at: ([avazu_log(at / "train.csv", HOURS[:24])], avazu("weekday-hour")),
    "avazu and a test log": lambda at: ([avazu_log(at / f"{i}.csv", HOURS[i : 30 + i]) for i in range(2)], None),
    "criteo buckets": lambda at: ([criteo_log(at / "train.txt", INTEGERS, 83)], criteo("buckets")),
    "ipinyou": lambda at: ([agents_log(at / "train.txt", 60), agents_log(at / "test.txt", 23)], None),
    "libsvm": lambda at: ([svm_log(at / "train.txt")], None),
    "last fraction": lambda at: ([csv_log(at / "log.csv")], CSV),
    "split column": lambda at: ([split_log(at / "log.csv")], None),
    "lists and weights, no time": lambda at: ([rich_log(at / "log.csv")], replace(RICH, time=None)),
    "lists and weights in two": lambda at: ([rich_log(at / f"{i}.csv", 40 + i) for i in range(2)], RICH),
}


def raw_log(logs: list[Path], **options: Any) -> RawLog:
    """Of one log, or of a training log and a test log."""
    return open_log(logs[0], logs[1] if len(logs) > 1 else None, **{"threads": 2, **options})


def assert_same_log(logs: list[Path], raw: RawLog, prepared: PreparedLog) -> None:
    manifest = prepared.manifest
    assert (len(raw), raw.train_rows, raw.positives) == (len(prepared), prepared.train_rows, manifest.positives)
    assert (raw.fields, raw.lists, raw.numbers) == (prepared.fields, prepared.lists, prepared.numbers)
    assert {**source_of([raw_file(path) for path in logs], raw.format), "vocabulary": False} == manifest.source
    assert raw.identity == prepared.identity
    assert (raw.hash, raw.weighted, raw.labelled) == (prepared.hash, prepared.weighted, prepared.labelled)
    assert raw.bad_rows == prepared.bad_rows
    assert sum(bad.count for bad in raw.bad) == sum(prepared.bad_rows.values())
    rows = len(raw)
    (whole,) = prepared.batches(0, rows, rows)
    generator = random.Random(0)
    asked = [(-3, rows + 9, 7), (raw.train_rows, rows, 5), (rows - 1, rows, 3), (20, 3, 2)]
    for _ in range(2):
        asked.append((generator.randrange(rows + 1), generator.randrange(rows + 1), generator.randrange(1, 40)))
    for start, stop, size in asked:
        expected = [whole[begin : min(begin + size, stop)] for begin in range(max(start, 0), min(stop, rows), size)]
        for log in (raw, prepared):
            for ours, theirs in zip(log.batches(start, stop, size), expected, strict=True):
                assert_same(ours, theirs)


ATTRIBUTES = (
    *("name", "fields", "lists", "numbers", "train_rows", "hash", "labelled", "weighted", "timed", "bad_rows"),
    *("notes", "identity", "columns", "findings", "vocabulary", "features"),
)


def assert_same_when_sent(log: Log) -> tuple[Log, int]:
    """The log as another process gets it, and how many bytes that takes."""
    content = pickle.dumps(log)
    there: Log = pickle.loads(content)
    assert len(there) == len(log)
    assert [getattr(there, name) for name in ATTRIBUTES] == [getattr(log, name) for name in ATTRIBUTES]
    for start, stop in ((0, len(log)), (len(log) // 2, len(log) // 2 + 9)):
        assert_same(rows_of(there, start, stop, 7), rows_of(log, start, stop, 7))
    return there, len(content)


def with_bad_rows(path: Path, seed: int) -> None:
    """Spoil a log: after some of its rows, put the same row once more with something wrong in it, or nearly wrong."""
    generator = random.Random(seed)
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    at = sorted(generator.sample(range(1, len(lines)), 12), reverse=True)
    for number, place in enumerate(at):
        spoilt = bytearray(lines[place])
        kind = ("short", "utf-8", "blank", "label", "value", "value")[number % 6]
        if kind == "short":
            spoilt = spoilt[:1]
        elif kind == "utf-8":
            spoilt += b"\xff"
        elif kind == "blank":
            spoilt = bytearray()
        elif kind == "label":
            spoilt[0:1] = b"7"
        elif spoilt[column := generator.randrange(2, len(spoilt) - 2)] not in b",\t ":
            spoilt[column : column + 1] = b"?"
        lines.insert(place + 1, bytes(spoilt))
    path.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize("name", CASES)
def test_the_batches_are_those_of_the_prepared_log_in_another_process_and_with_bad_rows_left_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, log_format = CASES[name](tmp_path)
    prepared, _ = prepare(logs, tmp_path / "out", log_format, chunk_bytes=3000)
    for chunks in (15, 1):
        chunk_bytes = logs[0].stat().st_size // chunks + 1
        raw = raw_log(logs, format=log_format, chunk_bytes=chunk_bytes, threads=1 + chunks % 3)
        assert_same_log(logs, raw, prepared)
        assert (raw.features, raw.name) == (None, str(logs[0]))
    with monkeypatch.context() as patch:
        patch.setattr(raw_log_module.RawLog, "_count", None)  # it is not counted there
        assert_same_when_sent(raw)
    assert assert_same_when_sent(prepared)[1] < 10_000
    for seed, path in enumerate(logs):
        with_bad_rows(path, seed)
    if name.startswith("avazu"):  # a spoilt hour may break the order of time, of which this is no test
        log_format = replace(log_format or avazu(), split="last-of-7")
    options: dict[str, Any] = {"on_bad_row": "skip", "max_bad": 0.9}
    prepared, _ = prepare(logs, tmp_path / "spoilt", log_format, chunk_bytes=3000, **options)
    raw = raw_log(logs, format=log_format, chunk_bytes=logs[0].stat().st_size // 10, **options)
    assert all(bad.count >= 4 for bad in raw.bad)
    assert_same_log(logs, raw, prepared)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst", ".lz4"])
def test_the_same_of_a_compressed_log(suffix: str, tmp_path: Path) -> None:
    plain = rich_log(tmp_path / "log.csv")
    path = written(tmp_path / f"log.csv{suffix}", compress(suffix, plain.read_bytes()))
    prepared, of_plain = (prepare([log], tmp_path / f"out{log.suffix}", RICH)[0] for log in (path, plain))
    assert_same(rows_of(prepared), rows_of(of_plain))
    assert_same_log([path], open_log(path, format=RICH, chunk_bytes=200), prepared)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_the_same_of_a_columnar_log(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegroup.data.raw.columnar._ROWS", 7)
    options = {"on_bad_row": "skip", "max_bad": 0.5}
    for spoilt, log_format in ((5, None), (1000, LogFormat("log", "label", ("a",), ("n",), time="ts"))):
        path = columnar_log(tmp_path / f"log{suffix}", spoilt)
        prepared, _ = prepare([path], tmp_path / f"out{spoilt}", log_format, **options)  # type: ignore[arg-type]
        assert (len(prepared) < 83) == (spoilt == 5)
        log = open_log(path, format=log_format, **options)  # type: ignore[call-overload]
        assert_same_log([path], log, prepared)
        assert_same_when_sent(log)


def test_other_logs_are_the_same_in_another_process(tmp_path: Path) -> None:
    path = csv_log(tmp_path / "log.csv", 300)
    raw = open_log(path, chunk_bytes=700)
    assert_same_when_sent(ShuffledLog(raw, buffer=40, seed=1))
    prepared, _ = prepare([path], tmp_path / "out", CSV, vocabulary=True)
    keys = next(prepared.batches(0, 5, 5)).keys.flatten().numpy()
    assert assert_same_when_sent(prepared)[0].values_of(keys, 300) == prepared.values_of(keys, 300)
    memory = fsspec.filesystem("memory")
    memory.pipe({"/sent/log.csv": path.read_bytes()})
    try:
        assert_same_when_sent(open_log("memory://sent/log.csv", chunk_bytes=700))
    finally:
        memory.rm("/", recursive=True)
    store = fs.S3FileSystem(access_key="a", secret_key="b", region="us-east-1", endpoint_override="localhost:1")
    file = raw_file("clicks/log.csv", filesystem=store, source="s3://clicks/log.csv")  # of pyarrow's own
    assert pickle.loads(pickle.dumps(file)).filesystem == store
    synthetic = synthetic_log(SyntheticConfig(rows=300, cardinalities=(10, 50)))
    there, _ = assert_same_when_sent(synthetic)
    keys = synthetic.keys.flatten()
    assert there.are_informative(keys).tolist() == synthetic.are_informative(keys).tolist()  # type: ignore[attr-defined]
    assert_same_when_sent(FrameLog(*rows()))


def test_a_compressed_log_of_several_files_takes_no_more_bytes_than_its_chunks_need(tmp_path: Path) -> None:
    text = csv_log(tmp_path / "log.csv", 20_000).read_bytes()
    (tmp_path / "logs").mkdir()
    for number in range(3):
        (tmp_path / "logs" / f"{number}.csv.gz").write_bytes(gzip.compress(text))
    assert len(pickle.dumps(open_log(tmp_path / "logs", chunk_bytes=10_000))) < 20_000 < len(text) / 10


def test_nothing_before_the_chunk_asked_for_is_read(tmp_path: Path) -> None:
    path = csv_log(tmp_path / "log.csv", 500)
    log = open_log(path, format=CSV, chunk_bytes=300)
    expected = rows_of(log, 400, 500, 9)
    content = path.read_bytes()
    gone = len(content) // 2
    path.write_bytes(re.sub(rb"[^\n]", b"\xff", content[:gone]) + content[gone:])
    assert_same(rows_of(log, 400, 500, 9), expected)
    with pytest.raises(ClickLogError, match=r"log.csv:\d+: "):
        list(log.batches(0, 1, 1))


def test_a_bad_row_is_named_where_it_is_used_and_a_bad_label_at_once(tmp_path: Path) -> None:
    good = good_rows(300)
    path = written(tmp_path / "log.csv", HEADER + b"\n".join([*good[:150], b"1,a,b,one,2", *good[150:]]))
    log = open_log(path, format=CSV, chunk_bytes=200)
    assert len(log) == 301
    seen: list[Batch] = []
    with pytest.raises(ClickLogError) as raised:
        seen.extend(log.batches(0, 301, 10))
    assert str(raised.value) == f"{path}:152: 'n' cannot be read: 'n=one'"
    assert len(seen) >= 10  # of the chunks before it
    assert sum(map(len, log.batches(0, 100, 10))) == 100
    for bad in (b"7,a,b,1,2", b"1,a", b"1,\xff,b,1,2"):
        path.write_bytes(HEADER + b"\n".join([*good[:150], bad, *good[150:]]))
        with pytest.raises(ClickLogError, match=rf"^{path}:152: "):
            open_log(path, format=CSV, chunk_bytes=200)


def test_too_many_bad_rows_no_rows_and_no_training_rows_are_refused_as_by_prepare(tmp_path: Path) -> None:
    bad = written(tmp_path / "bad.csv", HEADER + b"\n".join([*good_rows(97), b"1", b"2,a,b,1,2", b"3,a,b,1,2"]))
    empty = written(tmp_path / "empty.csv", HEADER)
    test_only = written(tmp_path / "test.csv", "label,a,split\n" + "1,x,2\n" * 20)
    unordered = avazu_log(tmp_path / "unordered.csv", ["14102100", "14102200", "14102123"])
    mixed = written(tmp_path / "mixed.csv", "label,a,split\n1,x,0\n1,x,2\n1,x,0\n")
    for path, log_format, message in (
        (bad, CSV, r"(?s)^3 of 100 rows are bad, more than max_bad=0.029\n.*  2 × label 'label' must be 0 or 1"),
        (empty, CSV, "no rows"),
        (test_only, None, "test.csv: no training rows; all 20 are for testing"),
        (unordered, None, "order of time"),
        (mixed, None, r"test rows \(split is test or 2\) must come last"),
    ):
        options: dict[str, Any] = {"on_bad_row": "skip", "max_bad": 0.029, "chunk_bytes": 40}
        with pytest.raises(ClickLogError, match=message) as by_prepare:
            prepare([path], tmp_path / path.stem, log_format, **options)
        with pytest.raises(ClickLogError) as raised:
            open_log(path, format=log_format, **options)
        assert str(raised.value) == str(by_prepare.value)
        assert path != bad or "  line 99: 1 columns where 5 are expected: '1'" in str(raised.value)
    log, _ = prepare([bad], tmp_path / "out", CSV, on_bad_row="skip", max_bad=0.03)
    assert sorted(log.manifest.bad_rows.values()) == [1, 2]
    with pytest.raises(FileNotFoundError):
        open_log(tmp_path / "missing.csv")


@pytest.mark.parametrize("suffix", ["", ".gz", ".parquet"])
def test_a_log_with_fewer_rows_than_were_counted_is_an_error(suffix: str, tmp_path: Path) -> None:
    def log_of(rows: int) -> Path:
        if suffix == ".parquet":
            path = tmp_path / "log.parquet"
            pl.DataFrame({"label": [i % 2 for i in range(rows)], "a": ["x"] * rows}).write_parquet(path)
            return path
        content = b"label,a\n" + b"".join(b"%d,v%d\n" % (i % 2, i * 7919 % 1009) for i in range(rows))
        return written(tmp_path / f"log.csv{suffix}", gzip.compress(content) if suffix else content)

    log = open_log(log_of(2000), chunk_bytes=1000, columns="categorical")
    path = log_of(900)
    for start in (0, 800, 1900):
        with pytest.raises(ClickLogError) as raised:
            list(log.batches(start, 2000, 100))
        assert str(raised.value) == f"{path}: has changed since its rows were counted; read it from the start"


def test_rows_that_come_and_go_without_a_change_of_size_are_found(tmp_path: Path) -> None:
    path = csv_log(tmp_path / "log.csv", 300)
    log = open_log(path, format=CSV, chunk_bytes=500)
    content = path.read_bytes()
    lines = content.split(b"\n")
    lines[200:201] = [b"0,,,,1", b"0,%b,,,1" % (b"a" * (len(lines[200]) - 13))]  # two of one
    lines[100:102] = [lines[100].replace(b",v", b",v" + b"0" * (len(lines[101]) + 1))]  # one of two
    assert len(b"\n".join(lines)) == len(content)
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ClickLogError, match="has changed since its rows were counted"):
        list(log.batches(0, 300, 50))


def test_no_thread_outlives_the_batches_or_an_error(tmp_path: Path) -> None:
    log = open_log(csv_log(tmp_path / "log.csv", 2000), format=CSV, chunk_bytes=500, threads=3)
    before = set(threading.enumerate())
    batches = log.batches(0, 2000, 10)
    next(batches)
    assert set(threading.enumerate()) > before
    batches.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) == before
    assert sum(map(len, log.batches(0, 2000, 999))) == 2000
    assert set(threading.enumerate()) == before
    good = good_rows(1000)
    bad = written(tmp_path / "bad.csv", HEADER + b"\n".join([*good[:300], b"1,a,b,one,2", *good[300:]]))
    with pytest.raises(ClickLogError, match=r"bad.csv:302"):
        list(open_log(bad, format=CSV, chunk_bytes=200).batches(0, 1000, 10))
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_the_work_for_a_column_does_not_grow_with_the_number_of_columns(suffix: str, tmp_path: Path) -> None:
    def calls(columns: int) -> int:
        frame = pl.DataFrame({"label": [0, 1], "a": ["x", "y"], **{f"n{i}": [0.5, 1.5] for i in range(columns)}})
        file = raw_file(write(frame, tmp_path / f"log{columns}{suffix}", 2))
        kinds = {"label": "label", "a": "category", **{f"n{i}": "number" for i in range(columns)}}
        log, count = format_for_kinds(kinds, "label"), 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += 1

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            file.check(log)
            (chunk,) = file.chunks(log, 0, 1, 1 << 20)
            encoded = encode_chunk(file, chunk, log)
            open_log(file.path, whole=True)  # the columns are inferred
        finally:
            sys.setprofile(before)
        assert encoded.batch.numbers.shape == (2, columns)
        return count

    calls(10)  # imports
    assert calls(240) < 5 * calls(80)


def test_a_log_larger_than_its_chunks_is_not_kept_in_memory_and_progress_counts_its_bytes(tmp_path: Path) -> None:
    path, seen = tmp_path / "log.csv.gz", list[int]()
    rows = b"".join(b"%d,v%d,w,1.5,%d\n" % (i % 2, i * 7919 % 100_003, i) for i in range(40_000))
    with gzip.open(path, "wb", 1) as file:
        file.write(HEADER)
        for _ in range(20):
            file.write(rows)  # 17 MB
    tracemalloc.start()
    try:
        log = open_log(path, format=CSV, chunk_bytes=128 << 10, on_progress=lambda done, _: seen.append(done))
        count = sum(len(batch) for batch in log.batches(0, len(log), 1000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == len(log) == 800_000
    assert peak < 6e6
    assert (np.diff(seen) > 0).all()
    assert seen[-1] == len(HEADER) + 20 * len(rows)
    logs, totals = [csv_log(tmp_path / f"{i}.csv", 100 + i) for i in range(2)], set[int | None]()
    raw_log(logs, format=CSV, chunk_bytes=300, on_progress=lambda _, total: totals.add(total))
    assert totals == {sum(log.stat().st_size for log in logs)}


def test_training_reads_a_raw_logs_head_once_and_counts_its_rows_once(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(90)))
    test = written(tmp_path / "test.csv", HEADER + b"\n".join(good_rows(10)))
    opened, stream = list[str](), RawFile.open_text

    def open_text(file: RawFile) -> Any:
        opened.append(file.source.rpartition("/")[2])
        return stream(file)

    monkeypatch.setattr(RawFile, "open_text", open_text)
    options = ["--model", "mlp", "--dim", 2, "--test", test, "--set", "model.hidden=[4]", "--threads", 1]
    assert run("train", log, "--out", "run", *options).returncode == 0
    head_columns_head, count = ["log.csv", "log.csv", "test.csv"], ["log.csv", "test.csv"]
    base_rate, train, recalibrate, evaluate = ["log.csv"], ["log.csv"], ["log.csv"], ["test.csv"]
    trained = [*base_rate, *train, *recalibrate, *evaluate]
    passes_of_baseline, names = 2 * [*train, *evaluate], ["log.csv"]
    columns = ["log.csv", "test.csv"]
    assert opened == [*head_columns_head, *count, *trained, *passes_of_baseline, *names, *columns]
    opened.clear()
    assert run("predict", "run", log, "--out", "scores.csv", "--threads", 1).returncode == 0
    assert opened == ["log.csv"] * 3  # head, count, predict
    opened.clear()
    prepare([log, test], tmp_path / "out")
    assert opened == [*head_columns_head, *count]
