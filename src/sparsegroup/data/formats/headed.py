"""Any log that names its columns: in a header line, or as columnar files do."""

from collections.abc import Collection

from sparsegroup.data.formats.log_format import TEST_FRACTION, Head, LogFormat
from sparsegroup.data.log_errors import ClickLogError, LogOptionError

LABELS = ("label", "click")
TIMES = ("ts", "timestamp")
SPLIT = "split"
NOT_FEATURES = ("id", *TIMES, SPLIT)


def headed(
    head: Head,
    label: str | None = None,
    exclude: Collection[str] = (),
    test_fraction: float | None = None,
    needs_label: bool = True,
) -> LogFormat:
    """The format in which every column is a field, but for those that are known to be none.

    `ts` or `timestamp` is the time, `split` says where the test set begins (2), and `id` is left out.

    Args:
        head: How the log begins.
        label: Label column; by default `label` or `click`.
        exclude: Columns that are no features, beside `id`, `ts`, `timestamp` and `split`.
        test_fraction: Share of the rows, the last ones, in [0, 1), that is the test set where there is no `split`; by
            default a tenth.
        needs_label: Whether a label column must be there.

    Raises:
        ClickLogError: No label column, one that does not exist, an unknown column to exclude, or a column without a
            name.
        LogOptionError: `test_fraction` out of range, or for a log with a column `split`.
    """
    header = head.columns
    where, columns = f"{head.source}:1", ", ".join(header)
    if needs_label and (unknown := [name for name in exclude if name not in header]):
        raise ClickLogError(f"{where}: no column {unknown[0]!r} to exclude. The columns are {columns}")
    given = label is not None
    label = label if given else next((name for name in LABELS if name in header), None)
    if not needs_label:
        label = label or LABELS[0]
    elif label not in header or label is None:
        wanted = repr(label) if given else " or ".join(map(repr, LABELS))
        raise ClickLogError(
            f"{where}: no label column {wanted}; name it with `label`. The columns are {columns}", "label"
        )
    fields = tuple(name for name in header if name not in {label, *NOT_FEATURES, *exclude})
    if "" in fields:
        raise ClickLogError(f"{where}: column {header.index('') + 1} has no name; name it, or give a schema without it")
    has_split = SPLIT in header and label != SPLIT
    if has_split and test_fraction is not None:
        raise LogOptionError(
            f"`test_fraction` is for logs without a column {SPLIT!r}, which marks the test rows of {head.source}",
            "test_fraction",
        )
    return LogFormat(
        "log",
        label,
        fields,
        time=next((name for name in TIMES if name in header and name != label), None),
        split="column" if has_split else "last-fraction",
        split_column=SPLIT if has_split else None,
        test_fraction=TEST_FRACTION if test_fraction is None else test_fraction,
        separator=head.separator,
    )
