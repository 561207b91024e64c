"""Files that appear in an object store, by a server of S3's protocol, and a store that cannot be reached."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from data_cases import compress, write, written
from object_store import ObjectStore, object_store
from sparsegroup.data import ClickLogError, open_log
from sparsegroup.streaming.sources import FilesSource, files
from stream_cases import FORMAT, HEADER, Reader, drained, numbers_of, record, row

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


def test_objects_that_appear_and_are_replaced_by_longer_ones(store: ObjectStore, tmp_path: Path) -> None:
    lines = [HEADER, *map(row, range(100))]
    store.put(written(tmp_path / "a", b"".join(lines[:11]) + lines[11][:5]), "logs/day=1/a.csv")
    uri = "s3://" + store.put(tmp_path / "a", "other").split("/")[2] + "/logs/"
    reader = Reader(lambda: FilesSource(uri, settle=1e9, every=0.0))
    reader.read(9)
    assert reader.numbers == list(range(10))
    store.put(written(tmp_path / "a", b"".join(lines)), "logs/day=1/a.csv")
    store.put(written(tmp_path / "b.gz", compress(".gz", HEADER + row(200))), "logs/day=2/b.csv.gz")
    frame = pl.DataFrame([record(number) for number in range(300, 350)])
    store.put(write(frame, tmp_path / "c.parquet", 20), "logs/day=2/c.parquet")
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
    source = FilesSource(tmp_path, every=0.0)
    source.open(FORMAT)

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
