"""How good predictions are: metrics, curves, and metrics by group and by value."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.objectives import LOGISTIC, Objective, Pairwise, Tasks
from sparsegroup.objectives.ranking import numbered, pairs_of
from sparsegroup.reporting.run_record import (
    AnyMetrics,
    ClassMetrics,
    GainPoint,
    Metrics,
    NumberMetrics,
    RankMetrics,
    ReliabilityBin,
    ScoreCurves,
    TaskMetrics,
)

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

BINS = 20
_EPSILON = float(np.finfo(np.float64).eps)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def curves_of(
    labels: npt.NDArray[Any],
    predictions: Float64s,
    weights: npt.NDArray[Any] | None = None,
    objective: Objective = LOGISTIC,
) -> ScoreCurves:
    """Reliability of predictions `[n]` against labels `[n]`, with weights `[n]`, ≥ 0; of probabilities also gains.

    The reliability of classes is the likeliest one's: whether it is the label's (Guo et al., ICML 2017). Several tasks
    have no curves, nor have scores, which have no level.
    """
    if objective.takes_groups or objective.tasks:
        return ScoreCurves((), ())
    counts = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    labels = labels.astype(np.float64)
    if predictions.ndim > 1:
        labels, predictions = (predictions.argmax(1) == labels).astype(np.float64), predictions.max(1)
    gains = gains_of(labels, predictions, counts, SHARES) if objective.is_binary else ()
    return ScoreCurves(reliability_of(labels, predictions, counts, BINS), gains)


def reliability_of(
    labels: Float64s, probabilities: Float64s, weights: Float64s, bins: int
) -> tuple[ReliabilityBin, ...]:
    """At most this many bins of about equal weight by rising prediction; equal predictions share a bin."""
    if not (total := weights.sum()):
        return ()
    order = np.argsort(probabilities, kind="stable")
    behind = np.cumsum(weights[order]) / total
    last = np.searchsorted(behind, np.arange(1, bins) / bins, side="left").clip(max=len(order) - 1)
    number = np.searchsorted(np.unique(probabilities[order][last]), probabilities, side="left")
    sums = [np.bincount(number, values, bins) for values in (weights, weights * probabilities, weights * labels)]
    found = zip(*sums, strict=True)
    return tuple(ReliabilityBin(float(p / w), float(a / w), float(w / total)) for w, p, a in found if w > 0)


def gains_of(
    labels: Float64s, probabilities: Float64s, weights: Float64s, shares: tuple[float, ...]
) -> tuple[GainPoint, ...]:
    """The share of the positives among the shares of highest predictions, none if only one class is present.

    Equal predictions count by their mean.
    """
    positives, total = float(weights @ labels), float(weights.sum())
    if not 0 < positives < total:
        return ()
    false, true = _roc_curve(labels, probabilities, weights)
    reached = (false * (total - positives) + true * positives) / total
    captured = np.interp(shares, reached, true)
    return tuple(GainPoint(share, float(value)) for share, value in zip(shares, captured, strict=True))


def evaluate(
    labels: npt.NDArray[Any],
    probabilities: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float32] | None = None,
) -> Metrics:
    """Metrics of probabilities `[n]` against labels `[n]`, 0 or 1; each row counts as its weight `[n]` says, ≥ 0."""
    if not np.isfinite(probabilities).all():
        raise ValueError("probabilities contain NaN")
    labels = labels.astype(np.int8)
    if weights is None:
        total, positives, predicted = float(len(labels)), float(labels.sum(dtype=np.int64)), float(probabilities.sum())
    else:
        counts = weights.astype(np.float64)
        total, positives, predicted = float(counts.sum()), float(counts @ labels), float(counts @ probabilities)
    has_both = 0 < positives < total
    auc = np.nan
    if has_both:
        false, true = _roc_curve(labels, probabilities, weights, corners=True)
        auc = float((np.diff(false) * (true[1:] + true[:-1]) / 2).sum())
    clipped = np.clip(np.where(labels, probabilities, 1 - probabilities), _EPSILON, 1 - _EPSILON)
    loss = float(np.average(-np.log(clipped), weights=weights)) if total else np.nan
    rate = positives / total if has_both else 0.5
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)) if has_both else np.nan
    calibration = predicted / positives if positives else np.nan
    return Metrics(auc, loss, float(loss / entropy), float(calibration))


def measure(
    objective: Objective,
    labels: npt.NDArray[Any],
    predictions: Float64s,
    weights: npt.NDArray[np.float32] | None = None,
    groups: Int64s | None = None,
) -> AnyMetrics:
    """Metrics of an objective's predictions `[n]` against labels `[n]`, with weights `[n]`, ≥ 0, in groups `[n]`.

    Predictions of classes are `[n, k]`; predictions and labels of several tasks `[n, tasks]`.
    """
    if objective.is_binary:
        return evaluate(labels, predictions, weights)
    if isinstance(objective, Tasks):
        return _of_tasks(objective, labels, predictions, weights)
    if predictions.ndim > 1:
        return _of_classes(objective, labels, predictions, weights)
    if not np.isfinite(predictions).all():
        raise ValueError("predictions contain NaN or infinite ones")
    counts, y = np.ones(len(labels)) if weights is None else weights.astype(np.float64), labels.astype(np.float64)
    if isinstance(objective, Pairwise):
        used, of = counts > 0, np.zeros(len(labels), np.int64) if groups is None else groups
        return rank_metrics(objective, y[used], predictions[used], counts[used], of[used])
    total = counts.sum()
    if not total:
        return undefined(objective)

    def mean(values: Float64s) -> float:
        return float(counts @ values / total)

    loss = mean(objective.deviance(y, predictions))
    of_constant = mean(objective.deviance(y, np.full(len(y), objective.best_constant(y, counts))))
    errors = predictions - y
    return NumberMetrics(
        math.sqrt(mean(errors**2)),
        mean(np.abs(errors)),
        loss,
        loss / of_constant if of_constant > 0 else math.nan,
        objective.calibration(y, predictions, counts),
    )


def undefined(objective: Objective) -> AnyMetrics:
    """The metrics of no rows: NaN each."""
    if isinstance(objective, Tasks):
        tasks = {name: undefined(one) for name, one in zip(objective.names, objective.objectives, strict=True)}
        return TaskMetrics(tasks, math.nan, math.nan)  # type: ignore[arg-type]
    if objective.takes_groups or objective.takes_classes:
        return (RankMetrics if objective.takes_groups else ClassMetrics)(*4 * (math.nan,))
    return Metrics(*4 * (math.nan,)) if objective.is_binary else NumberMetrics(*5 * (math.nan,))


def rank_metrics(
    objective: Pairwise, labels: Float64s, scores: Float64s, weights: Float64s, groups: Int64s
) -> RankMetrics:
    """Metrics of the order that scores `[n]` give rows with labels `[n]`, ≥ 0, and weights `[n]`, > 0, within groups.

    Pairs are made as for the objective; `ndcg` is of whole groups.
    """
    of_equal = weights @ objective.deviance(labels, np.zeros(len(labels)), groups)
    if not of_equal > 0:
        return RankMetrics(*4 * (math.nan,))
    relative = float(weights @ objective.deviance(labels, scores, groups) / of_equal)
    blocks = numbered(torch.from_numpy(groups))
    numbers = blocks.numpy()
    won, whole = np.zeros((2, numbers.max() + 1))
    for pair in pairs_of(torch.from_numpy(labels), blocks):
        better, worse = (rows.numpy() for rows in pair)
        of, pairs, lead = numbers[better], weights[better] * weights[worse], scores[better] - scores[worse]
        won += np.bincount(of, pairs * ((lead > 0) + (lead == 0) / 2), len(won))
        whole += np.bincount(of, pairs, len(won))
    has_pairs, rows = whole > 0, np.bincount(numbers, weights)
    gauc = float(np.average(won[has_pairs] / whole[has_pairs], weights=rows[has_pairs]))
    return RankMetrics(float(np.nanmean(ndcg_of(labels, scores, groups))), gauc, math.log(2) * relative, relative)


def ndcg_of(labels: Float64s, scores: Float64s, groups: Int64s, at: int = 10) -> Float64s:
    """NDCG@`at` of each group, by rising key; NaN if its labels, ≥ 0, are the same. See `RankMetrics`."""
    numbers = np.unique(groups, return_inverse=True)[1]
    begins = np.flatnonzero(np.diff(np.sort(numbers), prepend=-1))
    by_group = labels[np.argsort(numbers, kind="stable")]
    highest, lowest = np.maximum.reduceat(by_group, begins), np.minimum.reduceat(by_group, begins)
    gains = np.exp2(labels - highest[numbers]) - np.exp2(-highest[numbers])  # over the highest, so that all are finite

    def dcg(values: Float64s) -> Float64s:
        order = np.lexsort((-values, numbers))
        group, value = numbers[order], values[order]
        places = np.arange(len(order)) - begins[group]
        discounts = np.where(places < at, 1 / np.log2(places + 2), 0)
        equals = np.cumsum(np.r_[False, (group[1:] != group[:-1]) | (value[1:] != value[:-1])])
        mean = np.bincount(equals, discounts) / np.bincount(equals)
        return np.bincount(group, gains[order] * mean[equals]).astype(np.float64)

    found: Float64s = dcg(scores) / np.where(highest > lowest, dcg(labels), math.nan)
    return found


def _of_tasks(
    objective: Tasks, labels: npt.NDArray[Any], predictions: Float64s, weights: npt.NDArray[np.float32] | None
) -> TaskMetrics:
    found, losses, constants = dict[str, Metrics | NumberMetrics](), [], []
    for task, (name, one) in enumerate(zip(objective.names, objective.objectives, strict=True)):
        known = ~np.isnan(labels[:, task])
        own = None if weights is None else weights[known]
        metrics = measure(one, labels[known, task], predictions[known, task], own)
        assert isinstance(metrics, Metrics | NumberMetrics)
        found[name] = metrics
        losses.append(objective.weights[task] * metrics.loss / one.loss_unit)
        constants.append(losses[-1] / metrics.relative_loss if metrics.relative_loss > 0 else math.nan)
    loss, constant = (float(np.nansum(each)) if np.isfinite(each).any() else math.nan for each in (losses, constants))
    compared = np.isfinite(constants)
    relative = float(np.array(losses)[compared].sum()) / constant if compared.any() else math.nan
    return TaskMetrics(found, loss, relative)


def _of_classes(
    objective: Objective, labels: npt.NDArray[Any], predictions: Float64s, weights: npt.NDArray[np.float32] | None
) -> ClassMetrics:
    if not np.isfinite(predictions).all():
        raise ValueError("probabilities contain NaN")
    counts, y = np.ones(len(labels)) if weights is None else weights.astype(np.float64), labels.astype(np.int64)
    if not counts.sum():
        return ClassMetrics(*4 * (math.nan,))
    loss = float(np.average(objective.deviance(labels.astype(np.float64), predictions), weights=counts))
    rates = np.bincount(y, counts) / counts.sum()
    present = np.flatnonzero(rates)
    entropy = -float(rates[present] @ np.log(rates[present]))
    aucs = [evaluate(y == one, predictions[:, one], weights).auc for one in present]
    accuracy = float(np.average(predictions.argmax(1) == y, weights=counts))
    return ClassMetrics(accuracy, loss, loss / entropy if entropy > 0 else math.nan, float(np.mean(aucs)))


def exceeds_noise(values: Float64s, errors: float) -> bool:
    """Whether the mean of values is above 0 by more than this number of its standard errors."""
    return len(values) > 1 and bool(values.mean() > errors * values.std(ddof=1) / math.sqrt(len(values)))


def _roc_curve(
    labels: npt.NDArray[Any], probabilities: Float64s, weights: npt.NDArray[Any] | None, *, corners: bool = False
) -> tuple[Float64s, Float64s]:
    """False and true positive rates by falling threshold, all or those where the curve bends.

    The same bits as `sklearn.metrics.roc_curve`, whose import takes two seconds.
    """
    if weights is not None:
        counted = weights != 0
        labels, probabilities, weights = labels[counted], probabilities[counted], weights[counted].astype(np.float64)
    # Without weights the order of equal predictions makes no difference: their counts are whole numbers.
    order = np.argsort(-probabilities, kind="quicksort" if weights is None else "stable")
    positive, sorted_by = labels[order].astype(np.float64), probabilities[order]
    last_of_equals = np.r_[np.flatnonzero(np.diff(sorted_by)), len(order) - 1]
    if weights is None:
        true = np.cumsum(positive)[last_of_equals]
        false = 1 + last_of_equals - true
    else:
        true = np.cumsum(positive * weights[order])[last_of_equals]
        false = np.cumsum((1 - positive) * weights[order])[last_of_equals]
    if corners and len(true) > 2:
        bends = np.r_[True, (np.diff(false, 2) != 0) | (np.diff(true, 2) != 0), True]
        false, true = false[bends], true[bends]
    return np.r_[0.0, false / false[-1]], np.r_[0.0, true / true[-1]]


SURE = 1.96
"""Standard deviations of a 95 % interval."""


@dataclass(frozen=True)
class GroupedAuc:
    """The mean of the users' AUC, weighted by their rows (gAUC; Zhu et al., KDD 2017)."""

    auc: float  # NaN where there are no users of both classes
    users: int  # with rows of both classes; only these have an AUC
    share: float  # of all rows that is theirs


