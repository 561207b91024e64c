"""Figures as reports show them."""

import math
from dataclasses import fields
from typing import Any

from rich.filesize import decimal

NONE = "–"
"""Shown for a value that is not defined."""


TITLES = {
    "accuracy": "accuracy", "auc": "AUC", "log_loss": "log loss", "normalized_entropy": "norm. entropy",
    "rmse": "RMSE", "mae": "MAE", "ndcg": "NDCG@10", "gauc": "grouped AUC", "loss": "loss",
    "relative_loss": "relative loss", "calibration": "calibration",
}  # fmt: skip
"""Measure → its title."""


def titles_of(metrics: Any) -> dict[str, str]:
    """Measure → its title, of metrics of any kind (`AnyMetrics`, or their class), in their order."""
    return {one.name: TITLES[one.name] for one in fields(metrics) if one.name in TITLES}


def measures_of(metrics: Any) -> dict[str, float]:
    """Title of each measure → its value, of metrics or of each task's, which are called by its name."""
    found = {title: getattr(metrics, name) for name, title in titles_of(metrics).items()}
    for task, own in getattr(metrics, "tasks", {}).items():
        found |= {f"{task}: {title}": value for title, value in measures_of(own).items()}
    return found


def count(value: float) -> str:
    """1234567 → "1,234,567"."""
    return NONE if math.isnan(value) else f"{value:,.0f}"


def short(value: float) -> str:
    """33812345 → "33.8M"; below 10,000 in full."""
    if not abs(value) >= 10_000:
        return count(value)
    return prefixed(value, places=1)


def prefixed(value: float, unit: str = "", places: int | None = None) -> str:
    """1500000 → "1.5M", with a unit "1.5 MB"; `places`: decimals, also where they are 0."""
    power = 0
    while abs(float(number := f"{value:g}" if places is None else f"{value:.{places}f}")) >= 1000 and power < 5:
        value, power = value / 1000, power + 1
    prefix = "kMGTP"[power - 1] if power else ""
    return f"{number} {prefix}{unit}" if unit else f"{number}{prefix}"


def per_second(value: float) -> str:
    """85712.3 → "85.7k/s"."""
    return NONE if math.isnan(value) else f"{short(value)}/s"


def percent(share: float) -> str:
    """0.02311 → "2.31 %"; a share above 0 is not shown as 0."""
    if math.isnan(share):
        return NONE
    return "<0.01 %" if 0 < share < 5e-5 else f"{100 * share:.2f} %"


def size(value: float) -> str:
    """6123456789 → "6.1 GB"."""
    return NONE if math.isnan(value) else decimal(int(value))


def metric(value: float) -> str:
    """0.793129 → "0.7931"."""
    return NONE if math.isnan(value) else f"{value:z.4f}"


def exact(value: float) -> str:
    """1e-05 → "1e-5", 0.001 → "0.001": with all digits."""
    return trim_exponent(str(value))


def target_words(rate: float | None, size: int | str | None) -> str | None:
    """The size that was requested: "target rate 0.1" or "target size 200MB"; None where neither was."""
    if rate is not None:
        return f"target rate {exact(rate)}"
    return None if size is None else f"target size {size}"


def trim_exponent(number: str) -> str:
    """6e-07 → "6e-7"."""
    return number.replace("e-0", "e-").replace("e+0", "e")


def duration(seconds: float) -> str:
    """458.3 → "7 min 38 s"."""
    if math.isnan(seconds):
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
