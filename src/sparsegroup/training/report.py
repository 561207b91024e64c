"""The report of a run: one HTML page that needs nothing else."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from matplotlib.ticker import EngFormatter
from rich.filesize import decimal

from sparsegroup.table import FieldCount
from sparsegroup.training.plots import Chart, Unit, run_charts, to_svg
from sparsegroup.training.records import Progress, Summary

NONE = "–"
"""What stands for a value that is not defined."""


def render_report(config: Mapping[str, Any], history: Sequence[Progress], summary: Summary) -> str:
    """The run as an HTML page: key figures, charts along the pass, live rows per field, settings and versions.

    The page loads nothing, holds no script, and is the same for the same arguments.

    Args:
        config: Section → setting → value, such as `{"model": {"name": "dcn"}, "optimizer": {"name": "adam", "l21":
            1e-4, "penalty": "lasso"}}`. Those four, where present, make the headline. A setting may stand outside a
            section.
        history: Points along the pass, in order; may be empty.
        summary: What the run came to. Without a test set the figures of the last point stand in its place.
    """
    test_auc = None if summary.test is None else summary.test.auc
    page = page_environment().get_template("report.html.jinja")
    return page.render(
        headline=_headline(config),
        started=_moment(summary.started),
        summary=summary,
        tiles=_tiles(history, summary),
        charts=[_figure(chart) for chart in run_charts(history, test_auc)] if history else [],
        history=history,
        fields=field_rows(summary.fields),
        settings=_settings(config),
        about=_about(summary),
    )


def count(value: float) -> str:
    """1234567 → "1,234,567"."""
    return NONE if math.isnan(value) else f"{value:,.0f}"


def short(value: float) -> str:
    """33812345 → "33.8M"; below 10,000 in full."""
    return count(value) if not abs(value) >= 10_000 else EngFormatter(places=1, sep="")(value)


def per_second(value: float) -> str:
    """85712.3 → "85.7k/s"."""
    return NONE if math.isnan(value) else f"{short(value)}/s"


def percent(share: float) -> str:
    """0.02311 → "2.31 %"; a share above 0 is not shown as 0."""
    if math.isnan(share):
        return NONE
    return "<0.01 %" if 0 < share < 5e-5 else f"{100 * share:.2f} %"


def size(value: float) -> str:
    """6123456789 → "6.1 GB"."""
    return NONE if math.isnan(value) else decimal(int(value))


def metric(value: float) -> str:
    """0.793129 → "0.7931"."""
    return NONE if math.isnan(value) else f"{value:.4f}"


def exact(value: float) -> str:
    """1e-05 → "1e-5", 0.001 → "0.001": with all digits."""
    return trim_exponent(str(value))


def trim_exponent(number: str) -> str:
    """6e-07 → "6e-7"."""
    return number.replace("e-0", "e-").replace("e+0", "e")


def duration(seconds: float) -> str:
    """458.3 → "7 min 38 s"."""
    if math.isnan(seconds):
        return NONE
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


_FORMATS: Mapping[Unit, Callable[[float], str]] = {
    "": metric,
    "%": percent,
    "rows": short,
    "B": size,
    "/s": per_second,
}


def page_environment(*packages: str) -> Environment:
    """For pages whose templates lie in packages, and those that all pages share.

    Args:
        packages: Such as "serving".
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(f"sparsegroup.{package}", ".") for package in (*packages, "training")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({f.__name__: f for f in (count, per_second, percent, size, metric)}, width=width)
    return environment


def _headline(config: Mapping[str, Any]) -> str:
    """Such as "DCN, adam, λ21 = 0.0001 (lasso)"; what the config does not say is left out."""
    named = (config.get(section) or {} for section in ("model", "optimizer"))
    model, optimizer = (section if isinstance(section, Mapping) else {"name": section} for section in named)
    parts = []
    if "name" in model:
        parts.append(str(model["name"]).upper())
    if "name" in optimizer:
        parts.append(str(optimizer["name"]))
    if optimizer.get("l21") is not None:
        penalty = f" ({optimizer['penalty']})" if "penalty" in optimizer else ""
        parts.append(f"λ21 = {_setting(optimizer['l21'])}{penalty}")
    return ", ".join(parts) or "Training run"


@dataclass(frozen=True)
class Tile:
    """A key figure: what it is, its value, and what it means."""

    label: str
    value: str
    note: str


