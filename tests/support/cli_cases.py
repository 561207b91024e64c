"""What the tests of the command line share: the command, small click logs, and what a run has written."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sparsegroup.data import open_log
from sparsegroup.serving import open_trained
from sparsegroup.training.predictions import PredictionWindow, predicted_rows

COMMAND = Path(sys.executable).with_name("sparsegroup")
SCORE = Path(__file__).parents[2] / "examples" / "score_onnx.py"
WITHOUT = """
import runpy, sys
sys.modules["torch"] = sys.modules["sparsegroup"] = None  # so that importing them fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def click_log(path: Path, rows: int = 2_000) -> Path:
    lines = ["label,id,ts,color,size"]
    lines += [f"{int(i % 7 in (1, 3))},{i},{i},c{i % 7},{i * 2654435761 % 97}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def many_features(path: Path, rows: int = 3_000) -> Path:
    """A log of some 3,000 features, few of which say anything."""
    lines = ["label,ts,color,noise,size"]
    noise, size = (
        [i * step % of if i % 20 else 0 for i in range(rows)] for step, of in ((2654435761, 9973), (40503, 613))
    )
    lines += [f"{int(i % 7 in (1, 3))},{i},c{i % 7},n{noise[i]},s{size[i]}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def summary_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def points_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def column(path: Path | str, name: str) -> np.ndarray:
    """A column of numbers of a CSV."""
    with Path(path).open(newline="") as file:
        return np.array([float(row[name]) for row in csv.DictReader(file)])


def check_scored_alone(export: Path | str, model: Path | str, log: Path) -> None:
    """The example `score_onnx` scores a log's rows by an export as the package does by a model."""
    command = [sys.executable, "-c", WITHOUT, SCORE, export, log, "--out", "alone.csv"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    opened = open_trained(Path(model))
    rows = open_log(log, whole=True, **opened.config.data.format_options)
    expected = np.concatenate([part["probability"] for part in predicted_rows(opened.model, rows, PredictionWindow())])
    assert f"{len(expected):,} rows, log loss" in done.stdout
    assert np.abs(column("alone.csv", "probability") - expected).max() < 1e-5
