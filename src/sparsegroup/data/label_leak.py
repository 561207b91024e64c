"""Columns that know the label: one that alone predicts it nearly perfectly is rarely known before the label is."""

from collections.abc import Sequence
from dataclasses import replace
from math import isnan, nan

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from sparsegroup.data.inference import ColumnFinding
from sparsegroup.data.keys import Int64s
from sparsegroup.data.kinds import SPELLED_LABELS, ColumnKind, as_number
from sparsegroup.data.log import Log

LEAK = 0.995
"""An AUC above this is too good to be true: of a column by itself, or of a model."""

_ROWS, _LEAST = 10_000, 10
"""Rows that are looked at, and rows of each class below which nothing is said."""

_FEATURES = ("category", "category of numbers", "number", "category, number", "boolean", "list")

Labels = npt.NDArray[np.bool_]


def with_leaks(findings: Sequence[ColumnFinding], frame: pl.DataFrame, label: str) -> tuple[ColumnFinding, ...]:
    """The findings for the columns of texts of `frame`, with a warning at each that alone predicts the label."""
    rows = frame.gather_every(max(1, len(frame) // _ROWS))
    spelled = rows[label].str.to_lowercase().replace_strict(SPELLED_LABELS, default=None, return_dtype=pl.String)
    rows, labels = rows.filter(spelled.is_not_null()), (spelled.drop_nulls() == "1").to_numpy()
    warned = []
    for one in findings:
        auc = _auc_of_finding(one, rows, labels)
        warning = (
            f"column {one.name!r} alone predicts the label with an AUC of {auc:.4f}: if it is known only after the "
            "label, leave it out (`exclude`)"
        )
        warned.append(replace(one, warning=warning) if auc > LEAK else one)
    return tuple(warned)


def leaks_of(log: Log) -> dict[str, float]:
    """Fields and numbers that predict the label by themselves in the first training rows, with their AUCs."""
    batches = list(log.batches(0, min(log.train_rows, _ROWS), _ROWS))
    labels = torch.cat([batch.labels for batch in batches]).numpy() > 0
    keys = torch.cat([batch.keys for batch in batches]).numpy()
    numbers = torch.cat([batch.numbers for batch in batches]).double().numpy()
    fields = [name for name in log.fields if name not in log.lists]
    aucs = {name: _auc_of_values(keys[:, place], labels) for place, name in enumerate(fields)}
    aucs |= {name: _auc_of_numbers(numbers[:, place], labels) for place, name in enumerate(log.numbers)}
    return {name: auc for name, auc in aucs.items() if auc > LEAK}


def _auc_of_finding(finding: ColumnFinding, rows: pl.DataFrame, labels: Labels) -> float:
    role = ColumnKind.of(finding.kind).role
    if role not in _FEATURES or finding.name not in rows.columns:
        return nan
    values = rows[finding.name].rank("dense").fill_null(0).cast(pl.Int64).to_numpy()
    aucs = [] if role == "number" else [_auc_of_values(values, labels)]
    if role in ("number", "category, number"):
        numbers = rows.select(as_number(finding.name)).to_series().fill_null(nan).cast(pl.Float64).to_numpy()
        aucs.append(_auc_of_numbers(numbers, labels))
    return max((auc for auc in aucs if not isnan(auc)), default=nan)


def _auc_of_values(values: Int64s, labels: Labels) -> float:
    """AUC of a category's values `[n]`: the even rows' share of positives for each, on the odd rows; NaN as `_auc`."""
    distinct, codes = np.unique(values, return_inverse=True)
    learnt, measured = slice(0, None, 2), slice(1, None, 2)
    counts = np.bincount(codes[learnt], minlength=len(distinct))
    positives = np.bincount(codes[learnt], labels[learnt], minlength=len(distinct))
    rates = (positives + labels.mean()) / (counts + 1.0) if len(labels) else np.zeros(0)
    return _auc(rates[codes[measured]], labels[measured])


def _auc_of_numbers(numbers: npt.NDArray[np.float64], labels: Labels) -> float:
    """AUC of numbers `[n]`, ascending or descending; a missing one, NaN, is below all others. NaN as `_auc`."""
    auc = _auc(np.where(np.isnan(numbers), -np.inf, numbers), labels)
    return max(auc, 1 - auc)


def _auc(scores: npt.NDArray[np.float64], labels: Labels) -> float:
    """AUC; NaN where a class is too rare."""
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if min(positives, negatives) < _LEAST:
        return nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))
