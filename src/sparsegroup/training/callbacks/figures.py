"""Figures of a training, as trackers want them: numbers by name."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from sparsegroup.reporting.run_record import HistoryPoint, Metrics, Summary

if TYPE_CHECKING:
    from sparsegroup.training.build import Config

Settings = dict[str, str | int | float | bool]


def scalars(point: HistoryPoint) -> dict[str, float]:
    """The figures of a point except its place, by name; undefined ones are left out."""
    return {name: value for name, value in _finite(asdict(point)) if name != "samples"}


def final_scalars(summary: Summary) -> dict[str, float]:
    """The metrics of a summary, such as `test/auc`; undefined ones are left out."""
    found = {name: asdict(value) for name, value in vars(summary).items() if isinstance(value, Metrics)}
    return {f"{name}/{metric}": value for name, metrics in found.items() for metric, value in _finite(metrics)}


def flat_settings(config: "Config") -> Settings:
    """Settings by their dotted keys, such as `optimizer.lr`; those that are not set are left out."""
    return {
        f"{section}.{name}": value if isinstance(value, str | int | float | bool) else str(value)
        for section, settings in config.as_dict().items()
        for name, value in settings.items()
        if value is not None
    }


def _finite(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, int | float) and isfinite(value):
            yield name, float(value)
