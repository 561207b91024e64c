"""Vowpal Wabbit with its usual flags."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_matrix

from panel.choosing import Chosen, best_of, loss_of, tail_of
from panel.design import BITS, Design
from panel.logs import Kind

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


def vw(train: pl.DataFrame, test: pl.DataFrame, kinds: Mapping[str, Kind], label: str, quick: bool = False) -> Chosen:
    """`vw` over the same matrix as logistic regression; rate, passes and whether features are crossed is chosen."""
    head, tail = tail_of(train)
    y_held = tail[label].to_numpy()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        design = Design(head, kinds)
        _write(folder / "head", design.matrix(head), head[label].to_numpy())
        _write(folder / "tail", design.matrix(tail), y_held)
        best = best_of(
            ({"flags": arm}, loss_of(y_held, _run(folder, "head", "tail", arm))) for arm in ARMS[: 1 if quick else None]
        )
        design = Design(train, kinds)
        _write(folder / "train", design.matrix(train), train[label].to_numpy())
        _write(folder / "test", design.matrix(test), test[label].to_numpy())
        return Chosen(_run(folder, "train", "test", best["flags"]), best)


def _write(path: Path, matrix: csr_matrix, labels: np.ndarray) -> None:
    """Rows in vw's text format, features by their numbers."""
    indices, entries = pl.Series(matrix.indices).cast(pl.String), pl.Series(matrix.data)
    plain = pl.select(
        pl.when(entries == 1).then(indices).otherwise(indices + ":" + entries.cast(pl.String))
    ).to_series()
    cells = pa.ListArray.from_arrays(pa.array(matrix.indptr.astype(np.int32)), plain.to_arrow().cast(pa.string()))
    rows = pl.Series(pc.binary_join(cells, " "))
    signs = pl.select(pl.when(pl.Series(labels) == 1).then(pl.lit("1 | ")).otherwise(pl.lit("-1 | "))).to_series()
    pl.DataFrame({"row": signs + rows}).write_csv(path, include_header=False, quote_style="never")


def _run(folder: Path, fitted: str, scored: str, arm: str) -> np.ndarray:
    """Probabilities of the rows of one file, after fitting to another."""
    from vowpalwabbit import Workspace

    model, out = folder / "model", folder / "probabilities"
    for leftover in (model, out, folder / f"{fitted}.cache"):
        leftover.unlink(missing_ok=True)
    Workspace(f"{FLAGS} {arm} -d {folder / fitted} -f {model}").finish()
    Workspace(f"--quiet -t -i {model} -d {folder / scored} -p {out}").finish()
    return np.loadtxt(out, usecols=0)
