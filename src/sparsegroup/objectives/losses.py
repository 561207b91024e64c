"""The objectives: one class each, with its loss, its link and its deviance."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup.objectives.objective import Float64s, Objective
from sparsegroup.penalties.penalty import parameter
from sparsegroup.rules import Range, above, xp

_LOGARITHMIC = 64.0
"""Highest score of a logarithmic link in a bisection."""


class Logistic(Objective):
    """Labels 0 or 1, probabilities: the binary cross entropy of logits."""

    name = "logistic"
    is_binary = True
    prediction = "probability"
    least = 0.0
    highest = 50.0

    @staticmethod
    def residual(score: Any, label: Any, shape: Any) -> Any:
        """p - y."""
        return 1 / (1 + xp.exp(-score)) - label

    def are_labels(self, labels: Tensor) -> Tensor:
        """0 and 1."""
        return labels.bool().to(labels.dtype) == labels

    def mean_loss(
        self,
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        groups: Tensor | None = None,
        *,
        total: bool = False,
    ) -> Tensor:
        """See `Objective`; by torch's function for it."""
        entropy = nn.functional.binary_cross_entropy_with_logits
        loss: Tensor = entropy(scores, labels, weight=weights, reduction="sum" if total else "mean")
        return loss

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Softplus(score) - y score."""
        loss: Tensor = nn.functional.binary_cross_entropy_with_logits(scores, labels, reduction="none")
        return loss

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        """p - y, with the bits of autograd."""
        return scores.sigmoid() - labels

    def predict(self, scores: Tensor) -> Tensor:
        """The sigmoid."""
        return torch.sigmoid(scores)

    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """-ln of the label's probability."""
        p = np.clip(np.where(labels > 0, predictions, 1 - predictions), np.finfo(np.float64).eps, None)
        found: Float64s = -np.log(p)
        return found

    def start(self, labels: Float64s, weights: Float64s) -> float:
        """The log-odds of the labels; half a positive and half a negative are added, so that it is finite."""
        positives = float(weights @ labels)
        return math.log((positives + 0.5) / (float(weights.sum()) - positives + 0.5))

    def shift(self, scores: Float64s, labels: Float64s, weights: Float64s) -> Any:
        """See `Objective`; with half a positive and half a negative whose logits are 0, so that it is finite."""
        both = np.zeros(2)
        return super().shift(
            np.concatenate([scores, both]), np.concatenate([labels, [1.0, 0.0]]), np.concatenate([weights, both + 0.5])
        )


class Binomial(Logistic):
    """Shares of tries, such as clicks of impressions: the probability of one, by the cross entropy.

    A row's weight is its number of tries; with it, the loss is that of as many rows of labels 0 and 1.
    """

    name = "binomial"
    is_binary = False
    most = 1.0
    are_labels = Objective.are_labels

    @property
    def label_words(self) -> str:
        """See `Objective`."""
        return "shares in [0, 1]"

    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """The cross entropy less that of the label itself, y ln(y / p) + (1 - y) ln((1 - y) / (1 - p))."""
        p = np.clip(predictions, np.finfo(np.float64).eps, 1 - np.finfo(np.float64).eps)
        parts = [y * np.log(np.where(y > 0, y, 1) / of) for y, of in ((labels, p), (1 - labels, 1 - p))]
        found: Float64s = np.maximum(sum(parts), 0)
        return found


class FakeNegatives(Logistic):
    """Labels 0 or 1 of a stream in which each row first counts as a negative, and its positive comes later as another.

    The probability that a row has a positive at all, by weights that correct for false negatives: fake
    negative weighting (Ktena et al., RecSys 2019). A negative counts (1 - p)(1 + p) times and a positive 1 + p
    times, with the model's own probability p, through which no derivative is taken.
    """

    name = "fake_negatives"
    mean_loss = Objective.mean_loss  # a logistic loss has torch's function for them
    gradient = Objective.gradient

    @staticmethod
    def residual(score: Any, label: Any, shape: Any) -> Any:
        """(1 - p²)(p - y (1 + p))."""
        p = 1 / (1 + xp.exp(-score))
        return (1 - p * p) * (p - label * (1 + p))

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The cross entropy times the weights."""
        p = scores.detach().sigmoid()
        weighted: Tensor = super().losses(scores, labels) * (1 + p) * torch.where(labels > 0, 1, 1 - p)
        return weighted

    def start(self, labels: Float64s, weights: Float64s) -> float:
        """The log-odds of positives per negative, each of which is a row; half a positive and two negatives are added,
        so that it is finite.
        """
        positives = float(weights @ labels) + 0.5
        rows = max(float(weights.sum()) - positives + 2.0, positives + 0.5)
        return math.log(positives / (rows - positives))

    def shift(self, scores: Float64s, labels: Float64s, weights: Float64s) -> Any:
        """See `Objective`: what makes the probabilities of the negatives, which are all rows, add up to the positives.

        The loss itself has several minima.
        """
        low, high = -self.highest, self.highest
        rows, positives = weights * (1 - labels), float(weights @ labels)
        for _ in range(100):
            middle = (low + high) / 2
            with np.errstate(over="ignore"):
                predicted = float(rows @ (1 / (1 + np.exp(-scores - middle))))
            low, high = (middle, high) if predicted < positives else (low, middle)
        return (low + high) / 2


class Squared(Objective):
    """Any number, by its mean: half the squared error, in units of the labels' standard deviation."""

    name = "squared"
    scaled = True
    scale: float = parameter(1.0, above(0))

    @property
    def loss_unit(self) -> float:
        """2 scale²."""
        return 2 * self.scale**2

    @staticmethod
    def residual(score: Any, label: Any, shape: Any) -> Any:
        """Score - y."""
        return score - label

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """(score - y)² / 2."""
        error: Tensor = scores - self.in_scores(labels)
        return error.square() / 2

    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """The squared error."""
        return (labels - predictions) ** 2


