"""Charts as SVG: a run along its pass, its scores, histograms, and test AUC by size."""

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Literal

from sparsegroup.reporting.formatting import metric, per_second, percent, prefixed, short, size
from sparsegroup.reporting.run_record import AnyMetrics, ClassMetrics, HistoryPoint, Metrics, NumberMetrics, ScoreCurves

Colour = Literal["blue", "orange", "green", "pink", "gold", "sky"]
COLOURS: Mapping[Colour, str] = {
    "blue": "#0072b2",
    "orange": "#d55e00",
    "green": "#009e73",
    "pink": "#cc79a7",
    "gold": "#e69f00",
    "sky": "#56b4e9",
}
"""Of lines; the colour-blind can tell them apart (Okabe and Ito). A page's CSS can choose others in dark mode."""

Shown = Callable[[float], str]
Place = Callable[[float, float], tuple[float, float]]
"""From values on both axes to units across and down."""


@dataclass(frozen=True)
class Axis:
    """An axis of a drawing."""

    low: float
    high: float
    ticks: Mapping[float, str]  # value → text
    label: str = ""
    scale: Callable[[float], float] = float  # what is uniform along the axis; NaN for a value that has no place

    @classmethod
    def linear(
        cls, low: float, high: float, shown: Shown | None = None, label: str = "", most: int = 5, least_step: float = 0
    ) -> "Axis":
        """An axis with at most about `most` ticks, at multiples of 1, 2, 2.5 or 5 times 10ⁿ, with equal decimals."""
        power = 10.0 ** math.floor(math.log10((high - low) / most))
        steps = (factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= (high - low) / most)
        step = max(next(steps), least_step)
        places = max(0, 2 - math.floor(math.log10(step)))
        numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
        decimals = next((count for count in range(places) if round(step, count) == round(step, places)), places)
        ticks = (round(number * step, places) for number in numbers)
        return cls(low, high, {tick: shown(tick) if shown else f"{tick:.{decimals}f}" for tick in ticks}, label)

    @classmethod
    def logarithmic(cls, low: float, high: float, shown: Shown, label: str = "") -> "Axis":
        """A logarithmic axis with ticks at powers of 10, and on a short one also at 2 and 5 times these."""
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        factors = (1, 2, 5) if last - first <= 2 else (1,)
        powers = range(first, last + 1, math.ceil((last - first) / 6) or 1)
        ticks = [tick for power in powers for factor in factors if low <= (tick := factor * 10.0**power) <= high]
        return cls(low, high, {tick: shown(tick) for tick in ticks}, label, _log)

    @classmethod
    def counts(cls, most: float) -> "Axis":
        """An axis of counts, for which 1 of many is still seen: log(1 + count)."""
        ticks = (0, *(10**power for power in range(len(str(int(most))))))
        return cls(0, 1.1 * most, {tick: prefixed(tick) for tick in ticks}, scale=math.log1p)

    def part(self, value: float) -> float:
        """How far along the axis a value is, from 0 to 1."""
        low, at, high = map(self.scale, (self.low, value, self.high))
        return (at - low) / (high - low)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else math.nan


def with_room(values: Sequence[float], margin: float) -> tuple[float, float]:
    """The range of the values with a margin at both ends, in parts of the range."""
    low, high = min(values), max(values)
    room = margin * (high - low) or 0.05 * abs(high) or 0.05
    return low - room, high + room


@dataclass(frozen=True)
class Curve:
    """Points joined by a line, dashed without a colour; NaN leaves a gap; a lone point is a dot, as all with `dots`."""

    x: Sequence[float]
    y: Sequence[float]
    colour: Colour | None = None
    dots: bool = False

    def drawn(self, place: Place, foot: float) -> Iterator[str]:
        """Its elements, in a drawing whose lower axis is `foot` units down."""
        stroke = 'style="stroke: currentColor" stroke-width="1.1" stroke-dasharray="4 2"'
        if self.colour is not None:
            stroke = f'style="stroke: {_css(self.colour)}" stroke-width="1.8"'
        for is_drawn, run in groupby(map(place, self.x, self.y), lambda point: math.isfinite(sum(point))):
            points = list(run) if is_drawn else []
            if len(points) > 1:
                joined = " ".join(f"{across},{down}" for across, down in points)
                yield f'<polyline points="{joined}" fill="none" {stroke}/>'
            for across, down in points if self.dots or len(points) == 1 else ():
                yield f'<circle cx="{across}" cy="{down}" r="2.5" style="fill: {_css(self.colour or "blue")}"/>'