def _tiles(history: Sequence[Progress], summary: Summary) -> list[Tile]:
    metrics = summary.test or (history[-1] if history else None)
    if summary.test is not None:
        of, note = "Test ", f"on {count(summary.test_rows)} test rows"
    elif history:
        of, note = "Progressive ", f"of the last window{_window(history, summary)}"
    else:
        of, note = "Progressive ", "no test set, no point recorded"

    def quality(label: str, name: str, note: str) -> Tile:
        return Tile(of + label, metric(getattr(metrics, name, math.nan)), note)

    speed = summary.samples / summary.seconds if summary.seconds > 0 else math.nan
    return [
        quality("AUC", "auc", note),
        quality("log loss", "log_loss", "nats per sample"),
        quality("normalized entropy", "normalized_entropy", "1 is predicting the mean click rate"),
        quality("calibration", "calibration", "predicted over real clicks; 1 is best"),
        Tile(
            "Feature rate",
            percent(summary.feature_rate),
            f"{count(summary.live_rows)} live of {count(summary.features_seen)} seen",
        ),
        Tile("Table size", size(summary.table_bytes), "with index and optimizer state"),
        Tile("Samples", short(summary.samples), f"{count(summary.samples)} trained on"),
        Tile("Throughput", per_second(speed), f"{duration(summary.seconds)} of training"),
    ]


def _window(history: Sequence[Progress], summary: Summary) -> str:
    """Its size in words; nothing where it is not known because the run it continues had trained before."""
    if len(history) == 1 and summary.continued_from is not None:
        return ""
    before = history[-2].samples if len(history) > 1 else 0
    return f", {count(history[-1].samples - before)} samples"


@dataclass(frozen=True)
class _Figure:
    """A chart, drawn.

    Attributes:
        title: Above it.
        last: Its lines' last values.
        keys: Label and CSS class of its lines; none where there is one line alone.
        svg: The drawing, or None if no point has a value.
        description: The drawing in words.
    """

    title: str
    last: str
    keys: Sequence[tuple[str, str]]
    svg: str | None
    description: str


def _figure(chart: Chart) -> _Figure:
    show = _FORMATS[chart.unit]
    keys: list[tuple[str, str]] = [(line.label, line.colour) for line in chart.lines]
    if chart.reference is not None:
        keys.append((chart.reference[0], "reference"))
    spans = [f"{line.label} from {show(line.values[0])} to {show(line.values[-1])}" for line in chart.lines]
    empty = all(math.isnan(value) for line in chart.lines for value in line.values)
    return _Figure(
        title=chart.title,
        last=" of ".join(show(line.values[-1]) for line in chart.lines),
        keys=keys if len(keys) > 1 else (),
        svg=None if empty else to_svg(chart),
        description=f"{chart.title} over the samples trained on: {', '.join(spans)}",
    )


@dataclass(frozen=True)
class FieldRow:
    """A field of the table: its rows, and of the features seen the shares that are live, and that have a row of 0."""

    name: str
    count: FieldCount
    live: float
    zero: float


def field_rows(fields: Mapping[str, FieldCount]) -> list[FieldRow]:
    """All fields together, then each, the one with most features first."""
    total = FieldCount(*(sum(getattr(rows, name) for rows in fields.values()) for name in ("seen", "rows", "live")))
    ordered = sorted(fields.items(), key=lambda field: (-field[1].seen, field[0]))
    return [
        FieldRow(name, rows, _share(rows.live, rows.seen), _share(rows.rows - rows.live, rows.seen))
        for name, rows in (("all fields", total), *ordered)
    ]


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def width(share: float) -> str:
    """Of a bar, in CSS; what is not 0 is seen."""
    return f"max(1px, {100 * share:.2f}%)" if share > 0 else "0px"


def _about(summary: Summary) -> dict[str, list[tuple[str, str]]]:
    """Heading → name and value of what else is to be said of the run."""
    return {
        "Data and time": [
            ("log", summary.log),
            ("samples trained on", count(summary.samples)),
            ("test rows", count(summary.test_rows) if summary.test_rows else "none"),
            ("started", _moment(summary.started)),
            ("training took", duration(summary.seconds)),
            ("continued from", summary.continued_from or NONE),
        ],
        "Bad rows left out": [(reason, count(rows)) for reason, rows in summary.bad_rows.items()] or [("none", "0")],
        "Versions": list(summary.versions.items()),
    }


def _moment(started: str) -> str:
    """2026-03-01T09:12:44+01:00 → "2026-03-01 09:12:44 +01:00"."""
    return re.sub(r"^(.{10})T(.{8})(?:\.\d+)?", r"\1 \2 ", started).strip()


def _settings(config: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Section → its settings in words; what stands outside a section is in "run"."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            sections.setdefault(str(name), []).extend(_flat(value))
        else:
            sections.setdefault("run", []).append((str(name), _setting(value)))
    return sections


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _setting(value)


def _setting(value: object) -> str:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return exact(value)
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return ", ".join(_setting(item) for item in value) or NONE
    return str(value)