class Huber(Objective):
    """Any number, by its mean, where far labels count less: Huber's loss (1964).

    Args:
        delta: Error, in standard deviations of the labels, from which on the loss is linear.
    """

    name = "huber"
    scaled = True
    delta: float = parameter(1.0, above(0))
    scale: float = parameter(1.0, above(0))

    @property
    def shape(self) -> float:
        """δ."""
        return self.delta

    @property
    def loss_unit(self) -> float:
        """Scale²."""
        return self.scale**2

    @staticmethod
    def residual(score: Any, label: Any, shape: Any) -> Any:
        """The error, within ±δ."""
        error = score - label
        return xp.maximum(-xp.maximum(-error, error * 0 - shape), error * 0 - shape)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Half the squared error up to δ, then linear."""
        given = self.in_scores(labels).to(scores.dtype)
        loss: Tensor = nn.functional.huber_loss(scores, given, reduction="none", delta=self.delta)
        return loss

    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """Huber's loss in units of the labels."""
        error, delta = np.abs(labels - predictions), self.delta * self.scale
        return np.where(error <= delta, error**2 / 2, delta * (error - delta / 2))


class Quantile(Objective):
    """Any number, by a quantile of it: the pinball loss (Koenker and Bassett, 1978).

    Args:
        alpha: Share of the labels that are to be below the prediction, in (0, 1).
    """

    name = "quantile"
    scaled = True
    alpha: float = parameter(0.5, Range(0, 1, includes_low=False))
    scale: float = parameter(1.0, above(0))

    @property
    def shape(self) -> float:
        """α."""
        return self.alpha

    @property
    def loss_unit(self) -> float:
        """Scale."""
        return self.scale

    @staticmethod
    def residual(score: Any, label: Any, shape: Any) -> Any:
        """1 - α above the label, -α below."""
        none = score * 0
        return xp.where(score > label, none + 1 - shape, none - shape)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Max(α (y - score), (1 - α) (score - y))."""
        error = self.in_scores(labels) - scores
        return torch.maximum(self.alpha * error, (self.alpha - 1) * error)

    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """The pinball loss in units of the labels."""
        error = labels - predictions
        return np.maximum(self.alpha * error, (self.alpha - 1) * error)

    def calibration(self, labels: Float64s, predictions: Float64s, weights: Float64s) -> float:
        """The share of labels that are not above their prediction, over α."""
        return float(np.average(labels <= predictions, weights=weights)) / self.alpha


class _Logarithmic:
    """Predictions are e to the score."""

    highest = _LOGARITHMIC
    least = 0.0
    loss_unit = 2.0

    def predict(self, scores: Tensor) -> Tensor:
        """e to the score."""
        return torch.exp(scores)


class Poisson(_Logarithmic, Objective):
    """Counts, or other numbers ≥ 0 whose variance grows like their mean, by the mean."""

    name = "poisson"

    @staticmethod
    def residual(score: Any, label: Any, shape: Any) -> Any:
        """e^score - y."""
        return xp.exp(score) - label

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """e^score - y score: the negative log-likelihood without what the score does not change."""
        return torch.exp(scores) - labels * scores

    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """2 (y ln(y/μ) - y + μ), as in scikit-learn."""
        logarithms = np.log(np.where(labels > 0, labels, 1) / np.where(labels > 0, predictions, 1))
        found: Float64s = 2 * (labels * logarithms - labels + predictions)
        return found


class Gamma(_Logarithmic, Objective):
    """Numbers > 0 whose standard deviation grows like their mean, by the mean."""

    name = "gamma"
    includes_least = False

    @staticmethod
    def residual(score: Any, label: Any, shape: Any) -> Any:
        """1 - y e^-score."""
        return 1 - label * xp.exp(-score)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Score + y e^-score."""
        return scores + labels * torch.exp(-scores)

    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """2 (ln(μ/y) + y/μ - 1), as in scikit-learn."""
        return 2 * (np.log(predictions / labels) + labels / predictions - 1)


class Tweedie(_Logarithmic, Objective):
    """Numbers ≥ 0, many of which are 0 and others not, such as what a customer spends, by the mean.

    Args:
        power: p in (1, 2): the variance grows like the mean to the power p.
    """

    name = "tweedie"
    power: float = parameter(1.5, Range(1, 2, includes_low=False))

    @property
    def shape(self) -> float:
        """p."""
        return self.power

    @staticmethod
    def residual(score: Any, label: Any, shape: Any) -> Any:
        """μ^(2 - p) - y μ^(1 - p), where μ = e^score."""
        return xp.exp((2 - shape) * score) - label * xp.exp((1 - shape) * score)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """μ^(2 - p) / (2 - p) - y μ^(1 - p) / (1 - p)."""
        p = self.power
        return torch.exp((2 - p) * scores) / (2 - p) - labels * torch.exp((1 - p) * scores) / (1 - p)

    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """As in scikit-learn."""
        p, y, mu = self.power, labels, predictions
        return 2 * (y ** (2 - p) / ((1 - p) * (2 - p)) - y * mu ** (1 - p) / (1 - p) + mu ** (2 - p) / (2 - p))


LOGISTIC = Logistic()
"""The default."""