@dataclass(frozen=True)
class ValueMetrics:
    """How good predictions are for the rows of one value of a field."""

    key: int
    rows: int
    positives: float  # the weight of the positive rows; without weights, their number; of numbers, the labels' sum
    predicted: float  # the sum of the predictions, times the weights
    low: float  # of the 95 % interval of the calibration, predicted over expected positives
    high: float  # infinite without positives
    auc: float  # NaN where only one class is present, and of numbers
    log_loss: float  # mean, in nats; of numbers, the mean of the objective's deviance

    @property
    def calibration(self) -> float:
        """Predicted over real positives; NaN where there are none."""
        return self.predicted / self.positives if self.positives else math.nan

    @property
    def surely_off_by(self) -> float:
        """How far the calibration is from 1 at the least, as |ln|: 0 where its interval holds 1."""
        if self.low > 1:
            return math.log(self.low)
        return -math.log(self.high) if 0 < self.high < 1 else 0.0


def grouped_auc(groups: Int64s, labels: Float64s, probabilities: Float64s, weights: Float64s) -> GroupedAuc:
    """Mean AUC within groups `[n]`, such as keys of users, weighted by their rows; equal predictions count half."""
    if not len(groups):
        return GroupedAuc(math.nan, 0, math.nan)
    numbers = np.unique(groups, return_inverse=True)[1]
    areas = _areas(numbers, labels, probabilities, weights)
    both = ~np.isnan(areas)
    sizes = np.bincount(numbers, weights)
    if not both.any():
        return GroupedAuc(math.nan, 0, 0.0)
    share = float(sizes[both].sum() / sizes.sum())
    return GroupedAuc(float(np.average(areas[both], weights=sizes[both])), int(both.sum()), share)


