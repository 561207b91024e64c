"""Which features a model gives the largest vectors, by the text that the log has for them."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.data.keys import fields_of
from sparsegroup.data.local_files import write_parquet
from sparsegroup.data.log import Log
from sparsegroup.reporting.run_record import LargestFeature
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.table.table import Table
from sparsegroup.training.ranks import SINGLE_PROCESS, RankGroup

SHOWN = 10
NAMED = 20_000
"""Features whose text is looked for; those of the largest vectors."""

MOST_ROWS = 100_000
"""Rows of a raw log that are read again for it."""

MOST_BYTES = 1 << 20
"""UTF-8 bytes of text that are kept."""

Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

_BATCH = 1 << 16


class Largest:
    """The keys of the largest values, equal ones by key.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.keys = np.zeros(0, np.int64)
        self.values = np.zeros(0)

    def add(self, keys: Int64s, values: Float64s) -> None:
        """See `keys` `[n]` and their `values` `[n]`."""
        if len(self.values) == self.count:
            good = values >= self.values.min(initial=np.inf)
            keys, values = keys[good], values[good]
        keys, values = np.concatenate([self.keys, keys]), np.concatenate([self.values, values])
        order = np.lexsort((keys, -values))[: self.count]
        self.keys, self.values = keys[order], values[order]


def largest_rows(tables: Iterable[Table], count: int) -> Largest:
    """The keys of the largest ‖x‖ > 0 of some tables, in one pass over each."""
    largest = Largest(count)
    for table in tables:
        for keys, (weights, *_) in table.scan_rows([WEIGHT], _BATCH):
            norms = np.sqrt(np.square(weights.astype(np.float64)).sum(axis=1))
            largest.add(keys[norms > 0], norms[norms > 0])
    return largest


def named_features(log: Log, tables: Iterable[Table], ranks: RankGroup = SINGLE_PROCESS) -> list[LargestFeature]:
    """The features of the largest vectors, those with a known text and the first ten, the largest first.

    The text is that of the log's vocabulary, or, of a raw log, what about its first 100,000 rows have. Where the tables
    lie on several ranks, all have to call it, and the first gets them.

    Raises:
        ClickLogError: The log cannot be read.
    """
    largest = Largest(NAMED)
    for keys, norms in ranks.all_gather([_pair(largest_rows(tables, NAMED))], "the largest features"):
        largest.add(keys, norms)
    if ranks.rank:
        return []
    values = log.values_of(largest.keys, MOST_ROWS)
    fields = fields_of(largest.keys).tolist()
    found, room = [], MOST_BYTES
    for place, (key, norm) in enumerate(zip(largest.keys.tolist(), largest.values.tolist(), strict=True)):
        value = values.get(key)
        room -= 0 if value is None else len(value.encode())
        if room < 0:
            break
        if (value is not None or place < SHOWN) and fields[place] < len(log.fields):
            found.append(LargestFeature(log.fields[fields[place]], key, value, norm))
    return found


def _pair(largest: Largest) -> tuple[Int64s, Float64s]:
    return largest.keys, largest.values


def write_names(features: Sequence[LargestFeature], path: Path) -> None:
    """Write columns `key`, `field` and `value` of the features whose text is known, as Parquet."""
    rows = [(one.key, one.field, one.value) for one in features if one.value is not None]
    schema = {"key": pl.Int64, "field": pl.String, "value": pl.String}
    named = pl.LazyFrame(rows, schema, orient="row")
    write_atomically(path, partial(write_parquet, rows=named))
