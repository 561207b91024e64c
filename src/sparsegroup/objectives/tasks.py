"""Objectives of several tasks, each with a label and an output."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup.objectives.losses import LOGISTIC, Logistic
from sparsegroup.objectives.objective import Float64s, Objective
from sparsegroup.penalties.penalty import parameter
from sparsegroup.rules.hyperparameter import Described

_STEPS = 100
"""Of a bisection."""


def _are_objectives(given: Any) -> bool:
    return all(isinstance(one, Objective) and not one.takes_classes and not one.tasks for one in given)


class Tasks(Objective):
    """Several tasks, each with its label, its score and its objective: Σ_t weight_t · loss_t.

    Labels are `[n, tasks]`, NaN where a row has none of a task, which leaves its loss out: a mean is over all rows of a
    batch, those without a label as well. Metrics are over a task's labels.

    Args:
        objectives: One for each task, or for all, as `Objective.of` takes them.
        weights: Factors of the tasks' losses, > 0; 1 each without any.
        names: The tasks' names, by which predictions are called.

    Raises:
        ValueError: Other numbers of objectives, weights and names, or an objective of several outputs.

    Examples:
        >>> from sparsegroup.objectives import Tasks
        >>> tasks = Tasks(objectives=("logistic", "squared"), names=("click", "price"), weights=(1, 0.5))
        >>> tasks.outputs, str(tasks)
        (2, 'click: logistic, price: squared')
    """

    name = "tasks"
    objectives: Any = parameter((LOGISTIC, LOGISTIC), Described("objectives of one output each", _are_objectives))
    weights: Any = parameter((), Described("numbers > 0", lambda given: all(0 < one < float("inf") for one in given)))
    names: Any = parameter((), Described("different texts", lambda given: len(set(given)) == len(given)))

    def __post_init__(self) -> None:
        objectives = [Objective.of(one) for one in self.objectives]
        count = len(self.names) or max(len(objectives), len(self.weights))
        objectives = objectives * count if len(objectives) == 1 else objectives
        weights, names = map(float, self.weights or count * [1.0]), self.names or map(str, range(count))
        for field, values in (("objectives", objectives), ("weights", weights), ("names", names)):
            object.__setattr__(self, field, tuple(values))
        for field in ("objectives", "weights", "names"):
            if len(given := getattr(self, field)) != count:
                raise ValueError(f"{count} tasks need as many {field}, got {len(given)}")
        super().__post_init__()

    @property
    def plain(self) -> str | dict[str, Any]:
        """See `NamedChoice.plain`."""
        objectives = [one.plain for one in self.objectives]
        return {"name": self.name, "objectives": objectives, "weights": list(self.weights), "names": list(self.names)}

    def __str__(self) -> str:
        return ", ".join(f"{name}: {one}" for name, one in zip(self.names, self.objectives, strict=True))

    def of_tasks(self, names: Sequence[str], weights: Sequence[float] | None = None) -> "Tasks":
        """See `Objective.of_tasks`."""
        return type(self)(objectives=self.objectives, names=tuple(names), weights=tuple(weights or self.weights))

    @property
    def outputs(self) -> int:
        """One of each task."""
        return len(self.objectives)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names."""
        found: tuple[str, ...] = self.names
        return found

    @property
    def labels(self) -> Any:
        """See `Objective.labels`: of each task."""
        return tuple(one.labels for one in self.objectives)

    @property
    def scaled(self) -> bool:  # type: ignore[override]
        """Whether a task's scores are."""
        return any(one.scaled for one in self.objectives)

    def in_unit(self, scale: Any) -> "Tasks":
        """The same with these units of the tasks' scores."""
        scales = scale if isinstance(scale, Sequence) else [scale] * self.outputs
        objectives = tuple(one.in_unit(unit) for one, unit in zip(self.objectives, scales, strict=True))
        return type(self)(objectives=objectives, weights=self.weights, names=self.names)

    def unit_of(self, labels: Float64s, weights: Float64s) -> Any:
        """The units of the tasks' scores."""
        return tuple(self._of_each(lambda one, *given: one.unit_of(*given), labels, weights))

    @property
    def label_words(self) -> str:
        """See `Objective.label_words`."""
        words = (f"{name} {one.label_words}" for name, one in zip(self.names, self.objectives, strict=True))
        return f"[n, {self.outputs}]: {', '.join(words)}; NaN of at most all tasks but one"

    def are_labels(self, labels: Tensor) -> Tensor:
        """Rows with a label of one task at least, and no other than its objective takes."""
        if labels.shape[1:] != (self.outputs,):
            return labels.new_zeros(len(labels), dtype=torch.bool)
        missing = labels.isnan()
        valid = torch.stack([one.are_labels(labels[:, task]) for task, one in enumerate(self.objectives)], dim=1)
        return (valid | missing).all(1) & ~missing.all(1)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Σ_t weight_t · loss_t `[n]` of scores and labels `[n, tasks]`."""
        return self._by_task(scores, labels, lambda one, *given: one.losses(*given)).sum(1)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Each task's, times its weight; 0 where it has no label."""
        return self._by_task(scores, labels, lambda one, *given: one.gradient(*given))

    def _by_task(self, scores: Tensor, labels: Tensor, function: Callable[..., Tensor]) -> Tensor:
        """What a function makes of an objective, scores and labels `[n]`, times the weight, `[n, tasks]`; 0 without."""
        missing = labels.isnan()
        filled = labels.masked_fill(missing, 1.0)  # which every objective takes
        columns = [
            weight * function(one, scores[:, task], filled[:, task])
            for task, (one, weight) in enumerate(zip(self.objectives, self.weights, strict=True))
        ]
        return torch.stack(columns, dim=1).masked_fill(missing, 0.0)

    def predict(self, scores: Tensor) -> Tensor:
        """Each task's, `[n, tasks]`."""
        return torch.stack([one.predict(scores[:, task]) for task, one in enumerate(self.objectives)], dim=1)

    def columns(self, predictions: Float64s) -> dict[str, Any]:
        """`<task>_probability`, or `<task>_prediction`."""
        return {name: predictions[:, task] for task, name in enumerate(self.output_names)}

    @property
    def output_names(self) -> list[str]:
        """See `Objective.output_names`."""
        return [f"{name}_{one.prediction}" for name, one in zip(self.names, self.objectives, strict=True)]

    def served(self, predictions: Tensor) -> tuple[Tensor, ...]:
        """One output of each task."""
        return tuple(predictions.unbind(1))

    def label_columns(self, labels: Any) -> dict[str, Any]:
        """`<task>_label`, NaN where there is none."""
        return {f"{name}_label": labels[:, task] for task, name in enumerate(self.names)}

    def deviance(self, labels: Float64s, predictions: Float64s) -> Float64s:
        """Σ_t weight_t · the task's deviance in the unit of its loss, over the tasks that have a label."""
        given = zip(self.objectives, self.weights, labels.T, predictions.T, strict=True)
        found: Float64s = np.nansum([w * one.deviance(y, p) / one.loss_unit for one, w, y, p in given], axis=0)
        return found

    @property
    def parts(self) -> tuple[Objective, ...]:
        """The tasks' objectives."""
        found: tuple[Objective, ...] = self.objectives
        return found

    def labels_of_parts(self, labels: Tensor) -> Tensor:
        """The tasks'."""
        return labels

    def of_parts(self, scores: Tensor) -> Tensor:
        """The tasks'."""
        return scores

    def shift(self, scores: Float64s, labels: Float64s, weights: Float64s) -> Float64s:
        """Each task's, over the rows that have its label, `[tasks]`."""
        found = []
        for task, one in enumerate(self.objectives):
            known = ~np.isnan(labels[:, task])
            some = weights[known].sum() > 0
            found.append(one.shift(scores[known, task], labels[known, task], weights[known]) if some else 0.0)
        return np.array(found)

    def start(self, labels: Float64s, weights: Float64s) -> Float64s:
        """Each task's, `[tasks]`."""
        return np.array(self._of_each(lambda one, *given: one.start(*given), labels, weights))

    def best_constant(self, labels: Float64s, weights: Float64s) -> Float64s:
        """Each task's, `[tasks]`."""
        found: Float64s = self.predict(torch.from_numpy(self.start(labels, weights))[None]).numpy()[0]
        return found

    def _of_each(self, function: Callable[..., Any], labels: Float64s, weights: Float64s) -> list[Any]:
        """What a function makes of each objective, and the labels and weights of the rows that have its label."""
        columns = labels.reshape(-1, self.outputs).T
        return [
            function(one, own[~np.isnan(own)], weights[: len(own)][~np.isnan(own)])
            for one, own in zip(self.objectives, columns, strict=True)
        ]