def has_sums(objective: Objective) -> bool:
    """Whether predictions are numbers that add up to the labels, so that calibration means something."""
    return objective.outputs == 1 and not objective.takes_groups


def metrics_by_value(
    keys: Int64s,
    rows: Int64s,
    labels: Float64s,
    probabilities: Float64s,
    weights: Float64s,
    least_rows: int = 1,
    errors: float = SURE,
    objective: Objective = LOGISTIC,
) -> list[ValueMetrics]:
    """Metrics for each value of a field, the one whose calibration is surely off the most first.

    "Surely" is by an interval of this number of standard errors, by default 95 %, of a Poisson variable or, of numbers,
    of the sum of the labels around their predictions: so a value of a few rows does not come first by chance. `keys`
    and `rows` `[m]` are each value's key and row: a row has several in a field of several values. The others are `[n]`,
    by row. Values of fewer than `least_rows` rows are left out.
    """
    values, numbers, counts = np.unique(keys, return_inverse=True, return_counts=True)
    kept = counts >= least_rows
    place = np.cumsum(kept) - 1
    chosen = kept[numbers]
    numbers, rows, values, counts = place[numbers[chosen]], rows[chosen], values[kept], counts[kept]
    y, p, w = labels[rows], probabilities[rows], weights[rows]
    areas = _areas(numbers, y, p, w) if objective.is_binary else np.full(len(values), math.nan)
    spread = w if objective.is_binary else w * (y - p) ** 2
    parts = (w, w * y, w * p, w * objective.deviance(y, p), w * spread)
    sums = [np.bincount(numbers, part, len(values)).tolist() for part in parts]
    found = []
    for key, count, area, total, positive, predicted, loss, squares in zip(values, counts, areas, *sums, strict=True):
        if objective.is_binary:
            interval = _calibration_interval(positive, predicted, squares / total if total else 1.0, errors)
        else:
            interval = _normal_interval(positive, predicted, errors * math.sqrt(squares))
        mean_loss = float(loss / total) if total else math.nan
        found.append(
            ValueMetrics(int(key), int(count), float(positive), float(predicted), *interval, float(area), mean_loss)
        )
    return sorted(found, key=lambda one: (-one.surely_off_by, -one.rows, one.key))


