"""Any log that names its columns: in a header line, or as columnar files do."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from shlex import quote
from typing import Any

import polars as pl

from sparsegroup.data.inference import ColumnFinding, infer_columns, kinds_of
from sparsegroup.data.label_leak import with_leaks
from sparsegroup.data.log_errors import ClickLogError, LogOptionError
from sparsegroup.data.raw.encoding import SPELLED_LABELS
from sparsegroup.data.schema import TEST_FRACTION, Head, LogFormat, format_for_kinds
from sparsegroup.settings.names import ColumnsName

LABELS = ("label", "click", "clicked", "is_click", "is_clicked", "target", "conversion", "converted")
TIMES = ("ts", "timestamp")
SPLIT = "split"
NOT_FEATURES = ("id", *TIMES, SPLIT)

NO_WEIGHT = "none"
"""Value of `weight` for a log whose rows all count the same."""

Kinds = ColumnsName | Mapping[str, str]


def headed(
    head: Head,
    sample: Callable[[], tuple[pl.DataFrame, bool]],
    label: str | None = None,
    exclude: Collection[str] = (),
    test_fraction: float | None = None,
    columns: Kinds | None = None,
    weight: str | None = None,
    *,
    needs_label: bool = True,
) -> LogFormat:
    """The format of a log whose columns have names.

    Args:
        head: How the log begins.
        sample: Gives its first rows, and whether these are all, to infer the kinds that `columns` do not say.
        label, exclude, test_fraction, columns, weight: See `FormatOptions`.
        needs_label: Whether a label column, and those to exclude, must be there.

    Raises:
        ClickLogError: No label column, or an unknown one; so for a weight and columns to exclude; or no name.
        LogOptionError: `test_fraction` out of range, or for a log with a column `split`.
    """
    header = head.columns
    where, names = f"{head.source}:1", ", ".join(header)
    if needs_label and (unknown := [name for name in exclude if name not in header]):
        raise ClickLogError(f"{where}: no column {unknown[0]!r} to exclude. The columns are {names}")
    found = label or _label_of(header, columns)
    if needs_label and found not in header:
        wanted = repr(label) if label is not None else " or ".join(map(repr, LABELS[:2]))
        proposed = _proposed(sample()[0], exclude)
        raise ClickLogError(
            f"{where}: no label column {wanted}; name it with `label`{proposed}. The columns are {names}", "label"
        )
    found = found or LABELS[0]
    has_split = SPLIT in header and found != SPLIT
    if has_split and test_fraction is not None:
        raise LogOptionError(
            f"`test_fraction` is for logs without a column {SPLIT!r}, which marks the test rows of {head.source}",
            "test_fraction",
        )
    others: dict[str, Any] = {
        "split": "column" if has_split else "last-fraction",
        "split_column": SPLIT if has_split else None,
        "test_fraction": TEST_FRACTION if test_fraction is None else test_fraction,
        "separator": head.separator,
    }
    weigher = None if weight == NO_WEIGHT else weight
    if weigher is not None and needs_label and weigher not in header:
        raise ClickLogError(f"{where}: no column {weigher!r} for `weight`. The columns are {names}", "weight")
    if weigher is not None and weigher in (found, others["split_column"], *exclude):
        raise LogOptionError(f"`weight`: {weigher!r} is the label or the split already, or excluded", "weight")
    if columns == "categorical":
        _check_named(head, exclude, header)
        fields = tuple(name for name in header if name not in {found, weigher, *NOT_FEATURES, *exclude})
        time = next((name for name in TIMES if name in header and name != found), None)
        return LogFormat("log", found, fields, time=time, weight=weigher, **others)
    findings: tuple[ColumnFinding, ...] = ()
    if columns is None:
        _check_named(head, exclude, header[1:])  # pandas writes its index in a first column without a name
        known = dict.fromkeys(exclude, ("ignore", "to be left out, as asked"))
        known[found] = ("label", "the label, by its name" if label is None else "the label, as asked")
        if has_split:
            known[SPLIT] = ("split", "marks the test rows, by its name")
        if weigher is not None:
            known[weigher] = ("weight", "how much a row counts, as asked")
        findings = _inferred(header, sample(), found, known, finds_weight=weight is None)
        columns = kinds_of(findings)
    kinds = {name: "ignore" if name in exclude and name != found else kind for name, kind in columns.items()}
    if weight is not None:
        kinds = {name: "ignore" if kind == "weight" else kind for name, kind in kinds.items()}
        kinds |= {} if weigher is None else {weigher: "weight"}
    return replace(format_for_kinds(kinds, found, **others), findings=findings)


def _inferred(
    header: Sequence[str],
    sample: tuple[pl.DataFrame, bool],
    label: str,
    known: Mapping[str, tuple[str, str]],
    *,
    finds_weight: bool,
) -> tuple[ColumnFinding, ...]:
    """A finding for each column of the header, by the first rows."""
    rows, whole = sample
    findings = infer_columns(rows, whole=whole, known=known, finds_weight=finds_weight)
    if label in rows.columns:
        findings = with_leaks(findings, rows, label)
    inferred = {finding.name: finding for finding in findings}
    inferred.setdefault("", ColumnFinding("", "ignore", "has no name"))
    return tuple(inferred.get(name) or ColumnFinding(name, "category", "nothing is known of it") for name in header)


def _label_of(header: Sequence[str], columns: Kinds | None) -> str | None:
    """The label column, by what is known of the columns, or else by its name."""
    if isinstance(columns, Mapping):
        known = next((name for name, kind in columns.items() if kind == "label"), None)
        if known is not None:
            return known
    lower = {name.lower(): name for name in reversed(header)}
    return next((name for name in LABELS if name in header), None) or next(
        (lower[name] for name in LABELS if name in lower), None
    )


def _proposed(rows: pl.DataFrame, exclude: Collection[str]) -> str:
    """The columns that can be the label, for a message: no value but 0 and 1, or the like, and both of them."""
    spelled = {name: {SPELLED_LABELS.get(str(text).lower()) for text in rows[name].unique()} for name in rows.columns}
    found = [name for name, labels in spelled.items() if labels == {"0", "1"} and name not in exclude]
    proposed = " or ".join(f"`label` {quote(name)}" for name in found[:3])
    return f", such as {proposed} (0 or 1 in each row)" if found else ""


def _check_named(head: Head, exclude: Collection[str], columns: Collection[str]) -> None:
    """Whether all of some columns have names, or are left out."""
    if "" in columns and "" not in exclude:
        place = head.columns.index("") + 1
        raise ClickLogError(f"{head.source}:1: column {place} has no name; name it, or give a schema without it")
