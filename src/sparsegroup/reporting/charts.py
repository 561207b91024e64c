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

from sparsegroup.reporting.formatting import metric, per_second, percent, short, size
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
"""Of values: "" for plain numbers, "%" for shares of 1, "λ" for numbers of any size."""

_SHOWN: Mapping[Unit, Callable[[float], str]] = {
    "": metric,
    "%": percent,
    "rows": short,
    "B": size,
    "/s": per_second,
    "λ": lambda value: f"{value:.3g}",
}
_NEXT, _BASELINE = "next samples (test, then train)", "baseline"  # labels of lines
_LAG = 1.1


@dataclass(frozen=True)
class DrawnChart:
    """A chart on a page."""

    title: str
    last: str  # a figure from it, beside the title
    keys: Sequence[tuple[str, str]]  # label and CSS class of its lines; none where there is only one line
    svg: str | None  # None if no point has a value
    description: str  # the drawing in words
    note: str = ""  # below it: what explains its shape


@dataclass(frozen=True)
class Line:
    """A line of a chart: its label, one value per point of the pass (NaN leaves a gap), and its colour."""

    label: str
    values: Sequence[float]
    colour: Colour = "blue"


@dataclass(frozen=True)
class Chart:
    """What to draw over the samples trained on."""

    name: str  # unique on a page; letters and hyphens
    title: str
    unit: Unit
    samples: Sequence[int]  # before each point, rising
    lines: Sequence[Line]
    reference: tuple[str, float] | None = None  # label and height of a dashed line across
    scale: Literal["fit", "zero", "log"] = "fit"  # of the vertical axis
    note: str = ""

    def drawn(self) -> DrawnChart:
        """The chart for a page, which shows its title and the labels of its lines."""
        show, (first, *others) = _SHOWN[self.unit], self.lines
        keys: list[tuple[str, str]] = [(line.label, line.colour) for line in self.lines]
        if self.reference is not None:
            keys.append((self.reference[0], "reference"))
        last = show(first.values[-1]) + "".join(
            (f", {one.label} " if one.label == _BASELINE else " of ") + show(one.values[-1]) for one in others
        )
        spans = [f"{line.label} from {show(line.values[0])} to {show(line.values[-1])}" for line in self.lines]
        is_empty = all(math.isnan(value) for line in self.lines for value in line.values)
        return DrawnChart(
            self.title,
            f"last {last}",
            keys if len(keys) > 1 else (),
            None if is_empty else svg_element(self.name, (5.4, 2.5), lambda figure: self.draw(figure.subplots())),
            f"{self.title} over the samples trained on: {', '.join(spans)}",
            self.note,
        )

    def draw(self, axes: Axes) -> None:
        """Draw lines, reference and axes, without a title."""
        for line in self.lines:
            values = np.asarray(line.values, np.float64)
            if self.scale == "log":
                values = np.where(values > 0, values, np.nan)
            axes.plot(self.samples, values, color=COLOURS[line.colour], label=line.label)
            lone = _without_neighbour(values)
            axes.plot(np.asarray(self.samples)[lone], values[lone], "o", color=COLOURS[line.colour])
        if self.reference is not None:
            label, height = self.reference
            axes.axhline(height, color=INK, linestyle="--", linewidth=1.1, label=label)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=self.unit == "rows"))
        positive = [value for line in self.lines for value in line.values if value > 0]
        if self.scale == "zero":
            axes.set_ylim(0, 1.08 * max(positive, default=1))
        if self.scale == "log" and positive:  # an axis that ends at powers of 10 has two ticks at least
            low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
            axes.set_yscale("log")
            axes.set_ylim(10.0**low, 10.0 ** max(high, low + 1))
            axes.yaxis.set_major_locator(LogLocator(numticks=6))
            axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlabel("samples trained on")
        if self.unit:
            axes.yaxis.set_major_formatter(_tick_formatter(self.unit))
        axes.grid(visible=False, axis="x")


def run_charts(history: Sequence[HistoryPoint], test_auc: float | None) -> list[Chart]:
    """All charts of a run, in the order to show them: quality, then sparsity, then cost.

    Progressive AUC has the test set's as a reference unless it is None or NaN.
    """
    samples = [point.samples for point in history]
    tested = None if test_auc is None or math.isnan(test_auc) else (f"test set: {test_auc:.4f}", test_auc)

    def line(label: str, attribute: str, colour: Colour = "blue") -> list[Line]:
        """A line, or none if there are points and none has the attribute."""
        values = [getattr(point, attribute) for point in history]
        known = [math.nan if value is None else value for value in values]
        return [Line(label, known, colour)] if not values or any(value is not None for value in values) else []

    def chart(title: str, unit: Unit, *lines: list[Line], name: str | None = None, **options: Any) -> Chart:
        name = name or title.lower().replace(" ", "-")
        return Chart(name, title, unit, samples, [line for found in lines for line in found], **options)

    progressive_auc = line(_NEXT, "auc"), line(_BASELINE, "baseline_auc", "gold")
    log_loss = line(_NEXT, "log_loss"), line("validation, after each epoch", "validation_log_loss", "orange")
    rates = line("feature rate", "feature_rate", "orange"), line("scheduled", "scheduled_rate")
    rows = line("live rows", "live_rows", "orange"), line("features seen", "features_seen")
    charts = (
        chart("AUC", "", *progressive_auc, reference=tested),
        chart("Calibration", "", line(_NEXT, "calibration"), reference=("perfect: 1", 1.0)),
        chart("Log loss", "", *log_loss, line(_BASELINE, "baseline_log_loss", "gold")),
        chart("Normalized entropy", "", line("normalized entropy", "normalized_entropy")),
        chart("Feature rate", "%", *rates, scale="zero", note=_lag_note(history)),
        chart("λ21", "λ", line("λ21", "l21", "green"), scale="zero", name="lambda"),
        chart("Live rows and features seen", "rows", *rows, scale="log"),
        chart("Samples per second", "/s", line("samples per second", "samples_per_s"), scale="zero"),
        chart("Table size", "B", line("table", "table_bytes"), scale="zero"),
    )
    return [chart for chart in charts if chart.lines]


def _lag_note(history: Sequence[HistoryPoint]) -> str:
    """Why the feature rate lies above its schedule, and what brings it down to it; empty where it does not."""
    late = [
        place
        for place, point in enumerate(history)
        if point.scheduled_rate is not None and point.feature_rate > _LAG * point.scheduled_rate
    ]
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
    """AUC and feature rate along the pass, as a PNG."""
    charts = {chart.name: chart for chart in run_charts(history, test_auc)}
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(7, 5), layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True)
        for axes, chart in ((top, charts["auc"]), (bottom, charts["feature-rate"])):
            chart.draw(axes)
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


def _tick_formatter(unit: Unit) -> Formatter:
    if unit == "%":
        return FuncFormatter(lambda share, _: f"{100 * share:.4g} %")
    if unit == "λ":
        return FuncFormatter(lambda value, _: f"{value:.3g}")
    return EngFormatter(unit="B") if unit == "B" else EngFormatter(sep="")


def _without_neighbour(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Which values `[n]` have no neighbour to draw a line to."""
    finite = np.isfinite(np.pad(values, 1, constant_values=np.nan))
    return finite[1:-1] & ~finite[:-2] & ~finite[2:]