def _calibration_interval(positives: float, predicted: float, weight: float, errors: float) -> tuple[float, float]:
    """Predicted over expected positives, each row counting about `weight`: Byar's approximation of the exact Poisson
    interval (Breslow and Day, Statistical Methods in Cancer Research II).
    """
    count = positives / weight
    least = count * max(0.0, 1 - 1 / (9 * count) - errors / (3 * math.sqrt(count))) ** 3 if count else 0.0
    most = (count + 1) * (1 - 1 / (9 * (count + 1)) + errors / (3 * math.sqrt(count + 1))) ** 3
    return predicted / (most * weight), predicted / (least * weight) if least else math.inf


def _normal_interval(total: float, predicted: float, error: float) -> tuple[float, float]:
    """Predicted over expected labels, whose sum is a total ± an error; all of [0, ∞] where that may be below 0."""
    if predicted <= 0 or total <= 0:
        return 0.0, math.inf
    return predicted / (total + error), predicted / (total - error) if total > error else math.inf


def _areas(numbers: Int64s, labels: Float64s, probabilities: Float64s, weights: Float64s) -> Float64s:
    """AUC of each of the groups 0, 1, …, NaN where one class is missing: the weight of the pairs in order."""
    groups = int(numbers.max()) + 1 if len(numbers) else 0
    order = np.lexsort((probabilities, numbers))
    group, score = numbers[order], probabilities[order]
    positive = (weights * labels)[order]
    negative = weights[order] - positive
    if not groups:
        return np.zeros(0)
    begins = np.flatnonzero(np.r_[True, (group[1:] != group[:-1]) | (score[1:] != score[:-1])])
    positive, negative, group = np.add.reduceat(positive, begins), np.add.reduceat(negative, begins), group[begins]
    below = np.cumsum(negative) - negative
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    below -= np.repeat(below[first], np.diff(np.r_[first, len(group)]))
    won = np.bincount(group, positive * (below + negative / 2), groups)
    with np.errstate(invalid="ignore", divide="ignore"):
        area: Float64s = won / (np.bincount(group, positive, groups) * np.bincount(group, negative, groups))
    return np.where(np.isfinite(area), area, np.nan)