@dataclass(frozen=True)
class Bars:
    """Bars from the lower axis up: `heights[i]` between `edges[i]` and `edges[i + 1]`."""

    edges: Sequence[float]
    heights: Sequence[float]
    colour: Colour = "orange"
    opacity: float = 1

    def drawn(self, place: Place, foot: float) -> Iterator[str]:
        """See `Curve.drawn`."""
        path = ""
        for ends, height in zip(pairwise(self.edges), self.heights, strict=True):
            (left, top), (right, _) = sorted(place(end, height) for end in ends)
            gap = 0.03 * (right - left)
            path += f"M{left + gap:.2f} {foot}V{top}H{right - gap:.2f}V{foot}z" if height else ""
        yield f'<path d="{path}" style="fill: {_css(self.colour)}" fill-opacity="{self.opacity:g}"/>'


@dataclass(frozen=True)
class Label:
    """A text on white, centred `below` units below a point."""

    x: float
    y: float
    text: str
    below: float = 0

    def drawn(self, place: Place, foot: float) -> Iterator[str]:
        """See `Curve.drawn`."""
        across, down = place(self.x, self.y)
        text = _text(across, down + self.below, self.text)
        yield f'<g stroke="#fff" stroke-width="3" paint-order="stroke" fill="currentColor">{text}</g>'


def draw(x: Axis, y: Axis, marks: Sequence[Curve | Bars | Label], height: int = 180, more: str = "") -> str:
    """A drawing as an `<svg>` element for a page, 390 units wide: text in the page's font, colours from its CSS.

    `marks` are drawn one over the other; `more` are further attributes of the element.
    """
    left, right = 12 + 6.2 * max(map(len, y.ticks.values()), default=0) + (14 if y.label else 0), 384.0
    top, bottom = 6.0, height - 34.0

    def place(across: float, up: float) -> tuple[float, float]:
        return round(left + x.part(across) * (right - left), 2), round(bottom - y.part(up) * (bottom - top), 2)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 390 {height}" font-size="10"{more}>']
    parts.append(f'<path d="M{left:.2f} {top}V{bottom}H{right}" {_STROKE} stroke-width=".6"/>')
    for tick, text in y.ticks.items():
        _, down = place(x.low, tick)
        parts.append(f'<path d="M{left:.2f} {down}H{right}" {_STROKE} stroke-width=".6" stroke-opacity=".15"/>')
        parts.append(_text(left - 5, down + 3.5, text, "end"))
    for tick, text in x.ticks.items():
        across, _ = place(tick, y.high)
        parts.append(f'<path d="M{across} {bottom}v3" {_STROKE} stroke-width=".6"/>')
        parts.append(_text(across, bottom + 14, text))
    parts.append(_text((left + right) / 2, height - 5, x.label))
    if y.label:
        parts.append(f'<g transform="translate(10 {(top + bottom) / 2}) rotate(-90)">{_text(0, 0, y.label)}</g>')
    return "\n".join([*parts, *(element for mark in marks for element in mark.drawn(place, bottom)), "</svg>"])


_STROKE = 'fill="none" stroke="currentColor"'


