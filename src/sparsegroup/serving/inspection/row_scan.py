"""One pass over the rows of a table, in bounded memory: their norms, the largest, and what λ did to them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparsegroup.serving.finite_rows import RowSource
from sparsegroup.serving.inspection.histogram import Bins, magnitudes, shares
from sparsegroup.serving.inspection.threshold import Threshold, ever_updated
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.training.largest_features import Largest

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

NEAR = 0.1
"""Rows whose measure is so close to 1 are near the threshold."""

_BATCH = 1 << 16


@dataclass
class RowStatistics:
    """What a pass over the rows has found.

    Attributes:
        live: Rows that are not zero.
        zero: Rows that are.
        zero_elements: Elements of live rows that are zero.
        live_elements: Elements of live rows.
        norms: ‖x‖ of the live rows.
        largest: The live rows of the largest ‖x‖.
        measured_zero: The threshold's measure of zero rows, ≤ 1 but where λ has changed since.
        measured_live: 1 / measure of live rows, < 1 but where λ or σ has changed since.
        near_zero: Zero rows whose measure is in [0.9, 1].
        near_live: Live rows whose measure is at most 1.1.
    """

    largest: Largest
    live: int = 0
    zero: int = 0
    zero_elements: int = 0
    live_elements: int = 0
    norms: Bins = field(default_factory=magnitudes)
    measured_zero: Bins = field(default_factory=shares)
    measured_live: Bins = field(default_factory=shares)
    near_zero: int = 0
    near_live: int = 0


def read_rows(tables: Iterable[RowSource], top: int, threshold: Threshold | None) -> RowStatistics:
    """Go over all rows of some tables once.

    Rows that were never updated, such as one that was set by hand, have no measure.

    Args:
        tables: Not changed.
        top: How many of the largest rows to keep.
        threshold: To measure by; a table without u is not measured.
    """
    seen = RowStatistics(Largest(top))
    for table in tables:
        _read_table(table, threshold, seen)
    return seen


def _read_table(table: RowSource, threshold: Threshold | None, seen: RowStatistics) -> None:
    if "u" not in table.state_names:
        threshold = None
    sigma = None if threshold is None else threshold.sigma
    if sigma is not None and not set(sigma.rule.state) <= set(table.state_names):
        sigma = None
    parts = [WEIGHT, *(["u"] if threshold else []), *(sigma.rule.state if sigma else [])]
    for keys, (weights, *others) in table.scan_rows(parts, _BATCH):
        x = weights.astype(np.float64)
        live = (weights != 0).any(axis=1)
        seen.live += int(live.sum())
        seen.zero += int((~live).sum())
        seen.zero_elements += int((weights[live] == 0).sum())
        seen.live_elements += weights[live].size
        norms = np.sqrt(np.square(x[live]).sum(axis=1))
        seen.norms.add(norms)
        seen.largest.add(keys[live], norms)
        if threshold is None:
            continue
        updated = ever_updated(others[0])
        u, *state = (part.astype(np.float64) for part in others)
        at = ~live & updated
        measures = threshold.measured(u[at])
        seen.measured_zero.add(measures)
        seen.near_zero += int(((measures >= 1 - NEAR) & (measures <= 1)).sum())
        if sigma is not None:
            at = live & updated
            scale = sigma([part[at] for part in state], x[at].shape)
            measures = threshold.measured(u[at] - scale * x[at])
            with np.errstate(divide="ignore"):
                seen.measured_live.add(1 / measures)
            seen.near_live += int((measures <= 1 + NEAR).sum())
