"""The real click logs, where the folder with them lies beside the checkout: they train as they are."""

import json
from pathlib import Path

import pytest

from test_cli import Run, run

__all__ = ["run"]  # the fixture

DATA = Path(__file__).parents[2] / "shared" / "data"
LOGS = {
    # Fields, rows, test rows, and an AUC a little under what the model reaches.
    "avazu_sample": (22, 33_261, 3_326, ["--model", "mlp", "--lr", "0.01", "--l21", "1e-5"], 0.70),
    "nycflights13": (
        10,
        327_346,
        32_735,
        ["--lr", "0.01", "--l21", "1e-4", "--exclude", "month", "--exclude", "day"],
        0.58,
    ),
    "globo_clicks": (13, 1_048_594, 104_860, ["--lr", "0.003", "--l21", "1e-4"], 0.65),
}


@pytest.mark.parametrize("name", LOGS)
def test_a_real_log_trains(name: str, tmp_path: Path, run: Run) -> None:
    path = DATA / f"{name}.csv.xz"
    if not path.exists():
        pytest.skip(f"{path.name} is not at hand")
    fields, rows, test_rows, arguments, auc = LOGS[name]
    done = run("train", path, "--out", "run", *arguments)
    assert done.returncode == 0, done.stderr
    assert f"{rows - test_rows:,} training and {test_rows:,} test rows, {fields} fields" in done.stdout
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["test_auc"] > auc
    assert 0.02 < metrics["feature_rate"] < 0.98
