"""Charts: a run along its pass and its scores, as SVG without matplotlib, which takes a second to import; a path."""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sparsegroup.reporting.formatting import metric, per_second, percent, prefixed, short, size
from sparsegroup.reporting.run_record import HistoryPoint, ScoreCurves

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
"""Of drawings by matplotlib, over its defaults."""

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
    last: str  # a figure from it, next to the title
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
            None if is_empty else self._svg(),
            f"{self.title} over the samples trained on: {', '.join(spans)}",
            self.note,
        )

    def _svg(self) -> str:
        values = [value for line in self.lines for value in line.values if math.isfinite(value)]
        positive = [value for value in values if value > 0]
        if self.reference is not None:
            values.append(self.reference[1])
        y = Axis.around(values, margin=0.08, shown=_TICKS.get(self.unit), least_step=1 if self.unit == "rows" else 0)
        if self.scale == "zero":
            y = Axis.of(0, 1.08 * max(positive, default=1), shown=y.shown)
        elif self.scale == "log" and positive:
            y = Axis.of_decades(min(positive), max(positive), y.shown)
        x = Axis.around(self.samples, margin=0.03, shown=prefixed, label="samples trained on", least_step=1)
        ends = (x.low, x.high)
        dashed = [] if self.reference is None else [(ends, (self.reference[1], self.reference[1]))]
        curves = [Curve(self.samples, line.values, line.colour) for line in self.lines]
        return line_svg(180, x, y, curves, dashed)


_TICKS: Mapping[Unit, Callable[[float], str]] = {  # of plain numbers: as many decimals as the axis needs
    "%": lambda share: f"{100 * share:.4g} %",
    "rows": prefixed,
    "B": lambda value: prefixed(value, "B"),
    "/s": prefixed,
    "λ": lambda value: f"{value:.3g}",
}


@dataclass(frozen=True)
class Axis:
    """An axis of a drawing."""

    low: float
    high: float
    ticks: Sequence[float]
    shown: Callable[[float], str]
    label: str = ""
    is_log: bool = False

    @classmethod
    def of(
        cls,
        low: float,
        high: float,
        shown: Callable[[float], str] | None,
        label: str = "",
        most: int = 5,
        least_step: float = 0,
    ) -> "Axis":
        """An axis from `low` to `high` with at most about `most` ticks, at multiples of 1, 2, 2.5 or 5 times 10ⁿ."""
        power = 10.0 ** math.floor(math.log10((high - low) / most))
        steps = (factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= (high - low) / most)
        step = max(next(steps), least_step)
        places = max(0, 2 - math.floor(math.log10(step)))
        numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        ticks = [round(number * step, places) for number in numbers]
        decimals = next((count for count in range(places) if round(step, count) == round(step, places)), places)
        return cls(low, high, ticks, shown or (lambda value: f"{value:.{decimals}f}"), label)

    @classmethod
    def around(
        cls,
        values: Sequence[float],
        margin: float,
        shown: Callable[[float], str] | None,
        label: str = "",
        least_step: float = 0,
    ) -> "Axis":
        """An axis with a margin at both ends, in parts of the range of the values."""
        low, high = min(values), max(values)
        room = margin * (high - low) or 0.05 * abs(high) or 0.05
        return cls.of(low - room, high + room, shown, label, least_step=least_step)

    @classmethod
    def of_decades(cls, least: float, largest: float, shown: Callable[[float], str]) -> "Axis":
        """A logarithmic axis that ends at powers of 10: so it has two ticks at least."""
        low, high = math.floor(math.log10(least)), math.ceil(math.log10(largest))
        high = max(high, low + 1)
        ticks = [10.0**power for power in range(low, high + 1, math.ceil((high - low) / 5))]
        return cls(10.0**low, 10.0**high, ticks, shown, is_log=True)

    def part(self, value: float) -> float:
        """How far along the axis a value is, from 0 to 1; NaN if it is nowhere on it."""
        if not self.is_log:
            return (value - self.low) / (self.high - self.low)
        return math.log(value / self.low) / math.log(self.high / self.low) if value > 0 else math.nan


@dataclass(frozen=True)
class Curve:
    """Points joined by a line; NaN leaves a gap, and a lone point is a dot, as all are with `dots`."""

    x: Sequence[float]
    y: Sequence[float]
    colour: Colour
    dots: bool = False


