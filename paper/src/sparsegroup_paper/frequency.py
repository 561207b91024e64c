"""How often each feature was seen, and which have an effect on the label, where that is known."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from sparsegroup.data import Log
from sparsegroup_paper.runs import Survivors

Int64s = npt.NDArray[np.int64]

ROWS = 1 << 16
"""That are counted at a time."""

MERGED = 1 << 22
"""Counted keys that are merged at once, at least."""

DECILES = 10


@dataclass(frozen=True)
class Counts:
    """Features of some rows.

    Attributes:
        keys: `[features]`, ascending.
        counts: `[features]`, how often each was seen.
    """

    keys: Int64s
    counts: Int64s

    def __len__(self) -> int:
        return len(self.keys)

    def at_least(self, count: int) -> Int64s:
        """Keys seen so often, ascending."""
        return self.keys[self.counts >= count]


def count_keys(log: Log, rows: int) -> Counts:
    """How often each feature is in the first `rows` rows."""
    parts: list[pl.DataFrame] = []
    merged = 0
    for batch in log.batches(0, rows, ROWS):
        keys = torch.cat([batch.keys.flatten(), *(bag.keys for bag in batch.bags)]).numpy()
        parts.append(pl.DataFrame({"key": keys}).group_by("key").agg(pl.len().cast(pl.Int64)))
        if sum(map(len, parts[1:])) > max(merged, MERGED):  # so that each key is merged a few times only
            parts = [_merged(parts)]
            merged = len(parts[0])
    if not parts:
        return Counts(np.zeros(0, np.int64), np.zeros(0, np.int64))
    total = _merged(parts).sort("key")
    return Counts(total["key"].to_numpy(), total["len"].to_numpy())


def _merged(parts: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(parts).group_by("key").agg(pl.col("len").sum())


def survivors(counts: Counts, informative: npt.NDArray[np.bool_], live: npt.NDArray[np.bool_]) -> tuple[Survivors, ...]:
    """Live and informative features by frequency: tenths of the features, joined where their counts are the same.

    Args:
        counts: How often each feature was seen.
        informative: `[features]`.
        live: `[features]`.
    """
    if not len(counts):
        return ()
    shares = np.arange(1, DECILES + 1) / DECILES
    ends = np.unique(np.quantile(counts.counts, shares, method="inverted_cdf"))
    tenth = np.searchsorted(ends, counts.counts)
    result = []
    for number in range(len(ends)):
        here = tenth == number
        of = counts.counts[here]
        result.append(
            Survivors(
                int(of.min()),
                int(of.max()),
                int(here.sum()),
                int(informative[here].sum()),
                int(live[here].sum()),
                int((live & informative)[here].sum()),
            )
        )
    return tuple(result)
