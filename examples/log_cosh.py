"""The log-cosh loss: squared near the label, absolute far from it; an objective added from outside the package."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup.objectives import Objective
from sparsegroup.penalties import parameter
from sparsegroup.rules import above, xp


class LogCosh(Objective):
    """Any number, by its mean, where far labels count less: ln cosh of the error in standard deviations of labels."""

    name = "log_cosh"
    scaled = True
    scale: float = parameter(1.0, above(0))

    @property
    def loss_unit(self) -> float:
        """Scale."""
        return self.scale

    @staticmethod
    def residual(score: Any, label: Any, shape: Any) -> Any:
        """The hyperbolic tangent of the error."""
        return 1 - 2 / (xp.exp(2 * (score - label)) + 1)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """ln cosh(error) = |error| + ln((1 + e^(-2 |error|)) / 2), which does not overflow."""
        error = (scores - self.in_scores(labels)).abs()
        return error + nn.functional.softplus(-2 * error) - torch.log(error.new_tensor(2.0))

    def deviance(self, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """The loss, in units of the labels."""
        error = np.abs(labels - predictions) / self.scale
        return self.scale * (error + np.log1p(np.exp(-2 * error)) - np.log(2.0))
