"""FTRL-Proximal per coordinate.

McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013), algorithm 1.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
from numba import njit
from scipy.sparse import csr_matrix

from panel.choosing import Chosen, best_of, loss_of, tail_of
from panel.design import Design
from panel.logs import Kind

GRID: Mapping[str, tuple[float, ...]] = {
    "alpha": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
    "l1": (0.0, 0.3, 1.0, 3.0),
    "l2": (0.0, 1.0, 10.0, 30.0, 100.0),
}
SEARCHED = ("alpha", "l2", "l1", "alpha")
START = {"alpha": 0.1, "l1": 0.0, "l2": 1.0}
PASSES = 3
BETA = 1.0


@njit(cache=True, error_model="numpy")
def _weight(z, n, alpha, beta, l1, l2):
    if abs(z) <= l1:
        return 0.0
    return -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / alpha + l2)


@njit(cache=True, error_model="numpy")
def _learn(starts, columns, values, labels, z, n, bias, alpha, beta, l1, l2):
    for row in range(len(labels)):
        logit = _weight(bias[0], bias[1], alpha, beta, 0.0, 0.0)
        for at in range(starts[row], starts[row + 1]):
            column = columns[at]
            logit += values[at] * _weight(z[column], n[column], alpha, beta, l1, l2)
        error = 1.0 / (1.0 + np.exp(-logit)) - labels[row]
        for at in range(starts[row], starts[row + 1]):
            column = columns[at]
            g = error * values[at]
            w = _weight(z[column], n[column], alpha, beta, l1, l2)
            z[column] += g - (np.sqrt(n[column] + g * g) - np.sqrt(n[column])) / alpha * w
            n[column] += g * g
        w = _weight(bias[0], bias[1], alpha, beta, 0.0, 0.0)
        bias[0] += error - (np.sqrt(bias[1] + error * error) - np.sqrt(bias[1])) / alpha * w
        bias[1] += error * error


@njit(cache=True, error_model="numpy")
def _scores(starts, columns, values, z, n, bias, alpha, beta, l1, l2):
    logits = np.empty(len(starts) - 1)
    for row in range(len(logits)):
        logits[row] = _weight(bias[0], bias[1], alpha, beta, 0.0, 0.0)
        for at in range(starts[row], starts[row + 1]):
            logits[row] += values[at] * _weight(z[columns[at]], n[columns[at]], alpha, beta, l1, l2)
    return logits


def passes_of(
    train: csr_matrix, labels: np.ndarray, test: csr_matrix, alpha: float, l1: float, l2: float, passes: int
) -> Iterator[np.ndarray]:
    """Probabilities of the test rows after each pass over the training rows, in their order."""
    z, n, bias = np.zeros(train.shape[1]), np.zeros(train.shape[1]), np.zeros(2)
    settings = alpha, BETA, l1, l2
    for _ in range(passes):
        _learn(train.indptr, train.indices, train.data, labels, z, n, bias, *settings)
        yield 1 / (1 + np.exp(-_scores(test.indptr, test.indices, test.data, z, n, bias, *settings)))


def ftrl(train: pl.DataFrame, test: pl.DataFrame, kinds: Mapping[str, Kind], label: str, quick: bool = False) -> Chosen:
    """FTRL-Proximal over the same matrix as logistic regression; α, λ1, λ2 and the number of passes are chosen."""
    head, tail = tail_of(train)
    design = Design(head, kinds)
    inside, held, y, y_held = design.matrix(head), design.matrix(tail), head[label].to_numpy(), tail[label].to_numpy()
    best: dict[str, Any] = dict(START)
    for name in ("alpha",) if quick else SEARCHED:  # one after the other, the others as they were best
        values = GRID[name][-2:-1] if quick else GRID[name]
        best = best_of(
            ({**best, name: value, "passes": number + 1}, loss_of(y_held, p))
            for value in values
            for number, p in enumerate(passes_of(inside, y, held, **{**best, name: value, "passes": PASSES}))
        )
    design = Design(train, kinds)
    *_, p = passes_of(design.matrix(train), train[label].to_numpy(), design.matrix(test), **best)
    return Chosen(p, best)