def line_svg(
    height: int,
    x: Axis,
    y: Axis,
    curves: Sequence[Curve],
    dashed: Sequence[tuple[tuple[float, float], tuple[float, float]]] = (),
) -> str:
    """A drawing as an `<svg>` element for a page, 390 units wide: text in the page's font, colours from its CSS.

    Args:
        height: Its height.
        x, y: The axes.
        curves: Drawn one over the other.
        dashed: Two x and two y each: the ends of dashed lines.
    """
    texts = [y.shown(tick) for tick in y.ticks]
    left, right = 12 + 6.2 * max(map(len, texts), default=0) + (14 if y.label else 0), 384.0
    top, bottom = 6.0, height - 34.0

    def at(across: float, up: float) -> tuple[float, float]:
        return round(left + x.part(across) * (right - left), 2), round(bottom - y.part(up) * (bottom - top), 2)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 390 {height}" font-size="10">']
    parts.append(f'<path d="M{left:.2f} {top}V{bottom}H{right}" {_STROKE} stroke-width=".6"/>')
    for tick, text in zip(y.ticks, texts, strict=True):
        _, down = at(x.low, tick)
        parts.append(f'<path d="M{left:.2f} {down}H{right}" {_STROKE} stroke-width=".6" stroke-opacity=".15"/>')
        parts.append(f'<text x="{left - 5:.2f}" y="{down + 3.5:.2f}" text-anchor="end">{text}</text>')
    for tick in x.ticks:
        across, _ = at(tick, y.high)
        parts.append(f'<path d="M{across} {bottom}v3" {_STROKE} stroke-width=".6"/>')
        parts.append(f'<text x="{across}" y="{bottom + 14}" text-anchor="middle">{x.shown(tick)}</text>')
    middle = (left + right) / 2
    parts.append(f'<text x="{middle:.2f}" y="{height - 5}" text-anchor="middle">{x.label}</text>')
    if y.label:
        turned = f'transform="translate(10 {(top + bottom) / 2}) rotate(-90)"'
        parts.append(f'<text {turned} text-anchor="middle">{y.label}</text>')
    for (x0, x1), (y0, y1) in dashed:
        (a, b), (c, d) = at(x0, y0), at(x1, y1)
        parts.append(f'<path d="M{a} {b}L{c} {d}" {_STROKE} stroke-width="1.1" stroke-dasharray="4 2"/>')
    for curve in curves:
        colour = f"var(--{curve.colour}, {COLOURS[curve.colour]})"
        points = list(map(at, curve.x, curve.y))
        for run in _without_gaps(points):
            if len(run) > 1:
                joined = " ".join(f"{across},{down}" for across, down in run)
                parts.append(f'<polyline points="{joined}" fill="none" style="stroke: {colour}" stroke-width="1.8"/>')
            for across, down in run if curve.dots or len(run) == 1 else ():
                parts.append(f'<circle cx="{across}" cy="{down}" r="2.5" style="fill: {colour}"/>')
    return "\n".join([*parts, "</svg>"])


_STROKE = 'fill="none" stroke="currentColor"'


