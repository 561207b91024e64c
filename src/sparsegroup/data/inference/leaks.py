"""Columns that know the label: one that alone predicts it nearly perfectly is rarely known before the label is."""

from collections.abc import Sequence
from dataclasses import replace
from math import isnan, nan

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from sparsegroup.data.keys import Int64s
from sparsegroup.data.kinds import ColumnFinding, Label
from sparsegroup.data.log import Log
from sparsegroup.data.schema import ColumnTransform

Float64s = npt.NDArray[np.float64]
Labels = npt.NDArray[np.bool_]


LEAK = 0.99
"""An AUC above this is too good to be true for a single column."""

_LEAK_ROWS, _LEAST_OF_A_CLASS = 10_000, 10
"""Rows that are looked at, and rows of each class below which nothing is said."""


def with_aucs(findings: Sequence[ColumnFinding], frame: pl.DataFrame, label: Label) -> tuple[ColumnFinding, ...]:
    """The findings for the columns of texts of `frame`, with their AUCs, and a warning at each above `LEAK`."""
    rows = frame.gather_every(max(1, len(frame) // _LEAK_ROWS))
    read = label.read(rows[label.column])
    rows, labels = rows.filter(read.is_not_null()), (read.drop_nulls() == 1).to_numpy()
    measured = []
    for one in findings:
        auc = _auc_of_finding(one, rows, labels)
        warning = one.warning
        if auc is not None and auc > LEAK:
            warning = (
                f"column {one.name!r} alone predicts the label with an AUC of {auc:.4f}: if it is known only after the "
                "label, leave it out (`exclude`)"
            )
        measured.append(replace(one, auc=auc, warning=warning))
    return tuple(measured)


def leaks_of(log: Log) -> dict[str, float]:
    """Fields and numbers that predict the label by themselves in the first training rows, with their AUCs."""
    batches = list(log.batches(0, min(log.train_rows, _LEAK_ROWS), _LEAK_ROWS))
    labels = torch.cat([batch.labels for batch in batches]).numpy() > 0
    keys = torch.cat([batch.keys for batch in batches]).numpy()
    numbers = torch.cat([batch.numbers for batch in batches]).double().numpy()
    fields = log.schema.single
    aucs = {name: _auc_of_values(keys[:, place], labels) for place, name in enumerate(fields)}
    aucs |= {name: _auc_of_numbers(numbers[:, place], labels) for place, name in enumerate(log.numbers)}
    return {name: auc for name, auc in aucs.items() if auc > LEAK}


def _auc_of_finding(finding: ColumnFinding, rows: pl.DataFrame, labels: Labels) -> float | None:
    """The largest AUC of what is made of a column; None of a label, of texts, and where a class is too rare."""
    if finding.kind in ("label", "split", "weight", "words") or finding.name not in rows.columns:
        return None
    aucs = []
    transform = ColumnTransform(((finding.name, finding.kind),))
    made = transform(rows.select(finding.name))
    for name, role, _, _ in transform.outputs:
        values = made[name]
        if role == "number":
            aucs.append(_auc_of_numbers(values.fill_null(nan).cast(pl.Float64).to_numpy(), labels))
        elif role == "field":
            aucs.append(_auc_of_values(values.rank("dense").fill_null(0).cast(pl.Int64).to_numpy(), labels))
    return max((auc for auc in aucs if not isnan(auc)), default=None)


def _auc_of_values(values: Int64s, labels: Labels) -> float:
    """AUC of a category's values `[n]`: the even rows' share of positives for each, on the odd rows; NaN as `_auc`."""
    distinct, codes = np.unique(values, return_inverse=True)
    learnt, measured = slice(0, None, 2), slice(1, None, 2)
    counts = np.bincount(codes[learnt], minlength=len(distinct))
    positives = np.bincount(codes[learnt], labels[learnt], minlength=len(distinct))
    rates = (positives + labels.mean()) / (counts + 1.0) if len(labels) else np.zeros(0)
    return _auc(rates[codes[measured]], labels[measured])


def _auc_of_numbers(numbers: Float64s, labels: Labels) -> float:
    """AUC of numbers `[n]`, ascending or descending; a missing one, NaN, is below all others. NaN as `_auc`."""
    auc = _auc(np.where(np.isnan(numbers), -np.inf, numbers), labels)
    return max(auc, 1 - auc)


def _auc(scores: Float64s, labels: Labels) -> float:
    """AUC; NaN where a class is too rare."""
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if min(positives, negatives) < _LEAST_OF_A_CLASS:
        return nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))
