"""A run at its end: metrics with the baseline's, curves, and what is wrong with what to try."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
import numpy.typing as npt

from sparsegroup.data.inference.leaks import LEAK, leaks_of
from sparsegroup.data.log import Log
from sparsegroup.reporting.formatting import TITLES, titles_of
from sparsegroup.reporting.run_record import (
    LOSSES,
    AnyMetrics,
    ClassMetrics,
    HistoryPoint,
    Metrics,
    NumberMetrics,
    RankMetrics,
    ScoreCurves,
    TaskMetrics,
)
from sparsegroup.training.metrics import curves_of, exceeds_noise, measure
from sparsegroup.training.predictions import PredictionWindow

BLOCKS = 20
BEYOND_NOISE = 2.093
"""Student's t at 19 degrees of freedom that a difference of noise exceeds, either way, once in 20."""

_SHARES = {
    Metrics: "share of positives",
    NumberMetrics: "mean",
    RankMetrics: "labels",
    ClassMetrics: "shares of the classes",
    TaskMetrics: "means",
}
"""Kind of metrics → what a constant predicts."""

_TOO_GOOD = 0.995
"""A model's AUC above this is probably that of a column which is known only after the label."""

OFF_BY = 0.1
DIVERGED = 1.5
"""The normalized entropy of the last windows from which on a run may be said to diverge."""

FAR = 1.2
"""A normalized entropy that is worth a warning even where it may be noise; and so many times the baseline's, from which
on the model is to blame."""

Float64s = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Assessment:
    """The fields of a summary that the test rows decide; None each without test rows, or without a baseline."""

    test: AnyMetrics | None = None
    baseline: AnyMetrics | None = None
    curves: ScoreCurves | None = None
    baseline_curves: ScoreCurves | None = None
    warnings: tuple[str, ...] = ()


def assess(
    window: PredictionWindow | None,
    history: Sequence[HistoryPoint],
    log: Log | None = None,
    baseline: Float64s | None = None,
) -> Assessment:
    """Compare a model with its test rows, with the baseline, and with what a sane run looks like.

    `window` has the predictions of the test rows, `baseline` the probabilities that it gives them. Where the test AUC
    is too good, the log is read to find the columns that know the label.
    """
    empty, diverging = _nothing_left(history) or _nothing_paired(history), _divergence(history)
    if window is None or not window.samples:
        return Assessment(warnings=tuple(filter(None, (empty, diverging))))
    labels, weights, own = window.labels(), window.weights(), window.probabilities()
    test = window.metrics()
    of_baseline = None if baseline is None else window.measured(baseline)
    found = (
        _one_class(test, labels),
        _too_good(test, log),
        _against_baseline(window, baseline, test, of_baseline),
        _against_the_mean(window, test, of_baseline),
        _calibration(window, test, history),
    )
    return Assessment(
        test,
        of_baseline,
        curves_of(labels, own, weights, window.objective),
        None if baseline is None else curves_of(labels, baseline, weights, window.objective),
        tuple(filter(None, (empty, *((diverging,) if diverging else found)))),
    )


def metrics_lost(window: PredictionWindow, baseline: Float64s) -> list[str]:
    """The metrics, `auc` and `log_loss`, `loss` or `ndcg`, in which a baseline of these predictions is better beyond
    noise.

    A paired t-test over 20 blocks of rows, see `by_block`, says so at 5 %: rows close in time are alike, and blocks of
    them less so. None is lost where only one class is present.
    """
    own, theirs = window.metrics(), window.measured(baseline)
    pairs = list(zip(by_block(window, window.probabilities()), by_block(window, baseline), strict=True))
    lost = []
    if isinstance(own, RankMetrics) and isinstance(theirs, RankMetrics):  # the baseline's loss is not of pairs
        gains = [other.ndcg - ours.ndcg for ours, other in pairs]  # type: ignore[union-attr]
        return ["ndcg"] if theirs.ndcg > own.ndcg and _is_sure(gains) else []
    if isinstance(own, Metrics) and isinstance(theirs, Metrics):
        if math.isnan(own.auc):
            return []
        aucs = [other.auc - ours.auc for ours, other in pairs]  # type: ignore[union-attr]
        if theirs.auc > own.auc and _is_sure(aucs):
            lost.append("auc")
    if theirs.loss < own.loss and _is_sure([ours.loss - other.loss for ours, other in pairs]):
        lost.append(LOSSES[type(own)][-1])
    return lost


