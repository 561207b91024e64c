"""The baselines: each learns from the training rows and says how likely the test rows are clicked.

What a baseline has said is kept in a folder, by the contents of the log and the sources and package that it comes from.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import joblib
import numpy as np
import polars as pl

from panel.boosting import CATBOOST, LIGHTGBM, XGBOOST, boosting
from panel.linear import Chosen, ftrl, logistic, vw
from panel.logs import Kind, PanelLog

Baseline = Callable[[pl.DataFrame, pl.DataFrame, Mapping[str, Kind], str, bool], Chosen]
"""Training rows, test rows, column → kind, label column, whether to choose among nothing → what it says."""

BASELINES: Mapping[str, tuple[Baseline, str]] = {
    "logistic regression": (logistic, "scikit-learn"),
    "LightGBM": (partial(boosting, library=LIGHTGBM), "lightgbm"),
    "XGBoost": (partial(boosting, library=XGBOOST), "xgboost-cpu"),
    "CatBoost": (partial(boosting, library=CATBOOST), "catboost"),
    "vw": (vw, "vowpalwabbit"),
    "FTRL-Proximal": (ftrl, "numba"),
}
"""Name → the baseline, and the package that it is made with."""

SOURCES = ("boosting.py", "linear.py", "logs.py")
"""What baselines are made of."""


class Said(NamedTuple):
    """What a baseline has said of a log's test rows."""

    probabilities: np.ndarray  # [test rows] float64
    settings: Mapping[str, Any]  # the hyperparameters that it has chosen
    seconds: float  # choosing included
    served_bytes: int | None = None  # what must be kept to predict


def installed() -> list[str]:
    """The baselines whose packages are there."""

    def is_installed(package: str) -> bool:
        try:
            return bool(version(package))
        except PackageNotFoundError:
            return False

    return [name for name, (_, package) in BASELINES.items() if is_installed(package)]


def said(log: PanelLog, name: str, quick: bool, folder: Path) -> Said:
    """What a baseline says of a log, or what it said of the same rows before, kept in a folder.

    `quick`: choose among nothing.
    """
    run, package = BASELINES[name]
    sources = [Path(__file__).with_name(source).read_bytes() for source in SOURCES]
    made_of = joblib.hash([[file.read_bytes() for file in log.files], sources, version(package)])
    return joblib.Memory(folder, verbose=0).cache(_run, ignore=["run", "log"])(run, log, name, quick, made_of)


def _run(run: Baseline, log: PanelLog, name: str, quick: bool, made_of: str) -> Said:
    start = perf_counter()
    chosen = run(*log.frames, quick)
    seconds = perf_counter() - start
    return Said(chosen.probabilities.astype(np.float64), chosen.settings, seconds, chosen.served_bytes)