def _text(across: float, down: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{across:.2f}" y="{down:.2f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _css(colour: Colour) -> str:
    return f"var(--{colour}, {COLOURS[colour]})"


@dataclass(frozen=True)
class Chart:
    """A chart on a page."""

    title: str
    last: str  # a figure from it, next to the title
    keys: Sequence[tuple[str, str]]  # label and CSS class of its lines
    svg: str | None  # None if there is nothing to draw
    description: str  # the drawing in words
    note: str = ""  # below it: what explains its shape
    empty: str = "No point has a value."  # shown where there is no drawing


Unit = Literal["", "%", "rows", "B", "/s", "λ"]
"""Of values: "" for plain numbers, "%" for shares of 1, "λ" for numbers of any size."""

_SHOWN: Mapping[Unit, tuple[Shown, Shown | None]] = {  # a value, and a tick: None for as many decimals as an axis needs
    "": (metric, None),
    "%": (percent, lambda share: f"{100 * share:.4g} %"),
    "rows": (short, prefixed),
    "B": (size, lambda value: prefixed(value, "B")),
    "/s": (per_second, prefixed),
    "λ": (lambda value: f"{value:.3g}",) * 2,
}
_NEXT, _BASELINE = "next samples (test, then train)", "baseline"  # labels of lines
_LAG = 1.1

Line = tuple[str, str, Colour]
"""Label, attribute of a point, and colour."""


def run_charts(history: Sequence[HistoryPoint], test_auc: float | None) -> list[Chart]:
    """All charts of a run, in the order to show them: quality, then sparsity, then cost.

    Progressive AUC has the test set's as a reference unless it is None or NaN.
    """
    tested = None if test_auc is None or math.isnan(test_auc) else (f"test set: {test_auc:.4f}", test_auc)
    auc: list[Line] = [(_NEXT, "auc", "blue"), (_BASELINE, "baseline_auc", "gold")]
    calibration: Line = (_NEXT, "calibration", "blue")
    log_loss: list[Line] = [
        (_NEXT, "log_loss", "blue"),
        ("validation, after each epoch", "validation_log_loss", "orange"),
        (_BASELINE, "baseline_log_loss", "gold"),
    ]
    entropy: Line = ("normalized entropy", "normalized_entropy", "blue")
    loss: list[Line] = [
        (_NEXT, "loss", "blue"),
        ("validation, after each epoch", "validation_loss", "orange"),
        (_BASELINE, "baseline_loss", "gold"),
    ]
    ndcg: list[Line] = [
        (_NEXT, "ndcg", "blue"),
        ("validation, after each epoch", "validation_ndcg", "orange"),
        (_BASELINE, "baseline_ndcg", "gold"),
    ]
    rates: list[Line] = [("feature rate", "feature_rate", "orange"), ("scheduled", "scheduled_rate", "blue")]
    rows: list[Line] = [("live rows", "live_rows", "orange"), ("features seen", "features_seen", "blue")]
    charts = (
        along("Accuracy", "", history, [(_NEXT, "accuracy", "blue")]),
        along("AUC", "", history, auc, tested),
        along("NDCG@10", "", history, ndcg),
        along("Grouped AUC", "", history, [(_NEXT, "gauc", "blue")], ("by chance: 0.5", 0.5)),
        along("Loss", "", history, loss),
        along("Relative loss", "", history, [("relative loss", "relative_loss", "blue")], ("a constant: 1", 1.0)),
        along("RMSE", "", history, [(_NEXT, "rmse", "blue")]),
        along("Calibration", "", history, [calibration], ("perfect: 1", 1.0)),
        along("Log loss", "", history, log_loss),
        along("Normalized entropy", "", history, [entropy]),
        along("Feature rate", "%", history, rates, scale="zero", note=_lag_note(history)),
        along("λ21", "λ", history, [("λ21", "l21", "green")], scale="zero"),
        along("Live rows and features seen", "rows", history, rows, scale="log"),
        along("Samples per second", "/s", history, [("samples per second", "samples_per_s", "blue")], scale="zero"),
        along("Table size", "B", history, [("table", "table_bytes", "blue")], scale="zero"),
    )
    return [chart for chart in charts if chart is not None]


def along(
    title: str,
    unit: Unit,
    history: Sequence[Any],
    lines: Sequence[Line],
    reference: tuple[str, float] | None = None,
    scale: Literal["fit", "zero", "log"] = "fit",
    note: str = "",
) -> Chart | None:
    """A chart over the samples trained on, with a dashed line across at `reference`; None if no point has a value.

    `history` are points with `samples` and the attributes of the lines.
    """
    samples, (show, shown) = [point.samples for point in history], _SHOWN[unit]
    curves: dict[str, Curve] = {}
    for label, attribute, colour in lines:
        given = [getattr(point, attribute) for point in history]
        if any(value is not None for value in given):
            curves[label] = Curve(samples, [math.nan if value is None else value for value in given], colour)
    if not curves:
        return None
    (_, first), *others = curves.items()
    last = show(first.y[-1]) + "".join(
        (f", {label} " if label == _BASELINE else " of ") + show(one.y[-1]) for label, one in others
    )
    keys: list[tuple[str, str]] = [(label, curve.colour or "reference") for label, curve in curves.items()]
    keys += [] if reference is None else [(reference[0], "reference")]
    spans = [f"{label} from {show(curve.y[0])} to {show(curve.y[-1])}" for label, curve in curves.items()]
    svg, values = None, [value for curve in curves.values() for value in curve.y if math.isfinite(value)]
    if values:
        positive = [value for value in values if value > 0]
        values += [] if reference is None else [reference[1]]
        if scale == "log" and positive:
            low, high = (
                10.0 ** edge(math.log10(value))
                for edge, value in ((math.floor, min(positive)), (math.ceil, max(positive)))
            )
            y = Axis.logarithmic(low, max(high, 10 * low), shown or metric)
        elif scale == "zero":
            y = Axis.linear(0, 1.08 * max(positive, default=1), shown)
        else:
            y = Axis.linear(*with_room(values, 0.08), shown, least_step=1 if unit == "rows" else 0)
        x = Axis.linear(*with_room(samples, 0.03), prefixed, "samples trained on", least_step=1)
        across = [] if reference is None else [Curve((x.low, x.high), (reference[1], reference[1]))]
        svg = draw(x, y, [*across, *curves.values()])
    description = f"{title} over the samples trained on: {', '.join(spans)}"
    return Chart(title, f"last {last}", keys if len(keys) > 1 else (), svg, description, note)


def _lag_note(history: Sequence[HistoryPoint]) -> str:
    """Why the feature rate is above its schedule, and what brings it down; empty if it is not."""
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
    before, *after = history[late[-1] : late[-1] + 2]
    if after and before.feature_rate >= _LAG * after[0].feature_rate:
        fall = f"from {percent(before.feature_rate)} to {percent(after[0].feature_rate)}"
        note += f" The sweep of all rows by {after[0].samples:,} samples removed theirs: {fall}."
    return note


def score_charts(
    model: ScoreCurves | None, baseline: ScoreCurves | None, kind: type[AnyMetrics] = Metrics
) -> list[Chart]:
    """The reliability plot and the gains of a model, with the baseline's where there are some; empty without any.

    If labels are numbers, the reliability plot is of their means; if they are classes, of the likeliest ones.
    """
    if model is None or not model.reliability:
        return []
    scored, bins = [model] if baseline is None else [model, baseline], model.reliability
    points = [[(one.predicted, one.actual) for one in of.reliability] for of in scored if of.reliability]
    if kind is NumberMetrics:
        said = f"from {bins[0].predicted:.4g} predicted, {bins[0].actual:.4g} actual, to "
        said += f"{bins[-1].predicted:.4g} predicted, {bins[-1].actual:.4g} actual"
        texts = ("Labels by prediction", f"{len(bins)} bins of about as many rows", f"Mean label by prediction: {said}")
        return [_of_points(texts, ("mean prediction", "mean label", "perfect"), points, lambda value: f"{value:.4g}")]
    what, share = ("right", "share of right classes") if kind is ClassMetrics else ("positive", "share of positives")
    said = f"from {percent(bins[0].predicted)} predicted, {percent(bins[0].actual)} {what}, to "
    said += f"{percent(bins[-1].predicted)} predicted, {percent(bins[-1].actual)} {what}"
    texts = ("Reliability", f"{len(bins)} bins of about as many rows", f"{share.capitalize()} by prediction: {said}")
    charts = [_of_points(texts, ("mean prediction", share, "perfect"), points)]
    if model.gains:
        points = [[(0.0, 0.0), *((one.share, one.captured) for one in of.gains)] for of in scored if of.gains]
        top = next(point for point in model.gains if point.share >= 0.1)
        said = f"the top {top.share:.0%} of the rows hold {percent(top.captured)} of the positives"
        lift = f"lift at {top.share:.0%}: {top.captured / top.share:.2f}"
        texts = ("Gains", lift, f"Share of the positives among the highest predictions: {said}")
        labels = ("rows of the highest predictions", "of all positives", "by chance")
        charts.append(_of_points(texts, labels, points))
    return charts


def _of_points(
    texts: tuple[str, str, str],
    labels: tuple[str, str, str],
    points: Sequence[Sequence[tuple[float, float]]],
    shown: Shown = lambda share: f"{100 * share:.4g} %",
) -> Chart:
    """Points of the model, then of the baseline, with a dashed diagonal: the last label. Axes begin at 0 or below."""
    values = [value for of in points for point in of for value in point]
    least, farthest = min(0.0, *values), max(0.0, *values)
    colours: dict[str, Colour] = {"model": "blue", "baseline": "gold"}
    curves = [
        Curve([x for x, _ in of], [y for _, y in of], colour, True)
        for of, colour in zip(points, colours.values(), strict=False)
    ]
    x, y = (Axis.linear(1.05 * least, 1.05 * farthest or 1, shown, label, 6) for label in labels[:2])
    svg = draw(x, y, [Curve((least, farthest), (least, farthest)), *reversed(curves)], 245)
    title, last, description = texts
    return Chart(title, last, [*list(colours.items())[: len(curves)], (labels[2], "reference")], svg, description)


def path_svg(
    points: Sequence[tuple[float, float, int]],
    all_features: float,
    tolerance: float,
    begins: float | None,
    title: str,
    measure: str = "AUC",
) -> str:
    """A measure of test rows by feature rate, against that of all features, as the content of an SVG file.

    `points` are feature rate, measure and bytes of models; one of rate 0 has no place on a logarithmic axis. The rate
    `begins`, the smallest one that loses no more of the measure than `tolerance`, is marked if there is one.
    """
    by_rate = sorted(point for point in points if point[0] > 0)
    rates, aucs = [rate for rate, _, _ in by_rate], [auc for _, auc, _ in by_rate]
    low, high = with_room([math.log(rate) for rate in rates or (0.01, 1.0)], 0.12)
    ticks = {rate: f"{100 * rate:.2g} %" for rate in rates}
    x = Axis(math.exp(low), math.exp(high), ticks, "feature rate: live features over features seen", math.log)
    least, most = with_room([*aucs, all_features], 0.25)
    y = Axis.linear(least, most + 0.15 * (most - least), label=f"test {measure}")
    middle = math.exp((low + high) / 2)
    marks: list[Curve | Label] = [
        Curve((x.low, x.high), (all_features, all_features)),
        Curve(rates, aucs, "orange", dots=True),
        *(Label(rate, auc, metric(auc), 14) for rate, auc, _ in by_rate),
        *(Label(rate, auc, size(count), 25) for rate, auc, count in by_rate),
        Label(middle, y.high, title, 6),
        Label(middle, all_features, f"all features: {all_features:.4f}", -4),
    ]
    if begins is not None:
        marks.append(Curve([begins], [aucs[rates.index(begins)]], "blue"))
        marks.append(
            Label(
                middle, y.high, f"blue: no loss of more than {tolerance:g} {measure} down to {100 * begins:.2g} %", 18
            )
        )
    look = ' width="780" font-family="system-ui, sans-serif" color="#24292f" style="background: #fff"'
    return draw(x, y, marks, 240, look) + "\n"
