"""An inspection to look at: as sections, and as one HTML page that needs nothing else."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsegroup.reporting.charts import Axis, Bars, Chart, Curve, draw
from sparsegroup.reporting.formatting import count, exact, metric, percent, prefixed, short, size, trim_exponent
from sparsegroup.reporting.run_record import field_rows
from sparsegroup.serving.inspection import Histogram, Inspection, RegularizationEffect
from sparsegroup.settings.names import model_title, optimizer_title


@dataclass(frozen=True)
class Section:
    """A part of an inspection, as terminal and page show it."""

    title: str
    rows: Sequence[tuple[str, ...]]  # texts, then figures
    columns: tuple[str, ...] = ()  # their names; without any, rows are names and values
    texts: int = 1  # how many of the columns are texts
    bars: Sequence[float] = ()  # a share for each row; empty for none
    note: str = ""  # how to read the figures


_TOP, _EFFECT, _SIZES = "Features of the largest norms", "What λ did", ("Table in memory", "Model", "Files")
_PER_BIN = "rows per bin"


def title_of(inspection: Inspection) -> str:
    """Such as "DCN of dimension 8 (C3, C7: 4) with Group Adagrad, target rate 0.1"."""
    optimizer, other = inspection.optimizer, inspection.dims
    dims = [f"{', '.join(name for name in other if other[name] == dim)}: {dim}" for dim in sorted(set(other.values()))]
    others = f" ({'; '.join(dims)})" if dims else ""
    network = f"{model_title(inspection.model)} of dimension {inspection.dim}{others}"
    l21 = None if optimizer.target else optimizer.l21
    lambdas = [
        *([optimizer.target] if optimizer.target else []),
        *(
            f"{name} = {exact(value)}"
            for name, value in (("λ1", optimizer.l1), ("λ21", l21), ("λ2", optimizer.l2))
            if value
        ),
        *([f"{optimizer.penalty}, norm {optimizer.norm}"] if l21 else []),
    ]
    return ", ".join([f"{network} with {optimizer_title(optimizer.name)}", *(lambdas or ["no λ"])])


def lead_of(inspection: Inspection) -> str:
    """The kind of the model, its path and its training."""
    trained = "" if inspection.samples is None else f", trained on {count(inspection.samples)} samples"
    return f"{inspection.kind.capitalize()} {inspection.path}{trained}, learning rate {exact(inspection.optimizer.lr)}"


def sections(inspection: Inspection) -> dict[str, Section]:
    """Title → section, in order; norms and features only if there are live rows."""
    fields = field_rows(inspection.fields)
    rows = [(row.name, *map(count, vars(row.count).values()), percent(row.live)) for row in fields]
    bars = [row.live for row in fields]
    parts = [Section("Feature rate", rows, ("field", "seen", "rows", "live", "rate"), bars=bars)]
    if counts := inspection.norms.counts:
        edges = [trim_exponent(f"{edge:.3g}") for edge in inspection.norms.edges]
        bins = list(zip(edges, edges[1:], map(count, counts), strict=False))
        bars = [rows / max(counts) for rows in counts]
        parts.append(Section("Norms of the live rows", bins, ("‖x‖ from", "to", "rows"), bars=bars))
    if top := inspection.top:
        texts = [str(one.key) if one.value is None else one.value or "(missing)" for one in top]
        rows = [(one.field, text, f"{one.norm:.4g}") for one, text in zip(top, texts, strict=True)]
        bars = [one.norm / top[0].norm if top[0].norm else 0.0 for one in top]
        columns = ("field", "key" if all(one.value is None for one in top) else "value", "‖x‖")
        parts.append(Section(_TOP, rows, columns, texts=2, bars=bars))
    if inspection.columns:
        most = inspection.columns[0].importance.loss
        rows = [
            (
                one.name,
                metric(one.importance.loss),
                metric(2 * one.importance.error),
                metric(one.psi),
                percent(one.unseen),
            )
            for one in inspection.columns
        ]
        bars = [max(0.0, one.importance.loss / most) if most > 0 else 0.0 for one in inspection.columns]
        titles, note = ("column", "loss", "±", "PSI", "new values"), "by how much the loss rises when it is shuffled"
        if pairs := inspection.interactions:
            shares = ", ".join(f"{' × '.join(one.columns)} {percent(one.share)}" for one in pairs)
            note += f"; pairs that interact, by their share of the logits' variance: {shares}"
        parts.append(Section("Columns, on the first test rows", rows, titles, bars=bars, note=note))
    if inspection.segments:
        worst = [
            (one.field, one.value or f"key {one.key}", count(one.rows), metric(one.calibration))
            for one in inspection.segments
        ]
        note = "predictions surely do not add up to the labels there"
        parts.append(Section("Where it is off", worst, ("field", "value", "rows", "calibration"), texts=2, note=note))
    sizes, table = inspection.sizes, inspection.sizes.table
    memory = {"index": table.index, **table.parts, "rest of the last page": table.rows - sum(table.parts.values())}
    memory |= ({"dropped keys": table.dropped} if table.dropped else {}) | {"table": table.total}
    part = percent(share_of(sizes.live_vectors, sizes.dense_table))
    model = {
        "network": f"{size(sizes.network)}, {count(sizes.network_parameters)} parameters",
        "live vectors alone": f"{size(sizes.live_vectors)}, {part} of the dense table",
        "dense table of all features seen": size(sizes.dense_table),
    }
    files = {**sizes.files, "together": sum(sizes.files.values())}
    parts += [
        Section(_EFFECT, _effects(inspection), note=_note_of(inspection)),
        Section(_SIZES[0], [(name, size(max(used, 0))) for name, used in memory.items()]),
        Section(_SIZES[1], list(model.items())),
        Section(_SIZES[2], [(name, size(used)) for name, used in files.items()]),
    ]
    return {section.title: section for section in parts}


def share_of(part: float, whole: float) -> float:
    """Their ratio; NaN of nothing."""
    return part / whole if whole else math.nan


def _effects(inspection: Inspection) -> list[tuple[str, ...]]:
    """Names and figures of what λ did."""
    optimizer, effect, total = inspection.optimizer, inspection.regularized, inspection.total
    zeros = _of(effect.zero_rows, total.rows)
    gone = [("seen, but has no row any more", count(total.seen - total.rows))] if total.seen > total.rows else []
    if not optimizer.zeroes:
        what = "nothing is regularized: λ1, λ21 and λ2 are 0"
        if optimizer.l2 > 0:
            what = "λ2 shrinks vectors; it makes none zero"
        return [("regularization", what), ("rows that are exactly zero", zeros), *gone]
    found: list[tuple[str, ...]] = []
    if optimizer.target:
        l21 = "not recorded in an export" if optimizer.l21 is None else f"{optimizer.l21:.3g}"
        found += [
            (optimizer.target, f"{count(total.live)} of {count(total.seen)} features are live"),
            ("λ21 in force, set by the target", l21),
            ("penalty, norm", f"{optimizer.penalty}, {optimizer.norm}"),
        ]
    if inspection.kind == "export":  # it has only the live rows
        found.append(("features seen that have no vector", _of(total.seen - total.live, total.seen)))
    else:
        found += [("rows made exactly zero", zeros), *gone]
    if optimizer.l1 > 0:
        elements = percent(share_of(effect.zero_elements, effect.live_elements))
        found.append(("zeros among the elements of live rows", elements))
    for distances, rows, near in (
        (effect.zero, "zero rows", "zero rows within 10 % of coming back"),
        (effect.live, "live rows", "live rows within 10 % of the threshold"),
    ):
        if distances is not None:
            found.append((f"{effect.measure} of {rows}, quartiles", _quartiles(distances.quantiles)))
            found.append((near, _of(distances.near, distances.rows)))
    if effect.kept is not None:
        found.append(("live rows are shrunk by k, quartiles", _quartiles(effect.kept)))
    return found


def _note_of(inspection: Inspection) -> str:
    """How to read the figures of what λ did; empty if there is nothing to explain."""
    optimizer, effect = inspection.optimizer, inspection.regularized
    if not optimizer.zeroes:
        return ""
    if effect.measure is not None:
        of_live = " Of live rows it is what their next step finds if its gradient is zero, momentum left out."
        return f"A row is zero while {effect.measure} is at most 1.{of_live if effect.live is not None else ''}"
    unknown = "How far rows are from the threshold is not known"
    if inspection.kind == "export":
        lacks = "no λ21 and no optimizer state" if optimizer.l21 is None else "no optimizer state"
        return f"{unknown}: an export holds {lacks}. Inspect the run or checkpoint that it was made of."
    if optimizer.norm != "s":
        return f"How far rows are from the threshold is known for the norm s only, not for {optimizer.norm}."
    return f"{unknown}: no row has been updated."


def _quartiles(quantiles: Mapping[float, float]) -> str:
    """Such as "0.12, 0.16, 0.24"."""
    values = [quantiles[share] for share in (0.25, 0.5, 0.75)]
    return ", ".join(f"{value:,.0f}" if 1000 <= value < math.inf else f"{value:.3g}" for value in values)


def _of(part: int, whole: int) -> str:
    return f"{count(part)} of {count(whole)}, {percent(share_of(part, whole))}"


def render_inspection(inspection: Inspection) -> str:
    """The inspection as a page that loads nothing, holds no script, and is the same for the same argument."""
    from sparsegroup.reporting.page import Tile, page_environment

    total, sizes, samples, shown = inspection.total, inspection.sizes, inspection.samples, sections(inspection)
    rate, part = share_of(total.live, total.seen), share_of(sizes.live_vectors, sizes.dense_table)
    trained = ("–", "not recorded") if samples is None else (short(samples), "trained on")
    return (
        page_environment("sparsegroup.serving")
        .get_template("inspection.html.jinja")
        .render(
            title=title_of(inspection),
            lead=lead_of(inspection),
            tiles=[
                Tile("Feature rate", percent(rate), f"{count(total.live)} live of {count(total.seen)}"),
                Tile("Live vectors", size(sizes.live_vectors), f"{percent(part)} of a dense table"),
                Tile("Table in memory", size(sizes.table.total), f"{count(total.rows)} rows, with all they hold"),
                Tile("Samples", *trained),
            ],
            charts=[
                _chart_of_norms(inspection.norms),
                _chart_of_distances(inspection.regularized, shown[_EFFECT].note),
            ],
            effect=shown[_EFFECT],
            top=shown.get(_TOP),
            fields=field_rows(inspection.fields),
            columns=inspection.columns,
            interactions=inspection.interactions,
            is_binary=any(not math.isnan(one.importance.auc) for one in inspection.columns),
            sizes=[shown[name] for name in _SIZES],
        )
    )


def _chart_of_norms(norms: Histogram) -> Chart:
    svg = None
    if norms.counts:
        x = Axis.logarithmic(norms.edges[0], norms.edges[-1], lambda value: trim_exponent(f"{value:g}"), "‖x‖")
        y = Axis.linear(0, 1.08 * max(norms.counts), prefixed, least_step=1)
        svg = draw(x, y, [Bars(norms.edges, norms.counts)])
    words = f"Histogram of the norms of {count(sum(norms.counts))} live rows"
    return Chart("Norms of the live rows", _PER_BIN, (), svg, words, empty="No row is live.")


def _chart_of_distances(effect: RegularizationEffect, note: str) -> Chart:
    """Zero rows left of 1 by their measure m, live rows right of it at 2 - 1 / m."""
    bars, keys, ticks = [], [], {0.0: "0", 0.25: "0.25", 0.5: "0.5", 0.75: "0.75", 1.0: "1"}
    if effect.zero is not None:
        bars.append(Bars(effect.zero.histogram.edges, effect.zero.histogram.counts, opacity=0.4))
        keys.append(("zero rows", "block held"))
    if effect.live is not None:
        ticks |= {1.25: "1.33", 1.5: "2", 1.75: "4", 2.0: "∞"}
        bars.append(Bars([2 - edge for edge in effect.live.histogram.edges], effect.live.histogram.counts))
        keys.append(("live rows", "block"))
    svg = None
    if bars:
        y = Axis.counts(max(height for one in bars for height in one.heights))
        svg = draw(Axis(0, max(ticks), ticks, str(effect.measure)), y, [*bars, Curve((1, 1), (0, y.high))])
        keys.append(("threshold", "reference"))
    words = "Histogram of the rows by their distance from the threshold"
    empty = note or "No λ makes rows zero: there is no threshold."
    return Chart("Distance from the threshold", _PER_BIN, keys, svg, words, note if bars else "", empty)