class Esmm(Tasks):
    """ESMM (Ma et al., SIGIR 2018): an action and one that only follows it, such as a click and a purchase.

    The scores are the logits of P(first) and of P(second | first); P(second) is the product of both. The losses are
    the cross entropies of P(first) and P(second), over all rows (eq. 3), so that the second score is learnt without
    the bias of the rows that have the first.
    """

    name = "esmm"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outputs != 2 or not all(isinstance(one, Logistic) for one in self.objectives):
            raise ValueError(f"esmm is of two labels, 0 or 1, such as click,buy: got {self}")

    def _both(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ln P(first), ln P(second) and ln(1 - P(second)), of which none loses digits near 0 or 1."""
        log, first = nn.functional.logsigmoid, scores[:, 0]
        second = log(first) + log(scores[:, 1])
        return log(first), second, torch.logaddexp(log(-first), log(first) + log(-scores[:, 1]))

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The two cross entropies, times their weights."""
        missing = labels.isnan()
        y, z = labels.masked_fill(missing, 1.0).unbind(1)
        _, second, neither = self._both(scores)
        both = torch.stack([LOGISTIC.losses(scores[:, 0], y), -z * second - (1 - z) * neither], dim=1)
        return (both * both.new_tensor(self.weights)).masked_fill(missing, 0.0).sum(1)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        """(P(second) - z) / (1 - P(second)) times 1 - P(first), or 1 - P(second | first); of the first also p - y."""
        missing = labels.isnan()
        y, z = labels.masked_fill(missing, 1.0).unbind(1)
        _, second, neither = self._both(scores)
        log, p = nn.functional.logsigmoid, torch.sigmoid(scores)
        # (P - z) / (1 - P) (1 - p) is -(1 - p) where z = 1, otherwise e to the sum of the logarithms.
        of_second = [
            torch.where(z > 0, p[:, one] - 1, torch.exp(second + log(-scores[:, one]) - neither)) for one in (0, 1)
        ]
        first, then = self.weights
        of_first = (first * (p[:, 0] - y)).masked_fill(missing[:, 0], 0.0)
        both = then * torch.stack(of_second, dim=1).masked_fill(missing[:, 1:], 0.0)
        return torch.stack([of_first + both[:, 0], both[:, 1]], dim=1)

    def predict(self, scores: Tensor) -> Tensor:
        """P(first) and P(second)."""
        p = torch.sigmoid(scores)
        return torch.stack([p[:, 0], p[:, 0] * p[:, 1]], dim=1)

    def of_parts(self, scores: Tensor) -> Tensor:
        """The second score is the logit of the quotient of both probabilities, if that is below 1."""
        first, second = torch.sigmoid(scores).double().unbind(1)
        return torch.stack([scores[:, 0], torch.logit(second / first, eps=1e-6).to(scores.dtype)], dim=1)

    def shift(self, scores: Float64s, labels: Float64s, weights: Float64s) -> Float64s:
        """The first's, then the second's: both probabilities add up to their labels."""
        first = super().shift(scores, labels, weights)[0]
        known = ~np.isnan(labels[:, 1])
        p, s, w = _sigmoid(scores[known, 0] + first), scores[known, 1], weights[known]
        wanted, low, high = float(w @ labels[known, 1]), -LOGISTIC.highest, LOGISTIC.highest
        for _ in range(_STEPS if wanted else 0):
            middle = (low + high) / 2
            low, high = (middle, high) if float(w @ (p * _sigmoid(s + middle))) < wanted else (low, middle)
        return np.array([first, (low + high) / 2])

    def start(self, labels: Float64s, weights: Float64s) -> Float64s:
        """The log-odds of the first, and of the second among the rows that have the first."""
        known = labels.reshape(-1, 2)
        has_first = known[:, 0] > 0
        then = self._of_each(lambda one, *given: one.start(*given), known[has_first], weights[: len(known)][has_first])
        return np.array([super().start(labels, weights)[0], then[1]])


def _sigmoid(scores: Float64s) -> Float64s:
    found: Float64s = torch.from_numpy(scores).sigmoid().numpy()
    return found
