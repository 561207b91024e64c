"""The records of a run: its metrics, the points of its history, and its summary."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

from sparsegroup.artifact.validation import STRICT, AnyReal, Count, Flag, Key, Number, Real
from sparsegroup.table import FieldCount


class _Entropies:
    log_loss: float
    normalized_entropy: float

    @property
    def loss(self) -> float:
        """What is lower for the better model, of any objective: the log loss."""
        return self.log_loss

    @property
    def relative_loss(self) -> float:
        """The loss over that of the best constant prediction: the normalized entropy."""
        return self.normalized_entropy


@dataclass(frozen=True)
class Metrics(_Entropies):
    """Measures of predicted probabilities against labels.

    Attributes:
        auc: Area under the ROC curve; NaN where only one class is present.
        log_loss: Mean negative log-likelihood in nats.
        normalized_entropy: Log loss over that of always predicting the mean label (He et al., ADKDD 2014); NaN where
            only one class is present.
        calibration: Sum of the predictions over the number of positives; NaN where there are none.

    Where rows have weights, they count in all of them.
    """

    auc: Number
    log_loss: Number
    normalized_entropy: Number
    calibration: Number


@dataclass(frozen=True)
class NumberMetrics:
    """Measures of predicted numbers against labels.

    Attributes:
        rmse: Root of the mean squared error, in units of the labels.
        mae: Mean absolute error, in units of the labels.
        loss: Mean of the objective's deviance, such as the squared error, see `Objective.deviance`.
        relative_loss: The loss over that of the best constant prediction: 1 - D², for the squared error 1 - R²; NaN
            where all labels are the same.
        calibration: Sum of the predictions over the sum of the labels, NaN where that is 0; of a quantile α, the share
            of labels up to their prediction, over α.

    Where rows have weights, they count in all of them.
    """

    rmse: Number
    mae: Number
    loss: Number
    relative_loss: Number
    calibration: Number


@dataclass(frozen=True)
class RankMetrics:
    """Measures of the order that scores give the rows of a group; each is NaN without a group of different labels.

    Attributes:
        ndcg: NDCG@10, of gains 2^y - 1, the mean over groups of different labels (Järvelin and Kekäläinen, TOIS 2002);
            rows of equal scores have the mean of their discounts.
        gauc: Grouped AUC: the share of a group's pairs of rows of different labels that are in order, ties by half;
            the mean over groups weighted by their rows (Zhu et al., KDD 2017).
        loss: Mean loss of these pairs as the objective weights them, in nats.
        relative_loss: The loss over that of equal scores, ln 2.

    Where rows have weights, they count in all but `ndcg`, which leaves out rows of weight 0.
    """

    ndcg: Number
    gauc: Number
    loss: Number
    relative_loss: Number


@dataclass(frozen=True)
class ClassMetrics(_Entropies):
    """Measures of the predicted probabilities of several classes against labels.

    Attributes:
        accuracy: Share of rows whose class is the likeliest.
        log_loss: Mean negative log-likelihood in nats.
        normalized_entropy: Log loss over that of always predicting the classes' frequencies; NaN where only one class
            is present.
        auc: Mean over the classes that are present of the AUC of each against the others; NaN where only one is.

    Where rows have weights, they count in all of them.
    """

    accuracy: Number
    log_loss: Number
    normalized_entropy: Number
    auc: Number


@dataclass(frozen=True)
class TaskMetrics:
    """Measures of several tasks.

    Attributes:
        tasks: Name → its measures, over the rows that have its label.
        loss: Σ_t weight_t · the loss of task t, in the unit of its scores: see `Objective.loss_unit`. Tasks without a
            label are left out.
        relative_loss: The loss over that of the best constant predictions.
    """

    tasks: Mapping[str, Metrics | NumberMetrics]
    loss: Number
    relative_loss: Number


AnyMetrics = Metrics | NumberMetrics | RankMetrics | ClassMetrics | TaskMetrics
"""Of probabilities, of numbers, of an order, of classes, or of several tasks."""

LOSSES: Mapping[type[AnyMetrics], tuple[str, ...]] = {
    Metrics: ("auc", "log_loss"),
    NumberMetrics: ("loss",),
    RankMetrics: ("ndcg", "loss"),
    ClassMetrics: ("auc", "log_loss"),
    TaskMetrics: ("loss",),
}
"""Kind of metrics → the measures that are recorded of a baseline and of validation rows."""


def headline_of(metrics: AnyMetrics) -> tuple[str, bool]:
    """The measure by which sizes of a model are compared, and whether it is a loss: the lower, the better."""
    name = next(one for one in ("auc", "ndcg", "relative_loss") if hasattr(metrics, one))
    return name, name == "relative_loss"


@dataclass(frozen=True)
class ReliabilityBin:
    """Rows of about the same prediction."""

    predicted: Number  # their mean prediction
    actual: Number  # the share of them that are positive
    share: Number  # their share of all rows


@dataclass(frozen=True)
class GainPoint:
    """The rows of the highest predictions; their lift is `captured / share`."""

    share: Number  # their share of all rows
    captured: Number  # their share of all positives


@dataclass(frozen=True)
class ScoreCurves:
    """Predictions against labels."""

    reliability: tuple[ReliabilityBin, ...]  # of about equally many rows, by rising prediction
    gains: tuple[GainPoint, ...]  # by rising share


@dataclass(frozen=True)
class LargestFeature:
    """A feature with a large vector."""

    field: str
    key: Key
    value: str | None  # its text in the log, if that is known
    norm: Number  # ‖x‖


@dataclass(frozen=True)
class Trial:
    """A model that was trained on all but the last training rows, and measured on these, to choose its settings."""

    epochs: Count
    after_first_epoch: str
    pairs: tuple[str, ...]
    l2: Number
    feature_rate: Number
    auc: Number  # NaN of numbers and of an order
    log_loss: Number  # of these their loss, see `NumberMetrics` and `RankMetrics`
    is_chosen: Flag = False
    dim: Count | None = None  # the length of the longest vectors; None in records that lack it


@dataclass(frozen=True)
class Importance:
    """What a column is worth to a model, see `importances`.

    Attributes:
        loss: By how much the loss rises when the column's values are shuffled among the rows.
        error: Standard error of it, over blocks of rows.
        auc: By how much the AUC falls; NaN of numbers.
    """

    loss: Number
    error: Number
    auc: Number


@dataclass(frozen=True)
class ColumnFigures:
    """A column of a log in the first test rows.

    Attributes:
        name: The column.
        importance: What it is worth there.
        psi: Population stability index against the last training rows: 0 for the same shares of values; above .25 is
            usually called a shift.
        unseen: Share of its values that neither those training rows nor the model have; 0 of numbers.
    """

    name: str
    importance: Importance
    psi: Number
    unseen: Number


@dataclass(frozen=True)
class Interaction:
    """Two columns whose effects on the logit do not add up.

    Attributes:
        columns: Both.
        share: Their interaction's share of the variance of the logits, with all interactions of more columns that hold
            both: the superset importance (Liu and Owen, JASA 2006).
    """

    columns: tuple[str, str]
    share: Number


@dataclass(frozen=True)
class Segment:
    """The test rows with one value of a field, for which predictions surely do not add up to the positives."""

    field: str
    key: Key
    value: str | None  # its text in the log, if that is known
    rows: Count
    calibration: Number  # predicted over real positives; NaN where there are none
    low: Number  # of its interval
    high: Number
    log_loss: Number


@dataclass(frozen=True)
class RankFigures:
    """One of several ranks that trained together."""

    rows: Count  # samples that it has trained on since the run began, or was resumed on another number of ranks
    features: Count  # features that it has rows for
    sent: Count  # bytes of keys, vectors and gradients that it has sent to the others since the last resume
    waited: Real  # seconds in which it has waited for the others since the last resume


@dataclass(frozen=True)
class HistoryPoint:
    """The state of a training after `samples` samples.

    Attributes:
        samples: Samples trained on so far, earlier passes included.
        auc: Progressive AUC of the samples since the last point: each is predicted before the model learns from it.
        log_loss, normalized_entropy, calibration: The same samples' other measures; see `Metrics`.
        loss, relative_loss, rmse, mae: The same where labels are numbers, see `NumberMetrics`, or, except for errors,
            where an order is learnt; the measures of probabilities are None then, and these None otherwise.
        ndcg, gauc: The same where an order within groups is learnt, see `RankMetrics`; None otherwise.
        accuracy: A measure of classes, see `ClassMetrics`; there is no calibration then.
        tasks: Measures of several tasks, see `TaskMetrics`; only these, loss and relative_loss are there then.
        live_rows, features_seen, feature_rate: Live features, features seen so far, and their quotient.
        table_bytes: Bytes of the table's index and rows, including the optimizer's state.
        seconds: How long training has taken so far, without evaluation.
        samples_per_s: Since the last point.
        l21, scheduled_rate: λ21 of the embeddings if a target sets it, and the feature rate (for a size in bytes, the
            share of these) that the target scheduled when it last set λ21.
        epoch: Number, from 1, of the epoch of its run; from the second on, the rows have been trained on before.
        validation_auc, validation_log_loss, validation_loss, validation_ndcg: On the validation rows, at the end of an
            epoch; None elsewhere.
        baseline_auc, baseline_log_loss, baseline_loss, baseline_ndcg: The baseline on the same samples; None without
            one or with one class.
    """

    __pydantic_config__: ClassVar = STRICT

    samples: Count
    auc: Number | None
    log_loss: Number | None
    normalized_entropy: Number | None
    calibration: Number | None
    feature_rate: Number
    live_rows: Count
    features_seen: Count
    table_bytes: Count
    seconds: Real = field(compare=False)
    samples_per_s: Number = field(compare=False)
    loss: Number | None = None
    relative_loss: Number | None = None
    rmse: Number | None = None
    mae: Number | None = None
    ndcg: Number | None = None
    gauc: Number | None = None
    accuracy: Number | None = None
    tasks: Mapping[str, Metrics | NumberMetrics] | None = None
    l21: AnyReal | None = None
    scheduled_rate: AnyReal | None = None
    epoch: Count | None = None
    validation_auc: AnyReal | None = None
    validation_log_loss: AnyReal | None = None
    validation_loss: AnyReal | None = None
    validation_ndcg: AnyReal | None = None
    baseline_auc: AnyReal | None = None
    baseline_log_loss: AnyReal | None = None
    baseline_loss: AnyReal | None = None
    baseline_ndcg: AnyReal | None = None

    @property
    def metrics(self) -> AnyMetrics:
        """The measures of the samples since the last point."""
        kind: type[AnyMetrics] = Metrics if self.loss is None else NumberMetrics
        for measure, of in ((self.ndcg, RankMetrics), (self.tasks, TaskMetrics), (self.accuracy, ClassMetrics)):
            kind = kind if measure is None else of
        return kind(**{one.name: getattr(self, one.name) for one in fields(kind)})


@dataclass(frozen=True)
class Summary:
    """The figures of a finished run.

    Attributes:
        log: The name of the log.
        test_rows: Rows of the test set; 0 without one.
        test: Metrics on them, or None.
        samples, seconds: Samples trained on, and seconds of training, in all passes.
        live_rows, features_seen, feature_rate: Live features, distinct features seen in training, and their quotient.
        table_bytes: Bytes of the table's index and rows, including the optimizer's state.
        fields: Field → its rows.
        started: Date and time, ISO 8601.
        versions: The versions of Python, this package and those it computes with.
        continued_from: The run that this one continued, or None.
        bad_rows: Reason → rows of the log that were left out.
        evicted_rows: Rows that the table has dropped because of age or lack of room.
        refused_rows: How often a feature got no row because of lack of room.
        epochs: Number of epochs.
        best_epoch: Number of the epoch whose state the model has, if validation has chosen it; else None.
        validation_rows: Training rows that were held out; 0 for none.
        validation: Metrics on them, or None.
        baseline: The baseline's metrics on the test rows, or None; see `LinearBaseline`.
        curves, baseline_curves: Reliability and gains of both on the test rows; None without any.
        warnings: A sentence for each problem of the run, with what to try.
        largest: Features of the largest vectors.
        ranks: Figures of each of several ranks that trained together; empty for a single process.
        trials: Models by which settings were chosen before the run.
        columns: What each column is worth on the first test rows, and how far it has moved; the most important first.
        interactions: Pairs of these columns that interact in the model, the strongest first.
        segments: Values for which the model is surely wrong there, the worst first.
    """

    __pydantic_config__: ClassVar = STRICT

    log: str
    test_rows: Count
    test: AnyMetrics | None
    samples: Count
    seconds: Number
    feature_rate: Number
    live_rows: Count
    features_seen: Count
    table_bytes: Count
    fields: Mapping[str, FieldCount]
    started: str
    versions: Mapping[str, str]
    continued_from: str | None = None
    bad_rows: Mapping[str, Count] = field(default_factory=dict)
    evicted_rows: Count = 0
    refused_rows: Count = 0
    epochs: Count = 1
    best_epoch: Count | None = None
    validation_rows: Count = 0
    validation: AnyMetrics | None = None
    baseline: AnyMetrics | None = None
    curves: ScoreCurves | None = None
    baseline_curves: ScoreCurves | None = None
    warnings: tuple[str, ...] = ()
    largest: tuple[LargestFeature, ...] = ()
    ranks: tuple[RankFigures, ...] = ()
    trials: tuple[Trial, ...] = ()
    columns: tuple[ColumnFigures, ...] = ()
    interactions: tuple[Interaction, ...] = ()
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class FieldRow:
    """A field of the table: its rows, and of the features seen the shares that are live, and that have a row of 0."""

    name: str
    count: FieldCount
    live: float
    zero: float


def field_rows(fields: Mapping[str, FieldCount]) -> list[FieldRow]:
    """All fields together, then each, the one with most features first."""
    total = FieldCount(*(sum(getattr(rows, name) for rows in fields.values()) for name in ("seen", "rows", "live")))
    ordered = sorted(fields.items(), key=lambda field: (-field[1].seen, field[0]))
    return [
        FieldRow(name, rows, rows.live / (rows.seen or math.nan), (rows.rows - rows.live) / (rows.seen or math.nan))
        for name, rows in (("all fields", total), *ordered)
    ]
