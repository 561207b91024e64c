"""A report and its sections as Markdown."""

import math
import re
from collections.abc import Iterator, Sequence

from sparsegroup.reporting.formatting import NONE, duration, exact, trim_exponent
from sparsegroup_paper.figures import describe
from sparsegroup_paper.section import Cell, Facts, Figure, Section, SectionTable


def section_markdown(section: Section, level: int = 2) -> str:
    """Heading of that level, findings, figures, tables and method."""
    blocks = [f"{'#' * level} {escape(section.title)}", *_bullets(map(escape, section.findings))]
    for figure in section.figures:
        blocks += _figure(section, figure)
    for table in section.tables:
        blocks += _table(table)
    if section.method:
        blocks += ["**How it was measured.** " + escape(section.method[0]), *map(escape, section.method[1:])]
    return "\n\n".join(blocks) + "\n"


def made(facts: Facts) -> list[tuple[str, str]]:
    """When a report was made, and how long that took: names and values."""
    took = [] if facts.hours is None else [("computing, added up over processes", duration(3600 * facts.hours))]
    return [("date", facts.date), *took]


def report_markdown(facts: Facts, sections: Sequence[Section]) -> str:
    """The whole report, for the folder that holds `figures`."""
    first = (f"**{escape(section.title)}**: {escape(section.findings[0])}" for section in sections if section.findings)
    rows = [*facts.data, *made(facts), *facts.versions]
    cells = [["data set", escape(facts.dataset)]]
    cells += [[escape(name), escape(value)] for name, value in rows]
    head = [
        f"# The paper's experiments on {escape(facts.dataset)}",
        _grid(cells[0], cells[1:], (False, False)),
        f"```sh\n{facts.command}\n```",
        *_bullets(first),
    ]
    return "\n".join(["\n\n".join(head) + "\n", *map(section_markdown, sections)])


def figure_path(section: Section, figure: Figure) -> str:
    """Where a figure's picture is, from the folder of the report."""
    return f"figures/{section.name}-{figure.name}.png"


def escape(text: str) -> str:
    r"""Text that Markdown shows unchanged, on one line.

    Examples:
        >>> escape("a|b_c < d*e")
        'a\\|b\\_c &lt; d\\*e'
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace("~", "&#126;")
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)


def _bullets(items: Iterator[str]) -> list[str]:
    """One block, or none."""
    lines = [f"- {item}" for item in items]
    return ["\n".join(lines)] if lines else []


def _figure(section: Section, figure: Figure) -> Iterator[str]:
    yield f"![{escape(describe(figure))}]({figure_path(section, figure)})"
    if figure.note:
        yield f"*{escape(figure.note)}*"


def _table(table: SectionTable) -> Iterator[str]:
    yield f"**{escape(table.title)}**"
    names = [escape(column.name) for column in table.columns]
    yield _grid(names, [list(map(escape, row)) for row in table_texts(table)], numeric_columns(table))
    if table.note:
        yield f"*{escape(table.note)}*"


def _grid(names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    rules = ["---:" if at_right else "---" for at_right in right]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, rules, *rows))


def cell_text(cell: Cell, format_spec: str) -> str:
    """The text of a cell; a number in its format, and a dash for one that is not finite.

    Args:
        cell: A number, a text, or None.
        format_spec: The format of its column, see `Column.format`.

    Raises:
        ValueError: The format is not one of numbers.

    Examples:
        >>> [cell_text(cell, ".2g") for cell in (5.97e-7, 0.25, None, "Adam")]
        ['6e-7', '0.25', '–', 'Adam']
        >>> [cell_text(cell, "") for cell in (1234567, 1e-05, 0.001, math.nan)]
        ['1,234,567', '1e-5', '0.001', '–']
    """
    if cell is None or cell == "" or (isinstance(cell, float) and not math.isfinite(cell)):
        return NONE
    if isinstance(cell, str):
        return cell
    if format_spec:
        return trim_exponent(format(cell, format_spec))
    return exact(cell) if isinstance(cell, float) else f"{cell:,}"


def numeric_columns(table: SectionTable) -> tuple[bool, ...]:
    """For each column, whether it holds numbers, and so is aligned to the right."""
    columns = (tuple(row[index] for row in table.rows) for index in range(len(table.columns)))
    return tuple(
        any(cell is not None for cell in column) and not any(isinstance(cell, str) for cell in column)
        for column in columns
    )


def table_texts(table: SectionTable) -> list[list[str]]:
    """All cells as shown, by row.

    Raises:
        ValueError: A row has more or fewer cells than there are columns, or a format is not one of numbers.
    """
    texts = []
    for number, row in enumerate(table.rows, start=1):
        if len(row) != len(table.columns):
            raise ValueError(f"table {table.name!r}, row {number}: {len(row)} cells for {len(table.columns)} columns")
        texts.append([_text(table, number, index, cell) for index, cell in enumerate(row)])
    return texts


def _text(table: SectionTable, number: int, index: int, cell: Cell) -> str:
    column = table.columns[index]
    try:
        return cell_text(cell, column.format)
    except ValueError as error:
        raise ValueError(f"table {table.name!r}, row {number}, column {column.name!r}: {cell!r}: {error}") from None
