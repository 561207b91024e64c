"""Reading a prepared log."""

import random
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from data_cases import CSV, HEADER, good_rows, keys, rows_of, written
from sparsegroup.data import preparation
from sparsegroup.data.preparation import prepare
from sparsegroup.data.prepared_log import MANIFEST
from sparsegroup.errors import ClickLogError


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
    log, _ = prepare([written(tmp_path / "a.csv", "\n".join(lines))], tmp_path / "out", vocabulary=True, chunk_bytes=99)
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


def test_a_log_of_test_rows_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("label,a,split\n" + "1,x,2\n" * 20)
    with pytest.raises(ClickLogError, match=r"log.csv: no training rows; all 20 are for testing"):
        prepare([path], tmp_path / "out")
