"""What was found of a log's columns, as tables."""

import logging
import re
from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from sparsegroup.cli.output import tell
from sparsegroup.data.columns.column_finding import ColumnFinding

_log = logging.getLogger(__name__)

_SHOWN = 40
"""Columns that the short table shows."""


def column_table(findings: Sequence[ColumnFinding]) -> Table:
    """Each column with its kind, examples, how many different values, how many missing, and why."""
    table = Table(box=None, pad_edge=False)
    for name in ("column", "kind", "examples", "different", "missing", "why"):
        table.add_column(name, justify="right" if name in ("different", "missing") else "left", overflow="fold")
    for one in findings:
        looked_at = one.distinct or one.missing
        table.add_row(
            *(_plain(text) for text in (one.name, one.kind, ", ".join(one.examples))),
            f"{one.distinct:,}" if looked_at else "",
            f"{one.missing:.1%}" if one.missing else "",
            _plain(one.why),
        )
    return table


def print_columns(findings: Sequence[ColumnFinding]) -> None:
    """A short table of what columns were taken for, and what the user should think about; nothing where none were."""
    if not findings:
        return
    counts = ", ".join(f"{count} {kind}" for kind, count in Counter(one.kind for one in findings).items())
    if len(findings) <= _SHOWN:
        table = Table(box=None, pad_edge=False, show_header=False)
        for one in findings:
            table.add_row(_plain(one.name), _plain(one.kind), _plain(one.why), style="dim")
        tell(table)
    else:
        tell(f"columns: {counts}; `sparsegroup columns` shows them")
    warn_of_columns(findings)


def warn_of_columns(findings: Sequence[ColumnFinding]) -> None:
    """Log what the user should think about."""
    for one in findings:
        if one.warning:
            _log.warning("%s", re.sub(r"`(\w+)`", r"--\1", one.warning))


def _plain(text: str) -> str:
    """`text` for a table, in which control characters mean nothing good."""
    return "".join(char if char.isprintable() else "�" for char in text)
