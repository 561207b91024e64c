"""Many files are one log: cut anywhere, in folders, patterns, partitions and stores, in the order of names or times."""

import os
import random
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import polars as pl
import pytest

from cli_cases import click_log
from data_cases import assert_same, compress, rows_of, write, written
from object_store import BUCKET, ObjectStore, object_store
from over import over
from sparsegroup.data import ClickLogError, Log, LogOptionError, RawLog, is_prepared, open_log, prepare
from sparsegroup.data.raw.files import is_same, listed, short_name

ROWS = 90
PLAIN, TIMED, SPLIT = "label,a,b", "label,a,b,ts", "label,a,b,ts,split"


def lines(header: str) -> list[str]:
    """Rows whose values all differ from each other's."""
    found = []
    for i in range(ROWS):
        row = {"label": i % 2, "a": f"v{i}", "b": f"w{i % 7}", "ts": 1_000_000 + i, "split": 2 if i >= 70 else 0}
        found.append(",".join(str(row[name]) for name in header.split(",")))
    return found


def cut(folder: Path, header: str, rows: list[str], seed: int, suffix: str = "") -> list[Path]:
    """The rows in some files, one of them without any, each with the header."""
    generator = random.Random(seed)
    cuts = sorted(generator.choices(range(1, len(rows)), k=5))
    cuts = sorted([0, *cuts, cuts[2], len(rows)])
    folder.mkdir()
    files = []
    for number, (begin, end) in enumerate(pairwise(cuts)):
        text = "".join(f"{line}\n" for line in [header, *rows[begin:end]]).encode()
        files.append(written(folder / f"part-{number + 7}.csv{suffix}", compress(suffix, text) if suffix else text))
    return files


def assert_same_rows(ours: Log, theirs: Log) -> None:
    assert len(ours) == len(theirs)
    for name in ("train_rows", "fields", "bad_rows"):
        assert getattr(ours, name) == getattr(theirs, name), name
    expected = rows_of(theirs)
    generator = random.Random(0)
    for start, stop, size in [(0, len(ours), 13), *((generator.randrange(ROWS), ROWS, 7) for _ in range(3))]:
        assert_same(rows_of(ours, start, stop, size), expected[start:stop])


@pytest.mark.parametrize(("seed", "suffix", "header"), [(0, "", PLAIN), (1, ".gz", TIMED), (2, ".xz", SPLIT)])
def test_a_log_in_many_files_is_the_log_in_one(seed: int, header: str, suffix: str, tmp_path: Path) -> None:
    rows = lines(header)
    one = written(tmp_path / "one.csv", "\n".join([header, *rows]))
    files = cut(tmp_path / "logs", header, rows, seed, suffix)
    options: dict[str, Any] = {"chunk_bytes": 150 + 50 * seed, "threads": 1 + seed}
    alone, many = open_log(one, chunk_bytes=300), open_log(tmp_path / "logs", **options)
    assert (alone.fields, alone.train_rows) == (("a", "b"), 70 if header == SPLIT else 81)
    assert_same_rows(many, alone)
    assert_same_rows(open_log(files[::-1], **options), alone)
    assert_same_rows(open_log(f"{tmp_path}/*/part-*.csv{suffix}", **options), alone)
    prepared, _ = prepare([tmp_path / "logs"], tmp_path / "out", chunk_bytes=200)
    assert_same_rows(prepared, alone)
    assert prepared.identity == many.identity != alone.identity


TYPED = {
    "words": ["a1", "a2", "a3"],
    "whole": [1, 2, 3],
    "real": [0.5, 1.75, 2.25],
    "lists": [["a", "b"], ["c"], ["a"]],
    "times": [datetime(2026, 1, 1, 7), datetime(2026, 1, 2, 8), datetime(2026, 1, 3, 9)],
}


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("name", TYPED)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_file_whose_column_has_the_type_null_has_missing_values(
    name: str, place: int, suffix: str, tmp_path: Path
) -> None:
    values = pl.Series("x", TYPED[name] * 30)
    logs = []
    for kind, nulls in (("null", pl.Series("x", [None] * 90, dtype=pl.Null)), ("typed", values.clear(90))):
        folder = tmp_path / kind
        folder.mkdir()
        for number in range(3):
            frame = pl.DataFrame({"label": [0, 1, 1] * 30, "user": ["u", "v", "w"] * 30})
            frame = frame.with_columns(nulls if number == place else values)
            path = folder / f"{number}{suffix}"
            frame.write_parquet(path) if suffix == ".parquet" else frame.write_ipc(path)
        logs.append(open_log(folder))
    assert logs[0].columns == logs[1].columns != {}
    assert logs[0].columns["x"] != "ignore"
    assert_same_rows(logs[0], logs[1])


