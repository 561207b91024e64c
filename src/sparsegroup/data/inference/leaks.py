"""Columns that leak the label: their values are often known only after the label."""

from collections.abc import Sequence
from dataclasses import replace
from math import isnan, lgamma, log, nan

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from sparsegroup.data.keys import Int64s
from sparsegroup.data.kinds import CLASSES, ColumnFinding, Label
from sparsegroup.data.log import Log
from sparsegroup.data.schema import ColumnTransform

Float64s = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Labels = npt.NDArray[np.bool_]


LEAK = 0.99
"""AUC above which a single column is suspected to leak the label."""

_LEAK_ROWS = 10_000
"""Number of sampled rows."""

_RARE = 500
"""Number of rows of a class up to which all rows of the class are sampled."""

_LEAST_OF_A_CLASS, _LEAST_ORDERS = 3, 100_000
"""Rows of each class, and orders of the rows of both classes, below which an AUC of 1 may be chance."""

_CHANCE = 1e-4
"""Significance level of the test that all rows of some value have label 1 by chance."""


def with_aucs(findings: Sequence[ColumnFinding], frame: pl.DataFrame, label: Label) -> tuple[ColumnFinding, ...]:
    """Return the findings with warnings of columns that leak the label, and with AUCs for labels 0 and 1.

    A column leaks a label of 0 and 1 if its AUC is above `LEAK`, or if a value of the column occurs with label 1 only,
    more often than by chance. For other labels, the AUC is for labels above the median, or for the most frequent class.

    Args:
        findings: The findings about columns.
        frame: Rows of the columns, as texts or typed.
        label: How the label is read.
    """
    of_classes = label.rule.startswith(CLASSES)
    read = frame[label.column].cast(pl.String).str.strip_chars() if of_classes else label.read(frame[label.column])
    known = read.is_not_null()
    truth, what = _truth_of(read.filter(known), label)
    chosen = _sample_of(truth)
    rows, labels = frame.filter(known)[chosen], truth[chosen]
    measured = []
    for one in findings:
        found = _made_of(one, rows)
        auc = max((auc for auc in (_auc_of(values, labels) for values in found) if not isnan(auc)), default=None)
        leak = ""
        if auc is not None and auc > LEAK:
            leak = f"column {one.name!r} alone predicts {what} with an AUC of {auc:.4f}"
        elif label.is_binary and (row := next(filter(None, (_sure_positive(one, labels) for one in found)), None)):
            place, count, is_number = row
            value = "another number than usual" if is_number else repr(str(rows[one.name][place])[:20])
            leak = (
                f"the label is 1 in all {count:,} rows in which {one.name!r} has {value}, and in {labels.mean():.1%} "
                f"of all {len(labels):,} rows"
            )
        leak += ": if it is known only after the label, leave it out (`exclude`)" if leak else ""
        warning = "; ".join(filter(None, (leak, one.warning)))
        measured.append(replace(one, auc=auc if label.is_binary else None, warning=warning))
    return tuple(measured)


def _truth_of(labels: pl.Series, label: Label) -> tuple[Labels, str]:
    """Return a mask of the positive rows (label 1, above the median, or of the top class), and a phrase for them."""
    if label.is_binary or not len(labels):
        return (labels == 1).to_numpy(), "the label"
    if label.rule.startswith(CLASSES):
        common = labels.value_counts(sort=True)[label.column][0]
        return (labels == common).to_numpy(), f"the class {common[:20]!r}"
    numbers = labels.to_numpy()
    return numbers > np.median(numbers), "which labels are above their median"


