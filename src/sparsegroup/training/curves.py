"""Predictions against labels beyond a number: reliability and gains."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.reporting.run_record import GainPoint, ReliabilityBin, ScoreCurves

BINS = 20
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

Float64s = npt.NDArray[np.float64]


def curves_of(
    labels: npt.NDArray[Any], probabilities: Float64s, weights: npt.NDArray[Any] | None = None
) -> ScoreCurves:
    """Reliability and gains of probabilities `[n]` against labels `[n]`, 0 or 1, with weights `[n]`, ≥ 0."""
    counts = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    labels = labels.astype(np.float64)
    return ScoreCurves(
        reliability_of(labels, probabilities, counts, BINS), gains_of(labels, probabilities, counts, SHARES)
    )


def reliability_of(
    labels: Float64s, probabilities: Float64s, weights: Float64s, bins: int
) -> tuple[ReliabilityBin, ...]:
    """At most so many bins of about equal weight by rising prediction; equal predictions share a bin.

    Args:
        labels, probabilities, weights: `[n]`.
        bins: ≥ 1.
    """
    total = weights.sum()
    if not total:
        return ()
    order = np.argsort(probabilities, kind="stable")
    sorted_by = probabilities[order]
    behind = np.cumsum(weights[order]) / total
    edges = sorted_by[np.searchsorted(behind, np.arange(1, bins) / bins, side="left").clip(max=len(order) - 1)]
    number = np.searchsorted(np.unique(edges), probabilities, side="left")
    weight, predicted, actual = (
        np.bincount(number, values, bins) for values in (weights, weights * probabilities, weights * labels)
    )
    return tuple(
        ReliabilityBin(float(p / w), float(a / w), float(w / total))
        for w, p, a in zip(weight, predicted, actual, strict=True)
        if w > 0
    )


def gains_of(
    labels: Float64s, probabilities: Float64s, weights: Float64s, shares: tuple[float, ...]
) -> tuple[GainPoint, ...]:
    """The share of the positives among the highest predictions; of equal predictions, what can be expected.

    Args:
        labels, probabilities, weights: `[n]`.
        shares: How much of all rows, in (0, 1], rising.

    Returns:
        A point for each of `shares`; none where only one class is present.
    """
    positives = float(weights @ labels)
    total = float(weights.sum())
    if not 0 < positives < total:
        return ()
    from sklearn.metrics import roc_curve  # as `metrics` imports it

    false, true, _ = roc_curve(labels, probabilities, sample_weight=weights, drop_intermediate=False)
    reached = (false * (total - positives) + true * positives) / total
    captured = np.interp(shares, reached, true)
    return tuple(GainPoint(share, float(value)) for share, value in zip(shares, captured, strict=True))
