"""Columns that leak the label cause a warning, or are left out if they are named like a label."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from sparsegroup.data import ColumnFinding, open_log

ROWS = 3_000
DRAW = np.random.default_rng(0)
CLICKS = DRAW.random(ROWS) < 0.3
BOUGHT = CLICKS & (DRAW.random(ROWS) < 0.1)
AMOUNTS = DRAW.gamma(2.0, size=ROWS)
CLASSES = DRAW.integers(4, size=ROWS)
RARE = np.isin(np.arange(ROWS), [5, 900, 901, 1_500, 1_777, 2_500, 2_600])


def findings(path: Path, label: Any, options: Any = None, **columns: Any) -> dict[str, ColumnFinding]:
    """Return the findings about columns and two more columns: users, and random numbers."""
    frame = {"label": label, **columns, "user": [f"u{i * 7919 % 83}" for i in range(ROWS)], "x": AMOUNTS[::-1]}
    pl.DataFrame(frame).write_csv(path)
    found = {one.name: one for one in open_log(path, **(options or {})).findings}
    assert not found["user"].warning
    assert not found["x"].warning
    return found


KNOWING: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "a copy of a rare label": (RARE * 1, {}, RARE * 1),
    "a word for a rare label": (RARE * 1, {}, np.where(RARE, "b", "a")),
    "what comes after the label, as a flag": (CLICKS * 1, {}, BOUGHT * 1),
    "what comes after the label, as a text": (CLICKS * 1, {}, np.where(BOUGHT, "shop", "none")),
    "what comes after the label, as an amount": (CLICKS * 1, {}, (BOUGHT * AMOUNTS).round(2)),
    "what comes after the label, or nothing": (CLICKS * 1, {}, np.where(BOUGHT, AMOUNTS.astype(str), "")),
    "twice a number": (AMOUNTS, {"labels": "numbers"}, 2 * AMOUNTS),
    "a number, rounded": (AMOUNTS, {"labels": "numbers"}, (8 * AMOUNTS).round()),
    "a class by another name": (np.char.add("c", CLASSES.astype(str)), {"labels": "classes"}, CLASSES + 7),
}  # fmt: skip


@pytest.mark.parametrize("case", KNOWING)
def test_a_column_that_knows_the_label_is_warned_of(case: str, tmp_path: Path) -> None:
    label, options, values = KNOWING[case]
    found = findings(tmp_path / "log.csv", label, options, leak=values)
    assert "after the label" in found["leak"].warning


@pytest.mark.parametrize("seed", range(5))
def test_columns_that_know_nothing_are_not_warned_of(seed: int, tmp_path: Path) -> None:
    draw = np.random.default_rng(seed)
    few = draw.random(ROWS) < draw.choice([0.001, 0.01, 0.5, 0.97])
    noise = {
        "ids": [f"i{one}" for one in draw.zipf(1.5, ROWS) % 900],
        "flag": draw.integers(2, size=ROWS),
        "count": draw.poisson(0.05, ROWS),
        "price": draw.gamma(2, size=ROWS).round(2),
    }
    assert not any(one.warning for one in findings(tmp_path / "log.csv", few * 1, **noise).values())


def test_a_column_named_like_a_label_is_no_feature_beside_the_label(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    found = findings(path, CLICKS * 1, Conversion=BOUGHT * 1, target=CLASSES)
    assert (found["Conversion"].kind, found["target"].kind) == ("ignore", "category of numbers")
    assert "label,Conversion" in found["Conversion"].warning
    both = open_log(path, label="label,Conversion")
    assert both.tasks == ("label", "Conversion")
    assert not any("named like" in one.warning for one in both.findings)
    assert "Conversion" in open_log(path, columns={**open_log(path).columns, "Conversion": "boolean"}).fields
