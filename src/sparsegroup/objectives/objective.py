"""What a model learns: the loss of a score and a label, and the prediction that a score means."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.penalties.penalty import NamedChoice
from sparsegroup.rules.rule import bind

Float64s = npt.NDArray[np.float64]

_STEPS = 100
"""Of a bisection."""


class Objective(NamedChoice, ABC, kind="objective"):
    """The loss of a network's scores, and the predictions that they stand for.

    A subclass sets `name`, `residual` and what else differs; it is a frozen dataclass whose fields, declared by
    `parameter`, are the objective's parameters. See "How to add an objective".

    Attributes:
        name: Lower-case name: `objective="…"` is the objective at its default parameters.
        residual: A static method `residual(score, label, shape) -> dloss/dscore`, element-wise, non-decreasing in the
            score. Like the `update` of a rule it takes its array functions from the global `xp`: the baseline and the
            compiled passes of a network take it compiled by Numba, other networks on tensors.
        is_binary: Whether labels are 0 or 1, and predictions probabilities.
        takes_classes: Whether labels are numbers of classes, from 0.
        outputs: How many scores it takes of a row: scores are `[n]`, or, of several, `[n, outputs]`.
        prediction: What a prediction is called: the column of files of predictions, the output of an ONNX model.
        least, includes_least: Lower bound of the labels, and whether the bound is a valid label.
        most: The largest label.
        takes_groups: Whether losses are of several rows together, the rows of a group: of equal `groups_of`.
        scaled: Whether scores are predictions over `scale`, so that learning rates do not depend on a label's unit.
        scale: Unit of the scores, > 0.
        highest: Bound of a bisection for a score: e to this power is finite.

    Examples:
        >>> from sparsegroup.objectives import Objective, Quantile
        >>> Objective.of("poisson").plain, Objective.of({"name": "quantile", "alpha": 0.9}) == Quantile(alpha=0.9)
        ('poisson', True)
    """

    residual: ClassVar[Callable[..., Any]]
    _of_tensors: ClassVar[Callable[..., Any]]
    is_binary: ClassVar[bool] = False
    takes_classes: ClassVar[bool] = False
    prediction: ClassVar[str] = "prediction"
    least: ClassVar[float] = -math.inf
    includes_least: ClassVar[bool] = True
    most: ClassVar[float] = math.inf
    takes_groups: ClassVar[bool] = False
    scaled: ClassVar[bool] = False
    highest: ClassVar[float] = 2.0**60
    scale = 1.0

    @property
    def outputs(self) -> int:
        """How many scores it takes of a row."""
        return 1

    def __init_subclass__(cls, kind: str | None = None) -> None:
        super().__init_subclass__(kind)
        if "residual" in vars(cls):  # bound here: torch.compile cannot
            cls._of_tensors = staticmethod(bind(cls.residual, torch))

    @property
    def shape(self) -> float:
        """The parameter that `residual` takes; 0 if it has none."""
        return 0.0

    @property
    def label_words(self) -> str:
        """Which labels it takes, in words."""
        if self.is_binary:
            return "0 or 1"
        return f"finite {self._numbers.replace(' <=', ', <=')}"

    @property
    def labels(self) -> Any:
        """Labels that the objective accepts: "binary", "numbers" (with bounds), "classes", or the texts of classes."""
        return "binary" if self.is_binary else self._numbers

    @property
    def _numbers(self) -> str:
        """Rule of a log's label with the bounds of the numbers, such as `numbers >= 0`."""
        least = "" if self.least == -math.inf else f" {'>=' if self.includes_least else '>'} {self.least:g}"
        return f"numbers{least}{'' if self.most == math.inf else f' <= {self.most:g}'}"

    def with_classes(self, classes: Sequence[str]) -> "Objective":
        """The same objective of labels that are these classes, if it takes classes."""
        return self

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks of which labels are, `[n, tasks]`; none of labels `[n]`."""
        return ()

    def of_tasks(self, names: Sequence[str], weights: Sequence[float] | None = None) -> "Objective":
        """The objective of these tasks: this one for each of them, unless it is of several already."""
        found: Objective = self.known["tasks"](objectives=(self,), names=tuple(names), weights=tuple(weights or ()))
        return found

    def are_labels(self, labels: Tensor) -> Tensor:
        """Which of some labels `[n]` it takes, `[n]` bool."""
        enough = labels >= self.least if self.includes_least else labels > self.least
        return enough & (labels <= self.most) & labels.isfinite()

    @property
    def loss_unit(self) -> float:
        """What a loss is multiplied by to differ from another by as much as their deviances do."""
        return 1.0

    def in_unit(self, scale: Any) -> Self:
        """The same objective with this unit of the scores, if it has one."""
        if not self.scaled:
            return self
        parameters: Any = {**self.parameters, "scale": scale}
        return type(self)(**parameters)

    def unit_of(self, labels: Float64s, weights: Float64s) -> Any:
        """The unit of scores for labels like these `[n]`, with weights `[n]`: their standard deviation, or 1."""
        if not self.scaled or not weights.sum():
            return 1.0
        mean = np.average(labels, weights=weights)
        deviation = math.sqrt(np.average((labels - mean) ** 2, weights=weights))
        return deviation if 0 < deviation < math.inf else 1.0

    def in_groups(self, place: int) -> Self:
        """The same objective with groups by the key at this place, if it takes any; see `groups_of`."""
        return self

    def groups_of(self, keys: Tensor) -> Tensor | None:
        """The groups `[n]` int64 of rows with keys `[n, fields]` of fields of one value; None if it takes none."""
        return None

    @abstractmethod
    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The losses `[n]` of scores `[n]` and labels `[n]`, which autograd can derive by the scores."""

    def mean_loss(
        self,
        scores: Tensor,
        labels: Tensor,
        weights: Tensor | None,
        groups: Tensor | None = None,
        *,
        total: bool = False,
    ) -> Tensor:
        """The mean `[]` of the losses of n samples, or their `total`, each times its weight `[n]`.

        `groups` `[n]` is what `groups_of` gives.
        """
        of_groups = (groups,) if self.takes_groups else ()
        losses = self.losses(scores, labels, *of_groups)
        losses = losses if weights is None else losses * weights
        return losses.sum() if total else losses.mean()

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        """dloss/dscore `[n]` of scores `[n]` and labels `[n]`."""
        found: Tensor = self._of_tensors(scores, self.in_scores(labels), self.shape)
        return found

    def in_scores(self, labels: Any) -> Any:
        """Labels as `residual` takes them: in units of the scores."""
        return labels / self.scale if self.scaled else labels

    def predict(self, scores: Tensor) -> Tensor:
        """Predictions `[n]` of scores `[n]`, of the same dtype."""
        return scores * self.scale if self.scaled else scores

    def columns(self, predictions: Float64s) -> dict[str, Any]:
        """Name → values `[n]` of predictions, as files of them have these."""
        return {self.prediction: predictions}

    def label_columns(self, labels: Any) -> dict[str, Any]:
        """Name → values `[n]` of labels `[n]` float32, as files of predictions have these."""
        return {"label": labels.astype(np.uint8) if self.is_binary else labels}

    @property
    def output_names(self) -> list[str]:
        """Names of what an export gives."""
        return [self.prediction]

    def served(self, predictions: Tensor) -> tuple[Tensor, ...]:
        """What an export gives of predictions."""
        return (predictions,)

    @property
    def parts(self) -> "tuple[Objective, ...]":
        """Objectives of one output each that a linear model, the baseline, learns in its place."""
        return (self,)

    def labels_of_parts(self, labels: Tensor) -> Tensor:
        """The labels of the parts `[n, parts]` of labels `[n]`, NaN where a part has none."""
        return labels.unsqueeze(1)

    def of_parts(self, scores: Tensor) -> Tensor:
        """Scores of the scores `[n, parts]` of the parts."""
        return scores.squeeze(1)

    @abstractmethod
    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """How far predictions `[n]` are from labels `[n]`, `[n]` ≥ 0: a loss that is 0 where they agree."""

    def calibration(self, labels: Float64s, predictions: Float64s, weights: Float64s) -> float:
        """Sum of predictions `[n]` over the sum of labels `[n]`, each times its weight `[n]`; NaN where that is 0."""
        total = float(weights @ labels)
        return float(weights @ predictions) / total if total else math.nan

    def shift(self, scores: Float64s, labels: Float64s, weights: Float64s) -> Any:
        """What is added to scores `[n]` so that the weighted loss is lowest: its derivative is 0 there.

        For the mean and for a logarithmic link with Poisson's loss, the predictions then add up to the labels.
        """
        residual, given = bind(type(self).residual, np), self.in_scores(labels)

        def derivative(at: float) -> float:
            with np.errstate(over="ignore"):
                return float(weights @ residual(scores + at, given, self.shape))

        low = high = 1.0
        while derivative(-low) > 0 and low < self.highest:
            low *= 2
        while derivative(high) < 0 and high < self.highest:
            high *= 2
        low = -low
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if derivative(middle) < 0 else (low, middle)
        return (low + high) / 2

    def start(self, labels: Float64s, weights: Float64s) -> Any:
        """The score of the best constant prediction of labels `[n]` with weights `[n]`; 0 without any.

        A float, or of several outputs their scores `[outputs]` float64, as of `shift`.
        """
        return self.shift(np.zeros(len(labels)), labels, weights) if weights.sum() else 0.0

    def best_constant(self, labels: Float64s, weights: Float64s) -> Any:
        """The constant prediction of the lowest weighted loss: a float, or of several outputs `[outputs]`."""
        score = torch.tensor([self.start(labels, weights)], dtype=torch.float64)
        return float(self.predict(score))
