"""A run at its end: metrics with the baseline's, curves, what is wrong with what to try, and the largest features."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import mean

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.data.inference import LEAK, leaks_of
from sparsegroup.data.keys import fields_of
from sparsegroup.data.local_files import write_parquet
from sparsegroup.data.log import Log
from sparsegroup.models import PairKeys
from sparsegroup.reporting.formatting import TITLES, titles_of
from sparsegroup.reporting.run_record import (
    LOSSES,
    AnyMetrics,
    ClassMetrics,
    HistoryPoint,
    LargestFeature,
    Metrics,
    NumberMetrics,
    ScoreCurves,
    TaskMetrics,
)
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.table.table import Table
from sparsegroup.training.metrics import curves_of, exceeds_noise, measure
from sparsegroup.training.predictions import EVALUATED, PredictionWindow
from sparsegroup.training.ranks import SINGLE_PROCESS, RankGroup

SHOWN = 10
NAMED = 20_000
"""Number of features, of the largest vectors, whose text is looked up."""

MOST_ROWS = 100_000
"""Rows of a raw log that are read again for it."""

MOST_BYTES = 1 << 20
"""UTF-8 bytes of text that are kept."""

_BATCH = 1 << 16

BLOCKS = 20
BEYOND_NOISE = 2.093
"""Student's t at 19 degrees of freedom that a difference of noise exceeds, either way, once in 20."""

_SHARES = {
    Metrics: "share of positives",
    NumberMetrics: "mean",
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

Int64s = npt.NDArray[np.int64]
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
    empty, diverging = _nothing_left(history), _divergence(history)
    if window is None or not window.samples:
        return Assessment(warnings=tuple(filter(None, (empty, diverging))))
    labels, weights, own = window.labels(), window.weights(), window.probabilities()
    test = window.metrics()
    of_baseline = None if baseline is None else window.measured(baseline)
    found = (
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
    """The metrics, `auc` and `log_loss`, or `loss`, in which a baseline of these predictions is better beyond noise.

    A paired t-test over 20 blocks of consecutive rows says so at 5 %: rows close in time are alike, and blocks of them
    less so. None is lost where only one class is present.
    """
    own, theirs = window.metrics(), window.measured(baseline)
    pairs = list(zip(by_block(window, window.probabilities()), by_block(window, baseline), strict=True))
    lost = []
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
    """Metrics of predictions `[samples]` in each of at most 20 blocks of consecutive rows."""
    labels, weights = window.labels(), window.weights()
    blocks = (rows for rows in np.array_split(np.arange(window.samples), BLOCKS) if len(rows))
    return [
        measure(window.objective, labels[rows], predictions[rows], None if weights is None else weights[rows])
        for rows in blocks
    ]


def _is_sure(differences: Sequence[float]) -> bool:
    """Whether differences, NaN where a block has one class alone, are above 0 beyond noise."""
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
    if baseline is not None and baseline.relative_loss > 1 and entropy < FAR * baseline.relative_loss:
        why = (
            f"So does the baseline ({baseline.relative_loss:.3f}): the test rows differ from the training rows, "
            f"perhaps in their {share}. Try training on rows closer in time, or calibrating on recent ones."
        )
    if isinstance(test, Metrics):
        return f"The model predicts the test rows worse than their mean would: normalized entropy {entropy:.3f}. {why}"
    return f"The model predicts the test rows worse than a constant would: relative loss {entropy:.3f}. {why}"


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
    every = (one.calibration for one in history[-max(1, len(history) // 5) :])
    before = [one for one in every if one is not None and one > 0]
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


class Largest:
    """The keys of the `count` largest values, equal ones by key."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.keys, self.values = np.zeros(0, np.int64), np.zeros(0)

    def add(self, keys: Int64s, values: Float64s) -> None:
        """See `keys` `[n]` and their `values` `[n]`."""
        if len(self.values) == self.count:
            good = values >= self.values.min(initial=np.inf)
            keys, values = keys[good], values[good]
        keys, values = np.concatenate([self.keys, keys]), np.concatenate([self.values, values])
        order = np.lexsort((keys, -values))[: self.count]
        self.keys, self.values = keys[order], values[order]


def named_features(
    log: Log,
    names: Sequence[str],
    tables: Iterable[Table],
    ranks: RankGroup = SINGLE_PROCESS,
    pairs: PairKeys | None = None,
) -> list[LargestFeature]:
    """The features of the largest vectors, those with a known text and the first ten, the largest first.

    `names` has the field of each number; `pairs` are the last ones.

    The text is that of the log's vocabulary, or, of a raw log, what about its first 100,000 rows have; of a combination
    that of both parts. All ranks that store the tables call it, and the first gets them.
    """
    own, largest = Largest(NAMED), Largest(NAMED)
    for table in tables:
        for keys, (weights, *_) in table.scan_rows([WEIGHT], _BATCH):
            norms = np.sqrt(np.square(weights.astype(np.float64)).sum(axis=1))
            own.add(keys[norms > 0], norms[norms > 0])
    for keys, norms in ranks.all_gather([(own.keys, own.values)], "the largest features"):
        largest.add(keys, norms)
    if ranks.rank:
        return []
    parts = {} if pairs is None else _parts_of(pairs, log, largest.keys)
    values = log.values_of(np.array([*largest.keys, *chain(*parts.values())], np.int64), MOST_ROWS)
    for key, both in parts.items():
        if all(one in values for one in both):
            values[key] = " * ".join(values[one] for one in both)
    fields = fields_of(largest.keys).tolist()
    found, room = [], MOST_BYTES
    for place, (key, norm) in enumerate(zip(largest.keys.tolist(), largest.values.tolist(), strict=True)):
        value = values.get(key)
        room -= 0 if value is None else len(value.encode())
        if room < 0:
            break
        if (value is not None or place < SHOWN) and fields[place] < len(names):
            found.append(LargestFeature(names[fields[place]], key, value, norm))
    return found


def _parts_of(pairs: PairKeys, log: Log, keys: Int64s) -> dict[int, tuple[int, int]]:
    """The keys of both parts of combinations, of those among `keys` that a log's first 100,000 rows have."""
    wanted, found = torch.from_numpy(keys), dict[int, tuple[int, int]]()
    for batch in log.batches(0, min(log.train_rows, MOST_ROWS), EVALUATED):
        combined = pairs(batch.keys)[:, -len(pairs) :]
        for row, pair in torch.isin(combined, wanted).nonzero().tolist():
            left, right = int(pairs.left[pair]), int(pairs.right[pair])
            found[int(combined[row, pair])] = int(batch.keys[row, left]), int(batch.keys[row, right])
    return found


def write_names(features: Sequence[LargestFeature], path: Path) -> None:
    """Write columns `key`, `field` and `value` of the features whose text is known, as Parquet."""
    rows = [(one.key, one.field, one.value) for one in features if one.value is not None]
    schema = {"key": pl.Int64, "field": pl.String, "value": pl.String}
    named = pl.LazyFrame(rows, schema, orient="row")
    write_atomically(path, partial(write_parquet, rows=named))
