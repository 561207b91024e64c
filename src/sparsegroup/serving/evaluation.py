"""What `evaluate` finds: a trained model on a log's test rows, over all, by user, and by value of a field."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.artifact.validation import finite
from sparsegroup.data.batches import Batch
from sparsegroup.data.log import Log
from sparsegroup.errors import UserError, did_you_mean
from sparsegroup.reporting.run_record import Metrics, ScoreCurves
from sparsegroup.serving.acceptance import TestRows
from sparsegroup.serving.opening import TrainedModel
from sparsegroup.training.checks import numbers_named
from sparsegroup.training.curves import curves_of
from sparsegroup.training.evaluation import PredictionWindow, logits_over
from sparsegroup.training.group_metrics import GroupedAuc, ValueMetrics, grouped_auc, metrics_by_value

Int64s = npt.NDArray[np.int64]


LEAST_ROWS = 100
"""Values of fewer rows are not listed."""

_NAMED_WITHIN = 1_000_000


@dataclass(frozen=True)
class EvaluationResult:
    """A model on a log.

    Attributes:
        rows: Rows of the log that were scored.
        metrics, baseline: The model's metrics, and its baseline's, where the run kept one.
        curves: Reliability and gains.
        user: The field of the users, or None.
        gauc, baseline_gauc: AUC within users, the baseline's too.
        by: Field → its values, the one whose calibration is surely off the most first.
        values: Field → key → text, of values whose text is known.
    """

    rows: int
    metrics: Metrics
    baseline: Metrics | None
    curves: ScoreCurves
    user: str | None
    gauc: GroupedAuc | None
    baseline_gauc: GroupedAuc | None
    by: Mapping[str, Sequence[ValueMetrics]]
    values: Mapping[str, Mapping[int, str]]

    def as_plain(self) -> dict[str, Any]:
        """All of it for JSON; what is not a finite number is None."""
        by = {
            field: [
                {
                    "value": self.values[field].get(one.key),
                    **asdict(one),
                    "calibration": one.calibration,
                    "surely_off_by": one.surely_off_by,
                }
                for one in found
            ]
            for field, found in self.by.items()
        }
        content: dict[str, Any] = finite({**asdict(self), "by": by})
        del content["values"]
        return content


def evaluate_on(
    trained: TrainedModel, test: TestRows, user: str | None = None, by: Sequence[str] = (), top: int = 10
) -> EvaluationResult:
    """Score rows of a log, and compare with their labels. Takes 9 bytes a row, and 8 for each field that is asked for.

    Args:
        trained: The model.
        test: Rows with labels.
        user: Field of one value, whose values are the users of gAUC.
        by: Fields whose values are to be looked at.
        top: How many values of each are given.

    Raises:
        UserError: The log has no such field, or the users' has several values.
        ClickLogError: The log cannot be read.
        MissingNumberError: A number is missing that the model needs.
    """
    log, fields = test.log, dict.fromkeys((*((user,) if user is not None else ()), *by))
    for name in fields:
        _check_field(name, log)
    if user is not None and user in log.lists:
        raise UserError(f"`user`: {user} has several values a row; gAUC wants a field of one", "user")
    window, columns = PredictionWindow(0.0), {name: _Column(name, log) for name in fields}
    with numbers_named(log, test.start):
        for batch, logits in logits_over(trained.model, test.batches()):
            for column in columns.values():
                column.add(batch)
            window.add(batch, logits)
            if trained.baseline is not None:
                window.add_baseline(trained.baseline.predict(batch))
    labels, given = window.labels().astype(np.float64), window.weights()
    weights = np.ones(len(labels)) if given is None else given.astype(np.float64)
    probabilities, beside = window.probabilities(), window.baseline_probabilities()
    found = {
        name: metrics_by_value(*columns[name].keys_and_rows(), labels, probabilities, weights, LEAST_ROWS)[:top]
        for name in by
    }
    users = None if user is None else columns[user].keys_and_rows()[0]
    return EvaluationResult(
        len(labels),
        window.metrics(),
        window.baseline_metrics(),
        curves_of(labels, probabilities, weights),
        user,
        None if users is None else grouped_auc(users, labels, probabilities, weights),
        None if users is None or beside is None else grouped_auc(users, labels, beside, weights),
        found,
        {name: _texts(log, values) for name, values in found.items()},
    )


def _texts(log: Log, values: Sequence[ValueMetrics]) -> dict[int, str]:
    return log.values_of(np.array([one.key for one in values], np.int64), _NAMED_WITHIN)


def _check_field(name: str, log: Log) -> None:
    if name not in log.fields:
        there = f"{did_you_mean(name, log.fields)} its fields are {', '.join(log.fields) or 'none'}".lstrip()
        raise UserError(f"{log.name} has no field {name!r}; {there}")


class _Column:
    """The keys of a field, over all batches."""

    def __init__(self, name: str, log: Log) -> None:
        single = [field for field in log.fields if field not in log.lists]
        self._bag = log.lists.index(name) if name in log.lists else None
        self._place = single.index(name) if self._bag is None else 0
        self._keys: list[Int64s] = []
        self._counts: list[Int64s] = []

    def add(self, batch: Batch) -> None:
        """See the next rows."""
        if self._bag is None:
            self._keys.append(batch.keys[:, self._place].numpy().copy())
            return
        bags = batch.bags[self._bag]
        self._keys.append(bags.keys.numpy().copy())
        self._counts.append(np.diff(bags.offsets.numpy()))

    def keys_and_rows(self) -> tuple[Int64s, Int64s]:
        """All keys `[m]` and the row of each `[m]`."""
        keys = np.concatenate(self._keys) if self._keys else np.zeros(0, np.int64)
        if self._bag is None:
            return keys, np.arange(len(keys))
        counts = np.concatenate(self._counts) if self._counts else np.zeros(0, np.int64)
        return keys, np.repeat(np.arange(len(counts)), counts)


def interval_text(one: ValueMetrics) -> str:
    """Such as "1.21 to 1.74"."""
    high = "∞" if math.isinf(one.high) else f"{one.high:.2f}"
    return f"{one.low:.2f} to {high}"
