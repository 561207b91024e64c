"""The objective of labels that are one of several classes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup.objectives.losses import LOGISTIC
from sparsegroup.objectives.objective import Float64s, Objective
from sparsegroup.penalties.penalty import parameter
from sparsegroup.rules.hyperparameter import Described

_STEPS, _NEAR = 100, 1e-9
"""Steps of `Softmax.shift` at most, and the size of a step that ends it."""

_TWO_OR_MORE = Described(
    "two or more different texts, or their number", lambda given: len(given) != 1 and len(set(given)) == len(given)
)


class Softmax(Objective):
    """One of k classes, by its probability: the cross entropy of k scores. Labels are the classes' numbers from 0.

    Args:
        classes: The classes' texts, in the order of their numbers; or k, of classes called 0 to k - 1. Without any,
            a log's are taken: see `with_classes`.

    Examples:
        >>> import torch
        >>> from sparsegroup.objectives import Softmax
        >>> Softmax(classes=3).predict(torch.zeros(1, 3))
        tensor([[0.3333, 0.3333, 0.3333]])
    """

    name = "softmax"
    takes_classes = True
    prediction = "probabilities"
    classes: Any = parameter((), _TWO_OR_MORE)

    def __post_init__(self) -> None:
        given = self.classes
        names = range(int(given)) if isinstance(given, int | float) else [given] if isinstance(given, str) else given
        object.__setattr__(self, "classes", tuple(map(str, names)))
        super().__post_init__()

    def __str__(self) -> str:
        return f"{self.name} ({len(self.classes)} classes)" if self.classes else self.name

    @property
    def outputs(self) -> int:
        """k; ValueError if the classes are not known."""
        if not self.classes:
            raise ValueError("the classes of the objective softmax are not known: give Softmax(classes=…)")
        return len(self.classes)

    @property
    def labels(self) -> str | tuple[str, ...]:
        """See `Objective.labels`."""
        return self.classes or "classes"

    def with_classes(self, classes: Sequence[str]) -> "Softmax":
        """See `Objective.with_classes`."""
        return Softmax(classes=tuple(classes))

    @property
    def label_words(self) -> str:
        """See `Objective.label_words`."""
        return f"numbers of classes, 0 to {self.outputs - 1}"

    def are_labels(self, labels: Tensor) -> Tensor:
        """0, 1, … k - 1."""
        return (labels >= 0) & (labels < self.outputs) & (labels == labels.floor())

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """ln Σ_c e^s_c - s_y `[n]` of scores `[n, k]` and labels `[n]`."""
        loss: Tensor = nn.functional.cross_entropy(scores, labels.long(), reduction="none")
        return loss

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The probabilities, less 1 for the label's class, `[n, k]`."""
        number = torch.arange(scores.shape[1], device=scores.device)
        return scores.softmax(1) - (labels.unsqueeze(1) == number).to(scores.dtype)

    def predict(self, scores: Tensor) -> Tensor:
        """The probabilities of the classes, `[n, k]`."""
        return scores.softmax(-1)

    def columns(self, predictions: Float64s) -> dict[str, Any]:
        """The probability of each class, and the text of the likeliest one."""
        found = {f"probability_{name}": predictions[:, number] for number, name in enumerate(self.classes)}
        return {**found, "prediction": np.array(self.classes)[predictions.argmax(1)]}

    def label_columns(self, labels: Any) -> dict[str, Any]:
        """The classes' texts."""
        return {"label": np.array(self.classes)[labels.astype(np.int64)]}

    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """-ln of the probability of the label's class."""
        p = predictions[np.arange(len(labels)), labels.astype(np.int64)]
        found: Float64s = -np.log(np.clip(p, np.finfo(np.float64).eps, None))
        return found

    @property
    def parts(self) -> tuple[Objective, ...]:
        """Each class against the others, see `Objective.parts`."""
        return self.outputs * (LOGISTIC,)

    def labels_of_parts(self, labels: Tensor) -> Tensor:
        """1 for the label's class."""
        return (labels.unsqueeze(1) == torch.arange(self.outputs)).to(labels.dtype)

    def of_parts(self, scores: Tensor) -> Tensor:
        """ln σ: a probability is the part's over the sum of all."""
        return nn.functional.logsigmoid(scores)

    def shift(self, scores: Float64s, labels: Float64s, weights: Float64s) -> Float64s:
        """See `Objective`, `[k]`: the classes' probabilities then add up to their labels.

        As of `Logistic`, half a row of each class whose scores are 0 is added, so that it is finite. Each step adds
        the logarithm of what the labels of a class are over the sum of its probabilities, which never makes the loss
        larger (iterative scaling: Darroch and Ratcliff, 1972).
        """
        k = self.outputs
        scores = np.concatenate([scores, np.zeros((k, k))])
        counts = np.concatenate([weights, np.full(k, 0.5)])
        given = np.concatenate([labels.astype(np.int64), np.arange(k)])
        wanted, found = np.bincount(given, counts, k), np.zeros(k)
        for _ in range(_STEPS):
            p = np.exp(scores + found - (scores + found).max(1, keepdims=True))
            step = np.log(wanted / (counts / p.sum(1) @ p))
            found += step
            if np.abs(step).max() < _NEAR:
                break
        return found

    def start(self, labels: Float64s, weights: Float64s) -> Float64s:
        """The logarithms of the classes' frequencies, half a row of each class added, so that they are finite."""
        counts = np.bincount(labels.astype(np.int64), weights, self.outputs) + 0.5
        found: Float64s = np.log(counts / counts.sum())
        return found

    def best_constant(self, labels: Float64s, weights: Float64s) -> Float64s:
        """The classes' frequencies."""
        counts = np.bincount(labels.astype(np.int64), weights, self.outputs)
        found: Float64s = counts / counts.sum()
        return found

    def calibration(self, labels: Float64s, predictions: Float64s, weights: Float64s) -> float:
        """NaN: over all classes, any probabilities add up."""
        return math.nan
