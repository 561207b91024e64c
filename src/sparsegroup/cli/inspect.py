"""`sparsegroup inspect`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sparsegroup.cli.app import starting
from sparsegroup.cli.options import Model
from sparsegroup.cli.output import show

if TYPE_CHECKING:
    from sparsegroup.serving.inspection_views import Section


def inspect_command(
    model: Model,
    top: Annotated[int, typer.Option(min=0, help="Number of features to list, those of the largest norms.")] = 10,
    html: Annotated[Path | None, typer.Option(help="Also write the same to an HTML page, with charts.")] = None,
) -> None:
    """Look into a trained model: sizes, feature rate per field, norms, the largest features, and what λ did."""
    with starting():
        from sparsegroup.artifact.folder import write_atomically
        from sparsegroup.serving.inspection import inspect
        from sparsegroup.serving.inspection_views import lead_of, render_inspection, sections, title_of
        from sparsegroup.serving.opening import open_trained

    found = inspect(open_trained(model), top)
    if html is not None:
        page = render_inspection(found)
        write_atomically(html, lambda path: path.write_text(page, encoding="utf-8"))
    parts: list[RenderableType] = [Text(title_of(found), style="bold"), Text(lead_of(found), style="dim")]
    for section in sections(found).values():
        parts += [Text(f"\n{section.title}", style="bold"), Padding(_table(section), (0, 0, 0, 1))]
        if section.note:
            parts.append(Padding(Text(section.note, style="dim"), (0, 0, 0, 2)))
    show(found.as_plain(), Group(*parts), *([] if html is None else [f"written to {html}"]))


def _table(section: "Section") -> Table:
    """A section as a table, in which the sums of all fields are emphasized."""
    table = Table(box=None, show_header=bool(section.columns), header_style="dim", pad_edge=False, padding=(0, 2, 0, 1))
    for number, name in enumerate(section.columns):
        is_text = number < section.texts
        table.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    if section.bars:
        table.add_column("", no_wrap=True)
    ends = [max(share, 1 / 160) if share > 0 else 0 for share in section.bars]  # at least an eighth of a character
    bars = [[Bar(1, 0, end, width=20, color="yellow")] for end in ends] or [[]] * len(section.rows)
    for row, bar in zip(section.rows, bars, strict=True):
        table.add_row(*map(Text, row), *bar, style="bold" if row[0] == "all fields" else None)
    return table
