"""A report and its sections as Markdown."""

import re
from collections.abc import Iterator, Sequence

from sparsegroup.reporting.formatting import duration
from sparsegroup_paper.cells import numeric_columns, table_texts
from sparsegroup_paper.figures import describe
from sparsegroup_paper.section import Facts, Figure, Section, SectionTable


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
    r"""Text that Markdown shows as it is, on one line.

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
