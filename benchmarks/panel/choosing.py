"""Choosing hyperparameters of a baseline: on the last tenth of the training rows in time."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

TAIL = 0.1


class Chosen(NamedTuple):
    """What a baseline says of the test rows, fitted to all training rows with the hyperparameters chosen.

    Attributes:
        probabilities: `[test rows]` float64.
        settings: The hyperparameters.
    """

    probabilities: np.ndarray
    settings: Mapping[str, Any]


def tail_of(train: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows to fit to while choosing, and those to choose by."""
    rows = len(train) - round(TAIL * len(train))
    return train[:rows], train[rows:]


def loss_of(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Log loss."""
    p = np.clip(probabilities, 1e-7, 1 - 1e-7)
    return -float(np.where(labels == 1, np.log(p), np.log1p(-p)).mean())


def best_of(tried: Iterable[tuple[dict[str, Any], float]]) -> dict[str, Any]:
    """The settings of the lowest loss."""
    return min(tried, key=lambda one: one[1])[0]
