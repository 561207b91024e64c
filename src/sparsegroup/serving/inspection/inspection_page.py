"""An inspection as one HTML page that needs nothing else."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from sparsegroup.reporting.formatting import count, percent, short, size, trim_exponent
from sparsegroup.reporting.page import Tile, field_rows, page_environment
from sparsegroup.reporting.plots import COLOURS, INK, svg_element
from sparsegroup.reporting.run_record import LargestFeature
from sparsegroup.serving.inspection.histogram import Histogram
from sparsegroup.serving.inspection.inspect_model import Inspection, RegularizationEffect
from sparsegroup.serving.inspection.wording import effects, lead, note, share_of, sizes, title

_INCHES = (5.4, 2.5)
_MEASURES = (0, 0.25, 0.5, 0.75, 1, 4 / 3, 2, 4, math.inf)
"""Ticks of the threshold's chart."""


def render_inspection(inspection: Inspection) -> str:
    """The inspection as a page that loads nothing, holds no script, and is the same for the same argument."""
    total = inspection.total
    live = share_of(inspection.sizes.live_vectors, inspection.sizes.dense_table)
    tiles = [
        Tile(
            "Feature rate",
            percent(share_of(total.live, total.seen)),
            f"{count(total.live)} live of {count(total.seen)}",
        ),
        Tile("Live vectors", size(inspection.sizes.live_vectors), f"{percent(live)} of a dense table"),
        Tile("Table in memory", size(inspection.sizes.table.total), f"{count(total.rows)} rows, with all they hold"),
        Tile(
            "Samples",
            short(math.nan if inspection.samples is None else inspection.samples),
            "trained on" if inspection.samples is not None else "not recorded",
        ),
    ]
    environment = page_environment("sparsegroup.serving.inspection")
    environment.filters.update(feature=feature_name)
    return environment.get_template("inspection.html.jinja").render(
        inspection=inspection,
        title=title(inspection),
        lead=lead(inspection),
        tiles=tiles,
        fields=field_rows(inspection.fields),
        effects=effects(inspection),
        note=note(inspection),
        sizes=sizes(inspection),
        norms=_norms_svg(inspection.norms),
        threshold=_threshold_svg(inspection.regularized),
        largest=max((feature.norm for feature in inspection.top), default=math.nan),
        named=any(feature.value is not None for feature in inspection.top),
    )


def feature_name(feature: LargestFeature) -> str:
    """Its value, or its key where that is not known."""
    return str(feature.key) if feature.value is None else feature.value or "(missing)"


def _norms_svg(norms: Histogram) -> str | None:
    if not norms.counts:
        return None

    def draw(figure: Figure) -> None:
        axes: Axes = figure.subplots()
        edges = np.array(norms.edges)
        axes.bar(edges[:-1], norms.counts, 0.94 * np.diff(edges), align="edge", color=COLOURS["orange"])
        axes.set_xscale("log")
        decades = math.log10(edges[-1] / edges[0])
        subs = (1.0,) if decades >= 3 else (1.0, 2.0, 5.0)
        axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=12))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: trim_exponent(f"{value:g}")))
        axes.set_xlabel("‖x‖")
        _finish(axes)

    return svg_element("norms", _INCHES, draw)


def _threshold_svg(effect: RegularizationEffect) -> str | None:
    """Zero rows left of 1 by their measure, live rows right of it by its inverse."""
    if effect.measure is None:
        return None

    def draw(figure: Figure) -> None:
        axes: Axes = figure.subplots()
        if effect.zero is not None:
            edges = np.array(effect.zero.histogram.edges)
            axes.bar(
                edges[:-1],
                effect.zero.histogram.counts,
                0.94 * np.diff(edges),
                align="edge",
                color=COLOURS["orange"],
                alpha=0.4,
            )
        if effect.live is not None:
            edges = np.array(effect.live.histogram.edges)
            axes.bar(
                2 - edges[1:],
                effect.live.histogram.counts,
                0.94 * np.diff(edges),
                align="edge",
                color=COLOURS["orange"],
            )
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
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        _finish(axes, linear=False)

    return svg_element("threshold", _INCHES, draw)


def _place(measure: float) -> float:
    return measure if measure <= 1 else 2 - 1 / measure


def _measure(place: float) -> str:
    if place >= 2:
        return "∞"
    return f"{place if place <= 1 else 1 / (2 - place):.3g}"


def _finish(axes: Axes, linear: bool = True) -> None:
    if linear:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
