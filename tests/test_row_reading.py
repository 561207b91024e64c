"""Runs of rows are read as the rows between, whatever the log, and each rank reads its own part of it alone."""

import gzip
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from test_data_raw import CASES, CSV, assert_same, columnar_log, raw_log

from data_cases import HEADER, good_rows, written
from sparsegroup.data import ClickLogError, FrameLog, Log, open_log, prepare
from sparsegroup.data.batches import rebatched
from sparsegroup.data.log import LogPart, Run
from sparsegroup.data.order import RankShares
from sparsegroup.data.raw import columnar_file, encoding
from sparsegroup.data.raw.stored_file import StoredFile

ROWS = 2_000


def text(rows: int = ROWS) -> bytes:
    return HEADER + b"".join(line + b"\n" for line in good_rows(rows))


def csv(folder: Path) -> Log:
    return open_log(written(folder / "log.csv", text()), format=CSV, chunk_bytes=600)


def compressed(folder: Path) -> Log:
    return open_log(written(folder / "log.csv.gz", gzip.compress(text())), format=CSV, chunk_bytes=600)


def many_compressed(folder: Path) -> Log:
    (folder / "logs").mkdir()
    for number in range(20):
        written(folder / "logs" / f"{number}.csv.gz", gzip.compress(text(100)))
    return open_log(folder / "logs", format=CSV, chunk_bytes=600)


def columnar(folder: Path, suffix: str, group: int) -> Log:
    frame = pl.DataFrame({"label": [i % 2 for i in range(ROWS)], "a": [f"v{i}" for i in range(ROWS)]})
    path = folder / f"log{suffix}"
    frame.write_parquet(path, row_group_size=group) if suffix == ".parquet" else frame.write_ipc(
        path, record_batch_size=group
    )
    return open_log(path, columns="categorical")


def prepared(folder: Path) -> Log:
    return prepare([written(folder / "log.csv", text())], folder / "out", CSV, chunk_bytes=600)[0]


LOGS: dict[str, Callable[[Path], Log]] = {
    "csv": csv,
    "compressed": compressed,
    "many compressed": many_compressed,
    "parquet": lambda folder: columnar(folder, ".parquet", 20),
    "coarse parquet": lambda folder: columnar(folder, ".parquet", 700),
    "arrow": lambda folder: columnar(folder, ".arrow", 20),
    "prepared": prepared,
    "part": lambda folder: LogPart(csv(folder), 70, 1_000, 500),
    "frame": lambda _: FrameLog(pl.DataFrame({"a": [f"v{i}" for i in range(ROWS)]}), [i % 2 for i in range(ROWS)]),
}


