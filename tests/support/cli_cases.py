"""What the tests of the command line share: the command, small click logs, and what a run has written."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

COMMAND = Path(sys.executable).with_name("sparsegroup")


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
