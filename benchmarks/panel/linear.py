"""Linear baselines over one sparse matrix: logistic regression, FTRL-Proximal per coordinate, and Vowpal Wabbit.

Each chooses its hyperparameters by log loss on the last tenth of the training rows in time, fitted to at most
`CHOOSING` rows before them. FTRL-Proximal is algorithm
1 of McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013).
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from panel.logs import Kind

TAIL = 0.1
CHOOSING = 100_000
BITS = 22
BUCKETS = 50
CS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
GRID: Mapping[str, tuple[float, ...]] = {
    "alpha": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2),
    "l1": (0.0, 0.3, 1.0, 3.0),
    "l2": (0.0, 1.0, 10.0, 30.0, 100.0),
}
SEARCHED = ("alpha", "l2", "l1", "alpha")
START = {"alpha": 0.1, "l1": 0.0, "l2": 1.0}
PASSES = 3
BETA = 1.0
FLAGS = f"--loss_function logistic --link logistic -b {BITS} --quiet"
ARMS = (
    "-l 0.5",
    "-l 0.1",
    "-l 0.03",
    "-l 0.1 --passes 3 --cache --holdout_off",
    "-l 0.03 --passes 5 --cache --holdout_off",
    "-l 0.5 -q ::",
    "-l 0.1 -q ::",
    "-l 0.03 -q ::",
)


class Chosen(NamedTuple):
    """What a baseline says of the test rows, fitted to all training rows with the hyperparameters chosen."""

    probabilities: np.ndarray  # [test rows] float64
    settings: Mapping[str, Any]  # the hyperparameters
    served_bytes: int  # of weights other than 0 with their keys, or of the file that the library saves


WEIGHT_BYTES = 8 + 4
"""A feature's key and its weight as float32."""


def tail_of(train: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows to fit to while choosing, and those to choose by."""
    rows = len(train) - round(TAIL * len(train))
    return train[max(rows - CHOOSING, 0) : rows], train[rows:]


def loss_of(labels: np.ndarray, probabilities: np.ndarray) -> float:
    """Log loss."""
    p = np.clip(probabilities, 1e-7, 1 - 1e-7)
    return -float(np.where(labels == 1, np.log(p), np.log1p(-p)).mean())


def best_of(tried: Iterable[tuple[dict[str, Any], float]]) -> dict[str, Any]:
    """The settings of the lowest loss."""
    return min(tried, key=lambda one: one[1])[0]


class Design:
    """Makes a matrix `[rows, 2^BITS]` float32 of a frame, by what it knows of the training rows' numbers.

    A category is one-hot, by the hash of column and value; a missing value is a value. A list of tags has an entry for
    each tag. A time gives its hour and its weekday, one-hot. A number is one-hot by its quantile bucket, of at most
    `BUCKETS`, missing being a bucket of its own; and it stands beside as sign(x) ln(1 + |x|), standardized, 0 where
    missing. An integer that may be a name is both.
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


def _matrices(
    fitted: pl.DataFrame, scored: pl.DataFrame, kinds: Mapping[str, Kind], label: str
) -> tuple[csr_matrix, np.ndarray, csr_matrix, np.ndarray]:
    """Matrix and labels of the rows to fit to, and of those to score."""
    design = Design(fitted, kinds)
    return design.matrix(fitted), fitted[label].to_numpy(), design.matrix(scored), scored[label].to_numpy()


def logistic(
    train: pl.DataFrame, test: pl.DataFrame, kinds: Mapping[str, Kind], label: str, quick: bool = False
) -> Chosen:
    """Logistic regression with an L2 penalty whose C is chosen."""
    inside, y, held, y_held = _matrices(*tail_of(train), kinds, label)
    tried: list[tuple[dict[str, float], float]] = []
    for c in CS[5:6] if quick else CS:  # the larger, the slower; none is tried beyond one that is worse
        tried.append(({"C": c}, loss_of(y_held, _fit_logistic(inside, y, held, c)[0])))
        if len(tried) > 1 and tried[-1][1] > tried[-2][1]:
            break
    best = best_of(tried)
    p, weights = _fit_logistic(*_matrices(train, test, kinds, label)[:3], best["C"])
    return Chosen(p, best, WEIGHT_BYTES * weights)


def _fit_logistic(train: csr_matrix, labels: np.ndarray, test: csr_matrix, c: float) -> tuple[np.ndarray, int]:
    """Probabilities of the test rows, and how many weights there are."""
    used = np.flatnonzero(np.bincount(train.indices, minlength=train.shape[1]))
    model = LogisticRegression(C=c, solver="liblinear", tol=1e-3, max_iter=200).fit(train[:, used], labels)
    return model.predict_proba(test[:, used])[:, 1], int(np.count_nonzero(model.coef_))


@njit(cache=True, error_model="numpy")
def _weight(z, n, alpha, beta, l1, l2):
    if abs(z) <= l1:
        return 0.0
    return -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / alpha + l2)


