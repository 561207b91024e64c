"""The format of a log, told from how it begins, and checked against its columns."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from sparsegroup.data.encoded_columns import reserved
from sparsegroup.data.formats.log_format import (
    TEST_FRACTION,
    LogFormat,
    avazu,
    criteo,
    ipinyou,
    is_avazu,
    is_criteo,
    is_ipinyou,
)
from sparsegroup.data.formats.log_format import svm as svm_format
from sparsegroup.data.keys import MOST_FIELDS
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.raw.columnar_file import column_names, is_columnar
from sparsegroup.data.raw.text_file import first_line

LABELS = ("label", "click")
TIMES = ("ts", "timestamp")
SPLIT = "split"
NOT_FEATURES = ("id", *TIMES, SPLIT)


def formats_of(logs: Sequence[Path], log: LogFormat | None) -> tuple[LogFormat, list[list[str]]]:
    """The format of one log, or of a training log and a test log, and the columns of each.

    Args:
        logs: The logs.
        log: Their format; None to tell it from how the first begins.

    Raises:
        ClickLogError: No format, or a log without one of its columns.
    """
    log = log or told_from(logs[0])
    if len(logs) > 1:
        log = replace(log, split="file", split_column=None)
    return log, [_columns(path, log) for path in logs]


def told_from(
    path: Path,
    label: str | None = None,
    exclude: Collection[str] = (),
    test_fraction: float | None = None,
    needs_label: bool = True,
) -> LogFormat:
    """The format of a log, by its first line or its columns. The other arguments are those of `from_header`.

    Raises:
        ClickLogError: As `from_header`; an empty or damaged file.
        ValueError: As `from_header`.
    """
    if is_columnar(path):
        return from_header(column_names(path), str(path), "", label, exclude, test_fraction, needs_label)
    return from_first_line(first_line(path), str(path), label, exclude, test_fraction, needs_label)


def from_first_line(
    line: str,
    source: str,
    label: str | None = None,
    exclude: Collection[str] = (),
    test_fraction: float | None = None,
    needs_label: bool = True,
) -> LogFormat:
    """The format of a text log that begins with `line`. The other arguments are those of `from_header`.

    Raises:
        ClickLogError: As `from_header`.
        ValueError: As `from_header`.
    """
    has_criteos_columns = is_criteo(line) or (not needs_label and is_criteo(f"0\t{line}"))
    if found := criteo() if has_criteos_columns else svm_format(line):
        return fixed_format(found, label, exclude, test_fraction)
    separator = "\t" if "\t" in line else ","
    header = [name.strip('"') for name in line.split(separator)]
    return from_header(header, source, separator, label, exclude, test_fraction, needs_label)


def from_header(
    header: Sequence[str],
    source: str,
    separator: str,
    label: str | None = None,
    exclude: Collection[str] = (),
    test_fraction: float | None = None,
    needs_label: bool = True,
) -> LogFormat:
    """The format of a log with a header line: a public one if it has its columns, else every column is a field.

    `ts` or `timestamp` is the time, `split` says where the test set begins (2), and `id` is left out.

    Args:
        header: Column names.
        source: The file, for messages.
        separator: Between columns.
        label: Label column; by default `label` or `click`.
        exclude: Columns that are no features, beside `id`, `ts`, `timestamp` and `split`.
        test_fraction: Share of the rows, the last ones, in [0, 1), that is the test set where there is no `split`; by
            default a tenth.
        needs_label: Whether a label column must be there.

    Raises:
        ClickLogError: No label column, one that does not exist, an unknown column to exclude, a column twice or without
            a name.
        ValueError: `test_fraction` out of range or for a log with a column `split`, or an option for a public log.
    """
    where, columns = f"{source}:1", ", ".join(header)
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise ClickLogError(f"{where}: column {repeated[0]!r} appears {header.count(repeated[0])} times")
    known = header if needs_label else [*header, "click"]
    if found := avazu() if is_avazu(known) else ipinyou() if is_ipinyou(known) else None:
        return fixed_format(found, label, exclude, test_fraction)
    if needs_label and (unknown := [name for name in exclude if name not in header]):
        raise ClickLogError(f"{where}: no column {unknown[0]!r} to exclude. The columns are {columns}")
    given = label is not None
    label = label if given else next((name for name in LABELS if name in header), None)
    if not needs_label:
        label = label or LABELS[0]
    elif label not in header or label is None:
        wanted = repr(label) if given else " or ".join(map(repr, LABELS))
        raise ClickLogError(f"{where}: no label column {wanted}; name it with --label. The columns are {columns}")
    fields = tuple(name for name in header if name not in {label, *NOT_FEATURES, *exclude})
    if "" in fields:
        raise ClickLogError(f"{where}: column {header.index('') + 1} has no name; name it, or give a schema without it")
    has_split = SPLIT in header and label != SPLIT
    if has_split and test_fraction is not None:
        raise ValueError(
            f"--test-fraction is for logs without a column {SPLIT!r}, which marks the test rows of {source}"
        )
    return LogFormat(
        "log",
        label,
        fields,
        time=next((name for name in TIMES if name in header and name != label), None),
        split="column" if has_split else "last-fraction",
        split_column=SPLIT if has_split else None,
        test_fraction=TEST_FRACTION if test_fraction is None else test_fraction,
        separator=separator,
    )


def fixed_format(log: LogFormat, label: str | None, exclude: Collection[str], test_fraction: float | None) -> LogFormat:
    """A public format, whose columns and test set are fixed.

    Raises:
        ValueError: An option that would change them.
    """
    options = {"--label": label is not None, "--exclude": bool(exclude), "--test-fraction": test_fraction is not None}
    if given := [name for name, is_given in options.items() if is_given]:
        raise ValueError(
            f"{given[0]} is for logs whose columns are told from a header; the format {log.name!r} is fixed. "
            "A schema file can describe it in another way"
        )
    return log


def has_label(path: Path, log: LogFormat) -> bool:
    """Whether a log of this format has its label column.

    Raises:
        ClickLogError: An empty or damaged file.
        OSError: No such file.
    """
    if is_columnar(path):
        return log.label in column_names(path)
    cells = [cell.strip('"') for cell in first_line(path).split(log.separator)]
    return log.label in cells if log.has_header else len(cells) != len(log.columns) - 1


def _columns(path: Path, log: LogFormat) -> list[str]:
    """All columns of a log that has those of its format."""
    if is_columnar(path):
        header = column_names(path)
    else:
        line = first_line(path)
        header = list(log.columns) or [name.strip('"') for name in line.split(log.separator)]
    where = f"{path}:1"
    if missing := [name for name in log.raw if name not in header]:
        raise ClickLogError(f"{where}: no column {missing[0]!r}; the columns are {', '.join(header)}")
    if repeated := [name for name in log.raw if header.count(name) > 1]:
        raise ClickLogError(f"{where}: column {repeated[0]!r} appears {header.count(repeated[0])} times")
    if not 1 <= len(log.fields) <= MOST_FIELDS:
        raise ClickLogError(f"{where}: {len(log.fields)} fields; there must be 1 to {MOST_FIELDS}")
    named = {*log.fields, *log.numbers}
    if log.weight in named:
        raise ClickLogError(f"{where}: column {log.weight!r} is the weight; it cannot be a field, too")
    if taken := reserved(log) & named:
        raise ClickLogError(f"{where}: a field cannot be named {min(taken)!r}; rename it, or leave it out")
    return header
