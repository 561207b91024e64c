"""`sparsegroup train LOG` as a user runs it: through the command line, with no option but the label, or a few."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import polars as pl

from panel.logs import PanelLog
from sparsegroup.models import DCN

ROW_BYTES = 8 + 4 * DCN.default_dim
"""A feature's key and its vector, of as many numbers as DCN and DCNv2 have by default."""


@dataclass(frozen=True)
class OwnRun:
    """A run, and what its model says of the test rows.

    Attributes:
        probabilities: `[test rows]` float64.
        feature_rate: Share of the features that are kept.
        features: Features that are kept.
        seconds: From the start of the command to its end.
    """

    probabilities: np.ndarray
    feature_rate: float
    features: int
    seconds: float


def own_run(log: PanelLog, seed: int, folder: Path, options: Sequence[str] = ()) -> OwnRun:
    """Train with that seed into a folder, and score the test rows.

    Args:
        log: What to train on.
        seed: Of the run.
        folder: Of the run.
        options: Further options of `train`.

    Raises:
        RuntimeError: The command fails, with what it says; or the rows that are scored are not those of the test set.
    """
    start = perf_counter()
    _sparsegroup("train", *log.arguments, "--set", f"training.seed={seed}", *options, "--out", str(folder))
    seconds = perf_counter() - start
    summary = json.loads((folder / "summary.json").read_text())
    scores = folder / "scores.parquet"
    _sparsegroup("predict", str(folder), str(log.test or log.path), "--out", str(scores))
    _, test, _, label = log.frames
    scored = pl.read_parquet(scores).tail(len(test))
    if not np.array_equal(scored["label"].to_numpy(), test[label].to_numpy()):
        raise RuntimeError(
            f"{log.name}: the last {len(test):,} rows that were scored have other labels than the test rows"
        )
    probabilities = scored["probability"].to_numpy().astype(np.float64)
    return OwnRun(probabilities, summary["feature_rate"], summary["live_rows"], seconds)


def _sparsegroup(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparsegroup", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"sparsegroup {' '.join(arguments)}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
