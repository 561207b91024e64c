"""What `sparsegroup inspect` does."""

import json
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.cli.output import show
from sparsegroup.reporting.formatting import count, percent, trim_exponent
from sparsegroup.serving.inspection import Inspection, inspect
from sparsegroup.serving.inspection_page import (
    Pairs,
    effects,
    feature_name,
    lead,
    note,
    render_inspection,
    share_of,
    sizes,
    title,
)
from sparsegroup.serving.opening import open_trained

_EIGHTHS = " ▏▎▍▌▋▊▉"
_BAR = 20


def inspect_run(model: Path, top: int, html: Path | None) -> None:
    """Print what is in a trained model; the arguments are those of the command."""
    found = inspect(open_trained(model), top)
    if html is not None:
        page = render_inspection(found)
        write_atomically(html, lambda path: path.write_text(page, encoding="utf-8"))
    show(json.loads(found.as_json()), shown(found), *([] if html is None else [f"written to {html}"]))


def shown(inspection: Inspection) -> RenderableType:
    """The inspection for a terminal."""
    parts: list[RenderableType] = [Text(title(inspection), style="bold"), Text(lead(inspection), style="dim")]
    for heading, content in (
        ("Feature rate", _fields(inspection)),
        ("Norms of the live rows", _norms(inspection)),
        ("Features of the largest norms", _top(inspection)),
        ("What λ did", _pairs(effects(inspection))),
    ):
        if content is not None:
            parts += [Text(f"\n{heading}", style="bold"), Padding(content, (0, 0, 0, 1))]
    if said := note(inspection):
        parts.append(Padding(Text(said, style="dim"), (0, 0, 0, 2)))
    for heading, pairs in sizes(inspection).items():
        parts += [Text(f"\n{heading}", style="bold"), Padding(_pairs(pairs), (0, 0, 0, 1))]
    return Group(*parts)


def bar(share: float, width: int = _BAR) -> str:
    """A bar of so many characters where the share is 1; what is not 0 is seen."""
    eighths = max(1, round(8 * width * share)) if share > 0 else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _table(*columns: str) -> Table:
    """With names left-aligned, then figures; a column named "" takes what is left."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 1))
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number and name else "left", overflow="fold", no_wrap=bool(number))
    return table


def _pairs(pairs: Pairs) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 1))
    for name, value in pairs:
        table.add_row(Text(name), Text(value))
    return table


def _fields(inspection: Inspection) -> Table:
    table = _table("field", "seen", "rows", "live", "rate", "")
    ordered = sorted(inspection.fields.items(), key=lambda field: (-field[1].seen, field[0]))
    for name, rows in (("all fields", inspection.total), *ordered):
        rate = share_of(rows.live, rows.seen)
        figures = (count(rows.seen), count(rows.rows), count(rows.live), percent(rate))
        table.add_row(
            Text(name), *figures, Text(bar(rate, _BAR), style="yellow"), style="bold" if name == "all fields" else None
        )
    return table


def _norms(inspection: Inspection) -> Table | None:
    norms = inspection.norms
    if not norms.counts:
        return None
    table = _table("‖x‖ from", "to", "rows", "")
    most = max(norms.counts)
    for low, high, rows in zip(norms.edges, norms.edges[1:], norms.counts, strict=False):
        table.add_row(_number(low), _number(high), count(rows), Text(bar(rows / most, 2 * _BAR), style="yellow"))
    return table


def _top(inspection: Inspection) -> Table | None:
    if not inspection.top:
        return None
    named = any(feature.value is not None for feature in inspection.top)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 1))
    table.add_column("field", overflow="fold")
    table.add_column("value" if named else "key", overflow="fold")
    table.add_column("‖x‖", justify="right")
    table.add_column("")
    largest = inspection.top[0].norm
    for feature in inspection.top:
        width = bar(feature.norm / largest if largest else 0.0)
        table.add_row(
            Text(feature.field), Text(feature_name(feature)), f"{feature.norm:.4g}", Text(width, style="yellow")
        )
    return table


def _number(value: float) -> str:
    return trim_exponent(f"{value:.3g}")
