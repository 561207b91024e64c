"""What is recorded of a run: its metrics, the points along its pass, and what it came to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sparsegroup.artifact.validation import STRICT, AnyReal, Count, Key, Number, Real
from sparsegroup.table import FieldCount


@dataclass(frozen=True)
class Metrics:
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
class ReliabilityBin:
    """Rows of about the same prediction.

    Attributes:
        predicted: Their mean prediction.
        actual: The share of them that are positive.
        share: The share of all rows that they are.
    """

    predicted: Number
    actual: Number
    share: Number


@dataclass(frozen=True)
class GainPoint:
    """What the rows of the highest predictions hold.

    Attributes:
        share: The share of all rows that they are.
        captured: The share of all positives that is among them; over `share` it is the lift.
    """

    share: Number
    captured: Number


@dataclass(frozen=True)
class ScoreCurves:
    """Predictions against labels beyond a number.

    Attributes:
        reliability: About equally many rows a bin, by rising prediction.
        gains: By rising share.
    """

    reliability: tuple[ReliabilityBin, ...]
    gains: tuple[GainPoint, ...]


@dataclass(frozen=True)
class LargestFeature:
    """A feature of a large vector.

    Attributes:
        field: Its field.
        key: Its key.
        value: Its text in the log; None where it is not known.
        norm: ‖x‖.
    """

    field: str
    key: Key
    value: str | None
    norm: Number


@dataclass(frozen=True)
class RankFigures:
    """One of several ranks that trained together, since the run began or was resumed last.

    Attributes:
        rows: Samples that it has trained on.
        features: Features that it has rows for.
        sent: Bytes that it has sent to the others: keys, vectors, gradients.
        waited: Seconds in which it has waited for the others.
    """

    rows: Count
    features: Count
    sent: Count
    waited: Real


@dataclass(frozen=True)
class HistoryPoint:
    """State of a pass after `samples` samples.

    Attributes:
        samples: Samples trained on so far, earlier passes included.
        auc: Progressive (test-then-train) AUC over the samples since the last point: each is predicted before the
            model learns from it.
        log_loss, normalized_entropy, calibration: The same samples' other measures; see `Metrics`.
        feature_rate: Live features over features seen so far.
        live_rows: Live features.
        features_seen: Features seen so far.
        table_bytes: Bytes of the table's index and rows, the optimizer's state included.
        seconds: That training has taken so far, evaluation left out.
        samples_per_s: Since the last point.
        l21: λ21 of the embeddings, where a target sets it.
        scheduled_rate: The feature rate that the target asked for when it set λ21 last; for a size in bytes, the share
            of these.
        epoch: Number, from 1, of the epoch of its run; from the second on, the rows have been trained on before.
        validation_auc, validation_log_loss: On the validation rows, at the end of an epoch; None elsewhere.
        baseline_auc, baseline_log_loss: The baseline's on the same samples, each predicted before it learnt from it;
            None without one, and where only one class is present.
    """

    __pydantic_config__: ClassVar = STRICT

    samples: Count
    auc: Number
    log_loss: Number
    normalized_entropy: Number
    calibration: Number
    feature_rate: Number
    live_rows: Count
    features_seen: Count
    table_bytes: Count
    seconds: Real = field(compare=False)
    samples_per_s: Number = field(compare=False)
    l21: AnyReal | None = None
    scheduled_rate: AnyReal | None = None
    epoch: Count | None = None
    validation_auc: AnyReal | None = None
    validation_log_loss: AnyReal | None = None
    baseline_auc: AnyReal | None = None
    baseline_log_loss: AnyReal | None = None


@dataclass(frozen=True)
class Summary:
    """What a run came to.

    Attributes:
        log: Where the samples came from.
        test_rows: Rows of the test set; 0 if there was none.
        test: Metrics on them, or None.
        samples: Trained on, in all passes.
        seconds: How long the training took.
        feature_rate: Live features over features seen.
        live_rows: Live features.
        features_seen: Distinct features seen in training.
        table_bytes: Bytes of the table's index and rows, the optimizer's state included.
        fields: Field → its rows.
        started: Date and time, ISO 8601.
        versions: The versions of Python, this package and those it computes with.
        continued_from: The run that this one went on with, or None.
        bad_rows: Reason → rows of the log that were left out.
        evicted_rows: Rows of features that the table has dropped by itself, by age or for want of room.
        refused_rows: How often a feature would have got a row, had there been room.
        epochs: How many this run had.
        best_epoch: Number of the one whose state the model has, where validation has chosen it; else None.
        validation_rows: Training rows that were held out; 0 for none.
        validation: Metrics on them, or None.
        baseline: The baseline's metrics on the test rows, or None; see `LogisticBaseline`.
        curves, baseline_curves: Reliability and gains of both on the test rows; None without any.
        warnings: What is wrong with the run, a sentence each, with what to try.
        largest: Features of the largest vectors.
        ranks: Figures of each of several ranks that trained together; none of one by itself.
    """

    __pydantic_config__: ClassVar = STRICT

    log: str
    test_rows: Count
    test: Metrics | None
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
    validation: Metrics | None = None
    baseline: Metrics | None = None
    curves: ScoreCurves | None = None
    baseline_curves: ScoreCurves | None = None
    warnings: tuple[str, ...] = ()
    largest: tuple[LargestFeature, ...] = ()
    ranks: tuple[RankFigures, ...] = ()