def test_files_whose_types_differ_give_the_same_keys_and_structs_are_named_with_their_file(tmp_path: Path) -> None:
    rows = {"label": [0, 1, 1] * 30, "x": [1, 2, 3] * 30}
    for number, dtype in enumerate((pl.Int64, pl.Int8, pl.Float64, pl.String, pl.Decimal(9, 2))):
        pl.DataFrame(rows).with_columns(pl.col("x").cast(dtype)).write_parquet(tmp_path / f"{number}.parquet")
    log = open_log(tmp_path)
    keys = next(log.batches(0, len(log), len(log))).keys
    assert (len(log), len(keys[:90].unique()), len(keys.unique())) == (450, 3, 3)
    pl.DataFrame(rows).with_columns(x=pl.struct(a="x")).write_parquet(tmp_path / "9.parquet")
    with pytest.raises(ClickLogError, match=r"9\.parquet.*'x'"):
        len(open_log(tmp_path))


def test_bad_rows_and_blank_lines_are_named_by_the_line_in_their_file(tmp_path: Path) -> None:
    rows = lines(TIMED)
    for place, line in ((60, ""), (45, "7,x,y,3"), (30, "1,short"), (12, "7,x,y,3"), (3, "")):
        rows.insert(place, line)
    wrong = ("1,short", "7,x,y,3")
    one = written(tmp_path / "one.csv", "\n".join([TIMED, *rows]))
    files = cut(tmp_path / "logs", TIMED, rows, 0)
    options: dict[str, Any] = {"on_bad_row": "skip", "max_bad": 0.5, "chunk_bytes": 170}
    many = open_log(tmp_path / "logs", **options)
    assert_same_rows(many, open_log(one, **options))
    found = [(bad.source, number) for bad in many.bad for number, _, _ in bad.samples]
    expected = [
        (str(path), number)
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line in wrong
    ]
    assert found == expected
    with pytest.raises(ClickLogError, match=rf"^{found[0][0]}:{found[0][1]}: "):
        open_log(tmp_path / "logs", chunk_bytes=170)
    log = open_log(tmp_path / "logs", whole=True, **options)  # places count the lines of all files
    places = [place for batch in log.batches(0, ROWS, 11) for place in log.places(0, batch).tolist()]
    assert places == [place for place, row in enumerate(rows) if row and row not in wrong]


