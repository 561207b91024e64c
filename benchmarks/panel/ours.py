"""`sparsegroup train LOG` as a user runs it: through the command line, with no option but the label, or a few."""

import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
import polars as pl

import common
from panel.logs import PanelLog
from sparsegroup.models import DCN

ROW_BYTES = 8 + 4 * DCN.default_dim
"""A feature's key and its vector, of as many numbers as DCN and DCNv2 have by default."""


class OwnRun(NamedTuple):
    """A run, and what its model says of the test rows."""

    probabilities: np.ndarray  # [test rows] float64
    feature_rate: float  # share of the features that are kept
    features: int  # that are kept
    seconds: float  # from the start of the command to its end


def own_run(log: PanelLog, seed: int, folder: Path, options: Sequence[str] = ()) -> OwnRun:
    """Train with that seed and further options of `train` into a folder, and score the test rows."""
    start = perf_counter()
    common.sparsegroup("train", *log.arguments, "--set", f"training.seed={seed}", *options, "--out", folder)
    seconds = perf_counter() - start
    summary = json.loads((folder / "summary.json").read_text())
    scores = folder / "scores.parquet"
    common.sparsegroup("predict", folder, log.test or log.path, "--out", scores)
    _, test, _, label = log.frames
    scored = pl.read_parquet(scores).tail(len(test))
    if not np.array_equal(scored["label"].to_numpy(), test[label].to_numpy()):
        raise RuntimeError(f"{log.name}: the last {len(test):,} rows scored have other labels than the test rows")
    probabilities = scored["probability"].to_numpy().astype(np.float64)
    return OwnRun(probabilities, summary["feature_rate"], summary["live_rows"], seconds)
