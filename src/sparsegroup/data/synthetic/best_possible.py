"""How good predictions of a made-up log can be: its true probabilities, measured against its labels."""

from typing import Any

import numpy as np
import numpy.typing as npt

_STEPS = 1 << 16


class BestPossible:
    """AUC and log loss of the true probabilities, of rows that come in parts.

    It takes as little memory for many rows as for few: probabilities are counted in 65,536 equal steps, so that the AUC
    is off by less than .0001; the log loss is exact.

    Example:
        >>> best = BestPossible()
        >>> best.add(np.array([0, 1, 0, 1]), np.array([0.1, 0.3, 0.4, 0.8]))
        >>> best.rows, best.auc, round(best.log_loss, 4)
        (4, 0.75, 0.5108)
    """

    def __init__(self) -> None:
        self._counts = np.zeros((2, _STEPS), np.int64)  # by label
        self._loss = 0.0

    def add(self, labels: npt.NDArray[Any], probabilities: npt.NDArray[np.float64]) -> None:
        """Count rows: labels `[n]`, 0 or 1, and P(label = 1) `[n]`, within (0, 1)."""
        steps = (probabilities * _STEPS).astype(np.int64)
        for label in (0, 1):
            self._counts[label] += np.bincount(steps[labels == label], minlength=_STEPS)
        self._loss -= float(np.log(np.where(labels == 1, probabilities, 1 - probabilities)).sum())

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._counts.sum())

    @property
    def positive_rate(self) -> float:
        """Share of the rows with label 1; NaN of no rows."""
        return int(self._counts[1].sum()) / self.rows if self.rows else float("nan")

    @property
    def log_loss(self) -> float:
        """Mean negative log-likelihood in nats; NaN of no rows."""
        return self._loss / self.rows if self.rows else float("nan")

    @property
    def auc(self) -> float:
        """Area under the ROC curve; NaN where only one class is present."""
        negatives, positives = self._counts
        pairs = int(negatives.sum()) * int(positives.sum())
        below = np.cumsum(negatives) - negatives
        return float(positives @ (below + negatives / 2)) / pairs if pairs else float("nan")
