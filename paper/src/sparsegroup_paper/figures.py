"""Drawing an experiment's figures: as SVG for a page, or as a picture."""

import io
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    EngFormatter,
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    ScalarFormatter,
)

from sparsegroup.reporting.charts import COLOURS
from sparsegroup.reporting.formatting import trim_exponent
from sparsegroup_paper.section import Figure, Series

INK = "#24292f"
"""Of text and axes."""

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
"""Of drawings, over matplotlib's defaults."""

_THEME = {INK: "currentColor"} | {value: f"var(--{name}, {value})" for name, value in COLOURS.items()}
"""Colour → its expression in SVG, so that the page can choose another in dark mode."""

_COLOURS = (*COLOURS.values(), INK)
_MARKERS = "os^DvPX<>p*h"
_DOTTED = (0.0, (1.0, 1.2))
_DASHED = (0.0, (5.0, 2.0))
_LEVEL = (0.0, (6.0, 2.0, 1.5, 2.0))

_LEGEND_ROW = 0.2
"""Height in inches."""


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an `<svg>` element, with the colours and the font of its page.

    Text is text, in the page's font if its CSS says so; text and axes have the colour `currentColor`, lines `--blue`
    and so on. The title is left to the page. Equal figures give equal strings.

    Args:
        figure: To draw.
        name: Unique on the page, and before each id, so that no two drawings have one in common; letters and hyphens.
    """
    width = 5.4
    buffer = io.BytesIO()
    with style.context(["default", STYLE, {"svg.hashsalt": name}]):
        canvas = Canvas(figsize=(width, 3.1 + _legend_height(figure, width)), layout="constrained")
        _draw(canvas, figure, width)
        canvas.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    svg = buffer.getvalue().decode()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)  # it would hold for the whole page
    svg = re.sub(r'( id="| xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, themed in _THEME.items():
        svg = svg.replace(colour, themed)
    return svg


def to_png(figure: Figure) -> bytes:
    """The figure with its title as a PNG, 770 pixels wide, on white."""
    width = 7.0
    with style.context(["default", STYLE]):
        canvas = Canvas(figsize=(width, 3.8 + _legend_height(figure, width)), layout="constrained")
        _draw(canvas, figure, width)
        canvas.suptitle(figure.title, fontsize="medium", fontweight="bold")
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="png", dpi=110, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def describe(figure: Figure) -> str:
    """The figure in words, for readers who do not see it."""
    return f"{figure.title}: {figure.y_label} over {figure.x_label}. {figure.note}".strip()


def _draw(canvas: Canvas, figure: Figure, width: float) -> None:
    axes = canvas.subplots()
    xs = _finite(value for series in figure.series if series.style != "level" for value in series.x)
    ys = _finite(value for series in figure.series for value in series.y)
    _scale(axes.xaxis, axes.set_xscale, figure.x_scale == "log", xs)
    _scale(axes.yaxis, axes.set_yscale, figure.y_scale == "log", ys)
    handles = [_draw_series(axes, series, index) for index, series in enumerate(figure.series)]
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    if figure.x_scale == "log":
        _tick_at_values(axes, np.unique(xs))
    else:
        axes.grid(visible=False, axis="x")
    if len(handles) > 1:
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": _legend_columns(figure, width)}
        canvas.legend(handles=handles, **place, frameon=False, fontsize="small", handlelength=2.6, columnspacing=1.4)


def _draw_series(axes: Axes, series: Series, index: int) -> Line2D:
    """Draw it, the one with that index in the figure; the result represents it in the legend.

    No two of 12 series look the same: the colour goes round after 7; then lines are dotted and markers others.
    """
    colour = _COLOURS[index % len(_COLOURS)]
    if series.style == "level":
        return axes.axhline(series.y[0], color=colour, linestyle=_LEVEL, linewidth=1.3, label=series.label)
    has_points = series.style == "points-and-line"
    linestyle: Any = _DASHED if series.style == "dashed" else _DOTTED if index >= len(_COLOURS) else "-"
    marker = _MARKERS[index % len(_MARKERS)] if has_points else ""
    line: dict[str, Any] = {"color": colour, "linestyle": linestyle, "linewidth": 1.5, "marker": marker}
    (drawn,) = axes.plot(series.x, series.y, **line, label=series.label, zorder=3)
    if series.y_error:
        bars: dict[str, Any] = {"color": colour, "elinewidth": 1, "capsize": 2.5, "zorder": 2.5}
        axes.errorbar(series.x, series.y, series.y_error, fmt="none", **bars)
    return drawn


def _scale(axis: Axis, set_scale: Callable[..., None], logarithmic: bool, values: npt.NDArray[np.float64]) -> None:
    """Choose scale and ticks of an axis for its finite values.

    A logarithmic axis that has to show 0, such as λ = 0, is linear from there to the smallest value.
    """
    if logarithmic:
        sizes = np.abs(values[values != 0])
        if (values <= 0).any() and sizes.size:
            set_scale("symlog", linthresh=sizes.min(), linscale=0.4)
        elif sizes.size:
            set_scale("log")
            decades = math.log10(sizes.max() / sizes.min())
            if decades < 0.7:
                axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            else:
                axis.set_major_locator(LogLocator(subs=(1.0,) if decades >= 2 else (1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(_tick))
        return
    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    largest = np.abs(values).max(initial=0)
    if largest >= 10_000:
        axis.set_major_formatter(EngFormatter(sep=""))
    else:
        axis.set_major_formatter(ScalarFormatter() if largest >= 1e-3 else FuncFormatter(_tick))


def _tick_at_values(axes: Axes, values: npt.NDArray[np.float64]) -> None:
    """Label the values of x themselves if they are few and far between, like a grid's."""
    places = axes.xaxis.get_transform().transform(values)
    if 1 <= len(values) <= 9 and (len(values) == 1 or np.diff(places).min() >= np.ptp(places) / 10):
        axes.xaxis.set_major_locator(FixedLocator(values.tolist()))


def _tick(value: float, _: int | None = None) -> str:
    return trim_exponent(f"{value:g}")


def _finite(values: Iterable[float]) -> npt.NDArray[np.float64]:
    array = np.fromiter(values, np.float64)
    return array[np.isfinite(array)]


def _legend_columns(figure: Figure, width: float) -> int:
    """As many as there is room for."""
    longest = max((len(series.label) for series in figure.series), default=0)
    return max(1, min(len(figure.series), int(width / (0.62 + 0.078 * longest))))


def _legend_height(figure: Figure, width: float) -> float:
    count = len(figure.series)
    return _LEGEND_ROW * (1 + math.ceil(count / _legend_columns(figure, width))) if count > 1 else 0.0