def _sample_of(truth: Labels) -> Int64s:
    """Return the numbers of about 10,000 rows, ascending: evenly spaced rows, and all rows of a rare class."""
    chosen = np.zeros(len(truth), np.bool_)
    chosen[:: max(1, len(truth) // _LEAK_ROWS)] = True
    for of_class in (truth, ~truth):
        if of_class.sum() <= _RARE:
            chosen |= of_class
    return np.flatnonzero(chosen)


def leaks_of(log: Log) -> dict[str, float]:
    """Return fields and numbers that predict the label by themselves in the first training rows, with their AUCs."""
    batches = list(log.batches(0, min(log.train_rows, _LEAK_ROWS), _LEAK_ROWS))
    labels = torch.cat([batch.labels for batch in batches]).numpy() > 0
    keys = torch.cat([batch.keys for batch in batches]).numpy()
    numbers = torch.cat([batch.numbers for batch in batches]).double().numpy()
    fields = log.schema.single
    aucs = {name: _auc_of_values(keys[:, place], labels) for place, name in enumerate(fields)}
    aucs |= {name: _auc_of_numbers(numbers[:, place], labels) for place, name in enumerate(log.numbers)}
    return {name: auc for name, auc in aucs.items() if auc > LEAK}


def _made_of(finding: ColumnFinding, rows: pl.DataFrame) -> list[Int64s | Float64s]:
    """Return the codes of a column's values, or its numbers; nothing for a label and for texts."""
    if finding.kind in ("label", "split", "weight", "words") or finding.name not in rows.columns:
        return []
    transform, found = ColumnTransform(((finding.name, finding.kind),)), list[Int64s | Float64s]()
    made = transform(rows.select(finding.name))
    for name, role, _, _ in transform.outputs:
        if role == "number":
            found.append(made[name].fill_null(nan).cast(pl.Float64).to_numpy())
        elif role == "field":
            found.append(made[name].rank("dense").fill_null(0).cast(pl.Int64).to_numpy())
    return found


def _sure_positive(values: Int64s | Float64s, labels: Labels) -> tuple[int, int, bool] | None:
    """Return a row whose value occurs with label 1 only, the count of such rows, and whether values are numbers.

    All numbers except the most frequent number count as one value. None: the label may be 1 by chance.
    """
    distinct, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    is_number = values.dtype == np.float64
    if is_number and len(distinct) > 1:
        codes = (codes != counts.argmax()).astype(np.int64)
        counts = np.bincount(codes)
    positives = np.bincount(codes, labels, minlength=len(counts))
    sure = np.flatnonzero(positives == counts)
    if not len(sure) or not 0 < labels.mean() < 1:
        return None
    best = sure[counts[sure].argmax()]
    if counts[best] * log(labels.mean()) + log(len(counts)) >= log(_CHANCE):
        return None
    return int((codes == best).argmax()), int(counts[best]), is_number


def _auc_of(values: Int64s | Float64s, labels: Labels) -> float:
    if values.dtype == np.float64:
        return _auc_of_numbers(values.astype(np.float64, copy=False), labels)
    return _auc_of_values(values.astype(np.int64, copy=False), labels)


def _auc_of_values(values: Int64s, labels: Labels) -> float:
    """Return the AUC of a category's values `[n]`; NaN as `_auc`.

    The share of positives for each value in half of the rows of both classes predicts the labels of the other half.
    """
    distinct, codes = np.unique(values, return_inverse=True)
    learnt = np.where(labels, np.cumsum(labels), np.cumsum(~labels)) % 2 == 1
    counts = np.bincount(codes[learnt], minlength=len(distinct))
    positives = np.bincount(codes[learnt], labels[learnt], minlength=len(distinct))
    rates = (positives + labels.mean()) / (counts + 1.0) if len(labels) else np.zeros(0)
    return _auc(rates[codes[~learnt]], labels[~learnt])


def _auc_of_numbers(numbers: Float64s, labels: Labels) -> float:
    """Return the AUC of numbers `[n]`, ascending or descending; NaN as `_auc`.

    A missing number, NaN, is below all others.
    """
    auc = _auc(np.where(np.isnan(numbers), -np.inf, numbers), labels)
    return max(auc, 1 - auc)


def _auc(scores: Float64s, labels: Labels) -> float:
    """Return the AUC; NaN if the rows of a class are so few that chance may give an AUC of 1."""
    positives, negatives = int(labels.sum()), int((~labels).sum())
    orders = lgamma(positives + negatives + 1) - lgamma(positives + 1) - lgamma(negatives + 1)
    if min(positives, negatives) < _LEAST_OF_A_CLASS or orders < log(_LEAST_ORDERS):
        return nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))