@njit(cache=True, error_model="numpy")
def _learn(starts, columns, values, labels, z, n, bias, alpha, beta, l1, l2):
    for row in range(len(labels)):
        logit = _weight(bias[0], bias[1], alpha, beta, 0.0, 0.0)
        for at in range(starts[row], starts[row + 1]):
            column = columns[at]
            logit += values[at] * _weight(z[column], n[column], alpha, beta, l1, l2)
        error = 1.0 / (1.0 + np.exp(-logit)) - labels[row]
        for at in range(starts[row], starts[row + 1]):
            column = columns[at]
            g = error * values[at]
            w = _weight(z[column], n[column], alpha, beta, l1, l2)
            z[column] += g - (np.sqrt(n[column] + g * g) - np.sqrt(n[column])) / alpha * w
            n[column] += g * g
        w = _weight(bias[0], bias[1], alpha, beta, 0.0, 0.0)
        bias[0] += error - (np.sqrt(bias[1] + error * error) - np.sqrt(bias[1])) / alpha * w
        bias[1] += error * error


def passes_of(
    train: csr_matrix, labels: np.ndarray, test: csr_matrix, alpha: float, l1: float, l2: float, passes: int
) -> Iterator[tuple[np.ndarray, int]]:
    """After each pass over the training rows, in their order: probabilities of the test rows, weights other than 0."""
    z, n, bias = np.zeros(train.shape[1]), np.zeros(train.shape[1]), np.zeros(2)
    for _ in range(passes):
        _learn(train.indptr, train.indices, train.data, labels, z, n, bias, alpha, BETA, l1, l2)
        weights = np.where(np.abs(z) > l1, -(z - np.sign(z) * l1) / ((BETA + np.sqrt(n)) / alpha + l2), 0.0)
        logits = test @ weights + _weight(bias[0], bias[1], alpha, BETA, 0.0, 0.0)
        yield 1 / (1 + np.exp(-logits)), np.count_nonzero(weights)


def ftrl(train: pl.DataFrame, test: pl.DataFrame, kinds: Mapping[str, Kind], label: str, quick: bool = False) -> Chosen:
    """FTRL-Proximal over the same matrix as logistic regression; α, λ1, λ2 and the number of passes are chosen."""
    inside, y, held, y_held = _matrices(*tail_of(train), kinds, label)
    best: dict[str, Any] = dict(START)
    for name in ("alpha",) if quick else SEARCHED:  # one after the other, the others as they were best
        values = GRID[name][-2:-1] if quick else GRID[name]
        best = best_of(
            ({**best, name: value, "passes": number + 1}, loss_of(y_held, p))
            for value in values
            for number, (p, _) in enumerate(passes_of(inside, y, held, **{**best, name: value, "passes": PASSES}))
        )
    *_, (p, weights) = passes_of(*_matrices(train, test, kinds, label)[:3], **best)
    return Chosen(p, best, WEIGHT_BYTES * weights)


def vw(train: pl.DataFrame, test: pl.DataFrame, kinds: Mapping[str, Kind], label: str, quick: bool = False) -> Chosen:
    """`vw` over the same matrix as logistic regression; rate, passes and whether features are crossed is chosen."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def write(fitted: pl.DataFrame, scored: pl.DataFrame) -> np.ndarray:
            inside, y, outside, y_scored = _matrices(fitted, scored, kinds, label)
            write_vw(folder / "fitted", inside, y)
            write_vw(folder / "scored", outside, y_scored)
            return y_scored

        y_held = write(*tail_of(train))
        arms = ARMS[: 1 if quick else None]
        best = best_of(({"flags": arm}, loss_of(y_held, _run_vw(folder, arm))) for arm in arms)
        write(train, test)
        return Chosen(_run_vw(folder, best["flags"]), best, (folder / "model").stat().st_size)


def write_vw(path: Path, matrix: csr_matrix, labels: np.ndarray) -> None:
    """Rows in vw's text format, features by their numbers."""
    indices, entries = pl.Series(matrix.indices).cast(pl.String), pl.Series(matrix.data)
    plain = pl.select(
        pl.when(entries == 1).then(indices).otherwise(indices + ":" + entries.cast(pl.String))
    ).to_series()
    cells = pa.ListArray.from_arrays(pa.array(matrix.indptr.astype(np.int32)), plain.to_arrow().cast(pa.string()))
    rows = pl.Series(pc.binary_join(cells, " "))
    signs = pl.select(pl.when(pl.Series(labels) == 1).then(pl.lit("1 | ")).otherwise(pl.lit("-1 | "))).to_series()
    pl.DataFrame({"row": signs + rows}).write_csv(path, include_header=False, quote_style="never")


def _run_vw(folder: Path, arm: str) -> np.ndarray:
    """Probabilities of the rows to score, after fitting to the others."""
    from vowpalwabbit import Workspace

    model, out = folder / "model", folder / "probabilities"
    for leftover in (model, out, folder / "fitted.cache"):
        leftover.unlink(missing_ok=True)
    Workspace(f"{FLAGS} {arm} -d {folder / 'fitted'} -f {model}").finish()
    Workspace(f"--quiet -t -i {model} -d {folder / 'scored'} -p {out}").finish()
    return np.loadtxt(out, usecols=0)