def some_runs(rows: int, seed: int) -> list[Run]:
    generator = random.Random(seed)
    edges = sorted(generator.sample(range(rows + 1), 2 * generator.randrange(1, min(20, rows // 2))))
    return list(zip(edges[::2], edges[1::2], strict=True))


def assert_runs_are_read(log: Log, runs: list[Run]) -> None:
    alone = chain.from_iterable(log.batches(start, stop, 50) for start, stop in runs)
    assert_same(list(log.run_batches(runs, 13)), list(rebatched(alone, 13)))


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar_file, "_ROWS", 30)


@pytest.mark.parametrize("name", LOGS)
def test_runs_are_the_rows_that_each_gives_alone(name: str, tmp_path: Path) -> None:
    log = LOGS[name](tmp_path)
    for seed in range(6):
        assert_runs_are_read(log, some_runs(len(log), seed))
    assert list(log.run_batches([], 10)) == []
    cuts = log.cuts(len(log) // 4)
    assert (cuts >= 0).all()
    assert (cuts < len(log)).all()
    assert (cuts[1:] > cuts[:-1]).all()


@pytest.mark.parametrize("name", CASES)
def test_the_same_of_any_format(name: str, tmp_path: Path) -> None:
    logs, log_format = CASES[name](tmp_path)
    log = raw_log(logs, format=log_format, chunk_bytes=300)
    for seed in range(3):
        assert_runs_are_read(log, some_runs(len(log), seed))


# What is read


class Reads:
    """Counts what is read, a chunk's first line or a row group at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parsed, self.decoded, self.files = Counter[Any](), Counter[Any](), Counter[str]()
        encode, read, group = encoding.encode_chunk, columnar_file.read_batches, pq.ParquetFile.read_row_group
        opened = StoredFile.open_text

        def encode_chunk(chunk: Any, *arguments: Any) -> Any:
            self.parsed[chunk.line] += 1
            return encode(chunk, *arguments)

        def read_batches(*arguments: Any) -> Iterator[Any]:
            for batches, first, batch in read(*arguments):
                self.decoded[first] += 1
                yield batches, first, batch

        def read_row_group(file: Any, number: int, **options: Any) -> Any:
            self.decoded[file.metadata.row_group(number).num_rows, number, id(file)] += 1
            return group(file, number, **options)

        def open_text(stored: StoredFile) -> Any:
            self.files[stored.source] += 1
            return opened(stored)

        monkeypatch.setattr(encoding, "encode_chunk", encode_chunk)
        monkeypatch.setattr(columnar_file, "read_batches", read_batches)
        monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
        monkeypatch.setattr(StoredFile, "open_text", open_text)

    def of(self, log: Log) -> tuple[Counter[Any], Counter[Any], Counter[str]]:
        """Chunks that are parsed, rows from which is decoded, and files that are opened, of a pass over a log."""
        for counter in (self.parsed, self.decoded, self.files):
            counter.clear()
        assert sum(map(len, log.batches(0, len(log), 64))) == len(log)
        return Counter(self.parsed), Counter(self.decoded), Counter(self.files)


@pytest.mark.parametrize("name", ["csv", "compressed", "parquet", "arrow", "prepared"])
@pytest.mark.parametrize("buffer", [0, 100])
def test_what_a_rank_reads_no_other_does(
    name: str, buffer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LOGS[name](tmp_path)
    reads, ranks = Reads(monkeypatch), 2
    parsed, decoded, _ = reads.of(log)
    shares = [reads.of(share) for share in RankShares(log, len(log), ranks, buffer).shares]
    if name != "prepared":
        assert sum((share[0] for share in shares), Counter()) == parsed
    assert sum(share[1].total() for share in shares) == decoded.total()


@pytest.mark.parametrize(("ranks", "most"), [(4, 8), (8, 32)])
def test_where_pieces_are_coarse_little_is_read_twice(
    ranks: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LOGS["parquet"](tmp_path)
    reads = Reads(monkeypatch)
    _, decoded, _ = reads.of(log)
    shares = [reads.of(share)[1].total() for share in RankShares(log, len(log), ranks).shares]
    assert max(shares) <= decoded.total() // ranks + most // ranks


def test_a_compressed_file_is_uncompressed_once_by_each_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = compressed(tmp_path)
    reads = Reads(monkeypatch)
    for share in RankShares(log, len(log), 4).shares:
        assert reads.of(share)[2].total() == 1
        assert [next(share.batches(start, start + 1, 1)).times.tolist() for start in (0, 400)] != [[0], [0]]


def test_each_rank_has_compressed_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = many_compressed(tmp_path)
    reads = Reads(monkeypatch)
    files = [reads.of(share)[2] for share in RankShares(log, len(log), 4).shares]
    assert [sorted(Path(file).name for file in some) for some in files] == [
        sorted(f"{number}.csv.gz" for number in range(rank, 20, 4)) for rank in range(4)
    ]


def test_nothing_after_the_chunk_asked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = csv(tmp_path)
    reads = Reads(monkeypatch)
    assert reads.of(LogPart(log, 500, 1, 1))[0].total() <= 2


def test_a_log_that_has_changed_is_told_of_by_runs_too(tmp_path: Path) -> None:
    log = compressed(tmp_path)
    path = Path(log.name)
    size = path.stat().st_size
    path.write_bytes(gzip.compress(text(300)).ljust(size, b"\0"))
    with pytest.raises(ClickLogError, match=r"has changed since its rows were counted|damaged"):
        list(log.run_batches([(10, 20), (200, 300), (1_500, 1_600)], 10))


def test_a_columnar_log_that_has_fewer_rows_now_is_told_of(tmp_path: Path) -> None:
    path = columnar_log(tmp_path / "log.arrow")
    log = open_log(path, columns="categorical")
    longer = pl.read_ipc(path.read_bytes())[:40].with_columns(a=pl.lit("long" * 99))
    longer.write_ipc(path, record_batch_size=10)
    with pytest.raises(ClickLogError, match=r"log.arrow: has changed since its rows were counted"):
        list(log.run_batches([(5, 9), (60, 70)], 10))
