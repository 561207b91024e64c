"""A data frame is the log that a file of its rows is."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from test_data_raw import assert_same

from estimator_cases import rows, written
from sparsegroup.data import ClickLogError, FrameLog, frames, hash_keys, open_log

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
        ours, theirs = (list(one.batches(start, stop, size)) for one in (log, raw))
        assert ours
        assert_same(ours, theirs, ("keys", "numbers", "labels"))


def test_a_frame_has_the_times_of_its_own_column() -> None:
    frame = FRAME.rename({"seen": "ts"})
    (batch,) = FrameLog(frame, LABELS).batches(0, 600, 600)
    assert batch.times.tolist() == frame["ts"].dt.epoch("s").to_list()
    (scored,) = FrameLog(frame, columns=FrameLog(frame).columns, whole=True).batches(0, 600, 600)
    assert scored.times.tolist() == list(range(600))
    assert scored.keys.equal(batch.keys)


def test_labels_and_weights_are_those_that_are_given() -> None:
    weights = np.arange(600) / 7
    log = FrameLog(FRAME, LABELS, weights=weights)
    (batch,) = log.batches(0, 600, 600)
    assert (log.labelled, log.weighted) == (True, True)
    assert batch.weights is not None
    np.testing.assert_array_equal(batch.weights, weights.astype(np.float32))
    assert (FrameLog(FRAME).labelled, FrameLog(FRAME).weighted) == (False, False)
    with pytest.raises(ClickLogError, match=r"a data frame: labels must be \[600\], got \[599\]"):
        FrameLog(FRAME, LABELS[1:])


def test_a_row_that_cannot_be_read_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_ROWS", 50)
    frame = pl.DataFrame({"n": [str(place) for place in range(119)] + ["none of it"]})
    with pytest.raises(ClickLogError, match="row 119: 'n' cannot be read: 'n=none of it'"):
        hash_keys(frame, {"n": "number"})
