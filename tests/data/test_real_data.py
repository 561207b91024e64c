"""The real click logs, where the folder with them lies beside the checkout: they train as they are."""

import json
from pathlib import Path

import pytest

from command import Run
from data_cases import log_at
from run_folders import state_of

COMMON = ["--selection", "never", "--no-baseline"]
L21 = ["--l21", "1e-5", "--lr"]
FLIGHTS = ["--lr", "0.01", "--l21", "1e-4", "--exclude", "month", "--exclude", "day"]
CATEGORIES = ["--columns", "categorical"]
LOGS = {
    # Fields, numbers, training rows, test rows, and an AUC a little under what the model reaches.
    "avazu_sample.csv.xz": (22, 0, 25_199, 8_062, ["--target-rate", "0.1", "--lr", "0.01", "--fallback"], 0.70),
    "criteo_sample.txt.xz": (26, 13, 8_664, 1_445, ["--model", "dcn", *L21, "0.003"], 0.67),
    "ipinyou_sample.train.libsvm.xz": (16, 0, 26_773, 21_150, ["--model", "opnn", *L21, "0.01"], 0.50),
    "nycflights13.csv.xz": (10, 0, 294_611, 32_735, [*FLIGHTS, *CATEGORIES], 0.58),
    "globo_clicks.csv.xz": (13, 0, 943_734, 104_860, ["--lr", "0.003", "--l21", "1e-4", *CATEGORIES], 0.65),
}
SAMPLES = [name for name in LOGS if "_sample" in name]
EVERY = [pytest.param(name, marks=[] if name in SAMPLES else [pytest.mark.slow]) for name in LOGS]


@pytest.mark.parametrize("name", EVERY)
def test_a_real_log_trains_raw_and_prepared_to_the_same_model_of_the_size_asked_for(
    name: str, tmp_path: Path, run: Run
) -> None:
    log = log_at(name)
    test = ["--test", log.with_name(name.replace("train", "test"))] if "train" in name else []
    fields, numbers, train_rows, test_rows, arguments, auc = LOGS[name]
    done = run("train", log, *test, "--out", "raw", *COMMON, *arguments)
    assert done.returncode == 0, done.stderr
    assert f"{train_rows:,} training and {test_rows:,} test rows, {fields} fields" in done.stderr
    assert (f"{numbers} numbers" in done.stderr) == bool(numbers)
    summary = json.loads((tmp_path / "raw" / "summary.json").read_text())
    assert summary["test"]["auc"] > auc
    assert 0.02 < summary["feature_rate"] < 0.999
    assert sum(rows["live"] for rows in summary["fields"].values()) == summary["live_rows"]
    if name.startswith("avazu"):
        assert summary["feature_rate"] == pytest.approx(0.1, rel=0.02)
        assert run("prepare", log, "log", *test).returncode == 0
        assert run("train", "log", "--out", "prepared", *COMMON, *arguments).returncode == 0
        assert state_of(tmp_path / "raw") == state_of(tmp_path / "prepared")