def by_block(window: PredictionWindow, predictions: Float64s) -> list[AnyMetrics]:
    """Metrics of predictions `[samples]` in each of at most 20 blocks of consecutive rows, or of whole groups."""
    labels, weights, groups = window.labels(), window.weights(), window.groups()
    blocks = np.array_split(np.arange(window.samples), BLOCKS)
    if groups is not None:
        numbers = np.unique(groups, return_inverse=True)[1]
        blocks = [np.flatnonzero(numbers % BLOCKS == block) for block in range(BLOCKS)]
    return [
        measure(
            window.objective,
            labels[rows],
            predictions[rows],
            None if weights is None else weights[rows],
            None if groups is None else groups[rows],
        )
        for rows in blocks
        if len(rows)
    ]


def _is_sure(differences: Sequence[float]) -> bool:
    """Whether differences, NaN where a block has one class alone or no pairs, are above 0 beyond noise."""
    leads = np.array(differences)
    leads = leads[~np.isnan(leads)]
    if len(leads) < BLOCKS // 2:
        return False
    return exceeds_noise(leads, BEYOND_NOISE)


def _against_baseline(
    window: PredictionWindow, baseline: Float64s | None, test: AnyMetrics, of_baseline: AnyMetrics | None
) -> str | None:
    lost = [] if baseline is None else metrics_lost(window, baseline)
    titles = titles_of(test)
    worse = [f"in {titles[one]}, {getattr(test, one):.4f} against {getattr(of_baseline, one):.4f}" for one in lost]
    if not worse:
        return None
    kind = "a logistic regression" if isinstance(test, Metrics) else "a linear model"
    return (
        f"The model loses to the baseline, {kind}, {' and '.join(worse)} (paired t-test over {BLOCKS} "
        "blocks of the test rows, 5 %). Try another learning rate (lr), a smaller λ21 (l21) or a larger size, more "
        "data, or fewer fields whose values are almost unique."
    )


def _against_the_mean(window: PredictionWindow, test: AnyMetrics, baseline: AnyMetrics | None) -> str | None:
    entropy = test.relative_loss
    if not entropy > 1:
        return None
    labels, weights = window.labels().astype(np.float64), window.weights()
    counts = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    if isinstance(test, Metrics):
        constant = np.full(window.samples, np.average(labels, weights=counts), np.float64)
    else:
        best = np.asarray(window.objective.best_constant(labels, counts))
        constant = np.broadcast_to(best, (window.samples, *best.shape))
    pairs = zip(by_block(window, window.probabilities()), by_block(window, constant), strict=True)
    if entropy < FAR and not _is_sure([ours.loss - theirs.loss for ours, theirs in pairs]):
        return None
    why = "Try a lower learning rate (lr), a smaller network, or, if there are several epochs, fewer of them."
    share = _SHARES[type(test)]
    is_rank = isinstance(test, RankMetrics)  # whose baseline has another loss
    if baseline is not None and not is_rank and baseline.relative_loss > 1 and entropy < FAR * baseline.relative_loss:
        why = (
            f"So does the baseline ({baseline.relative_loss:.3f}): the test rows differ from the training rows, "
            f"perhaps in their {share}. Try training on rows closer in time, or calibrating on recent ones."
        )
    if isinstance(test, Metrics):
        return f"The model predicts the test rows worse than their mean would: normalized entropy {entropy:.3f}. {why}"
    if isinstance(test, RankMetrics):
        return f"The model orders the test rows worse than equal scores would: relative loss {entropy:.3f}. {why}"
    return f"The model predicts the test rows worse than a constant would: relative loss {entropy:.3f}. {why}"