@pytest.mark.parametrize("seed", range(3))
def test_the_texts_of_keys_are_found_whatever_pieces_without_a_row_the_log_has(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    with_tags = [f"{line},t{place % 5}|u" for place, line in enumerate(lines(PLAIN))]
    header, bad, long = f"{PLAIN},tags", "7,x,y,z", "1,w,v," + "x" * (1 << 20)
    pieces = [[], [bad], [bad] * 9, [long], with_tags[:50], with_tags[50:]]
    generator.shuffle(pieces)
    files = [written(tmp_path / f"{n}.csv", "\n".join([header, *piece])) for n, piece in enumerate(pieces)]
    columns = {"label": "label", "a": "category", "b": "category", "tags": "list |"}
    options: dict[str, Any] = {"columns": columns, "on_bad_row": "skip", "max_bad": 0.5, "chunk_bytes": 99}
    log = open_log(files, **options)
    rows = rows_of(log)
    keys = np.unique(np.concatenate([rows.keys.flatten(), rows.bags[0].keys]))
    texts = {*(f"v{i}" for i in range(ROWS)), *(f"w{i}" for i in range(7)), *(f"t{i}" for i in range(5)), "u"}
    prepared, _ = prepare([files], tmp_path / "out", vocabulary=True, **options)
    for found in (log.values_of(keys, ROWS), prepared.values_of(keys, ROWS)):
        assert (set(found), set(found.values())) == (set(keys.tolist()), texts)


def test_a_test_log_may_be_many_files_too(tmp_path: Path) -> None:
    rows = lines(TIMED)
    train, test = cut(tmp_path / "train", TIMED, rows[:60], 0), cut(tmp_path / "test", TIMED, rows[60:], 1)
    log = open_log(tmp_path / "train", str(tmp_path / "test" / "*"), chunk_bytes=200)
    assert (len(log), log.train_rows) == (ROWS, 60)
    prepared, _ = prepare([tmp_path / "train", tmp_path / "test"], tmp_path / "out", chunk_bytes=100)
    assert_same_rows(log, prepared)
    assert log.identity == prepared.identity
    assert open_log(train, test[1:]).identity != open_log([*train, test[0]], test[1:]).identity


def test_names_are_sorted_by_the_numbers_in_them(tmp_path: Path) -> None:
    names = ["b/1.csv", "a/day10.csv", "a/day9.csv", "a/day09.csv", "a/10/x.csv", "a/9/x.csv"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        written(tmp_path / name, "label,a\n1,x\n")
    found = [file.name for file in listed(tmp_path)]
    assert found == ["a/9/x.csv", "a/10/x.csv", "a/day09.csv", "a/day9.csv", "a/day10.csv", "b/1.csv"]
    sources = [file.source for file in listed(tmp_path / name for name in names)]
    assert sources == [str(tmp_path / name) for name in found]
    given = listed([tmp_path / "b", tmp_path / "a" / "day*"], by_name=False)
    assert [file.name for file in given] == ["1.csv", "day09.csv", "day9.csv", "day10.csv"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_files_are_sorted_by_the_first_time_in_each(kind: str, tmp_path: Path) -> None:
    rows = lines(TIMED)
    files = cut(tmp_path / "logs", TIMED, rows, 0)
    alone = open_log(written(tmp_path / "one.csv", "\n".join([TIMED, *rows])))
    (tmp_path / "mixed").mkdir()
    for path, number in zip(files, random.Random(1).sample(range(len(files)), len(files)), strict=True):
        frame = pl.read_csv(path, schema_overrides={"label": pl.Int64, "ts": pl.Int64})
        write(frame, tmp_path / "mixed" / f"{number}.{kind}")
    assert rows_of(open_log(tmp_path / "mixed")).times.tolist() != rows_of(alone).times.tolist()
    assert_same_rows(open_log(tmp_path / "mixed", sort_files="time"), alone)
    assert_same_rows(prepare([tmp_path / "mixed"], tmp_path / "out", sort_files="time")[0], alone)
    with pytest.raises(LogOptionError, match=r"^`sort_files` time is for logs with a column of times"):
        open_log([written(tmp_path / f"{n}.csv", "label,a\n1,x\n") for n in "xy"], sort_files="time")
    with pytest.raises(LogOptionError, match=r"^`sort_files` is for raw logs"):
        open_log(tmp_path / "out", sort_files="time")


@over("kind", ["csv", "parquet"])
def test_folders_with_a_key_add_a_column(kind: str, tmp_path: Path) -> None:
    days = ["2026-01-09", "2026-01-10", "__HIVE_DEFAULT_PARTITION__"]
    for number, day in enumerate(days):
        folder = tmp_path / kind / f"day={day}" / "city=S%C3%A3o%20Paulo"
        folder.mkdir(parents=True)
        write(pl.DataFrame({"label": [0, 1], "a": [f"v{number}", "w"]}), folder / f"0.{kind}")
    expected = pl.DataFrame({"label": [0, 1] * 3, "a": ["v0", "w", "v1", "w", "v2", "w"]}).with_columns(
        day=pl.Series([days[0], days[0], days[1], days[1], "", ""]), city=pl.lit("São Paulo")
    )
    expected.write_csv(tmp_path / "one.csv")
    alone = rows_of(open_log(tmp_path / "one.csv", columns="categorical"))
    log = open_log(tmp_path / kind, columns="categorical")
    assert log.fields == ("a", "day", "city")
    assert rows_of(log).keys.tolist() == alone.keys.tolist()
    prepared, _ = prepare(
        [f"{tmp_path}/{kind}/*/city=*"], tmp_path / f"out {kind}", vocabulary=True, columns="categorical"
    )
    assert rows_of(prepared).keys.tolist() == alone.keys.tolist()
    assert prepared.vocabulary is not None
    assert set(pl.read_parquet(prepared.vocabulary).filter(field="day")["value"]) == {*days[:2], ""}
    one_day = open_log(f"{tmp_path}/{kind}/day={days[1]}", columns="categorical")
    assert one_day.fields == log.fields  # as when all days are read
    assert open_log(tmp_path / kind, exclude=["day", "city"]).fields == ("a",)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_columns_are_understood_from_the_first_rows_of_the_log_and_the_folders_of_all_its_files(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, price = range(400), [f"{i * 7919 % 1009 / 10:.1f}" for i in range(400)]
    frame = pl.DataFrame({"label": [i % 2 for i in rows], "item": [f"v{i % 9}" for i in rows], "price": price})
    for day in range(8):
        folder = tmp_path / "logs" / f"day=2026-01-0{day + 1}" / f"v={day % 2}"
        folder.mkdir(parents=True)
        part = frame[50 * day : 50 * day + 50]
        write(part if kind == "csv" else part.with_columns(pl.col("price").cast(pl.Float64)), folder / f"0.{kind}")
    whole_log = open_log(tmp_path / "logs")
    assert (whole_log.fields, whole_log.numbers) == (("item", "day.weekday", "v"), ("price",))
    monkeypatch.setattr("sparsegroup.data.open.SAMPLE_ROWS", 40)  # within the first day
    assert open_log(tmp_path / "logs").fields == whole_log.fields


def test_a_column_of_the_file_goes_before_that_of_its_folder_whose_value_is_part_of_the_logs_identity(
    tmp_path: Path,
) -> None:
    def log_in(folder: str, text: str) -> Log:
        (tmp_path / folder).mkdir(exist_ok=True)
        return open_log(written(tmp_path / folder / "log.csv", text))

    same = "label,a\n" + "1,file\n" * 20
    assert rows_of(log_in("a=folder", same)).keys.tolist() == rows_of(log_in(".", same)).keys.tolist()
    assert log_in("day=1", same).identity != log_in("day=2", same).identity


def test_a_file_has_the_columns_of_its_folders_whatever_the_way_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "logs" / "day=1" / "more" / "city=b"
    folder.mkdir(parents=True)
    path = written(folder / "log.csv", "label,a\n" + "1,x\n0,y\n" * 20)
    found = []
    for here, names in (
        (tmp_path, [str(path), "logs", "./logs", "logs/day=1/more/city=b/log.csv", "logs/**/*.csv", f"file://{path}"]),
        (tmp_path / "logs", [".", "day=1", "*", "day=*/more"]),
        (folder, [".", "log.csv", "*.csv", "../city=b/log.csv", "../../more"]),
    ):
        monkeypatch.chdir(here)
        logs = [open_log(name, columns="categorical") for name in names]
        found += [(log.fields, log.identity, rows_of(log).keys.tolist()) for log in logs]
    assert found[0][0] == ("a", "day", "city")
    assert found == [found[0]] * len(found)


# What is read, and what is not


def test_hidden_and_empty_files_are_passed_over_and_names_that_exist_are_no_patterns(tmp_path: Path) -> None:
    good = written(tmp_path / "log.csv", "label,a\n" + "1,x\n" * 20)
    for name in ("_SUCCESS", ".log.csv.crc", "_temporary/0.csv", ".git/x", "empty.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        written(tmp_path / name, "" if name == "empty.csv" else "rubbish")
    for asked in (tmp_path, tmp_path / "*", tmp_path / "**", tmp_path / "**" / "*.csv"):
        assert [file.source for file in listed(asked)] == [str(good)]
    assert [file.name for file in listed(tmp_path / "_tem*")] == ["_temporary/0.csv"]
    (tmp_path / "logs[1]").mkdir()
    one = written(tmp_path / "logs[1]" / "day[1]*.csv", "label,a\n1,x\n")
    written(tmp_path / "logs[1]" / "day1x.csv", "label,b\n1,x\n")
    assert [file.source for file in listed(one)] == [str(one)]
    assert len(listed(tmp_path / "logs[1]")) == 2
    spaced = written(tmp_path / "a b.csv", "label,a\n1,x\n")
    assert [file.source for file in listed(f"file://{tmp_path}/a%20b.csv")] == [str(spaced)]


def test_what_is_wrong_with_files_is_said_with_their_names(tmp_path: Path) -> None:
    first = written(tmp_path / "1.csv", "label,a,b\n" + "1,x,y\n" * 20)
    second = written(tmp_path / "2.csv", "label,a,c\n" + "1,x,y\n" * 20)
    wanted = rf"^{second}:1: has not the columns of {first}: 'b' is in {first} and not in {second}"
    for read in (lambda: open_log(tmp_path), lambda: prepare([[first, second]], tmp_path / ".out")):
        with pytest.raises(ClickLogError, match=wanted):
            read()
    written(second, "b,a,label,c\n" + "y,x,1,z\n" * 20)
    with pytest.raises(ClickLogError, match=rf"'c' is in {second} and not in {first}"):
        open_log(tmp_path)
    schema = written(tmp_path / ".schema.yaml", "label: label\ncategorical: [a, b]\n")
    assert len(open_log(tmp_path, schema=schema)) == 40  # who names the columns need not name all
    written(second, "b,a,label\n" + "y,x,1\n" * 20)
    assert len(set(rows_of(open_log(tmp_path)).keys[:, 1].tolist())) == 1  # in another order they are the same
    parquet = tmp_path / "3.parquet"
    pl.DataFrame({"label": [1], "a": ["x"], "b": ["y"]}).write_parquet(parquet)
    for given, message in (
        (tmp_path, rf"^{parquet}:1: is not the same kind of file as {first}"),
        ([first, tmp_path / "*.csv"], r"1\.csv is in it twice"),
        (tmp_path / "nothing-*", r"nothing-\*: matches no files$"),
        ([], "one at least"),
    ):
        with pytest.raises(ClickLogError, match=message):
            open_log(given)
    with pytest.raises(FileNotFoundError):
        open_log([first, tmp_path / "gone"])


def test_a_prepared_log_is_told_from_a_folder_of_raw_files(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    frame = pl.DataFrame({"label": [0, 1] * 20, "a": [f"v{i}" for i in range(40)]})
    frame.write_parquet(tmp_path / "raw" / "part-00000.parquet")  # as Spark names them
    assert not is_prepared(tmp_path / "raw")
    assert len(open_log(tmp_path / "raw")) == 40
    prepared, _ = prepare([tmp_path / "raw"], tmp_path / "out")
    assert is_prepared(str(tmp_path / "out"))
    assert open_log(tmp_path / "out").name == prepared.name
    with pytest.raises(ClickLogError, match="is a prepared log, which is read from a disk and by itself"):
        open_log([tmp_path / "raw", tmp_path / "out"])
    (tmp_path / "out" / "log.json").unlink()
    assert is_prepared(tmp_path / "out")
    with pytest.raises(ClickLogError, match=r"no such log \(log.json is missing\)"):
        open_log(tmp_path / "out")


def test_a_file_that_has_changed_since_is_named(tmp_path: Path) -> None:
    files = cut(tmp_path / "logs", TIMED, lines(TIMED), 0)
    log = open_log(tmp_path / "logs", chunk_bytes=100)
    expected = rows_of(log).keys.tolist()
    grown = files[-2]
    content = grown.read_bytes()
    grown.write_bytes(content + b"1,new,w,9\n")
    assert rows_of(log).keys.tolist() == expected
    kept = content.splitlines(keepends=True)
    grown.write_bytes(b"".join([*kept[:1], *kept[2:], b"\n" * len(kept[1])]))  # a row less, the same size
    with pytest.raises(ClickLogError, match=rf"^{grown}: has changed since its rows were counted"):
        rows_of(log)
    files[1].write_bytes(b"label")
    with pytest.raises(ClickLogError, match=rf"^{files[1]}: has changed since its rows were counted"):
        rows_of(log)


def test_short_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    names = {
        "log.csv.gz": "log",
        "logs/": "logs",
        "logs/2026-*.csv.gz": "logs",
        "*.csv": "here",
        ".": "here",
        "s3://bucket/clicks/day=*/": "clicks",
        "s3://key:secret@bucket/day=*/?region=x": "bucket",
        "s3://bucket": "bucket",
        "gs://bucket/day=2026.01/part-0.parquet": "part-0",
        "logs/v=1.5": "v=1.5",
        ".hidden": "log",
    }
    assert {path: short_name(path) for path in names} == names
    assert short_name(["a/x.csv", "b/y.csv", "c/z.csv"]) == "x+2"
    assert is_same("../here/log.csv", ["log.csv"])
    assert not is_same("s3://b/x", "s3://b/y")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
def test_many_files_leave_none_open(tmp_path: Path) -> None:
    for number in range(120):
        written(tmp_path / f"{number}.csv", f"label,a\n1,x{number}\n0,y\n")
    before = os.listdir("/proc/self/fd")
    log = open_log(tmp_path)
    assert len(list(log.batches(0, 240, 60))) == 4
    assert len(os.listdir("/proc/self/fd")) < len(before) + 50


# Stores


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


def test_a_text_in_a_store_is_that_on_a_disk_and_is_prepared_until_it_changes(
    store: ObjectStore, tmp_path: Path
) -> None:
    plain = click_log(tmp_path / "log of a day.csv", 500)
    for path in (written(tmp_path / "log.csv.zst", compress(".zst", plain.read_bytes())), plain):
        uri, out = store.put(path, f"text/{path.name}"), tmp_path / f"out{path.suffix}"
        there, here = open_log(uri, chunk_bytes=2_000), open_log(path)
        assert_same_rows(there, here)
        assert (there.identity, there.name) == (here.identity, uri)
        done, again = (prepare([uri], out, chunk_bytes=1_000)[0] for _ in range(2))
        assert_same_rows(done, here)
        assert again.manifest.id == done.manifest.id
    with pytest.raises(ClickLogError, match="is a prepared log, which is read from a disk and by itself"):
        open_log(store.put(out, "prepared"))
    store.put(click_log(tmp_path / "shorter.csv", 100), f"text/{plain.name}")
    with pytest.raises(ClickLogError, match=rf"^{uri}: has changed since its rows were counted"):
        rows_of(there)


def test_partitions_in_a_store_are_those_on_a_disk(store: ObjectStore, tmp_path: Path) -> None:
    frame = pl.read_csv(click_log(tmp_path / "log.csv", 600))
    for day in range(3):
        folder = tmp_path / "logs" / f"day={day + 8}"
        folder.mkdir(parents=True)
        frame[200 * day : 200 * day + 200].write_parquet(folder / "0.parquet")
    (tmp_path / "logs" / "_SUCCESS").touch()
    uri = store.put(tmp_path / "logs", "by day")
    here = open_log(tmp_path / "logs")
    assert here.fields == ("color", "size", "day")
    for pattern in ("", "/", "/day=*/", "/day=*/0.parquet", "/**/0.parquet", "/day=[0-9]*"):
        there = open_log(uri + pattern)
        assert there.identity == here.identity, pattern
        assert_same_rows(there, here)
    assert len(open_log(f"{uri}/day=1*")) == 200
    assert len(open_log([f"{uri}/day=10", f"{uri}/day=9"])) == 400


def test_a_store_may_be_named_in_the_uri(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    path = click_log(tmp_path / "log.csv", 100)
    server.put(path, "named/log.csv")
    query = f"scheme=http&endpoint_override={server.address}&region=us-east-1"
    there = open_log(f"s3://nobody:nothing@{BUCKET}/named/*.csv?{query}")
    assert_same_rows(there, open_log(path))
    assert there.name == f"s3://{BUCKET}/named/*.csv?{query}"  # and not the keys


def test_what_is_not_in_a_store_is_said_with_its_uri(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        open_log(f"s3://{BUCKET}/no/such.csv")
    assert (missing.value.filename, missing.value.strerror) == (f"s3://{BUCKET}/no/such.csv", "no such file")
    with pytest.raises((ClickLogError, FileNotFoundError)) as gone:
        open_log("s3://no-such-bucket/log.csv")
    assert "s3://no-such-bucket/log.csv" in f"{gone.value} {getattr(gone.value, 'filename', '')}"
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.setitem(sys.modules, "adlfs", None)
    for uri, message in (
        (f"s3://{BUCKET}/no/*", rf"^s3://{BUCKET}/no/\*: matches no files$"),
        ("foo://x/log.csv", r"^foo://x/log\.csv: Protocol not known: foo"),
        ("adl://x/*", r"^adl://x/\*: .*adlfs"),
    ):
        with pytest.raises(ClickLogError, match=message):
            open_log(uri)


def test_what_pyarrow_does_not_open_fsspec_may(tmp_path: Path) -> None:
    here = click_log(tmp_path / "log.csv", 300)
    text = here.read_bytes()
    memory = fsspec.filesystem("memory")
    memory.pipe({"/logs/day=1/log.csv.gz": compress(".gz", text), "/one/log.csv": text})
    try:
        assert_same_rows(open_log("memory://one/log.csv", chunk_bytes=700), open_log(here))
        there: RawLog = open_log("memory://logs/day=*/*.gz", columns="categorical")
        assert (there.fields, there.train_rows) == (("color", "size", "day"), 270)
        assert [len(batch) for batch in there.batches(250, 300, 30)] == [30, 20]
        assert len(open_log("memory://logs")) == 300
    finally:
        memory.rm("/", recursive=True)
