"""How good predictions are."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.metrics import log_loss, roc_auc_score


@dataclass(frozen=True)
class Metrics:
    """Of predicted probabilities against labels.

    Attributes:
        auc: Area under the ROC curve; NaN where only one class is present.
        log_loss: Mean negative log-likelihood in nats.
    """

    auc: float
    log_loss: float


def evaluate(labels: npt.NDArray[np.float32], probabilities: npt.NDArray[np.float64]) -> Metrics:
    """Metrics of probabilities `[n]` against labels `[n]`, 0 or 1."""
    auc = roc_auc_score(labels, probabilities) if 0 < labels.sum() < len(labels) else np.nan
    return Metrics(float(auc), float(log_loss(labels, probabilities, labels=[0, 1])))
