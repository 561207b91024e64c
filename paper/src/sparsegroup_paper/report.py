"""The report of the paper's experiments: `report.json`, and the pages made of it."""

import errno
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sparsegroup.artifact import write_atomically
from sparsegroup.reporting.page import page_environment
from sparsegroup_paper.figures import describe, to_png, to_svg
from sparsegroup_paper.markdown import (
    figure_path,
    made,
    numeric_columns,
    report_markdown,
    section_markdown,
    table_texts,
)
from sparsegroup_paper.section import Facts, Section

ORDER = (
    "learning-rate",
    "sparsity-vs-auc",
    "fine-tune",
    "best-auc",
    "norm",
    "l1-vs-l21",
    "embedding-dim",
    "family",
    "frontier",
    "regret",
)
"""The order of sections in the report; others follow by name."""

REPORT = "report.json"
"""The file of a report that the others are made of."""
DIGITS = 7
"""Significant digits of a fraction in `report.json`."""


@dataclass(frozen=True)
class Report:
    """What `report.json` holds.

    Attributes:
        facts: What to say of the data and the machine; None before `write_report`.
        sections: The experiments, in the order of `ORDER`.
    """

    facts: Facts | None
    sections: tuple[Section, ...]


_REPORT = TypeAdapter(Report)


def write_section(section: Section, folder: Path) -> None:
    """Put the section into `folder/report.json`, in place of an earlier one of its name.

    Raises:
        ValueError: A table has a row too long or too short, or a format is not one of numbers; nothing is written.
    """
    section_markdown(section)
    report = read_report(folder)
    others = [one for one in report.sections if one.name != section.name]
    _dump(replace(report, sections=tuple(sorted([*others, section], key=_place))), folder)


def write_report(folder: Path, facts: Facts) -> None:
    """Write the facts into `report.json`, and the pages `report.md` (with pictures in `figures`) and `report.html`.

    Args:
        folder: Where `write_section` has written.
        facts: What to say of the data and the machine.
    """
    _dump(replace(read_report(folder), facts=facts), folder)
    write_pages(folder)


def write_pages(folder: Path) -> None:
    """Write `report.md`, `figures` and `report.html` from `report.json`.

    Raises:
        FileNotFoundError: There is no report with its facts in `folder`.
    """
    report = read_report(folder)
    if report.facts is None:
        raise FileNotFoundError(errno.ENOENT, "no report of `sparsegroup-paper run` is here", str(folder / REPORT))
    for name, picture in report_files(report).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _write(folder / name, picture)
    _write(folder / "report.html", render_report(report.facts, report.sections).encode())


def report_files(report: Report) -> dict[str, bytes]:
    """`report.md` and the PNG of each figure that it shows, by their names in the report's folder."""
    assert report.facts is not None
    pictures = {
        f"{figure_path(section, figure)}": to_png(figure) for section in report.sections for figure in section.figures
    }
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
    return environment.get_template("report.html.jinja").render(facts=facts, about=_about(facts), sections=sections)


def _about(facts: Facts) -> dict[str, list[tuple[str, str]]]:
    """Heading → name and value of what is to be said of data and machine."""
    return {
        "Data": [("data set", facts.dataset), *facts.data],
        "This report": [*made(facts), ("command", facts.command)],
        "Versions": list(facts.versions),
    }


def _place(section: Section) -> tuple[int, str]:
    return ORDER.index(section.name) if section.name in ORDER else len(ORDER), section.name


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
