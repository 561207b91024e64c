"""Counts of values in fixed bins: histograms and quantiles in one pass and bounded memory."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]

_DECADES = (-46, 39)
"""Powers of 10 around what float32 holds above 0."""
_PER_DECADE = 20


@dataclass(frozen=True)
class Histogram:
    """Counts between edges: `counts[i]` values from `edges[i]` to `edges[i + 1]`."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class Bins:
    """Counts values; those outside the edges are in the first or last bin.

    Args:
        edges: `[bins + 1]`, ascending.
    """

    def __init__(self, edges: npt.NDArray[Any]) -> None:
        self.edges: Float64s = edges.astype(np.float64)
        self.counts = np.zeros(len(edges) - 1, np.int64)
        self.low, self.high = math.inf, -math.inf

    @property
    def total(self) -> int:
        """Values so far."""
        return int(self.counts.sum())

    def add(self, values: Float64s) -> None:
        """Count `values` `[n]`."""
        if not len(values):
            return
        at = np.searchsorted(self.edges, values, side="right") - 1
        self.counts += np.bincount(np.clip(at, 0, len(self.counts) - 1), minlength=len(self.counts))
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))

    def quantile(self, share: float) -> float:
        """A value that `share` of the values are at most, to within the width of its bin; NaN if there are none."""
        if not self.total:
            return math.nan
        rank = share * self.total
        before = np.concatenate([[0], np.cumsum(self.counts)])
        at = int(np.clip(np.searchsorted(before, rank, side="left") - 1, 0, len(self.counts) - 1))
        if not self.counts[at]:  # share 0, and nothing in the first bins
            return self.low
        inside = (rank - before[at]) / self.counts[at]
        value = float(self.edges[at] + inside * (self.edges[at + 1] - self.edges[at]))
        return min(max(value, self.low), self.high)

    def joined(self, group: int) -> Histogram:
        """Each `group` bins as one, which must divide their number."""
        counts = self.counts.reshape(-1, group).sum(axis=1)
        return Histogram(tuple(map(float, self.edges[::group])), tuple(map(int, counts)))


def shares() -> Bins:
    """A thousand bins from 0 to 1."""
    return Bins(np.linspace(0, 1, 1001))


def magnitudes() -> Bins:
    """Logarithmic ones, for all that float32 holds above 0."""
    first, last = _DECADES
    return Bins(10.0 ** (np.arange((last - first) * _PER_DECADE + 1) / _PER_DECADE + first))


def as_shown(bins: Bins, most: int = 24) -> Histogram:
    """The part of `magnitudes` that holds something, in at most `most` bins; each power of 10 in it is an edge.

    Only where that is more than `most` decades, there are more.
    """
    filled = np.flatnonzero(bins.counts)
    if not len(filled):
        return Histogram((), ())
    for group in (1, 2, 4, 5, 10, 20):
        first, last = int(filled[0]) // group, int(filled[-1]) // group + 1
        if last - first <= most:
            break
    whole = bins.joined(group)
    return Histogram(whole.edges[first : last + 1], whole.counts[first:last])
