"""Rows as a sparse matrix, for the linear baselines: hashed categories, quantile buckets, standardized numbers."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix

from panel.logs import Kind

BITS = 22
BUCKETS = 50


class Design:
    """Makes a matrix `[rows, 2^BITS]` float32 of a frame, by what it knows of the training rows' numbers.

    A category is one-hot, by the hash of column and value; a missing value is a value. A list of tags has an entry for
    each tag. A time gives its hour and its weekday, one-hot. A number is one-hot by its quantile bucket, of at most
    `BUCKETS`, missing being a bucket of its own; and it stands beside as sign(x) ln(1 + |x|), standardized, 0 where
    missing. An integer that may be a name is both.

    Args:
        frame: Training rows.
        kinds: Column → kind.
    """

    def __init__(self, frame: pl.DataFrame, kinds: Mapping[str, Kind]) -> None:
        self.kinds = kinds
        self._edges: dict[str, np.ndarray] = {}
        self._scales: dict[str, tuple[float, float]] = {}
        for name, kind in kinds.items():
            if kind in ("number", "both"):
                known = frame[name].drop_nulls().cast(pl.Float64).to_numpy()
                self._edges[name] = np.unique(np.quantile(known, np.linspace(0, 1, BUCKETS + 1)[1:-1]))
                logs = _signed_log(known)
                self._scales[name] = float(logs.mean()), float(logs.std()) or 1.0

    def matrix(self, frame: pl.DataFrame) -> csr_matrix:
        """The matrix of rows of the same columns."""
        rows = np.arange(len(frame))
        at, columns, values = [], [], []

        def add(indices: np.ndarray, entries: np.ndarray | None = None, of: np.ndarray = rows) -> None:
            at.append(of)
            columns.append(indices)
            values.append(np.ones(len(of), np.float32) if entries is None else entries.astype(np.float32))

        for number, (name, kind) in enumerate(self.kinds.items()):
            cells = frame[name]
            if kind in ("category", "both"):
                add(_places(cells, name))
            if kind == "time":
                add(_places(cells.dt.hour(), f"{name} hour"))
                add(_places(cells.dt.weekday(), f"{name} weekday"))
            if kind == "tags":
                tags = tag_lists(cells)
                counts = tags.list.len().fill_null(0).to_numpy()
                add(_places(tags.explode().drop_nulls(), name), of=np.repeat(rows, counts))
            if kind in ("number", "both"):
                x = cells.cast(pl.Float64).to_numpy()
                known = ~np.isnan(x)
                bucket = np.where(known, np.searchsorted(self._edges[name], x, side="right"), -1)
                add(_places(pl.Series(bucket), f"{name} bucket"))
                mean, deviation = self._scales[name]
                add(np.full(known.sum(), number), (_signed_log(x[known]) - mean) / deviation, rows[known])
        entries = np.concatenate(values), (np.concatenate(at), np.concatenate(columns))
        return csr_matrix(entries, shape=(len(frame), 1 << BITS), dtype=np.float32)


def tag_lists(cells: pl.Series) -> pl.Series:
    """Lists of tags, of lists or of texts like a|b|c; those of an empty text are empty."""
    lists = cells if isinstance(cells.dtype, pl.List) else cells.str.split("|")
    return lists.list.eval(pl.element().filter(pl.element().is_not_null() & (pl.element() != "")))


def _signed_log(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.log1p(np.abs(x))


def _places(cells: pl.Series, name: str) -> np.ndarray:
    """Columns of the matrix, beyond those of the plain numbers."""
    seed = int(pl.Series([name]).hash(seed=1)[0])
    hashed = cells.cast(pl.String).fill_null("").hash(seed=seed % (1 << 63)).to_numpy()
    return (hashed % np.uint64((1 << BITS) - 1024)).astype(np.int64) + 1024
