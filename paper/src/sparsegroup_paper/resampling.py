"""AUC under resamplings of the test rows that all runs share: the noise of a test set, paired by row.

A Poisson bootstrap: in each replicate a row counts w ~ Poisson(1) times, independently of the others. For a given seed,
w depends on the replicate's and the row's number alone. So two runs on the same test set meet the same resamplings, and
the difference of their AUCs is free of the noise that they share.

The source of the method: Chamandy et al., "Estimating Uncertainty for Massive Data Streams", Google, 2012.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

_CALLED: dict[str, Any] = {"error_model": "numpy", "nogil": True, "cache": True}
_INLINED: dict[str, Any] = {"error_model": "numpy", "nogil": True, "forceinline": True}

BLOCK = 2048
"""Rows whose weights are drawn together, in a buffer that remains in the first-level cache."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = (np.uint64(bits) for bits in (30, 27, 31, 32))


_TERMS = np.exp(-1.0) / np.cumprod([1.0, *range(1, 12)])
# P(w <= k) for w ~ Poisson(1) in units of 2^-32, while that is below 1: w counts those below a uniform draw.
_THRESHOLDS = tuple(np.uint32(round(total * 2.0**32)) for total in np.cumsum(_TERMS))


@njit(**_INLINED)
def _mixed(state: Any) -> Any:
    """The output function of splitmix64 (Steele, Lea and Flood, 2014), uint64 → uint64."""
    state = (state ^ (state >> _30)) * _FIRST
    state = (state ^ (state >> _27)) * _SECOND
    return state ^ (state >> _31)


@njit(**_CALLED)
def _draw(seed: Any, replicate: Any, steps: Any, weights: Any) -> None:
    """Write the weights of rows: a hash has 32 bits for each of two replicates."""
    stream = _mixed(_mixed(np.uint64(seed) + _GOLDEN) + np.uint64(replicate // 2) * _GOLDEN)
    shift = _32 * np.uint64(replicate % 2)
    for row in range(len(weights)):
        uniform = np.uint32(_mixed(stream + steps[row]) >> shift)
        weight = np.uint8(0)  # by the inverse of Poisson(1)'s distribution function
        for threshold in _THRESHOLDS:
            weight += np.uint8(uniform >= threshold)
        weights[row] = weight


@njit(**_CALLED)
def _fill_aucs(seed: Any, steps: Any, positive: Any, last: Any, aucs: Any) -> None:
    """Write the AUC of every replicate; rows are in the order of their scores.

    A row has its `steps` in the streams; `positive` says whether its label is 1, `last` whether the next score differs.
    """
    buffer = np.empty(BLOCK, np.uint8)
    for replicate in range(len(aucs)):
        # Twice the area, so that ties stay whole numbers. Weight of the negatives and of all rows before the present
        # score, and the same with the rows of this score so far.
        area = negatives = everything = now_negatives = now_everything = np.int64(0)
        for start in range(0, len(steps), BLOCK):
            weights = buffer[: min(BLOCK, len(steps) - start)]
            _draw(seed, replicate, steps[start:], weights)
            for at in range(len(weights)):
                weight = np.int64(weights[at])
                now_everything += weight
                now_negatives += weight * (np.int64(1) - np.int64(positive[start + at]))
                if last[start + at]:
                    positives = (now_everything - everything) - (now_negatives - negatives)
                    area += positives * (negatives + now_negatives)
                    negatives, everything = now_negatives, now_everything
        pairs = np.float64(negatives) * np.float64(everything - negatives)
        aucs[replicate] = np.float64(area) / (2.0 * pairs) if pairs > 0 else np.nan


def weights(rows: int, replicate: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """How often each of `rows` test rows counts in one replicate, from 0: Poisson(1), the same for every run.

    Example:
        >>> weights(8, replicate=0).tolist() == weights(1000, replicate=0)[:8].tolist()
        True
    """
    drawn = np.empty(rows, np.uint8)
    _draw(seed, replicate, np.arange(rows, dtype=np.uint64) * _GOLDEN, drawn)
    return drawn.astype(np.int64)


def resampled_aucs(
    labels: npt.NDArray[Any], scores: npt.NDArray[Any], replicates: int = 1000, seed: int = 0
) -> npt.NDArray[np.float64]:
    """AUC of one run's predictions under Poisson-bootstrap resamplings of the test rows.

    Ties count half, as in `sklearn.metrics.roc_auc_score(labels, scores, sample_weight=weights(...))`, which each value
    equals. One sort of the scores, then linear time per replicate; other threads can run.

    Args:
        labels: `[rows]` of 0 and 1.
        scores: `[rows]`; the higher, the likelier is a 1.
        replicates: How many resamplings.
        seed: That of all resamplings; runs to compare need the same one, and the same rows in the same order.

    Returns:
        `[replicates]`; NaN in a replicate where only one class was drawn.

    Raises:
        ValueError: Labels and scores of other or different shapes, other labels, or a score that is NaN.

    Example:
        >>> resampled_aucs(np.array([0, 0, 1, 1] * 50), np.array([0.1, 0.2, 0.3, 0.4] * 50), replicates=3).tolist()
        [1.0, 1.0, 1.0]
    """
    if labels.ndim != 1 or labels.shape != scores.shape:
        raise ValueError(f"labels and scores must be of one shape [rows], got {labels.shape} and {scores.shape}")
    positive = labels == 1
    if not np.all(positive | (labels == 0)):
        raise ValueError(f"labels must be 0 or 1, got {labels[~positive & (labels != 0)][0]}")
    if np.isnan(scores).any():
        raise ValueError(f"scores must be numbers, got NaN in row {int(np.flatnonzero(np.isnan(scores))[0])}")
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    last = np.ones(len(ordered), np.uint8)
    last[:-1] = ordered[1:] != ordered[:-1]
    aucs = np.empty(replicates, np.float64)
    _fill_aucs(seed, order.astype(np.uint64) * _GOLDEN, positive[order].astype(np.uint8), last, aucs)
    return aucs
