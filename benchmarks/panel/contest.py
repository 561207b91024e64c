"""Ours against the best baseline on a log: differences, and how much of them is noise."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from panel.baselines import Said
from panel.ours import ROW_BYTES, OwnRun
from sparsegroup.training.metrics import evaluate
from sparsegroup_paper.resampling import resampled_aucs

MARGIN = 0.001
CALIBRATION = (0.95, 1.05)
FEATURE_RATE = 0.1
OURS = "sparsegroup"
_REPLICATES = 400


def contest(labels: np.ndarray, runs: Sequence[OwnRun], baselines: Mapping[str, Said]) -> dict[str, Any]:
    """A log's entry in the results, ready for JSON.

    `methods` has the metrics of each method, the mean over runs of ours. `differences` has, for `auc` and `log_loss`,
    the best baseline, by how much ours is better, and the standard error of that: of a paired bootstrap over test rows
    (AUC) or of the mean difference of a row's loss, joined with that of the mean over seeds.
    """
    methods: dict[str, dict[str, Any]] = {}
    for name, said in baselines.items():
        methods[name] = {
            **asdict(evaluate(labels, said.probabilities)),
            "seconds": said.seconds,
            "served_bytes": said.served_bytes,
            "settings": dict(said.settings),
        }
    found = {"test_rows": len(labels), "positives": int(labels.sum()), "methods": methods}
    each = [asdict(evaluate(labels, run.probabilities)) for run in runs]
    methods[OURS] = {
        **{metric: float(np.mean([one[metric] for one in each])) for metric in each[0]},
        "feature_rate": float(np.mean([run.feature_rate for run in runs])),
        "features": float(np.mean([run.features for run in runs])),
        "served_bytes": float(np.mean([ROW_BYTES * run.features for run in runs])),
        "seconds": float(np.mean([run.seconds for run in runs])),
        "seeds": len(runs),
    }
    if baselines:
        ours, differences = [run.probabilities for run in runs], {}
        for metric, sign, error_of in (("auc", 1, _error_of_aucs), ("log_loss", -1, _error_of_losses)):
            values = {name: sign * methods[name][metric] for name in baselines}
            best = max(values, key=values.__getitem__)
            error = error_of(labels, ours, baselines[best].probabilities)
            differences[metric] = {
                "best": best,
                "difference": sign * methods[OURS][metric] - values[best],
                "error": _joined(error, [one[metric] for one in each]),
            }
        found["differences"] = differences
    return found


def verdict_of(difference: float, error: float) -> str:
    """Whether a difference, above 0 where ours is better, is within the margin or better; and whether that is noise."""
    if difference >= -MARGIN:
        return "better" if difference > 2 * error else "yes"
    return "no" if difference < -MARGIN - 2 * error else "no, within noise"


def _error_of_aucs(labels: np.ndarray, ours: Sequence[np.ndarray], theirs: np.ndarray) -> float:
    first = np.mean([resampled_aucs(labels, p, _REPLICATES) for p in ours], axis=0)
    return float(np.nanstd(first - resampled_aucs(labels, theirs, _REPLICATES), ddof=1))


def _error_of_losses(labels: np.ndarray, ours: Sequence[np.ndarray], theirs: np.ndarray) -> float:
    differences = np.mean([_losses(labels, p) for p in ours], axis=0) - _losses(labels, theirs)
    return float(differences.std(ddof=1) / np.sqrt(len(differences)))


def _losses(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    p = np.clip(probabilities, 1e-15, 1 - 1e-15)
    return -np.where(labels == 1, np.log(p), np.log1p(-p))


def _joined(of_rows: float, of_seeds: Sequence[float]) -> float:
    """The standard error of rows, and that of the mean over seeds."""
    seeds = np.var(of_seeds, ddof=1) / len(of_seeds) if len(of_seeds) > 1 else 0.0
    return float(np.sqrt(of_rows**2 + seeds))
