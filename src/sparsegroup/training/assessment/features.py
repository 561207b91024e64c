"""The features of the largest vectors, by name."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.data.keys import Int64s, fields_of
from sparsegroup.data.local_files import write_parquet
from sparsegroup.data.log import Log
from sparsegroup.models import PairKeys
from sparsegroup.reporting.run_record import LargestFeature
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.table.table import Table
from sparsegroup.training.predictions import EVALUATED
from sparsegroup.training.ranks import SINGLE_PROCESS, RankGroup

SHOWN = 10
NAMED = 20_000
"""Number of features, of the largest vectors, whose text is looked up."""

MOST_ROWS = 100_000
"""Rows of a raw log that are read again for it."""

MOST_BYTES = 1 << 20
"""UTF-8 bytes of text that are kept."""

_BATCH = 1 << 16

Float64s = npt.NDArray[np.float64]


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
