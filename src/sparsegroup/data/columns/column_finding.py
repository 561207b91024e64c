"""What was found of a column, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ColumnFinding:
    """What a column was taken for.

    Attributes:
        name: The column.
        kind: What it was taken for, see `ColumnKind`.
        why: The reason, in words.
        examples: A few of its values.
        distinct: Different values in the rows that were looked at, without missing ones.
        missing: Share of those rows, in [0, 1], that have no value.
        warning: What the user should think about, or ""; parameters stand in backquotes.
    """

    name: str
    kind: str
    why: str
    examples: tuple[str, ...] = ()
    distinct: int = 0
    missing: float = 0.0
    warning: str = ""


def kinds_of(findings: Sequence[ColumnFinding]) -> Mapping[str, str]:
    """Column → its kind, in the order of the columns."""
    return {finding.name: finding.kind for finding in findings}
