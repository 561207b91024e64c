"""Figures of a training, as trackers want them: numbers by name."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from sparsegroup.reporting.run_record import AnyMetrics, HistoryPoint, Summary
from sparsegroup.settings.declared import Settings


def scalars(point: HistoryPoint) -> dict[str, float]:
    """The figures of a point except its place, by name; undefined ones are left out."""
    return _finite({name: value for name, value in vars(point).items() if name != "samples"})


def final_scalars(summary: Summary) -> dict[str, float]:
    """The metrics of a summary, such as `test/auc`; undefined ones are left out."""
    metrics = {name: value for name, value in vars(summary).items() if isinstance(value, AnyMetrics)}
    return {f"{name}/{metric}": value for name, of in metrics.items() for metric, value in _finite(vars(of)).items()}


def flat_settings(config: Settings) -> dict[str, str | int | float | bool]:
    """Settings by their dotted keys, such as `optimizer.lr`; unset ones are left out."""
    return {
        f"{section}.{name}": value if isinstance(value, str | int | float | bool) else str(value)
        for section, settings in config.as_dict().items()
        for name, value in settings.items()
        if value is not None
    }


def _finite(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float) and isfinite(value)}
