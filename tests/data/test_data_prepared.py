"""Reading a prepared log."""

import multiprocessing
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import torch

from data_cases import CSV, HEADER, good_rows, keys, rows_of, written
from sparsegroup.data import Log, preparation
from sparsegroup.data.preparation import prepare
from sparsegroup.data.prepared_log import MANIFEST


def test_batches_are_the_rows_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 3)
    path = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(103)))
    log, _ = prepare([path], tmp_path / "out", CSV, chunk_bytes=250)
    groups = [pq.ParquetFile(tmp_path / "out" / name).num_row_groups for name in log.manifest.parts]
    assert len(groups) >= 3
    assert max(groups) == 3
    whole = rows_of(log)
    assert whole.numbers[:, 0].tolist() == [i + 0.5 for i in range(103)]
    assert whole.keys.tolist() == keys([[f"v{i % 7}", f"日{i % 3}"] for i in range(103)])
    random_ = random.Random(0)
    borders = [0, 1, 34, 35, 102, 103]
    cases = [(start, stop, size) for start in borders for stop in borders for size in (1, 8, 35, 200)]
    cases += [(random_.randrange(104), random_.randrange(104), random_.randrange(1, 60)) for _ in range(60)]
    for start, stop, size in cases:
        batches = list(log.batches(start, stop, size))
        lengths = [len(batch) for batch in batches]
        count = max(stop - start, 0)
        assert lengths == [size] * (count // size) + [count % size] * (count % size > 0)
        for name, values in vars(whole).items():
            if batches:
                got = np.concatenate([np.asarray(getattr(batch, name)) for batch in batches])
                np.testing.assert_array_equal(got, values[start:stop])
    assert sum(map(len, log.batches(90, 1000, 7))) == 13


def test_the_vocabulary_names_every_feature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 2)
    lines = ["label,a,b"] + [f"{i % 2},{'' if i % 5 == 0 else i % 13},日{i % 7}" for i in range(200)]
    path = written(tmp_path / "a.csv", "\n".join([*lines[:60], "2,bad,bad", *lines[60:]]))
    log, _ = prepare([path], tmp_path / "out", vocabulary=True, chunk_bytes=99, on_bad_row="skip", max_bad=0.1)
    vocabulary = pl.read_parquet(tmp_path / "out" / "vocabulary.parquet")
    assert vocabulary["key"].is_unique().all()
    assert vocabulary.height == sum(count for count, _ in log.manifest.features.values())
    meaning = {key: (field, value) for key, field, value in vocabulary.select("key", "field", "value").iter_rows()}
    for line, (a, b) in zip(lines[1:], rows_of(log).keys.tolist(), strict=True):
        assert [meaning[a], meaning[b]] == list(zip("ab", line.split(",")[1:], strict=True))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        MANIFEST,
        "vocabulary.parquet",
        *log.manifest.parts,
    }


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_a_worker_that_was_forked_reads_it(tmp_path: Path) -> None:
    """As a DataLoader's workers are on Linux: threads of the process before, such as Polars', are not there."""
    path = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(103)))
    log, _ = prepare([path], tmp_path / "out", CSV)
    expected = rows_of(log).keys.tolist()
    pl.DataFrame({"a": range(100_000)}).select(pl.col("a").sort(descending=True), b=pl.col("a").hash())
    loader = torch.utils.data.DataLoader(_Rows(log), batch_size=None, num_workers=1, timeout=60)
    assert [row for batch in loader for row in batch.tolist()] == expected


class _Rows(torch.utils.data.IterableDataset[torch.Tensor]):
    def __init__(self, log: Log) -> None:
        self.log = log

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (batch.keys for batch in self.log.batches(0, len(self.log), 3))
