"""Weights of rows: from the log to the batch, and the rows whose weight is none."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from data_cases import written
from sparsegroup.data import ClickLogError, PreparedLog, RawLog, open_log, prepare
from sparsegroup.data.schema import LogFormat, read_schema

WEIGHTED = LogFormat("log", "label", ("a",), weight="w")
WEIGHTS = ["1", "0", "0.25", "1e-3", "3e38", "-0.0", "0.1"]


def log_of(path: Path, weights: list[str], name: str = "w") -> Path:
    return written(path, "\n".join([f"label,a,{name}", *(f"{i % 2},x,{w}" for i, w in enumerate(weights))]))


def weights_of(log: PreparedLog | RawLog) -> list[float]:
    (batch,) = log.batches(0, len(log), len(log))
    assert batch.weights is not None
    assert batch.weights.dtype == torch.float32
    return batch.weights.tolist()


@pytest.mark.parametrize("name", ["w", "weight"])
def test_weights_come_with_the_rows(name: str, tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", WEIGHTS, name)
    schema = written(tmp_path / "schema.yaml", f"label: label\nweight: {name}\ncategorical: [a]")
    log_format = read_schema(schema)
    assert log_format.weight == name
    expected = np.array(WEIGHTS, np.float64).astype(np.float32).tolist()
    prepared, _ = prepare([path], tmp_path / "out", log_format)
    assert prepared.manifest.weighted
    assert pl.read_parquet(tmp_path / "out" / "part-00000.parquet").schema["weight"] == pl.Float32
    assert weights_of(prepared) == weights_of(open_log(path, format=log_format)) == expected
    assert prepared.fields == ("a",)

    pl.read_csv(path).write_parquet(tmp_path / "log.parquet")
    assert weights_of(open_log(tmp_path / "log.parquet", format=log_format)) == expected


@pytest.mark.parametrize("bad", ["", "-1", "-1e-30", "nan", "inf", "-inf", "1e99", "heavy", "1 2"])
def test_a_weight_that_is_none_is_a_bad_row(bad: str, tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", ["1", bad, "2"])
    message = f"{path}:3: weight 'w' must be a number >= 0: " + repr(f"w={bad}" if bad else "no w")
    with pytest.raises(ClickLogError) as raised:
        prepare([path], tmp_path / "out", WEIGHTED)
    assert str(raised.value) == message
    with pytest.raises(ClickLogError) as raised:
        weights_of(open_log(path, format=WEIGHTED))
    assert str(raised.value) == message
    log, _ = prepare([path], tmp_path / "skip", WEIGHTED, on_bad_row="skip", max_bad=0.5)
    raw = open_log(path, format=WEIGHTED, on_bad_row="skip", max_bad=0.5)
    assert weights_of(log) == weights_of(raw) == [1.0, 2.0]
    assert log.manifest.bad_rows == raw.bad[0].reasons == {"weight 'w' must be a number >= 0": 1}


def test_without_a_weight_there_are_none_and_the_name_is_free(tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", ["1", "heavy"], "weight")
    log, _ = prepare([path], tmp_path / "out")
    assert (log.fields, log.manifest.weighted) == (("a", "weight"), False)
    for batch in (*log.batches(0, 2, 2), *open_log(path).batches(0, 2, 2)):
        assert batch.weights is None


def test_another_weight_or_test_fraction_is_another_way_to_read_a_log(tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", ["1", "2"])
    prepare([path], tmp_path / "out", WEIGHTED)
    for other in (replace(WEIGHTED, weight=None), replace(WEIGHTED, test_fraction=0.2)):
        with pytest.raises(ClickLogError, match="read in another way"):
            prepare([path], tmp_path / "out", other)


@pytest.mark.parametrize(
    ("log_format", "message"),
    [
        (LogFormat("log", "label", ("a", "w"), weight="w"), "column 'w' is the weight; it cannot also be a field"),
        (LogFormat("log", "label", ("a",), ("w",), weight="w"), "column 'w' is the weight; it cannot also be a field"),
        (LogFormat("log", "label", ("a", "weight"), weight="w"), "a field cannot be named 'weight'; rename it"),
        (LogFormat("log", "label", ("a",), weight="v"), "no column 'v'; the columns are label, a, w, weight"),
    ],
)
def test_a_weight_is_a_column_of_its_own(log_format: LogFormat, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "label,a,w,weight\n1,x,1,2\n")
    with pytest.raises(ClickLogError, match=f"log.csv:1: {message}"):
        prepare([path], tmp_path / "out", log_format)
