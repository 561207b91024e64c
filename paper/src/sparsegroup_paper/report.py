"""The report of the paper's experiments: a folder per section, and all of them as one page."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from sparsegroup.artifact import write_atomically
from sparsegroup.reporting import page_environment
from sparsegroup_paper.cells import numeric_columns, table_texts
from sparsegroup_paper.figures import describe, to_png, to_svg
from sparsegroup_paper.markdown import made, report_markdown, section_markdown
from sparsegroup_paper.section import Facts, Section, SectionTable

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

SECTION = "section.json"
FACTS = "facts.json"
_SECTION = TypeAdapter(Section)
_FACTS = TypeAdapter(Facts)


def write_section(section: Section, folder: Path) -> None:
    """Write the section into `folder/<its name>`; `section.json`, written last, makes it whole.

    - `<name>.md`: the section as a page of its own.
    - `<table>.csv`: each table, numbers with all their digits, an empty cell for None.
    - `<figure>.png`: each figure.
    - `section.json`: all of it, for `read_section`.

    Raises:
        ValueError: A table has a row too long or too short, or a format is not one of numbers; nothing is written.
    """
    files = {f"{section.name}.md": section_markdown(section).encode()}
    files |= {f"{table.name}.csv": as_csv(table).encode() for table in section.tables}
    files |= {f"{figure.name}.png": to_png(figure) for figure in section.figures}
    place = folder / section.name
    place.mkdir(parents=True, exist_ok=True)
    (place / SECTION).unlink(missing_ok=True)
    for name, content in files.items():
        _write(place / name, content)
    _write(place / SECTION, _SECTION.dump_json(section, indent=1) + b"\n")


def read_section(path: Path) -> Section:
    """The section that `write_section` has written into the folder `path`.

    What was not a finite number is None in a table and NaN in a figure, as JSON has neither NaN nor infinity.
    """
    content = json.loads((path / SECTION).read_text(encoding="utf-8"))
    for series in (series for figure in content["figures"] for series in figure["series"]):
        for name in ("x", "y", "y_error"):
            series[name] = [math.nan if value is None else value for value in series[name]]
    return _SECTION.validate_python(content)


def write_report(folder: Path, facts: Facts) -> None:
    """Write `report.md`, `report.html` and `facts.json`, of all whole sections in `folder`.

    Args:
        folder: Where `write_section` has written.
        facts: What to say of the data and the machine.
    """
    sections = [read_section(folder / name) for name in sections_in(folder)]
    _write(folder / "report.md", report_markdown(facts, sections).encode())
    _write(folder / "report.html", render_report(facts, sections).encode())
    _write(folder / FACTS, _FACTS.dump_json(facts, indent=1) + b"\n")


def read_facts(folder: Path) -> Facts:
    """What `write_report` has written of the data and the machine."""
    return _FACTS.validate_json((folder / FACTS).read_bytes())


def sections_in(folder: Path) -> list[str]:
    """Names of the whole sections in `folder`, in the report's order."""
    return sorted((path.parent.name for path in folder.glob(f"*/{SECTION}")), key=_place)


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


def _place(name: str) -> tuple[int, str]:
    return ORDER.index(name) if name in ORDER else len(ORDER), name


def as_csv(table: SectionTable) -> str:
    """A table as CSV: the names of its columns, numbers with all their digits, an empty cell for None."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows(table.rows)
    return buffer.getvalue()


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