def _one_class(test: AnyMetrics, labels: npt.NDArray[np.float32]) -> str | None:
    """Return whether the test rows have only positives or only negatives."""
    if not isinstance(test, Metrics) or not math.isnan(test.auc):
        return None
    return (
        f"All {len(labels):,} test rows have the label {labels[0]:g}, so they have no AUC: choose a test set with both "
        "labels (test_fraction, test_from), or check how the label is read (label)."
    )


def _too_good(test: AnyMetrics, log: Log | None) -> str | None:
    """Whether the AUC is above .995, and which columns alone reach that."""
    if log is None or not isinstance(test, Metrics) or not test.auc > _TOO_GOOD:
        return None
    alone = ", ".join(f"{name!r} {auc:.4f}" for name, auc in leaks_of(log).items())
    return (
        f"The test AUC is {test.auc:.4f}, too good to be true: probably a column is known only after the label. In "
        f"the training rows {f'{alone} alone' if alone else 'no single column alone'} reaches an AUC above {LEAK}. "
        "Leave such columns out (exclude), and look for rows that are in both training and test set."
    )


def _calibration(window: PredictionWindow, test: AnyMetrics, history: Sequence[HistoryPoint]) -> str | None:
    """Off by more than 10 %, and by more than two standard deviations of the number of positives."""
    if not isinstance(test, Metrics) or not abs(test.calibration - 1) > OFF_BY:
        return None
    labels, weights, probabilities = window.labels(), window.weights(), window.probabilities()
    counts = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    deviation = math.sqrt(float(np.square(counts) @ (probabilities * (1 - probabilities))))
    if abs(float(counts @ (probabilities - labels))) <= 2 * deviation:
        return None
    last = [one.calibration for one in history[-max(1, len(history) // 5) :]]
    before = [one for one in last if one is not None and one > 0]
    if before and abs(mean(before) - 1) <= OFF_BY / 2:
        why = (
            f"In training they added up to the positives ({mean(before):.3f}), so the share of positives has moved: "
            "train on rows closer in time."
        )
    else:
        why = "Try a lower learning rate (lr)."
    return (
        f"The predictions are {abs(test.calibration - 1):.0%} too {'high' if test.calibration > 1 else 'low'} on the "
        f"test rows: calibration {test.calibration:.3f}. {why}"
    )


def _nothing_left(history: Sequence[HistoryPoint]) -> str | None:
    """Whether training has ended without a single live feature."""
    if not history or history[-1].live_rows or not history[-1].features_seen:
        return None
    return (
        f"No feature is left: the vectors of all {history[-1].features_seen:,} are zero, and no prediction depends on "
        "them. Lower λ21 (l21) and λ1 (l1), or ask for a larger size (target_rate)."
    )


def _nothing_paired(history: Sequence[HistoryPoint]) -> str | None:
    """Whether an order was to be learnt, and no group had rows of different labels."""
    points = [point.metrics for point in history]
    if not points or not all(isinstance(one, RankMetrics) and math.isnan(one.ndcg) for one in points):
        return None
    return (
        "Nothing is learnt: in training, no group has rows of different labels. Choose a field that more rows have in "
        "common (group), or a log whose rows of a group are near each other."
    )


def _divergence(history: Sequence[HistoryPoint]) -> str | None:
    """Whether the last fifth of the points has a log loss far above that of the mean, and above the points before."""
    points = [point.metrics for point in history if point.metrics.relative_loss > 0]  # NaN where one class is missing
    last = points[-max(1, len(points) // 5) :]
    before = points[: -len(last)]
    if not before:
        return None
    loss, entropy = mean(one.loss for one in last), mean(one.loss / one.relative_loss for one in last)
    if loss <= DIVERGED * entropy or loss <= mean(one.loss for one in before):
        return None
    what = TITLES[LOSSES[type(last[0])][-1]]
    return (
        f"Training diverges: the {what} of the last windows is {loss:.4g}, {loss / entropy:.2g} times that of "
        "predicting the mean, and has risen. Lower the learning rate (lr)."
    )
