"""Logs in an object store, or wherever else pyarrow or fsspec can read."""

import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import polars as pl
import pytest

from cli_cases import click_log
from data_cases import compress, rows_of, write, written
from object_store import BUCKET, ObjectStore, object_store
from sparsegroup.data import ClickLogError, Log, open_log, prepare


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


def same(ours: Log, theirs: Log, start: int = 0) -> bool:
    assert len(ours) == len(theirs)
    a, b = (rows_of(log, start, size=97) for log in (ours, theirs))  # type: ignore[arg-type]
    return all(bool((getattr(a, name) == getattr(b, name)).all()) for name in ("keys", "labels", "times"))


@pytest.mark.parametrize("suffix", ["", ".xz", ".zst"])
def test_a_text_in_a_store_is_that_on_a_disk(suffix: str, store: ObjectStore, tmp_path: Path) -> None:
    text = click_log(tmp_path / "log.csv", 500).read_bytes()
    path = written(tmp_path / f"log of a day.csv{suffix}", compress(suffix, text) if suffix else text)
    uri = store.put(path, f"text/{path.name}")
    there, here = open_log(uri, chunk_bytes=2_000), open_log(path)
    assert same(there, here)
    assert same(there, here, start=333)
    assert there.identity == here.identity
    assert there.name == uri


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_partitions_in_a_store_are_those_on_a_disk(suffix: str, store: ObjectStore, tmp_path: Path) -> None:
    frame = pl.read_csv(click_log(tmp_path / "log.csv", 600))
    for day in range(3):
        folder = tmp_path / "logs" / f"day={day + 8}"
        folder.mkdir(parents=True)
        part = frame[200 * day : 200 * day + 200]
        write(part, folder / f"0{suffix}")
    (tmp_path / "logs" / "_SUCCESS").touch()
    uri = store.put(tmp_path / "logs", f"by day/{suffix[1:]}")
    here = open_log(tmp_path / "logs")
    assert here.fields == ("color", "size", "day")
    patterns = ("/", "/day=*/", f"/day=*/0{suffix}", f"/**/0{suffix}", "/day=[0-9]*")
    for pattern in ("", *(patterns if suffix == ".parquet" else ())):
        there = open_log(uri + pattern)
        assert there.identity == here.identity, pattern
        assert same(there, here, start=350), pattern
    assert len(open_log(f"{uri}/day=1*")) == 200
    assert len(open_log([f"{uri}/day=10", f"{uri}/day=9"])) == 400


def test_a_store_may_be_named_in_the_uri(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    path = click_log(tmp_path / "log.csv", 100)
    server.put(path, "named/log.csv")
    query = f"scheme=http&endpoint_override={server.address}&region=us-east-1"
    there = open_log(f"s3://nobody:nothing@{BUCKET}/named/*.csv?{query}")
    assert same(there, open_log(path))
    assert there.name == f"s3://{BUCKET}/named/*.csv?{query}"  # and not the keys


def test_a_log_in_a_store_is_prepared_and_left_as_it_is(store: ObjectStore, tmp_path: Path) -> None:
    uri = store.put(click_log(tmp_path / "log.csv", 400), "prepared/log.csv")
    done, _ = prepare([uri], tmp_path / "out", chunk_bytes=1_000)
    again, _ = prepare([uri], tmp_path / "out", chunk_bytes=1_000)
    assert same(done, open_log(tmp_path / "log.csv"))
    assert again.manifest.id == done.manifest.id
    folder = store.put(tmp_path / "out", "prepared/out")
    with pytest.raises(ClickLogError, match="is a prepared log, which is read from a disk and by itself"):
        open_log(folder)


def test_a_log_in_a_store_that_has_changed_since_is_an_error(store: ObjectStore, tmp_path: Path) -> None:
    uri = store.put(click_log(tmp_path / "log.csv", 400), "changed/log.csv")
    log = open_log(uri)
    store.put(click_log(tmp_path / "log.csv", 100), "changed/log.csv")
    with pytest.raises(ClickLogError, match=rf"^{uri}: has changed since its rows were counted"):
        list(log.batches(0, 400, 100))


def test_what_is_not_in_a_store_is_said_with_its_uri(store: ObjectStore) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        open_log(f"s3://{BUCKET}/no/such.csv")
    assert (missing.value.filename, missing.value.strerror) == (f"s3://{BUCKET}/no/such.csv", "no such file")
    with pytest.raises(ClickLogError, match=rf"^s3://{BUCKET}/no/\*: matches no files$"):
        open_log(f"s3://{BUCKET}/no/*")
    with pytest.raises((ClickLogError, FileNotFoundError)) as gone:
        open_log("s3://no-such-bucket/log.csv")
    assert "s3://no-such-bucket/log.csv" in f"{gone.value} {getattr(gone.value, 'filename', '')}"


# fsspec


def test_what_pyarrow_does_not_open_fsspec_may(tmp_path: Path) -> None:
    here = click_log(tmp_path / "log.csv", 300)
    text = here.read_bytes()
    memory = fsspec.filesystem("memory")
    memory.pipe({"/logs/day=1/log.csv.gz": compress(".gz", text), "/one/log.csv": text})
    try:
        assert same(open_log("memory://one/log.csv", chunk_bytes=700), open_log(here), start=200)
        there = open_log("memory://logs/day=*/*.gz", columns="categorical")
        assert there.fields == ("color", "size", "day")
        assert there.train_rows == 270
        assert [len(batch) for batch in there.batches(250, 300, 30)] == [30, 20]
        assert len(open_log("memory://logs")) == 300
    finally:
        memory.rm("/", recursive=True)


def test_a_store_that_nobody_opens_is_said_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClickLogError, match=r"^foo://x/log\.csv: Protocol not known: foo"):
        open_log("foo://x/log.csv")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.setitem(sys.modules, "adlfs", None)
    with pytest.raises(ClickLogError, match=r"^adl://x/\*: .*adlfs"):
        open_log("adl://x/*")
