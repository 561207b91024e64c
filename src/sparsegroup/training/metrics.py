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
        normalized_entropy: Log loss over that of always predicting the mean label (He et al., ADKDD 2014); NaN where
            only one class is present.
        calibration: Sum of the predictions over the number of positives; NaN where there are none.
    """

    auc: float
    log_loss: float
    normalized_entropy: float
    calibration: float


def evaluate(labels: npt.NDArray[np.float32], probabilities: npt.NDArray[np.float64]) -> Metrics:
    """Metrics of probabilities `[n]` against labels `[n]`, 0 or 1."""
    positives = float(labels.sum(dtype=np.float64))
    has_both = 0 < positives < len(labels)
    auc = float(roc_auc_score(labels, probabilities)) if has_both else np.nan
    loss = float(log_loss(labels, probabilities, labels=[0, 1])) if len(labels) else np.nan
    rate = positives / len(labels) if has_both else 0.5
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)) if has_both else np.nan
    calibration = float(probabilities.sum()) / positives if positives else np.nan
    return Metrics(auc, loss, loss / entropy, calibration)
