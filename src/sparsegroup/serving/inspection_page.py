"""What is to be said of an inspection, and as one HTML page that needs nothing else."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from sparsegroup.reporting.formatting import count, exact, percent, short, size, trim_exponent
from sparsegroup.reporting.page import Tile, field_rows, page_environment
from sparsegroup.reporting.plots import COLOURS, INK, svg_element
from sparsegroup.reporting.run_record import LargestFeature
from sparsegroup.serving.inspection import Histogram, Inspection, RegularizationEffect
from sparsegroup.settings.names import model_title, optimizer_title

Pairs = list[tuple[str, str]]


def share_of(part: float, whole: float) -> float:
    """Their ratio; NaN of nothing."""
    return part / whole if whole else math.nan


def title(inspection: Inspection) -> str:
    """Such as "DCN of dimension 8 with Group Adagrad, target rate 0.1"."""
    optimizer = inspection.optimizer
    lambdas = [
        f"{name} = {exact(value)}"
        for name, value in (("λ1", optimizer.l1), ("λ21", optimizer.l21), ("λ2", optimizer.l2))
        if value and not (name == "λ21" and optimizer.target)
    ]
    if optimizer.target:
        lambdas.insert(0, optimizer.target)
    elif optimizer.l21:
        lambdas.append(f"{optimizer.penalty}, norm {optimizer.norm}")
    network = f"{model_title(inspection.model)} of dimension {inspection.dim}{_own_dims(inspection.dims)}"
    return ", ".join([f"{network} with {optimizer_title(optimizer.name)}", *(lambdas or ["no λ"])])


def _own_dims(dims: Mapping[str, int]) -> str:
    """Such as " (C3, C7: 4; C9: 32)"."""
    parts = [
        f"{', '.join(name for name, own in dims.items() if own == dim)}: {dim}" for dim in sorted(set(dims.values()))
    ]
    return f" ({'; '.join(parts)})" if parts else ""


def lead(inspection: Inspection) -> str:
    """What it is a look into."""
    trained = "" if inspection.samples is None else f", trained on {count(inspection.samples)} samples"
    return f"{inspection.kind.capitalize()} {inspection.path}{trained}, learning rate {exact(inspection.optimizer.lr)}"


def sizes(inspection: Inspection) -> dict[str, Pairs]:
    """Heading → what takes how much."""
    table, network = inspection.sizes.table, inspection.sizes
    rows = [(part, size(used)) for part, used in table.parts.items()]
    pages = table.rows - sum(table.parts.values())
    dropped = [("dropped keys", size(table.dropped))] if table.dropped else []
    part = percent(share_of(network.live_vectors, network.dense_table))
    return {
        "Table in memory": [
            ("index", size(table.index)),
            *rows,
            ("rest of the last page", size(max(pages, 0))),
            *dropped,
            ("table", size(table.total)),
        ],
        "Model": [
            ("network", f"{size(network.network)}, {count(network.network_parameters)} parameters"),
            ("live vectors alone", f"{size(network.live_vectors)}, {part} of the dense table"),
            ("dense table of all features seen", size(network.dense_table)),
        ],
        "Files": [
            *((name, size(used)) for name, used in inspection.sizes.files.items()),
            ("together", size(sum(inspection.sizes.files.values()))),
        ],
    }


def effects(inspection: Inspection) -> Pairs:
    """What λ did: what is meant, and the figure."""
    optimizer, effect, total = inspection.optimizer, inspection.regularized, inspection.total
    zeros = f"{count(effect.zero_rows)} of {count(total.rows)}, {percent(share_of(effect.zero_rows, total.rows))}"
    gone: Pairs = [("seen, but has no row any more", count(total.seen - total.rows))] if total.seen > total.rows else []
    if not optimizer.zeroes:
        what = "nothing is regularized: λ1, λ21 and λ2 are 0"
        if optimizer.l2 > 0:
            what = "λ2 shrinks vectors; it makes none zero"
        return [("regularization", what), ("rows that are exactly zero", zeros), *gone]
    elements = share_of(effect.zero_elements, effect.live_elements)
    found: Pairs = []
    if optimizer.target:
        l21 = "not recorded in an export" if optimizer.l21 is None else f"{optimizer.l21:.3g}"
        found = [
            (optimizer.target, f"{count(total.live)} of {count(total.seen)} features are live"),
            ("λ21 in force, set by the target", l21),
            ("penalty, norm", f"{optimizer.penalty}, {optimizer.norm}"),
        ]
    if inspection.kind == "export":  # it has the live rows only
        found.append(("features seen that have no vector", _of(total.seen - total.live, total.seen)))
    else:
        found += [("rows made exactly zero", zeros), *gone]
    if optimizer.l1 > 0:
        found.append(("zeros among the elements of live rows", percent(elements)))
    if effect.zero is not None:
        found += [
            (f"{effect.measure} of zero rows, quartiles", _quartiles(effect.zero.quantiles)),
            ("zero rows within 10 % of coming back", _of(effect.zero.near, effect.zero.rows)),
        ]
    if effect.live is not None:
        found += [
            (f"{effect.measure} of live rows, quartiles", _quartiles(effect.live.quantiles)),
            ("live rows within 10 % of the threshold", _of(effect.live.near, effect.live.rows)),
        ]
    if effect.kept is not None:
        found.append(("live rows are shrunk by k, quartiles", _quartiles(effect.kept)))
    return found


def note(inspection: Inspection) -> str:
    """How the figures of `effects` are meant; empty where there is nothing to explain."""
    optimizer, effect = inspection.optimizer, inspection.regularized
    if not optimizer.zeroes:
        return ""
    if effect.measure is None:
        if inspection.kind == "export":
            lacks = "no λ21 and no optimizer state" if optimizer.l21 is None else "no optimizer state"
            return (
                f"How far rows are from the threshold is not known: an export holds {lacks}. "
                "Inspect the run or checkpoint that it was made of."
            )
        if optimizer.norm != "s":
            return f"How far rows are from the threshold is known for the norm s only, not for {optimizer.norm}."
        return "How far rows are from the threshold is not known: no row has been updated."
    said = f"A row is zero while {effect.measure} is at most 1."
    if effect.live is not None:
        said += " Of live rows it is what their next step finds if its gradient is zero, momentum left out."
    return said


def _quartiles(quantiles: Mapping[float, float]) -> str:
    """Such as "0.12, 0.16, 0.24"."""
    return ", ".join(_number(quantiles[share]) for share in (0.25, 0.5, 0.75))


def _number(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < math.inf else f"{value:.3g}"


def _of(part: int, whole: int) -> str:
    return f"{count(part)} of {count(whole)}, {percent(share_of(part, whole))}"


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
    environment = page_environment("sparsegroup.serving")
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
