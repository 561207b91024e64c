"""Test rows, and the metrics of a trained model on them: overall, by user, and by value of a field."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from sparsegroup.artifact.validation import finite
from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import Int64s
from sparsegroup.data.log import Log
from sparsegroup.data.open import open_log
from sparsegroup.data.raw.files import LogPaths, is_same, shown
from sparsegroup.errors import UserError, did_you_mean
from sparsegroup.reporting.run_record import AnyMetrics, ScoreCurves
from sparsegroup.serving.opening import TrainedModel
from sparsegroup.serving.rows import ExportError
from sparsegroup.settings.declared import DataSettings
from sparsegroup.training import Config
from sparsegroup.training.metrics import (
    GroupedAuc,
    ValueMetrics,
    curves_of,
    grouped_auc,
    has_sums,
    metrics_by_value,
)
from sparsegroup.training.model import logit_bias_of
from sparsegroup.training.predictions import (
    EVALUATED,
    PredictionWindow,
    UnseenValues,
    logits_over,
    numbers_named,
    predict,
    predictions_of,
)

LEAST_ROWS = 100
"""Values of fewer rows are not listed."""

_NAMED_WITHIN = 1_000_000


@dataclass(frozen=True)
class TestRows:
    """The rows of a log from `start` on."""

    __test__ = False  # no test of pytest's

    log: Log
    start: int

    def __len__(self) -> int:
        return len(self.log) - self.start

    def batches(self) -> Iterator[Batch]:
        """The rows, in order."""
        return self.log.batches(self.start, len(self.log), EVALUATED)


def open_test_rows(
    path: LogPaths,
    config: Config,
    threads: int = 1,
    on_progress: Callable[[int, int | None], None] | None = None,
    read: DataSettings | None = None,
) -> TestRows:
    """The test rows of a log, read in the format of the log that a model was trained on.

    The model's own log, and a prepared one, have the rows that training reserved for the test, if any; any other log is
    a test set as a whole.

    Args:
        path: A raw log, or a folder that `prepare` has written, see `open_log`.
        config: The model's settings.
        threads, on_progress: How to read a raw log, see `RawLog`.
        read: How to read it if not as the model's log.

    Raises:
        ClickLogError, OSError: It cannot be read.
        ExportError: It has no labels.
        LogOptionError: The settings do not go with it.
    """
    data = config.data
    own = data.log is not None and is_same(path, data.log)
    how: dict[str, Any] = {"on_bad_row": data.on_bad_row, "max_bad": data.max_bad}
    if own:
        how["sort_files"] = data.sort_files
    if read is not None:
        how |= {name: getattr(read, name) for name in (*how, "sort_files") if name in read.model_fields_set}
        how |= read.format_options
    log = open_log(
        path,
        data.test if own else None,
        like=config.format_options,
        whole=not own,
        threads=threads,
        on_progress=on_progress,
        **how,
    )
    if not log.labelled:
        raise ExportError(f"{shown(path)}: has no labels, which a test set needs")
    return TestRows(log, log.train_rows if log.train_rows < len(log) else 0)


@torch.no_grad()
def recalibrate_on(trained: TrainedModel, rows: TestRows) -> Any:
    """Shift a model's `logit_bias`, in place, so that its loss on rows of a log is lowest: positives add up.

    Returns:
        The shift of the logits: a float, or of several outputs `[outputs]`.

    Raises:
        ExportError: The network has no `logit_bias`.
        ClickLogError: The log has other columns than the model.
        MissingNumberError: A number is missing that the model needs.
    """
    trained.columns.check_fits(rows.log.schema, rows.log.name)
    if (bias := logit_bias_of(trained.model.network)) is None:
        raise ExportError(f"{trained.path}: the network has no logit_bias, by which it could be recalibrated")
    with numbers_named(rows.log, rows.start):
        window = predict(trained.model, rows.batches())
    shift = window.shift()
    bias.add_(torch.as_tensor(shift, dtype=bias.dtype))
    return shift


@dataclass(frozen=True)
class EvaluationResult:
    """A model on a log."""

    rows: int  # of the log that were scored
    metrics: AnyMetrics
    baseline: AnyMetrics | None  # of the run's logistic regression, if it kept one
    curves: ScoreCurves
    user: str | None  # field of the users
    gauc: GroupedAuc | None  # AUC within users
    baseline_gauc: GroupedAuc | None
    by: Mapping[str, Sequence[ValueMetrics]]  # field → its values, those with the surest miscalibration first
    values: Mapping[str, Mapping[int, str]]  # field → key → text, of values whose text is known
    unseen: Mapping[str, float]  # field → share of its values that the model has no row for
    warning: str  # of columns whose values are nearly all unseen, or empty

    def as_plain(self) -> dict[str, Any]:
        """All of it for JSON; numbers that are not finite are None."""
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
        del content["values"], content["warning"]
        return content


def evaluate_on(
    trained: TrainedModel, test: TestRows, user: str | None = None, by: Sequence[str] = (), top: int = 10
) -> EvaluationResult:
    """Score rows of a log, and compare with their labels. Takes 9 bytes a row, and 8 for each requested field.

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
    objective = trained.model.objective
    for option, wanted, fits in (("by", by, has_sums(objective)), ("user", user is not None, objective.is_binary)):
        if wanted and not fits:
            what = "labels 0 and 1" if option == "user" else "probabilities and numbers"
            raise UserError(f"`{option}` is for {what}; the model's objective is {trained.config.objective}", option)
    trained.config.check_labels(test.log)
    log, fields = test.log, dict.fromkeys((*((user,) if user is not None else ()), *by))
    for name in fields:
        _check_field(name, log)
    if user is not None and user in log.lists:
        raise UserError(f"`user`: {user} has several values a row; gAUC wants a field of one", "user")
    window, baseline_logits = PredictionWindow(objective), []
    columns: dict[str, list[tuple[Int64s, Int64s | None]]] = {name: [] for name in fields}
    unseen = UnseenValues(trained.model.embedding, trained.columns)
    with numbers_named(log, test.start):
        for batch, logits in logits_over(trained.model, test.batches()):
            unseen.add(batch)
            for name, parts in columns.items():
                parts.append(_keys_of(batch, name, log))
            window.add(batch, logits)
            if trained.baseline is not None:
                baseline_logits.append(trained.baseline.predict(batch))
    labels, given = window.labels().astype(np.float64), window.weights()
    weights = np.ones(len(labels)) if given is None else given.astype(np.float64)
    probabilities, baseline = window.probabilities(), None
    if baseline_logits:
        baseline = predictions_of(baseline_logits, objective)
    found = {
        name: metrics_by_value(
            *_keys_and_rows(columns[name]), labels, probabilities, weights, LEAST_ROWS, objective=objective
        )[:top]
        for name in by
    }
    users = None if user is None else _keys_and_rows(columns[user])[0]
    return EvaluationResult(
        len(labels),
        window.metrics(),
        None if baseline is None else window.measured(baseline),
        curves_of(labels, probabilities, weights, objective),
        user,
        None if users is None else grouped_auc(users, labels, probabilities, weights),
        None if users is None or baseline is None else grouped_auc(users, labels, baseline, weights),
        found,
        {
            name: log.values_of(np.array([one.key for one in values], np.int64), _NAMED_WITHIN)
            for name, values in found.items()
        },
        unseen.shares,
        unseen.warning(log.name),
    )


def _check_field(name: str, log: Log) -> None:
    if name not in log.fields:
        there = f"{did_you_mean(name, log.fields)} its fields are {', '.join(log.fields) or 'none'}".lstrip()
        raise UserError(f"{log.name} has no field {name!r}; {there}")


def _keys_of(batch: Batch, field: str, log: Log) -> tuple[Int64s, Int64s | None]:
    """A field's keys in a batch and, of a list, how many of them each row has."""
    if field in log.lists:
        bags = batch.bags[log.lists.index(field)]
        return bags.keys.numpy().copy(), np.diff(bags.offsets.numpy())
    return batch.keys[:, log.schema.single.index(field)].numpy().copy(), None


def _keys_and_rows(parts: Sequence[tuple[Int64s, Int64s | None]]) -> tuple[Int64s, Int64s]:
    """All keys `[m]` and the row of each `[m]`, of what `_keys_of` gives."""
    keys = np.concatenate([np.zeros(0, np.int64), *(keys for keys, _ in parts)])
    counts = [counts for _, counts in parts if counts is not None]
    return keys, np.repeat(np.arange(sum(map(len, counts))), np.concatenate(counts)) if counts else np.arange(len(keys))
