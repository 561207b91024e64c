"""Files that grow and appear: every row once, in order, from any position, whatever happens in between."""

import logging
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from data_cases import CSV, HEADER, assert_same, compress, rows_of, write, written
from object_store import ObjectStore, object_store
from over import over
from sparsegroup.data import ClickLogError, open_log
from sparsegroup.data.raw import text
from sparsegroup.streaming.sources import FilesSource, StreamError, files
from stream_cases import Reader, assert_read_again, batch_of, drained, numbers_of, record, row

NEVER = 1e9


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few rows."""
    monkeypatch.setattr(text, "LONGEST_LINE", 90)
    monkeypatch.setattr(files, "BLOCK_BYTES", 64)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store


def opened(path: Path, position: Any = None, settle: float = NEVER, **options: Any) -> FilesSource:
    source = FilesSource(path, settle=settle, every=0.0, **options)
    source.open(CSV, position)
    return source


def old(path: Path, seconds: float = 1000.0) -> Path:
    """The file, as if it had last been changed long ago."""
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def csv(*numbers: int) -> bytes:
    return HEADER + b"".join(map(row, numbers))


def table(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame([record(number) for number in numbers])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(2))
def test_every_row_once_and_in_the_order_of_its_file_through_appends_and_kills(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    folder = tmp_path / "logs"
    reader = Reader(lambda: FilesSource(folder, settle=NEVER, every=0.0), seed=seed)
    contents: dict[str, bytes] = {}
    shown: dict[str, int] = {}
    number, expected = 0, dict[str, list[int]]()
    for _ in range(300):
        match generator.choice(["rows", "bytes", "bytes", "file", "read", "read", "checkpoint", "kill"]):
            case "file":
                name = f"day={generator.randrange(3)}/part-{generator.randrange(20)}.csv"
                if name not in contents:
                    contents[name], shown[name], expected[name] = HEADER, 0, []
            case "rows" if contents:
                name = generator.choice(sorted(contents))
                for _ in range(generator.randrange(1, 8)):
                    contents[name] += row(number)
                    expected[name].append(number)
                    number += 1
            case "bytes" if contents:  # any number of bytes of it: half a line, half a header, many lines
                name = generator.choice(sorted(contents))
                more = contents[name][shown[name] :][: generator.randrange(200)]
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                append(folder / name, more)
                shown[name] += len(more)
            case "read":
                reader.read(generator.randrange(1, 9))
            case "checkpoint":
                reader.checkpoint()
            case "kill":
                reader.kill()
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        append(folder / name, content[shown[name] :])
    reader.read(10_000)
    assert not any(block.encode().bad for block in reader.blocks)
    found: dict[str, list[int]] = {name: [] for name in contents}
    for block in reader.blocks:
        found[block.span[0]] += numbers_of([block])
    assert found == expected
    assert number > 100
    assert reader.source.lag() == {"bytes": 0, "files": 0}


def test_a_writer_at_the_same_time(tmp_path: Path) -> None:
    content, generator = csv(*range(30_000)), random.Random(0)

    def write_all() -> None:
        place = 0
        with (tmp_path / "a.csv").open("wb", buffering=0) as stream:
            while place < len(content):
                place += stream.write(content[place : place + generator.randrange(1, 5000)])

    writer = threading.Thread(target=write_all)
    writer.start()
    blocks = drained(opened(tmp_path), rows=30_000)
    writer.join()
    assert numbers_of(blocks) == list(range(30_000))
    again = opened(tmp_path)
    assert_read_again(again, blocks)
    assert again.read(0.0) is None


def test_a_last_line_without_a_newline_is_taken_once_nothing_has_changed_for_a_while(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", csv(1, 2)[:-1])
    assert numbers_of(drained(opened(path))) == [1]
    old(path)
    source = opened(path, settle=5)
    blocks = drained(source)
    assert numbers_of(blocks) == [1, 2]
    again = opened(path)
    assert_read_again(again, blocks)
    for reader in (source, again):
        assert drained(reader) == []
    append(path, b"\n" + row(3))  # the newline comes with the next line
    for reader in (source, again, opened(path, blocks[-1].position)):
        assert numbers_of(drained(reader)) == [3]


def test_what_is_added_to_a_line_that_was_taken_for_whole_is_a_bad_row(tmp_path: Path) -> None:
    path = old(written(tmp_path / "a.csv", csv(1) + b"1,a,b,2,1"))
    source = opened(path, settle=5)
    blocks = drained(source)
    append(path, b"7,9\n" + row(3))
    more = drained(source)
    assert numbers_of([*blocks, *more]) == [1, 2, 3]
    assert [(line, bad) for block in more for line, _, bad in block.encode().bad] == [(3, "7,9")]
    resumed = opened(path, blocks[-1].position)
    assert_read_again(resumed, more)
    assert drained(resumed) == []


def test_bad_rows_have_their_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", csv(1) + b"2,a,b,1,1\n1,a\n" + row(2) + b"x" * 2_000_000 + b"\n\n" + row(3))
    blocks = drained(opened(path))
    assert numbers_of(blocks) == [1, 2, 3]
    bad = [(block.origin, line, reason) for block in blocks for line, reason, _ in block.encode().bad]
    assert bad == [
        (str(path), 3, "label 'label' must be 0 or 1, true or false, yes or no"),
        (str(path), 4, "2 columns where 5 are expected"),
        (str(path), 6, "a line of more than 1,048,576 bytes"),
    ]
    assert_read_again(opened(path), blocks)
    written(tmp_path / "b.csv", b"label,a,b,t\n1,a,b,3\n")
    with pytest.raises(ValueError, match=r"b.csv:1: no column 'n'"):
        drained(opened(tmp_path))


def test_files_come_by_name_or_by_time_and_a_late_or_renamed_one_when_it_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    source = opened(folder)
    assert source.read(0.0) is None  # until the folder is made
    folder.mkdir()
    for number, name in enumerate(["9.csv", "10.csv", "8.csv"]):
        old(written(folder / name, csv(number)), 1000.0 - number)
    for name in (".a.csv", "_a.csv", "a.csv.tmp", "a.csv.part", "a.csv.crdownload"):
        written(folder / name, csv(6))
    assert numbers_of(drained(source)) == [2, 0, 1]
    by_time = opened(folder, sort="time")
    assert numbers_of(drained(by_time)) == [0, 1, 2]
    written(folder / "1.csv", csv(5))
    (folder / "a.csv.part").rename(folder / "a.csv")
    assert numbers_of(drained(source)) == [5, 6]
    assert sorted(numbers_of(drained(by_time))) == [5, 6]


def test_a_file_that_vanishes_is_forgotten_but_not_a_folder_that_is_away(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for name in "abc":
        written(folder / f"{name}.csv", csv(ord(name)))
    source = opened(folder)
    assert set(drained(source)[-1].position) == {"a.csv", "b.csv", "c.csv"}
    folder.rename(tmp_path / "away")
    assert source.read(0.0) is None
    (tmp_path / "away").rename(folder)
    (folder / "b.csv").unlink()
    written(folder / "d.csv", csv(1))
    (block,) = drained(source)
    assert numbers_of([block]) == [1]
    assert set(block.position) == {"a.csv", "c.csv", "d.csv"}
    with pytest.raises(StreamError, match=r"b.csv has vanished, and rows of it are to be read again"):
        opened(folder, block.position).again(["b.csv", 0, 1, 20, 2])


@over("change", [lambda path: path.write_bytes(csv(1)), lambda path: path.write_bytes(csv(1, 2, 4, 5, 6))])
def test_a_file_that_has_shrunk_or_is_another_is_an_error(change: Callable[[Path], Any], tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", csv(1, 2, 3))
    source, folder = opened(path), opened(tmp_path)
    (block,) = drained(source)
    drained(folder)
    change(path)
    for reader in (source, opened(path, block.position)):
        with pytest.raises(StreamError, match=r"a.csv: has shrunk or been replaced since its first 56 bytes were read"):
            reader.read(0.0)
    if path.stat().st_size < 56:
        with pytest.raises(StreamError, match=r"a.csv: has changed since its lines 1 to 4 were read"):
            opened(path).again(block.span)
    path.write_bytes(b"")
    other = written(tmp_path / "b.csv", csv(1))
    with pytest.raises(StreamError, match=r"a.csv: has shrunk or been replaced"):
        drained(folder)
    other.unlink()


@pytest.mark.usefixtures("small")
def test_compressed_files_are_read_once_they_are_complete_through_kills(tmp_path: Path) -> None:
    path = written(tmp_path / "0.csv.gz", compress(".gz", csv(*range(20))))
    source = opened(tmp_path, settle=50.0)
    assert source.read(0.0) is None
    old(path)
    assert numbers_of(drained(source)) == list(range(20))
    reader = Reader(lambda: FilesSource(tmp_path, settle=0.0, every=0.0))
    for number in range(4):
        written(tmp_path / f"{number}.csv.gz", compress(".gz", csv(*range(number * 20, number * 20 + 20))))
        for _ in range(3):
            reader.read(number + 1)
            reader.kill()
        reader.checkpoint()
    reader.read(1000)
    assert reader.numbers == list(range(80))
    assert len(reader.blocks) > 20


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_columnar_file_is_read_once_it_has_a_footer(suffix: str, tmp_path: Path) -> None:
    data = write(table(*range(500)), tmp_path / f"whole{suffix}", 64).read_bytes()
    path = tmp_path / "logs" / f"a{suffix}"
    path.parent.mkdir()
    reader = Reader(lambda: FilesSource(path.parent, settle=NEVER, every=0.0))
    for part in (10, len(data) // 2, len(data) - 3):
        path.write_bytes(data[:part])
        reader.read(9)
        assert reader.blocks == []
    path.write_bytes(data)
    for most in (1, 1, 2, 100):
        reader.read(most)
        reader.kill()
        if most == 2:
            reader.checkpoint()
    assert reader.numbers == list(range(500))
    old(written(path.parent / f"b{suffix}", data[:-3]))
    with pytest.raises(StreamError, match=rf"b{suffix}: damaged.*it has not changed for 60 seconds: replace it or re"):
        drained(reader.source, rows=1)


@over("suffix", [".csv", ".csv.gz", ".parquet"])
def test_a_file_without_a_column_is_an_error_or_its_rows_have_no_values_there(
    suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / suffix[1:]
    folder.mkdir()

    def put(name: str, frame: pl.DataFrame) -> None:
        path = folder / f"{name}{suffix}"
        if suffix == ".parquet":
            write(frame, path)
        else:
            text = frame.write_csv().encode()
            old(written(path, compress(".gz", text) if suffix == ".csv.gz" else text))

    frames = table(*range(5)), table(*range(5, 9)).drop("b")
    for name, frame in zip("12", frames, strict=True):
        put(name, frame)
    with pytest.raises(ClickLogError, match=r"2.*no column 'b'.*missing_columns"):
        drained(opened(folder, settle=0.0))
    blocks = drained(opened(folder, settle=0.0, missing_columns="empty"))
    pl.concat(frames, how="diagonal").write_csv(folder / ".whole.csv")
    assert_same(batch_of(blocks), rows_of(open_log(folder / ".whole.csv", format=CSV)))
    assert "no column 'b'" in caplog.text
    assert_read_again(opened(folder, settle=0.0, missing_columns="empty"), blocks)
    with pytest.raises(ClickLogError, match="no column 'b'"):
        opened(folder, settle=0.0).again(blocks[-1].span)
    put("3", table(10).drop("label"))
    with pytest.raises(ClickLogError, match=r"3.*no column 'label'"):
        drained(opened(folder, settle=0.0, missing_columns="empty"))
    with pytest.raises(StreamError, match="is error or empty"):
        opened(folder, settle=0.0, missing_columns="yes")


def test_the_first_rows_decide_the_format_and_all_are_those_of_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    for number in range(3):
        (folder / f"day={number}").mkdir(parents=True)
        written(folder / f"day={number}" / "a.csv", csv(*range(number * 10, number * 10 + 10))[:-1])
    source = FilesSource(folder, settle=NEVER, every=0.0)
    log = open_log(source.first_rows(tmp_path / "head", 25, 60.0), columns="categorical")
    assert (len(log), "day" in log.fields, "a" in log.fields) == (25, True, True)
    assert len(open_log(source.first_rows(tmp_path / "other", 100, 0.0))) == 27
    for number in range(3):
        append(folder / f"day={number}" / "a.csv", b"\n")
    source.open(CSV)
    assert_same(batch_of(drained(source)), rows_of(open_log(folder, format=CSV)))


@over("suffix", [".parquet", ".arrow", ".csv.gz"])
def test_the_first_rows_of_other_kinds(suffix: str, tmp_path: Path) -> None:
    path, frame = tmp_path / f"a{suffix}", table(*range(500))
    if suffix == ".csv.gz":
        old(written(path, compress(".gz", frame.write_csv().encode())))
    else:
        write(frame, path)
    log = open_log(FilesSource(path).first_rows(tmp_path / f"head{suffix}", 100, 0.0), columns="categorical")
    assert (len(log), log.fields) == (100, ("a", "b", "n", "t"))


@pytest.mark.whole
def test_objects_that_appear_and_are_replaced_by_longer_ones(store: ObjectStore, tmp_path: Path) -> None:
    lines = [HEADER, *map(row, range(100))]
    uri = store.put(written(tmp_path / "a", b"".join(lines[:11]) + lines[11][:5]), "logs/day=1/a.csv")
    uri = uri.removesuffix("day=1/a.csv")
    reader = Reader(lambda: FilesSource(uri, settle=1e9, every=0.0))
    reader.read(9)
    assert reader.numbers == list(range(10))
    store.put(written(tmp_path / "a", b"".join(lines)), "logs/day=1/a.csv")
    store.put(written(tmp_path / "b.gz", compress(".gz", HEADER + row(200))), "logs/day=2/b.csv.gz")
    store.put(write(table(*range(300, 350)), tmp_path / "c.parquet", 20), "logs/day=2/c.parquet")
    for _ in range(6):
        reader.read(1)
        reader.kill()
    reader.checkpoint()
    reader.kill()
    reader.read(9)
    assert reader.numbers == [*range(100), 200, *range(300, 350)]
    log = open_log(FilesSource(uri).first_rows(tmp_path / "head", 60, 0.0), columns="categorical")
    assert (len(log), "day" in log.fields) == (60, True)


def test_a_store_that_cannot_be_reached_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path / "a.csv", HEADER + row(1))
    source = opened(tmp_path)

    def away(*_: Any, **__: Any) -> Any:
        raise ClickLogError("s3://bucket: timeout") from OSError("timeout")

    with monkeypatch.context() as patch:
        patch.setattr(files, "listed", away)
        with pytest.raises(ClickLogError, match=r"s3://bucket: timeout"):  # it may not exist
            source.read(0.0)
    assert numbers_of(drained(source)) == [1]
    written(tmp_path / "b.csv", HEADER + row(2))
    with caplog.at_level(logging.WARNING):
        with monkeypatch.context() as patch:
            patch.setattr(files, "listed", away)
            assert source.read(0.0) is source.read(0.0) is None
        assert numbers_of(drained(source)) == [2]
    assert ["cannot be reached" in message for message in caplog.messages] == [True, False]
