"""Cells of tables, for people."""

import math

from sparsegroup.reporting.formatting import NONE, exact, trim_exponent
from sparsegroup_paper.section import Cell, SectionTable


def cell_text(cell: Cell, format_spec: str) -> str:
    """What stands in a cell; a number as the format says, and a dash for one that is not finite.

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
    """All cells as they are shown, by row.

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
