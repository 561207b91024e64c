"""The report of the paper's experiments: `report.json`, and the pages made of it, in Markdown and HTML."""

import errno
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sparsegroup.artifact import write_atomically
from sparsegroup.reporting.formatting import NONE, duration, exact, trim_exponent
from sparsegroup.reporting.page import page_environment
from sparsegroup_paper.figures import describe, to_png, to_svg
from sparsegroup_paper.section import Cell, Facts, Figure, Section, SectionTable

ORDER = [
    *("learning-rate", "sparsity-vs-auc", "fine-tune", "best-auc", "norm", "l1-vs-l21", "embedding-dim", "family"),
    *("frontier", "bytes", "regret"),
]
"""The order of sections in the report; others follow by name."""

REPORT = "report.json"
"""The file of a report that the others are made of."""
DIGITS = 7
"""Significant digits of a fraction in `report.json`."""


@dataclass(frozen=True)
class Report:
    """What `report.json` holds: what to say of the data (None before `write_report`), and experiments by `ORDER`."""

    facts: Facts | None
    sections: tuple[Section, ...]


_REPORT = TypeAdapter(Report)


def write_section(section: Section, folder: Path) -> None:
    """Put the section into `folder/report.json`, in place of an earlier one of its name."""
    section_markdown(section)  # a table that cannot be shown is not written
    report = read_report(folder)
    others = [one for one in report.sections if one.name != section.name]
    _dump(replace(report, sections=tuple(sorted([*others, section], key=_place))), folder)


def _place(section: Section) -> tuple[int, str]:
    return ORDER.index(section.name) if section.name in ORDER else len(ORDER), section.name


def write_report(folder: Path, facts: Facts) -> None:
    """Write the facts into `report.json`, where `write_section` has written, and make the pages: see `write_pages`."""
    _dump(replace(read_report(folder), facts=facts), folder)
    write_pages(folder)


def write_pages(folder: Path) -> None:
    """Write `report.md` (with pictures in `figures`) and `report.html` from `report.json`."""
    report = read_report(folder)
    if report.facts is None:
        raise FileNotFoundError(errno.ENOENT, "no report of `sparsegroup-paper run` is here", str(folder / REPORT))
    pages = report_files(report) | {"report.html": render_report(report.facts, report.sections).encode()}
    for name, content in pages.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _write(folder / name, content)


def report_files(report: Report) -> dict[str, bytes]:
    """`report.md` and the PNG of each figure that it shows, by their names in the report's folder."""
    assert report.facts is not None
    pictures = {_path(section, figure): to_png(figure) for section in report.sections for figure in section.figures}
    return pictures | {"report.md": report_markdown(report.facts, report.sections).encode()}


def read_report(folder: Path) -> Report:
    """The report in `folder`, without sections if there is none.

    What was not a finite number is None in a table and NaN in a figure, as JSON has neither NaN nor infinity.
    """
    if not (folder / REPORT).exists():
        return Report(None, ())
    content = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    for figure in (figure for section in content["sections"] for figure in section["figures"]):
        for series in figure["series"]:
            for name in ("x", "y", "y_error"):
                series[name] = [math.nan if value is None else value for value in series[name]]
    return _REPORT.validate_python(content)


def _dump(report: Report, folder: Path) -> None:
    content = _rounded(_REPORT.dump_python(report, mode="json"))
    folder.mkdir(parents=True, exist_ok=True)
    lines = json.dumps(content, ensure_ascii=False, indent=1, separators=(",", ":"), allow_nan=False)
    _write(folder / REPORT, re.sub(r"\n {3,}", "", lines).encode() + b"\n")


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _rounded(content: Any) -> Any:
    if isinstance(content, float):
        return float(f"{content:.{DIGITS}g}") if math.isfinite(content) else None
    if isinstance(content, dict):
        return {name: _rounded(value) for name, value in content.items()}
    return [_rounded(value) for value in content] if isinstance(content, list) else content


def render_report(facts: Facts, sections: Sequence[Section]) -> str:
    """The report as an HTML page that loads nothing, holds no script, and is the same for the same arguments."""
    environment = page_environment("sparsegroup_paper")
    environment.filters.update(texts=table_texts, numeric=numeric_columns, describe=describe, svg=to_svg)
    data, made = [("data set", facts.dataset), *facts.data], [*_made(facts), ("command", facts.command)]
    about = {"Data": data, "This report": made, "Versions": list(facts.versions)}
    return environment.get_template("report.html.jinja").render(facts=facts, about=about, sections=sections)


def _made(facts: Facts) -> list[tuple[str, str]]:
    """When a report was made, and how long that took: names and values."""
    took = [] if facts.hours is None else [("computing, added up over processes", duration(3600 * facts.hours))]
    return [("date", facts.date), *took]


def report_markdown(facts: Facts, sections: Sequence[Section]) -> str:
    """The whole report, for the folder that holds `figures`."""
    rows = [("data set", facts.dataset), *facts.data, *_made(facts), *facts.versions]
    names, *cells = [[escape(name), escape(value)] for name, value in rows]
    head = [
        f"# The paper's experiments on {escape(facts.dataset)}",
        _grid(names, cells, (False, False)),
        f"```sh\n{facts.command}\n```",
        *_bullets(f"**{escape(one.title)}**: {escape(one.findings[0])}" for one in sections if one.findings),
    ]
    return "\n".join(["\n\n".join(head) + "\n", *map(section_markdown, sections)])


def section_markdown(section: Section) -> str:
    """Heading, findings, figures, tables and method."""
    blocks = [f"## {escape(section.title)}", *_bullets(map(escape, section.findings))]
    for figure in section.figures:
        blocks.append(f"![{escape(describe(figure))}]({_path(section, figure)})")
        blocks += _note(figure.note)
    for table in section.tables:
        names = [escape(column.name) for column in table.columns]
        cells = [list(map(escape, row)) for row in table_texts(table)]
        blocks += [f"**{escape(table.title)}**", _grid(names, cells, numeric_columns(table)), *_note(table.note)]
    if section.method:
        blocks += ["**How it was measured.** " + escape(section.method[0]), *map(escape, section.method[1:])]
    return "\n\n".join(blocks) + "\n"


def _path(section: Section, figure: Figure) -> str:
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


def _bullets(items: Iterable[str]) -> Iterator[str]:
    """One block, or none."""
    if lines := [f"- {item}" for item in items]:
        yield "\n".join(lines)


def _note(text: str) -> list[str]:
    return [f"*{escape(text)}*"] if text else []


def _grid(names: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    rules = ["---:" if at_right else "---" for at_right in right]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, rules, *rows))


def cell_text(cell: Cell, format_spec: str) -> str:
    """The text of a cell: a number in the format of its column, and a dash for one that is not finite.

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


def numeric_columns(table: SectionTable) -> list[bool]:
    """For each column, whether it holds numbers, and so is aligned to the right."""
    kinds = [{type(row[index]) for row in table.rows} - {type(None)} for index in range(len(table.columns))]
    return [bool(of) and str not in of for of in kinds]


def table_texts(table: SectionTable) -> list[list[str]]:
    """All cells as shown, by row; ValueError if a row is too short or too long, or a format not one of numbers."""
    return [
        [cell_text(cell, column.format) for column, cell in zip(table.columns, row, strict=True)] for row in table.rows
    ]
