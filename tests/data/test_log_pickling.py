"""An open log is sent to another process as what it knows: it need not be opened and counted there once more."""

import gzip
import pickle
from pathlib import Path

import fsspec
import pyarrow.fs as fs
import pytest
from test_data_raw import CASES, CSV, assert_same, columnar_log, csv_log, raw_log

from distributed_cases import forking
from estimator_cases import rows
from sparsegroup.data import FrameLog, Log, MemoryLog, ShuffledLog, SyntheticConfig, open_log, prepare, synthetic_log
from sparsegroup.data.raw import raw_log as raw_log_module
from sparsegroup.data.raw.files import raw_file

ATTRIBUTES = (
    *("name", "fields", "lists", "numbers", "train_rows", "hash", "labelled", "weighted", "timed", "bad_rows"),
    *("notes", "identity", "columns", "findings", "vocabulary", "features"),
)


def sent(log: Log) -> tuple[Log, int]:
    """The log as another process gets it, and how many bytes that takes."""
    content = pickle.dumps(log)
    return pickle.loads(content), len(content)


def assert_same_there(log: Log) -> int:
    there, size = sent(log)
    assert len(there) == len(log)
    assert [getattr(there, name) for name in ATTRIBUTES] == [getattr(log, name) for name in ATTRIBUTES]
    for start, stop in ((0, len(log)), (len(log) // 2, len(log) // 2 + 9)):
        assert_same(list(there.batches(start, stop, 7)), list(log.batches(start, stop, 7)))
    return size


@pytest.mark.parametrize("name", ["avazu", "criteo buckets", "ipinyou", "libsvm", "lists and weights in two"])
def test_a_raw_log_of_any_format(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, log_format = CASES[name](tmp_path)
    log = raw_log(logs, format=log_format, chunk_bytes=500)
    monkeypatch.setattr(raw_log_module.RawLog, "_count", None)  # it is not counted there
    assert_same_there(log)


def test_a_columnar_log_and_a_view(tmp_path: Path) -> None:
    for suffix in (".parquet", ".arrow"):
        assert_same_there(open_log(columnar_log(tmp_path / f"log{suffix}")))
    assert_same_there(ShuffledLog(open_log(csv_log(tmp_path / "log.csv", 300)), buffer=40, seed=1))


def test_a_compressed_log_of_several_files_takes_no_more_bytes_than_its_chunks_need(tmp_path: Path) -> None:
    text = csv_log(tmp_path / "log.csv", 20_000).read_bytes()
    (tmp_path / "logs").mkdir()
    for number in range(3):
        (tmp_path / "logs" / f"{number}.csv.gz").write_bytes(gzip.compress(text))
    log = open_log(tmp_path / "logs", chunk_bytes=10_000)
    assert sent(log)[1] < 20_000 < len(text) / 10


def test_a_log_in_a_store(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/sent/log.csv": csv_log(tmp_path / "log.csv", 300).read_bytes()})
    try:
        assert_same_there(open_log("memory://sent/log.csv", chunk_bytes=700))
    finally:
        memory.rm("/", recursive=True)
    store = fs.S3FileSystem(access_key="a", secret_key="b", region="us-east-1", endpoint_override="localhost:1")
    file = raw_file("clicks/log.csv", filesystem=store, source="s3://clicks/log.csv")  # of pyarrow's own
    assert pickle.loads(pickle.dumps(file)).filesystem == store


@pytest.mark.parametrize("vocabulary", [False, True])
def test_a_prepared_log(vocabulary: bool, tmp_path: Path) -> None:
    path = csv_log(tmp_path / "log.csv", 300)
    log, _ = prepare([path], tmp_path / "out", CSV, vocabulary=vocabulary, chunk_bytes=700)
    assert assert_same_there(log) < 10_000
    keys = next(log.batches(0, 5, 5)).keys.flatten().numpy()
    assert sent(log)[0].values_of(keys, 300) == log.values_of(keys, 300)


def test_logs_in_memory_with_what_is_known_of_them() -> None:
    log = synthetic_log(SyntheticConfig(rows=300, cardinalities=(10, 50)))
    assert_same_there(log)
    keys = log.keys.flatten()
    there, _ = sent(log)
    assert isinstance(there, MemoryLog)
    assert there.are_informative(keys).tolist() == log.are_informative(keys).tolist()
    frame, labels = rows()
    assert_same_there(FrameLog(frame, labels))


def total_of(log: Log) -> int:
    return sum(int(batch.keys.sum()) for batch in log.batches(0, len(log), 50))


def test_another_process_reads_it(tmp_path: Path) -> None:
    log = open_log(csv_log(tmp_path / "log.csv", 300), chunk_bytes=700)
    with forking().Pool(1) as pool:
        assert pool.apply(total_of, (log,)) == total_of(log)
