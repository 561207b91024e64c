"""The baselines: each learns from the training rows and says how likely the test rows are clicked.

What a baseline has said is kept in a folder, with the contents of the log and the sources and packages that it comes
from.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

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


@dataclass(frozen=True)
class Said:
    """What a baseline has said of a log's test rows.

    Attributes:
        probabilities: `[test rows]` float64.
        settings: The hyperparameters that it has chosen.
        seconds: That it took, choosing included.
        served_bytes: What must be kept to predict; None where that was not measured.
    """

    probabilities: np.ndarray
    settings: Mapping[str, Any]
    seconds: float
    served_bytes: int | None = None


class BaselineCache:
    """Baselines that are run once for each log.

    Args:
        folder: Where what they said is kept.
        quick: Choose among nothing.
        stale: Take what is kept of the same log, made by any sources and packages, and run nothing.
    """

    def __init__(self, folder: Path, quick: bool = False, stale: bool = False) -> None:
        self._folder, self._quick, self._stale = folder, quick, stale

    def said(self, log: PanelLog, name: str) -> Said | None:
        """What a baseline says of a log; None where only what is kept is wanted, and nothing is."""
        run, package = BASELINES[name]
        folder = self._folder / f"{log.name}-{_digest(log.files)[:16]}" / f"{name}{', quick' * self._quick}"
        made_of = {"sources": _digest([Path(__file__).with_name(name) for name in SOURCES]), package: version(package)}
        kept = _kept(folder, None if self._stale else made_of)
        if kept is not None or self._stale:
            return kept
        start = perf_counter()
        chosen = run(*log.frames, self._quick)
        said = Said(
            chosen.probabilities.astype(np.float64), chosen.settings, perf_counter() - start, chosen.served_bytes
        )
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "probabilities.npy", said.probabilities)
        facts = {"made_of": made_of, "settings": dict(said.settings), "seconds": said.seconds}
        facts["served_bytes"] = said.served_bytes
        (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")
        return said


def installed() -> list[str]:
    """The baselines whose packages are there."""
    return [name for name, (_, package) in BASELINES.items() if _is_installed(package)]


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _kept(folder: Path, made_of: Mapping[str, str] | None) -> Said | None:
    """What is kept, if it is made of that, or of anything where that is None."""
    if not (folder / "facts.json").exists():
        return None
    facts = json.loads((folder / "facts.json").read_text())
    if made_of is not None and facts["made_of"] != made_of:
        return None
    probabilities = np.load(folder / "probabilities.npy")
    return Said(probabilities, facts["settings"], facts["seconds"], facts.get("served_bytes"))


def _digest(files: list[Path]) -> str:
    """Of names and contents."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()
