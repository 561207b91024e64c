"""Callbacks of a `Trainer`: figures of a training, as trackers want them."""

from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from sparsegroup.reporting.run_record import HistoryPoint, Metrics, Summary

if TYPE_CHECKING:
    from sparsegroup.training.config import Config


def scalars(record: HistoryPoint) -> dict[str, float]:
    """The figures of a point but for its place, by name; what is not defined is left out.

    Those of a record in the point are named after it, with a slash.
    """
    return {name: value for name, value in _flat(asdict(record), "") if name != "samples"}


def final_scalars(summary: Summary) -> dict[str, float]:
    """The metrics of a summary, such as `test/auc`; those that are not defined are left out."""
    found = {name: value for name, value in vars(summary).items() if isinstance(value, Metrics)}
    return {
        f"{name}/{metric}": value for name, metrics in found.items() for metric, value in _flat(asdict(metrics), "")
    }


def flat_settings(config: "Config") -> dict[str, str | int | float | bool]:
    """Settings by their dotted keys, such as `optimizer.lr`; those that are not set are left out."""
    values: dict[str, str | int | float | bool] = {}
    for section, settings in config.as_dict().items():
        for name, value in settings.items():
            if value is not None:
                values[f"{section}.{name}"] = value if isinstance(value, str | int | float | bool) else str(value)
    return values


def _flat(values: Mapping[str, Any], prefix: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and isfinite(value):
            found.append((prefix + name, float(value)))
    return found
