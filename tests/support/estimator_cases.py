"""Rows of all kinds of columns, and a small classifier, for the tests of the estimator."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sparsegroup.estimator import Classifier

ROWS = 600
SMALL: dict[str, Any] = {"dim": 2, "hidden": (4,), "lr": 0.05, "l21": 0.0, "batch_size": 50}


def rows(number: int = ROWS, seed: int = 0) -> tuple[pl.DataFrame, pl.Series]:
    """Features, of which the color and the price say something, and labels."""
    draw = np.random.default_rng(seed)
    color, price = draw.integers(7, size=number), draw.normal(size=number).round(3)
    frame = pl.DataFrame(
        {
            "color": [f"c{one}" for one in color],
            "price": [None if place % 11 == 0 else float(one) for place, one in enumerate(price)],
            "size": draw.integers(150, size=number),
            "seen": [dt.datetime(2024, 3, 1) + dt.timedelta(minutes=17 * place) for place in range(number)],
            "mobile": draw.integers(2, size=number).astype(bool),
            "tags": ["|".join(sorted({f"t{one}" for one in draw.integers(9, size=3)})) for _ in range(number)],
        }
    )
    logits = 1.5 * (color < 3) - 1.0 + np.where(np.arange(number) % 11 == 0, 0.0, price)
    return frame, pl.Series("clicked", (draw.random(number) < 1 / (1 + np.exp(-logits))).astype(int))


def small(**settings: Any) -> Classifier:
    return Classifier(**{**SMALL, **settings})


def written(path: Path, frame: pl.DataFrame, labels: pl.Series) -> Path:
    """A file of the rows, the labels among them."""
    joined = frame.with_columns(labels)
    joined.write_csv(path) if path.suffix == ".csv" else joined.write_parquet(path)
    return path
