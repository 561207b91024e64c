"""An inspection as one HTML page that needs nothing else."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from sparsegroup.reporting.charts import COLOURS, INK, svg_element
from sparsegroup.reporting.formatting import count, percent, short, size, trim_exponent
from sparsegroup.reporting.page import Tile, field_rows, page_environment
from sparsegroup.serving.inspection import (
    Float64s,
    Histogram,
    Inspection,
    RegularizationEffect,
    lead_of,
    sections,
    share_of,
    title_of,
)

_INCHES = (5.4, 2.5)
_MEASURES = (0, 0.25, 0.5, 0.75, 1, 4 / 3, 2, 4, math.inf)
"""Ticks of the threshold's chart."""


def render_inspection(inspection: Inspection) -> str:
    """The inspection as a page that loads nothing, holds no script, and is the same for the same argument."""
    total, sizes, samples = inspection.total, inspection.sizes, inspection.samples
    part = percent(share_of(sizes.live_vectors, sizes.dense_table))
    tiles = [
        Tile(
            "Feature rate",
            percent(share_of(total.live, total.seen)),
            f"{count(total.live)} live of {count(total.seen)}",
        ),
        Tile("Live vectors", size(sizes.live_vectors), f"{part} of a dense table"),
        Tile("Table in memory", size(sizes.table.total), f"{count(total.rows)} rows, with all they hold"),
        Tile(
            "Samples",
            short(math.nan if samples is None else samples),
            "not recorded" if samples is None else "trained on",
        ),
    ]
    return (
        page_environment("sparsegroup.serving")
        .get_template("inspection.html.jinja")
        .render(
            inspection=inspection,
            title=title_of(inspection),
            lead=lead_of(inspection),
            tiles=tiles,
            fields=field_rows(inspection.fields),
            sections=sections(inspection),
            norms=_norms_svg(inspection.norms),
            threshold=_threshold_svg(inspection.regularized),
        )
    )


def _norms_svg(norms: Histogram) -> str | None:
    if not norms.counts:
        return None

    def draw(figure: Figure) -> None:
        axes: Axes = figure.subplots()
        _bars(axes, np.array(norms.edges), norms)
        axes.set_xscale("log")
        subs = (1.0,) if math.log10(norms.edges[-1] / norms.edges[0]) >= 3 else (1.0, 2.0, 5.0)
        axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: trim_exponent(f"{value:g}")))
        axes.set_xlabel("‖x‖")
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))
        _finish(axes)

    return svg_element("norms", _INCHES, draw)


def _threshold_svg(effect: RegularizationEffect) -> str | None:
    """Zero rows left of 1 by their measure, live rows right of it by its inverse."""
    if effect.measure is None:
        return None

    def draw(figure: Figure) -> None:
        axes: Axes = figure.subplots()
        if effect.zero is not None:
            _bars(axes, np.array(effect.zero.histogram.edges), effect.zero.histogram, alpha=0.4)
        if effect.live is not None:
            _bars(axes, 2 - np.array(effect.live.histogram.edges), effect.live.histogram)
        axes.axvline(1, color=INK, linestyle="--", linewidth=1.1)
        last = 2 if effect.live is not None else 1
        axes.set_xlim(-0.03, last + 0.03)
        places = {_place(measure): measure for measure in _MEASURES if _place(measure) <= last}
        axes.xaxis.set_major_locator(FixedLocator(list(places)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: _measure(place)))
        axes.set_xlabel(str(effect.measure))
        axes.set_yscale("symlog", linthresh=10, linscale=0.6)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_minor_locator(NullLocator())
        _finish(axes)

    return svg_element("threshold", _INCHES, draw)


def _bars(axes: Axes, edges: Float64s, of: Histogram, alpha: float | None = None) -> None:
    left = np.minimum(edges[:-1], edges[1:])
    axes.bar(left, of.counts, 0.94 * np.abs(np.diff(edges)), align="edge", color=COLOURS["orange"], alpha=alpha)


def _place(measure: float) -> float:
    return measure if measure <= 1 else 2 - 1 / measure


def _measure(place: float) -> str:
    if place >= 2:
        return "∞"
    return f"{place if place <= 1 else 1 / (2 - place):.3g}"


def _finish(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
