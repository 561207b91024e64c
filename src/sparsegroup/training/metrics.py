"""How good predictions are."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.reporting.run_record import Metrics


def evaluate(
    labels: npt.NDArray[Any],
    probabilities: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float32] | None = None,
) -> Metrics:
    """Metrics of probabilities `[n]` against labels `[n]`, 0 or 1; each row counts as its weight `[n]` says, ≥ 0."""
    from sklearn.metrics import log_loss, roc_auc_score  # a second: not before there is something to evaluate

    labels = labels.astype(np.int8)  # which scikit-learn takes faster
    if weights is None:
        total, positives, predicted = float(len(labels)), float(labels.sum(dtype=np.int64)), float(probabilities.sum())
    else:
        counts = weights.astype(np.float64)
        total, positives, predicted = float(counts.sum()), float(counts @ labels), float(counts @ probabilities)
    has_both = 0 < positives < total
    auc = float(roc_auc_score(labels, probabilities, sample_weight=weights)) if has_both else np.nan
    loss = float(log_loss(labels, probabilities, labels=[0, 1], sample_weight=weights)) if total else np.nan
    rate = positives / total if has_both else 0.5
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)) if has_both else np.nan
    calibration = predicted / positives if positives else np.nan
    return Metrics(auc, loss, float(loss / entropy), float(calibration))
