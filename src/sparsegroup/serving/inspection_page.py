"""An inspection as one HTML page that needs nothing else."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

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


def render_inspection(inspection: Inspection) -> str:
    """The inspection as a page that loads nothing, holds no script, and is the same for the same argument."""
    total, sizes, samples = inspection.total, inspection.sizes, inspection.samples
    rate, part = share_of(total.live, total.seen), share_of(sizes.live_vectors, sizes.dense_table)
    trained = ("–", "not recorded") if samples is None else (short(samples), "trained on")
    tiles = [
        Tile("Feature rate", percent(rate), f"{count(total.live)} live of {count(total.seen)}"),
        Tile("Live vectors", size(sizes.live_vectors), f"{percent(part)} of a dense table"),
        Tile("Table in memory", size(sizes.table.total), f"{count(total.rows)} rows, with all they hold"),
        Tile("Samples", *trained),
    ]
    template = page_environment("sparsegroup.serving").get_template("inspection.html.jinja")
    return template.render(
        inspection=inspection,
        title=title_of(inspection),
        lead=lead_of(inspection),
        tiles=tiles,
        fields=field_rows(inspection.fields),
        sections=sections(inspection),
        norms=_norms_svg(inspection.norms),
        threshold=_threshold_svg(inspection.regularized),
    )


def _norms_svg(norms: Histogram) -> str | None:
    def draw(figure: Figure) -> None:
        axes = _axes(figure, "‖x‖")
        _bars(axes, np.array(norms.edges), norms)
        axes.set_xscale("log")
        subs = (1.0,) if math.log10(norms.edges[-1] / norms.edges[0]) >= 3 else (1.0, 2.0, 5.0)
        axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: trim_exponent(f"{value:g}")))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))

    return svg_element("norms", _INCHES, draw) if norms.counts else None


def _threshold_svg(effect: RegularizationEffect) -> str | None:
    """Zero rows left of 1 by their measure m, live rows right of it at 2 - 1 / m."""

    def draw(figure: Figure) -> None:
        axes = _axes(figure, str(effect.measure))
        if effect.zero is not None:
            _bars(axes, np.array(effect.zero.histogram.edges), effect.zero.histogram, alpha=0.4)
        if effect.live is not None:
            _bars(axes, 2 - np.array(effect.live.histogram.edges), effect.live.histogram)
        axes.axvline(1, color=INK, linestyle="--", linewidth=1.1)
        ticks = {0.0: "0", 0.25: "0.25", 0.5: "0.5", 0.75: "0.75", 1.0: "1"}
        if effect.live is not None:
            ticks |= {1.25: "1.33", 1.5: "2", 1.75: "4", 2.0: "∞"}
        axes.set_xlim(-0.03, max(ticks) + 0.03)
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.set_yscale("symlog", linthresh=10, linscale=0.6)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))

    return svg_element("threshold", _INCHES, draw) if effect.measure is not None else None


def _axes(figure: Figure, label: str) -> Axes:
    axes: Axes = figure.subplots()
    axes.set_xlabel(label)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    return axes


def _bars(axes: Axes, edges: Float64s, of: Histogram, alpha: float | None = None) -> None:
    left = np.minimum(edges[:-1], edges[1:])
    axes.bar(left, of.counts, 0.94 * np.abs(np.diff(edges)), align="edge", color=COLOURS["orange"], alpha=alpha)
