"""A data frame is the log that a file of its rows is; and numbers that a model needs and a log lacks are named."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from command import Run
from data_cases import assert_same, rows_of
from estimator_cases import rows, written
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.data import ClickLogError, FrameLog, frames, hash_keys, open_log
from sparsegroup.estimator import Classifier
from sparsegroup.models import MLP
from sparsegroup.training import Trainer

FRAME, LABELS = rows()


@pytest.mark.parametrize("at_once", [65_536, 77])
def test_a_frame_is_the_log_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(frames, "_ROWS", at_once)
    raw = open_log(written(tmp_path / "log.csv", FRAME, LABELS), label="clicked", test_fraction=0.0)
    log = FrameLog(FRAME, LABELS)
    assert (len(log), log.train_rows, log.timed) == (600, 600, raw.timed)
    assert log.schema == raw.schema
    assert {**log.columns, "clicked": "label"} == raw.columns
    for start, stop, size in ((0, 600, 600), (0, 600, 128), (150, 290, 64), (590, 700, 64)):
        ours, theirs = (rows_of(one, start, stop, size) for one in (log, raw))
        assert_same(ours, theirs, ("keys", "numbers", "labels"))


def test_a_frame_has_the_times_of_its_own_column() -> None:
    frame = FRAME.rename({"seen": "ts"})
    (batch,) = FrameLog(frame, LABELS).batches(0, 600, 600)
    assert batch.times.tolist() == frame["ts"].dt.epoch("s").to_list()
    (scored,) = FrameLog(frame, columns=FrameLog(frame).columns, whole=True).batches(0, 600, 600)
    assert scored.times.tolist() == list(range(600))
    assert scored.keys.equal(batch.keys)


def test_labels_and_weights_are_the_given_ones_and_an_unreadable_row_has_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = np.arange(600) / 7
    log = FrameLog(FRAME, LABELS, weights=weights)
    (batch,) = log.batches(0, 600, 600)
    assert (log.labelled, log.weighted) == (True, True)
    assert batch.weights is not None
    np.testing.assert_array_equal(batch.weights, weights.astype(np.float32))
    assert (FrameLog(FRAME).labelled, FrameLog(FRAME).weighted) == (False, False)
    with pytest.raises(ClickLogError, match=r"a data frame: labels must be \[600\], got \[599\]"):
        FrameLog(FRAME, LABELS[1:])
    with pytest.raises(ValueError, match="give the values of 'size' as sample_weight"):
        Classifier(columns={"size": "weight"}).fit(FRAME, LABELS)
    monkeypatch.setattr(frames, "_ROWS", 50)
    frame = pl.DataFrame({"n": [str(place) for place in range(119)] + ["none of it"]})
    with pytest.raises(ClickLogError, match="row 119: 'n' cannot be read: 'n=none of it'"):
        hash_keys(frame, {"n": "number"})


# Missing numbers, given to a model that takes numbers unchanged

SCHEMA = "columns: {label: label, color: category, size: number, price: number}"
PROBLEM = (
    "'price' has missing or infinite numbers, and the model takes numbers as they are: fill them in, or train with "
    "model.standardize=true, which takes them"
)


def write_log(path: Path, gap: int | None) -> None:
    """A log whose row `gap`, from 0, has no price."""
    lines = ["label,color,size,price"]
    lines += [f"{int(i % 7 in (1, 3))},c{i % 7},{i % 5}.5,{'' if i == gap else i % 3}" for i in range(400)]
    path.write_text("\n".join(lines) + "\n")


def test_training_and_scoring_name_the_column_and_the_row_of_a_missing_number(run: Run, tmp_path: Path) -> None:
    unchanged = ("--set", "model.standardize=false", "--set", "model.number_buckets=0")
    options = ("--schema", "columns.yaml", "--model", "lr", "--lr", "0.001", *unchanged)
    write_log(tmp_path / "log.csv", None)
    (tmp_path / "columns.yaml").write_text(SCHEMA)
    assert run("train", "log.csv", *options, "--out", "run").returncode == 0
    before = {path.name for path in tmp_path.iterdir()} | {"bad.csv", "runs"}
    for gap, where, command in (
        (50, "", ("train", "bad.csv", *options)),  # of the training rows
        (399, "", ("train", "bad.csv", *options)),  # of the test rows
        (321, "row 321 (from 0): ", ("predict", "run", "bad.csv", "--out", "out.csv")),
        (7, "row 7 (from 0): ", ("evaluate", "run", "bad.csv")),
        (7, "row 7 (from 0): ", ("export", "run", "out", "--no-onnx", "--test", "bad.csv")),
    ):
        write_log(tmp_path / "bad.csv", gap)
        done = run(*command)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (2, f"error: bad.csv: {where}{PROBLEM}")
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_trainer_tells_missing_numbers_from_divergence() -> None:
    torch.manual_seed(0)
    model, table = MLP(fields=1, dim=2, numbers=2, hidden=(4,)), HashEmbedding(2)
    trainer = Trainer(table, model, GroupAdam([*table.parameters(), *model.parameters()]))
    keys, labels, numbers = torch.zeros(3, 1, dtype=torch.int64), torch.tensor([0, 1, 0]), torch.ones(3, 2)
    numbers[1, 1] = float("inf")
    with pytest.raises(ValueError, match=r"column 1 of the numbers \(from 0\) has missing or infinite numbers"):
        trainer.fit([(keys, numbers, labels)])
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="diverged"):
        trainer.fit([(keys, torch.ones(3, 2), labels)])
    with pytest.raises(FloatingPointError, match="its weights are not finite"):
        trainer.predict([(keys, torch.ones(3, 2), labels)])
