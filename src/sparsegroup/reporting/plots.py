"""Charts of a run along its pass: as SVG for a page, or together as a picture."""

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, Formatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from sparsegroup.reporting.formatting import percent
from sparsegroup.reporting.run_record import HistoryPoint

INK = "#24292f"
"""Of text and axes."""

Colour = Literal["blue", "orange", "green", "pink", "gold", "sky"]
COLOURS: Mapping[Colour, str] = {
    "blue": "#0072b2",
    "orange": "#d55e00",
    "green": "#009e73",
    "pink": "#cc79a7",
    "gold": "#e69f00",
    "sky": "#56b4e9",
}
"""Of lines; the colour-blind can tell them apart (Okabe and Ito)."""

_THEME = {INK: "currentColor"} | {value: f"var(--{name}, {value})" for name, value in COLOURS.items()}
"""Colour → what stands for it in SVG, so that the page can choose another in dark mode."""

STYLE: dict[str, Any] = {
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), INK
    ),
    "axes.facecolor": "none",
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelsize": "medium",
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.xmargin": 0.03,
    "axes.ymargin": 0.08,
    "figure.facecolor": "none",
    "font.size": 10,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
}
"""Of all drawings, over matplotlib's defaults."""

Unit = Literal["", "%", "rows", "B", "/s", "λ"]


@dataclass(frozen=True)
class Line:
    """A line of a chart: its label, one value per point of the pass (NaN leaves a gap), and its colour."""

    label: str
    values: Sequence[float]
    colour: Colour = "blue"


@dataclass(frozen=True)
class Chart:
    """What to draw over the samples trained on.

    Attributes:
        name: Unique on a page; letters and hyphens.
        title: What is shown.
        unit: The unit of the values; "" for plain numbers, "%" for shares of 1, "λ" for numbers of any size.
        samples: The number of samples before each point, rising.
        lines: One or two.
        reference: Label and height of a dashed line across, or None.
        scale: The scale of the vertical axis: "fit" to the values, from "zero", or "log".
        note: What explains its shape; empty for none.
    """

    name: str
    title: str
    unit: Unit
    samples: Sequence[int]
    lines: tuple[Line, ...]
    reference: tuple[str, float] | None = None
    scale: Literal["fit", "zero", "log"] = "fit"
    note: str = ""


def auc_chart(history: Sequence[HistoryPoint], test_auc: float | None) -> Chart:
    """Progressive AUC, and the test set's as the reference unless it is None or NaN."""
    reference = None if test_auc is None or math.isnan(test_auc) else (f"test set: {test_auc:.4f}", test_auc)
    line = Line("next samples (test, then train)", [point.auc for point in history])
    beside = _baseline([point.baseline_auc for point in history])
    return Chart("auc", "AUC", "", _samples(history), (line, *beside), reference)


BASELINE = "baseline"
"""The label of its line."""


def _baseline(values: Sequence[float | None]) -> tuple[Line, ...]:
    """The baseline's line; none where there is no baseline."""
    return (Line(BASELINE, [_or_nan(value) for value in values], "gold"),) if any(values) else ()


def feature_rate_chart(history: Sequence[HistoryPoint]) -> Chart:
    """Live features over features seen, and a target's schedule."""
    lines = [Line("feature rate", [point.feature_rate for point in history], "orange")]
    if _has_target(history):
        lines.append(Line("scheduled", [_or_nan(point.scheduled_rate) for point in history], "blue"))
    return Chart(
        "feature-rate", "Feature rate", "%", _samples(history), tuple(lines), scale="zero", note=_lag_note(history)
    )


_LAG = 1.1


def _lag_note(history: Sequence[HistoryPoint]) -> str:
    """Why the feature rate lies above its schedule, and what brings it down to it; empty where it does not."""

    def lags(point: HistoryPoint) -> bool:
        return point.scheduled_rate is not None and point.feature_rate > _LAG * point.scheduled_rate

    late = [place for place, point in enumerate(history) if lags(point)]
    if not late:
        return ""
    note = (
        "λ21 follows the schedule. It removes a row when a batch next has the row's feature: features that have not "
        "appeared again since λ21 rose still count as live."
    )
    if late[-1] + 1 == len(history):
        return note
    before, after = history[late[-1]], history[late[-1] + 1]
    if before.feature_rate < _LAG * after.feature_rate:
        return note
    fall = f"from {percent(before.feature_rate)} to {percent(after.feature_rate)}"
    return f"{note} The sweep of all rows by {after.samples:,} samples removed theirs: {fall}."


