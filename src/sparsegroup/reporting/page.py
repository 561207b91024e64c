"""What all pages share: their templates' environment, key figures, and the table of fields."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from sparsegroup.reporting.formatting import count, duration, metric, per_second, percent, size
from sparsegroup.table import FieldCount


def page_environment(*packages: str) -> Environment:
    """Jinja's environment for pages whose templates lie in packages; they extend `page.html.jinja`, which lies here.

    Its filters are the functions of `formatting`, and `width`.

    Args:
        packages: Names of packages that hold templates, such as "sparsegroup.serving".
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, ".") for package in (*packages, "sparsegroup.reporting")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        {f.__name__: f for f in (count, duration, per_second, percent, size, metric)}, width=width
    )
    return environment


@dataclass(frozen=True)
class Tile:
    """A key figure: what it is, its value, and what it means."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class DrawnChart:
    """A chart, drawn.

    Attributes:
        title: Above it.
        last: A figure from it, beside the title.
        keys: Label and CSS class of its lines; none where there is one line alone.
        svg: The drawing, or None if no point has a value.
        description: The drawing in words.
        note: What explains its shape, below it; empty for none.
    """

    title: str
    last: str
    keys: Sequence[tuple[str, str]]
    svg: str | None
    description: str
    note: str = ""


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
    """The width of a bar, in CSS; what is not 0 is seen."""
    return f"max(1px, {100 * share:.2f}%)" if share > 0 else "0px"