def _without_gaps(points: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """The stretches of points between those that are nowhere."""
    for is_drawn, run in groupby(points, lambda point: math.isfinite(sum(point))):
        if is_drawn:
            yield list(run)


def run_charts(history: Sequence[HistoryPoint], test_auc: float | None) -> list[Chart]:
    """All charts of a run, in the order to show them: quality, then sparsity, then cost.

    Progressive AUC has the test set's as a reference unless it is None or NaN.
    """
    samples = [point.samples for point in history]
    tested = None if test_auc is None or math.isnan(test_auc) else (f"test set: {test_auc:.4f}", test_auc)

    def line(label: str, attribute: str, colour: Colour = "blue") -> list[Line]:
        """A line, or none if no point has the attribute."""
        values = [getattr(point, attribute) for point in history]
        known = [math.nan if value is None else value for value in values]
        return [Line(label, known, colour)] if any(value is not None for value in values) else []

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


def svg_element(name: str, inches: tuple[float, float], draw: "Callable[[Figure], None]") -> str:
    """What `draw` puts on a figure of matplotlib, as an `<svg>` element to stand in a page.

    Text is text, in the page's font if its CSS says so; text and axes have the colour `currentColor`, lines `--blue`
    and so on. Equal drawings give equal strings.

    Args:
        name: Before each id, so that drawings of different names have none in common; letters and hyphens.
        inches: Width and height.
        draw: Given the figure.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

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


_TOP = 0.1
"""The share of the rows whose lift the text of a chart has."""

_Curves = Sequence[tuple[str, Colour, ScoreCurves]]


def score_figures(model: ScoreCurves | None, baseline: ScoreCurves | None) -> list[DrawnChart]:
    """The reliability plot and the gains of a model, with the baseline's where there are some; empty without any."""
    if model is None:
        return []
    curves: list[tuple[str, Colour, ScoreCurves]] = [("model", "blue", model)]
    if baseline is not None:
        curves.append(("baseline", "gold", baseline))
    figures = [_reliability([one for one in curves if one[2].reliability])]
    if model.gains:
        figures.append(_gains([one for one in curves if one[2].gains]))
    return figures


def _reliability(curves: _Curves) -> DrawnChart:
    farthest = max(max(one.predicted, one.actual) for _, _, curve in curves for one in curve.reliability)
    drawn = [
        Curve([b.predicted for b in one.reliability], [b.actual for b in one.reliability], colour, dots=True)
        for _, colour, one in reversed(curves)
    ]
    bins = curves[0][2].reliability
    said = f"from {percent(bins[0].predicted)} predicted, {percent(bins[0].actual)} positive, to "
    said += f"{percent(bins[-1].predicted)} predicted, {percent(bins[-1].actual)} positive"
    return DrawnChart(
        "Reliability",
        f"{len(bins)} bins of about as many rows",
        [*((name, colour) for name, colour, _ in curves), ("perfect", "reference")],
        _svg_of_shares(farthest, "mean prediction", "share of positives", drawn),
        f"Share of positives by prediction: {said}",
    )


def _gains(curves: _Curves) -> DrawnChart:
    drawn = [
        Curve([0, *(p.share for p in one.gains)], [0, *(p.captured for p in one.gains)], colour, dots=True)
        for _, colour, one in reversed(curves)
    ]
    top = next(point for point in curves[0][2].gains if point.share >= _TOP)
    said = f"the top {top.share:.0%} of the rows hold {percent(top.captured)} of the positives"
    return DrawnChart(
        "Gains",
        f"lift at {top.share:.0%}: {top.captured / top.share:.2f}",
        [*((name, colour) for name, colour, _ in curves), ("by chance", "reference")],
        _svg_of_shares(1.0, "rows of the highest predictions", "of all positives", drawn),
        f"Share of the positives among the highest predictions: {said}",
    )


def _svg_of_shares(farthest: float, across: str, up: str, curves: Sequence[Curve]) -> str:
    """Curves of shares up to `farthest`, with a dashed diagonal."""
    x, y = (Axis.of(0, 1.05 * farthest or 1, lambda share: f"{100 * share:.4g} %", label, 6) for label in (across, up))
    return line_svg(245, x, y, curves, [((0, farthest), (0, farthest))])


def plot_path(
    points: Sequence[tuple[float, float, int]],
    all_features: float,
    tolerance: float,
    begins: float | None,
    title: str,
    path: Path,
) -> None:
    """Test AUC by feature rate, against the AUC of all features, as a PNG.

    Args:
        points: Feature rate, AUC and bytes of models; one of rate 0 has no place on a logarithmic axis.
        all_features: The AUC of all features.
        tolerance: AUC that counts as no loss: a band.
        begins: The smallest rate without a loss, marked; None if there is none.
        title: Above the plot.
        path: The file.
    """
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    with style.context(["default", STYLE]):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.axhspan(all_features - tolerance, all_features, color=INK, alpha=0.08, linewidth=0)
        axes.axhline(all_features, color=INK, linestyle="--", linewidth=1.1, label=f"all features: {all_features:.4f}")
        by_rate = sorted(point for point in points if point[0] > 0)
        axes.plot([r for r, _, _ in by_rate], [a for _, a, _ in by_rate], "o-", color=COLOURS["orange"])
        for rate, auc, count in by_rate:
            axes.annotate(
                f"{auc:.4f}\n{size(count)}",
                (rate, auc),
                (0, -9),
                textcoords="offset points",
                ha="center",
                va="top",
                bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1.5},
            )
        if begins:
            chosen = next(auc for rate, auc, _ in by_rate if rate == begins)
            label = f"no loss (of more than {tolerance:g}) down to {100 * begins:.2g} %"
            axes.plot([begins], [chosen], "o", markersize=13, fillstyle="none", color=COLOURS["blue"], label=label)
        axes.set_xscale("log")
        axes.set_xticks([rate for rate, _, _ in by_rate])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{100 * rate:.2g} %"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.margins(0.12, 0.3)
        axes.set_title(title, parse_math=False)
        axes.set(xlabel="feature rate: live features over features seen", ylabel="test AUC")
        axes.legend(loc="lower right", frameon=False)
        with warnings.catch_warnings():  # a letter of a name that the font does not have is a box
            warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
            figure.savefig(path, format="png", dpi=150, facecolor="white")
