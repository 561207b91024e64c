"""What an experiment has to say: tables, figures and sentences, apart from how they are shown."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Cell = str | int | float | None
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    `format` is how its numbers are written, for `format()`, such as ".4f"; "" shows integers with thousands separators
    and leaves text alone.
    """

    name: str
    format: str = ""


@dataclass(frozen=True)
class SectionTable:
    """A table; a cell of None is empty.

    Attributes:
        name: Letters and hyphens, unique in the section.
        title: What it shows.
        columns: Its columns.
        rows: Cells of each row, as many as there are columns, numbers with all their digits.
        note: How to read it.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str = ""


def table(name: str, title: str, columns: str, rows: Iterable[Row], note: str = "") -> SectionTable:
    """A table whose columns are separated by semicolons, each a name, or name and format: "method; test AUC|.4f"."""
    return SectionTable(name, title, tuple(Column(*one.split("|")) for one in columns.split("; ")), tuple(rows), note)


@dataclass(frozen=True)
class Series:
    """Points of a figure.

    Attributes:
        label: In the legend.
        x, y: Coordinates of each point.
        y_error: One standard deviation of each y, drawn as an error bar; empty for none.
        style: A line through points, a bare line, a dashed one, or a horizontal level (of one y).
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    y_error: tuple[float, ...] = ()
    style: Literal["points-and-line", "line", "dashed", "level"] = "points-and-line"


@dataclass(frozen=True)
class Figure:
    """A figure: what it shows, titles and scales of its axes, what is drawn, in the legend's order, and how to read it.

    `name` is that of its file, without ending: letters and hyphens, unique in the section.
    """

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    note: str = ""


@dataclass(frozen=True)
class Section:
    """An experiment's result.

    Attributes:
        name: The experiment, such as "sparsity-vs-auc".
        title: Its heading, with the paper's table or figure.
        findings: What came out, a sentence or two each, written from the numbers.
        method: How it was measured, a paragraph each.
        tables, figures: In the order to show them.
    """

    name: str
    title: str
    findings: tuple[str, ...]
    method: tuple[str, ...]
    tables: tuple[SectionTable, ...]
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What a report says of the data and the machine.

    Attributes:
        dataset: Name of the data set.
        data: Facts in words, name and value, such as ("training rows", "180,000").
        command: That makes the report.
        date: The day it was made, ISO 8601.
        hours: Computing time of all runs, added up over processes; None where it is not counted.
        versions: Package → version.
    """

    dataset: str
    data: tuple[tuple[str, str], ...]
    command: str
    date: str
    hours: float | None
    versions: tuple[tuple[str, str], ...]
