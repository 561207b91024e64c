"""Any log that names its columns: in a header line, or as columnar files do."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from shlex import quote
from typing import Any

import polars as pl

from sparsegroup.data.inference import ColumnFinding, LogSample, infer_columns, kinds_of
from sparsegroup.data.label_leak import with_leaks
from sparsegroup.data.log_errors import ClickLogError, LogOptionError
from sparsegroup.data.raw.encoding import SPELLED_LABELS
from sparsegroup.data.schema import TEST_FRACTION, Head, LogFormat, planned_format
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
    sample: Callable[[], LogSample],
    label: str | None = None,
    exclude: Collection[str] = (),
    test_fraction: float | None = None,
    needs_label: bool = True,
    columns: Kinds | None = None,
    weight: str | None = None,
) -> LogFormat:
    """The format of a log whose columns have names.

    Args:
        head: How the log begins.
        sample: Gives its first rows, from which the kinds of its columns are told where `columns` do not say them.
        label: Label column; by default the first of `LABELS` that is there, in any case.
        exclude: Columns that are no features.
        test_fraction: Share of the rows, the last ones, in [0, 1), that is the test set where there is no `split`; by
            default a tenth.
        needs_label: Whether a label column must be there.
        columns: Column → its kind, see `ColumnKind`; others are left out. "categorical" makes a field of every column
            but `id`, `ts` and `timestamp` (the time) and `split` (says where the test set begins, 2). None tells them.
        weight: Column of how much each row counts, a number >= 0; "none" for no such column. None: what `columns` say,
            or, where they are told from the rows, one of numbers >= 0 that is called `weight`, `sample_weight` or the
            like.

    Raises:
        ClickLogError: No label column, one that does not exist, likewise of a weight, an unknown column to exclude, or
            a column without a name.
        LogOptionError: `test_fraction` out of range, or for a log with a column `split`.
    """
    header = head.columns
    where, names = f"{head.source}:1", ", ".join(header)
    if needs_label and (unknown := [name for name in exclude if name not in header]):
        raise ClickLogError(f"{where}: no column {unknown[0]!r} to exclude. The columns are {names}")
    found = label or _label_of(header, columns)
    if needs_label and found not in header:
        wanted = repr(label) if label is not None else " or ".join(map(repr, LABELS[:2]))
        raise ClickLogError(
            f"{where}: no label column {wanted}; name it with `label`{_proposed(sample().frame, exclude)}. The columns "
            f"are {names}",
            "label",
        )
    found = found or LABELS[0]
    others = _split_of(head, found, test_fraction)
    weigher = None if weight == NO_WEIGHT else weight
    if weigher is not None and needs_label and weigher not in header:
        raise ClickLogError(f"{where}: no column {weigher!r} for `weight`. The columns are {names}", "weight")
    if weigher is not None and weigher in (found, others["split_column"], *exclude):
        raise LogOptionError(f"`weight`: {weigher!r} is the label or the split already, or excluded", "weight")
    if columns == "categorical":
        return _categorical(head, found, exclude, {**others, "weight": weigher})
    findings: tuple[ColumnFinding, ...] = ()
    if columns is None:
        _check_named(head, exclude, header[1:])  # pandas writes its index in a first column without a name
        first = sample()
        known = dict.fromkeys(exclude, ("ignore", "to be left out, as asked"))
        known[found] = ("label", "the label, by its name" if label is None else "the label, as asked")
        if others["split_column"] is not None:
            known[others["split_column"]] = ("split", "marks the test rows, by its name")
        if weigher is not None:
            known[weigher] = ("weight", "how much a row counts, as asked")
        findings = infer_columns(first.frame, whole=first.whole, known=known, finds_weight=weight is None)
        if found in first.frame.columns:
            findings = with_leaks(findings, first.frame, found)
        seen = {finding.name: finding for finding in findings}
        findings = tuple(seen.get(name) or _unseen(name) for name in header)
        columns = kinds_of(findings)
    kinds = {name: "ignore" if name in exclude and name != found else kind for name, kind in columns.items()}
    if weight is not None:
        kinds = {name: "ignore" if kind == "weight" else kind for name, kind in kinds.items()}
        kinds |= {} if weigher is None else {weigher: "weight"}
    return replace(planned_format(kinds, found, separator=head.separator, **others), findings=findings)


def _label_of(header: Collection[str], columns: Kinds | None) -> str | None:
    """The label column, by what is known of the columns, or else by its name."""
    if isinstance(columns, Mapping):
        known = next((name for name, kind in columns.items() if kind == "label"), None)
        if known is not None:
            return known
    lower = {name.lower(): name for name in reversed(list(header))}
    return next((name for name in LABELS if name in header), None) or next(
        (lower[name] for name in LABELS if name in lower), None
    )


def _proposed(rows: pl.DataFrame, exclude: Collection[str]) -> str:
    """The columns that can be the label, for a message: no value but 0 and 1, or the like, and both of them."""
    spelled = {name: {SPELLED_LABELS.get(str(text).lower()) for text in rows[name].unique()} for name in rows.columns}
    found = [name for name, labels in spelled.items() if labels == {"0", "1"} and name not in exclude]
    proposed = " or ".join(f"`label` {quote(name)}" for name in found[:3])
    return f", such as {proposed} (0 or 1 in each row)" if found else ""


def _split_of(head: Head, label: str, test_fraction: float | None) -> dict[str, Any]:
    """Where the test set begins."""
    has_split = SPLIT in head.columns and label != SPLIT
    if has_split and test_fraction is not None:
        raise LogOptionError(
            f"`test_fraction` is for logs without a column {SPLIT!r}, which marks the test rows of {head.source}",
            "test_fraction",
        )
    return {
        "split": "column" if has_split else "last-fraction",
        "split_column": SPLIT if has_split else None,
        "test_fraction": TEST_FRACTION if test_fraction is None else test_fraction,
    }


def _unseen(name: str) -> ColumnFinding:
    """What a column is taken for that the first rows do not have."""
    if not name:
        return ColumnFinding(name, "ignore", "has no name")
    return ColumnFinding(name, "category", "nothing is known of it")


def _check_named(head: Head, exclude: Collection[str], columns: Collection[str]) -> None:
    """Whether all of some columns have names, or are left out."""
    if "" in columns and "" not in exclude:
        place = head.columns.index("") + 1
        raise ClickLogError(f"{head.source}:1: column {place} has no name; name it, or give a schema without it")


def _categorical(head: Head, label: str, exclude: Collection[str], others: Mapping[str, Any]) -> LogFormat:
    header = head.columns
    fields = tuple(name for name in header if name not in {label, others["weight"], *NOT_FEATURES, *exclude})
    _check_named(head, exclude, header)
    time = next((name for name in TIMES if name in header and name != label), None)
    return LogFormat("log", label, fields, time=time, separator=head.separator, **others)