def _has_target(history: Sequence[HistoryPoint]) -> bool:
    return any(point.scheduled_rate is not None for point in history)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def run_charts(history: Sequence[HistoryPoint], test_auc: float | None) -> tuple[Chart, ...]:
    """All that is drawn of a run, in the order to show it: quality, then sparsity, then cost."""
    samples = _samples(history)

    def chart(title: str, unit: Unit, *lines: Line, **options: Any) -> Chart:
        name = options.pop("name", title.lower().replace(" ", "-"))
        return Chart(name, title, unit, samples, lines, **options)

    calibration = Line("next samples (test, then train)", [point.calibration for point in history])
    log_losses = [Line("next samples (test, then train)", [point.log_loss for point in history])]
    if any(point.validation_log_loss is not None for point in history):
        measured = [_or_nan(point.validation_log_loss) for point in history]
        log_losses.append(Line("validation, after each epoch", measured, "orange"))
    log_losses += _baseline([point.baseline_log_loss for point in history])
    entropy = Line("normalized entropy", [point.normalized_entropy for point in history])
    seen = Line("features seen", [point.features_seen for point in history])
    live = Line("live rows", [point.live_rows for point in history], "orange")
    speed = Line("samples per second", [point.samples_per_s for point in history])
    size = Line("table", [point.table_bytes for point in history])
    l21 = Line("λ21", [_or_nan(point.l21) for point in history], "green")
    threshold = (chart("λ21", "λ", l21, scale="zero", name="lambda"),) if _has_target(history) else ()
    return (
        auc_chart(history, test_auc),
        chart("Calibration", "", calibration, reference=("perfect: 1", 1.0)),
        chart("Log loss", "", *log_losses),
        chart("Normalized entropy", "", entropy),
        feature_rate_chart(history),
        *threshold,
        chart("Live rows and features seen", "rows", live, seen, scale="log"),
        chart("Samples per second", "/s", speed, scale="zero"),
        chart("Table size", "B", size, scale="zero"),
    )


def to_svg(chart: Chart) -> str:
    """The chart as an `<svg>` element to stand in a page, as `svg_element` makes it.

    The title and the labels of the lines are left to the page. Charts of different names have no id in common.
    """
    return svg_element(chart.name, (5.4, 2.5), lambda figure: _draw(figure.subplots(), chart))


def svg_element(name: str, inches: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """What `draw` puts on a figure, as an `<svg>` element to stand in a page.

    Text is text, in the page's font if its CSS says so; text and axes have the colour `currentColor`, lines `--blue`
    and so on. Equal drawings give equal strings.

    Args:
        name: Before each id, so that drawings of different names have none in common; letters and hyphens.
        inches: Width and height.
        draw: Given the figure.
    """
    with style.context(["default", STYLE, {"svg.hashsalt": name}]):
        figure = Figure(figsize=inches, layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)  # it would hold for the whole page
    svg = re.sub(r'( id="| xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, themed in _THEME.items():
        svg = svg.replace(colour, themed)
    return svg


def plot_progress(history: Sequence[HistoryPoint], test_auc: float | None, title: str, path: Path) -> None:
    """AUC and feature rate along the pass, as a PNG or whatever the suffix of `path` says."""
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(7, 5), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True)
        for axes, chart in ((top, auc_chart(history, test_auc)), (bottom, feature_rate_chart(history))):
            _draw(axes, chart)
            axes.set_ylabel(chart.title)
        top.set(xlabel="")
        top.set_title(title, parse_math=False)
        top.legend(loc="lower right", frameon=False)
        save_png(figure, path)


def save_png(figure: Figure, path: Path) -> None:
    """Write a figure; a letter of a name that the font does not have is a box."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        figure.savefig(path, format="png", dpi=150, facecolor="white")


def _draw(axes: Axes, chart: Chart) -> None:
    for line in chart.lines:
        values = np.asarray(line.values, np.float64)
        if chart.scale == "log":
            values = np.where(values > 0, values, np.nan)
        axes.plot(chart.samples, values, color=COLOURS[line.colour], label=line.label)
        alone = _alone(values)
        axes.plot(np.asarray(chart.samples)[alone], values[alone], "o", color=COLOURS[line.colour])
    if chart.reference is not None:
        label, height = chart.reference
        axes.axhline(height, color=INK, linestyle="--", linewidth=1.1, label=label)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=chart.unit == "rows"))
    positive = [value for line in chart.lines for value in line.values if value > 0]
    if chart.scale == "zero":
        axes.set_ylim(0, 1.08 * max(positive, default=1))
    if chart.scale == "log":
        _use_decades(axes, positive)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("samples trained on")
    if chart.unit:
        axes.yaxis.set_major_formatter(_tick_formatter(chart.unit))
    axes.grid(visible=False, axis="x")


def _use_decades(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis around the values, all above 0, that ends at powers of 10: so it has two ticks at least."""
    if not values:
        return
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    axes.set_yscale("log")
    axes.set_ylim(10.0**low, 10.0 ** max(high, low + 1))
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())


def _tick_formatter(unit: Unit) -> Formatter:
    if unit == "%":
        return FuncFormatter(lambda share, _: f"{100 * share:.4g} %")
    if unit == "λ":
        return FuncFormatter(lambda value, _: f"{value:.3g}")
    return EngFormatter(unit="B") if unit == "B" else EngFormatter(sep="")


def _alone(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which values `[n]` have no neighbour to draw a line to."""
    finite = np.isfinite(np.pad(values, 1, constant_values=np.nan))
    return finite[1:-1] & ~finite[:-2] & ~finite[2:]


def _samples(history: Sequence[HistoryPoint]) -> list[int]:
    return [point.samples for point in history]
