"""What each column of a log is worth to a model, how far it has moved, and for which values the model is wrong."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isnan
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.data.batches import Batch, concatenated
from sparsegroup.data.kinds import ColumnKind
from sparsegroup.data.log import Log
from sparsegroup.reporting.run_record import ColumnFigures, Importance, Interaction, Metrics, Segment
from sparsegroup.training.assessment.drift import Reference, values_of
from sparsegroup.training.assessment.verdict import by_block
from sparsegroup.training.metrics import has_sums, metrics_by_value
from sparsegroup.training.model import LookupModel
from sparsegroup.training.predictions import EVALUATED, PredictionWindow, numbers_named, predict

MOST_ROWS = 20_000
"""Test rows that are looked at, the first ones; and as many of the last training rows."""

MOST_CELLS = 500_000
"""Rows times columns that are shuffled at most, if that leaves `LEAST_ROWS`."""

MOST_WORK = 7 * 10**10
"""Largest number of multiplications for the importances of a run's columns: seconds, not minutes. For a wide
log, fewer rows are shuffled. If `FEWEST_ROWS` still take too long, only the most predictive columns are shuffled.
"""

LEAST_ROWS, FEWEST_ROWS = 1_000, 250
SEGMENT_ROWS = 100
"""Rows of a value from which on it is a segment."""

SEGMENTS = 10
PAIRED, PAIRED_ROWS, INTERACTIONS = 8, 2_000, 5
"""The most important columns whose pairs are looked at, on how many rows, and how many pairs are kept at most."""

_WORTH_SHOWING = 0.001
_SURE = 0.05
_MOSTLY_UNSEEN, _OFTEN_UNSEEN = 0.9, 0.25
"""Shares of unseen test values, see `Drift`, above which a warning appears."""


Float64s = npt.NDArray[np.float64]


def importances(
    model: LookupModel, log: Log, rows: range | None = None, *, shuffles: int = 2, seed: int = 0
) -> dict[str, Importance]:
    """What each column of a log is worth to a model: how much worse it predicts when the column's values are shuffled.

    Permutation importance (Breiman, 2001; Fisher, Rudin and Dominici, 2019), of the columns of the log's source: the
    fields and numbers that are made of one, such as the hour and the weekday of a time, are shuffled together. A column
    that training has memorized, such as a random identifier, is worth nothing on rows that were held out. Two columns
    that say the same share what it is worth.

    Args:
        model: A `ClickModel`, such as `load_model` gives, or an export's. It is left in evaluation mode.
        log: The log; its columns are the model's.
        rows: Rows of the log that the model has not been trained on; None: its test rows.
        shuffles: How often each column is shuffled.
        seed: What it is shuffled with.

    Returns:
        Column → its importance, the highest first.

    Raises:
        ValueError: There are no such rows.
        MissingNumberError: A number is missing that the model needs.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.training import Config, importances
        >>> log = synthetic_log(SyntheticConfig(rows=500), seed=0)
        >>> model, _ = Config.of(model="lr").build(log)
        >>> len(importances(model, log)), len(log.fields)
        (8, 8)
    """
    rows = range(log.train_rows, len(log)) if rows is None else rows
    if not len(rows):
        raise ValueError(f"{log.name} has no test rows: give `rows` that the model has not been trained on")
    batch = concatenated(list(log.batches(rows.start, rows.stop, EVALUATED)))
    with numbers_named(log, rows.start):
        found = rises(model, log, batch, shuffles=shuffles, seed=seed)
    return {name: one.importance for name, one in sorted(found.items(), key=lambda one: -one[1].importance.loss)}


@dataclass(frozen=True)
class Rise:
    """By how much the loss rises when a column is shuffled, in each of at most 20 blocks of rows, and the AUC falls."""

    losses: Float64s
    auc: float

    @property
    def importance(self) -> Importance:
        """The means, and their standard error."""
        known = self.losses[~np.isnan(self.losses)]
        error = float(known.std(ddof=1) / len(known) ** 0.5) if len(known) > 1 else float("nan")
        return Importance(float(known.mean()) if len(known) else float("nan"), error, self.auc)


def rises(
    model: LookupModel,
    log: Log,
    batch: Batch,
    *,
    shuffles: int,
    seed: int = 0,
    columns: Collection[str] | None = None,
) -> dict[str, Rise]:
    """Return the rises of the loss of a batch when each column is shuffled, see `importances`.

    `columns` are the columns to shuffle, by default all columns.
    """
    drawn, window = torch.Generator().manual_seed(seed), _predicted(model, batch)
    losses, auc = _losses(window, window.probabilities()), _auc(window, window.probabilities())
    found = {}
    for column, parts in log.made_of().items():
        if columns is not None and column not in columns:
            continue
        orders = [torch.randperm(len(batch), generator=drawn) for _ in range(shuffles)]
        # The labels, weights and groups that they are measured with are not shuffled.
        after = [_predicted(model, with_values_of(batch, log, parts, one)).probabilities() for one in orders]
        rise = np.mean([_losses(window, one) for one in after], axis=0) - losses
        found[column] = Rise(rise, auc - float(np.mean([_auc(window, one) for one in after])))
    return found


def with_values_of(batch: Batch, log: Log, names: Iterable[str], rows: Tensor) -> Batch:
    """A batch whose row i has, in some fields and numbers, the values of its row `rows[i]`."""
    single = log.schema.single
    keys, numbers, bags = batch.keys.clone(), batch.numbers.clone(), list(batch.bags)
    for name in names:
        if name in log.lists:
            bags[log.lists.index(name)] = bags[log.lists.index(name)][rows]
        elif name in single:
            keys[:, single.index(name)] = batch.keys[rows, single.index(name)]
        else:
            numbers[:, log.numbers.index(name)] = batch.numbers[rows, log.numbers.index(name)]
    return replace(batch, keys=keys, numbers=numbers, bags=tuple(bags))


def _predicted(model: LookupModel, batch: Batch) -> PredictionWindow:
    return predict(model, (batch[first : first + EVALUATED] for first in range(0, len(batch), EVALUATED)))


def _losses(window: PredictionWindow, predictions: Float64s) -> Float64s:
    return np.array([one.loss for one in by_block(window, predictions)])


def _auc(window: PredictionWindow, predictions: Float64s) -> float:
    metrics = window.measured(predictions)
    return metrics.auc if isinstance(metrics, Metrics) else float("nan")


# The columns of a run's log


@dataclass(frozen=True)
class ColumnAssessment:
    """The fields of a summary that the columns of the first test rows decide; empty without test rows."""

    columns: tuple[ColumnFigures, ...] = ()
    interactions: tuple[Interaction, ...] = ()
    segments: tuple[Segment, ...] = ()
    warnings: tuple[str, ...] = ()


def assess_columns(model: LookupModel, log: Log) -> ColumnAssessment:
    """Return importance, drift and interactions of the columns, and the values for which the model is wrong.

    The first test rows, up to 20,000, are compared with as many of the last training rows. The importance of columns
    that are not shuffled, see `MOST_WORK`, is NaN. If several ranks share the tables, all of them call it.
    """
    names = [*log.made_of()]
    count = min(MOST_ROWS, max(LEAST_ROWS, MOST_CELLS // max(1, len(names))))
    first, last = max(0, log.train_rows - count), min(len(log), log.train_rows + count)
    if last == log.train_rows:
        return ColumnAssessment()
    both = concatenated(list(log.batches(first, last, EVALUATED)))
    train, test = both[: log.train_rows - first], both[log.train_rows - first :]
    # A prediction costs a multiplication per parameter; the columns that predict most by themselves come first.
    work = sum(parameter.numel() for parameter in model.network.parameters()) + len(names)
    rows = min(len(test), max(FEWEST_ROWS, MOST_WORK // (work * max(1, len(names)))))
    alone = {one.name: one.auc for one in log.findings if one.auc is not None}
    likely = sorted(names, key=lambda name: -abs(alone.get(name, 0.5) - 0.5))[: max(PAIRED, MOST_WORK // (work * rows))]
    with numbers_named(log, log.train_rows):
        worth = rises(model, log, test[:rows], shuffles=1, columns=likely)
        window = _predicted(model, test)
    moved = Reference(log, train, getattr(model.embedding, "contains", None)).drift(test)
    unknown = Rise(np.full(1, np.nan), float("nan")).importance
    importance = {name: worth[name].importance if name in worth else unknown for name in moved}
    columns = [ColumnFigures(name, importance[name], one.psi, one.unseen) for name, one in moved.items()]
    columns.sort(key=lambda one: (isnan(one.importance.loss), -one.importance.loss, one.name))
    paired = min(PAIRED_ROWS, MOST_WORK // (work * PAIRED**2))
    pairs = interactions(model, log, test[:paired], [one.name for one in columns[:PAIRED]]) if paired else ()
    segments = _worst_segments(log, test, window)
    return ColumnAssessment(tuple(columns), pairs, segments, _drift_warnings(columns, log, len(train)))


def interactions(
    model: LookupModel, log: Log, batch: Batch, columns: Sequence[str], *, seed: int = 0
) -> tuple[Interaction, ...]:
    """The pairs of some columns that interact in a model, the strongest first: at most 5, of a share of .001 or more.

    Each row gets the values that another one has in the first column, in the second, and in both. The logits' second
    difference is 0 where no term of the model holds both columns; a quarter of its mean square is the variance of all
    terms that do (Liu and Owen, 2006, eq. 10). Of several outputs, squares are added.
    """
    rows = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed))
    parts, plain = log.made_of(), _predicted(model, batch).logits()

    def logits(*names: str) -> Float64s:
        return _predicted(
            model, with_values_of(batch, log, [one for name in names for one in parts[name]], rows)
        ).logits()

    single, variance = {name: logits(name) for name in columns}, float(plain.var(axis=0).sum())
    found = []
    for left, right in combinations(columns, 2) if variance > 0 else ():
        second = plain - single[left] - single[right] + logits(left, right)
        share = float(np.square(second).mean(axis=0).sum()) / 4 / variance
        if share >= _WORTH_SHOWING:
            found.append(Interaction((left, right), share))
    return tuple(sorted(found, key=lambda one: -one.share)[:INTERACTIONS])


def _drift_warnings(columns: Sequence[ColumnFigures], log: Log, rows: int) -> tuple[str, ...]:
    """Return warnings about columns with many unseen test values. The warnings name the number of training `rows`."""
    found = []
    for least, most, share, advice in (
        (
            _MOSTLY_UNSEEN,
            1.0,
            "Most values",
            "dates or identifiers say nothing of later rows. Leave such columns out (exclude){}.",
        ),
        (
            _OFTEN_UNSEEN,
            _MOSTLY_UNSEEN,
            "More than a quarter of the values",
            "a model knows nothing of new values. Check that the values are written in the same way in later rows{}.",
        ),
    ):
        new = [one for one in columns if least < one.unseen <= most]
        names = ", ".join(f"{one.name!r} ({one.unseen:.0%})" for one in new[:5])
        are_times = all(ColumnKind.of(log.columns.get(one.name, "category")).is_time for one in new)
        remedy = "" if are_times else ", or write a part that recurs in later rows"
        if new:
            found.append(
                f"{share} of {names} in the test rows are neither in the last {rows:,} training rows nor in the "
                f"model: {advice.format(remedy)}"
            )
    return tuple(found)


def _worst_segments(log: Log, batch: Batch, window: PredictionWindow) -> tuple[Segment, ...]:
    """The values for which predictions surely do not add up to the positives, the farthest off first.

    Surely: an error of 5 % for all values together (Bonferroni).
    """
    if not has_sums(window.objective):
        return ()
    labels, weights = window.labels().astype(np.float64), window.weights()
    weighed = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    fields = {name: values_of(name, log, batch) for name in log.fields}
    counts = [np.unique(keys, return_counts=True)[1] for keys, _ in fields.values()]
    values = sum(int((one >= SEGMENT_ROWS).sum()) for one in counts)
    errors = NormalDist().inv_cdf(1 - _SURE / 2 / max(1, values))
    found = [
        (name, one)
        for name, (keys, rows) in fields.items()
        for one in metrics_by_value(
            keys, rows, labels, window.probabilities(), weighed, SEGMENT_ROWS, errors, window.objective
        )
        if one.surely_off_by > 0
    ]
    found.sort(key=lambda one: (-one[1].surely_off_by, one[0], one[1].key))
    texts = log.values_of(np.array([one.key for _, one in found[:SEGMENTS]], np.int64), MOST_ROWS)
    return tuple(
        Segment(name, one.key, texts.get(one.key), one.rows, one.calibration, one.low, one.high, one.log_loss)
        for name, one in found[:SEGMENTS]
    )
