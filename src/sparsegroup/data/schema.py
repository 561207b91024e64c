"""Which columns of a click log mean what."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sparsegroup.data.errors import ClickLogError

LABELS = ("label", "click")
NOT_FEATURES = ("id", "ts", "timestamp", "split")
SPLIT = "split"


@dataclass(frozen=True)
class Schema:
    """The columns of a click log that training reads. Every field is categorical, numbers included.

    Attributes:
        label: Column with 0 or 1.
        fields: Columns that hold features.
        split: Column whose value 2 marks the test rows, or None.
        suffixes: Field → only so many last characters of its value count. Avazu's `hour` is YYMMDDHH, and a date
            that training has not seen says nothing: 2 leaves the hour of the day.
    """

    label: str
    fields: tuple[str, ...]
    split: str | None = None
    suffixes: Mapping[str, int] = field(default_factory=dict)


def infer_schema(header: Sequence[str], source: str, label: str | None = None, exclude: Collection[str] = ()) -> Schema:
    """The schema of a log with the columns `header`.

    Args:
        header: Column names.
        source: The file, for messages.
        label: Label column; by default `label` or `click`.
        exclude: Columns that are no features, beside `id`, `ts`, `timestamp` and `split`.

    Raises:
        ClickLogError: No label column, one that does not exist, a repeated name, or no field left.
    """
    where = f"{source}:1"
    columns = ", ".join(header)
    if repeated := sorted({name for name in header if header.count(name) > 1}):
        raise ClickLogError(f"{where}: column {repeated[0]!r} appears {header.count(repeated[0])} times")
    if missing := [name for name in exclude if name not in header]:
        raise ClickLogError(f"{where}: no column {missing[0]!r} to exclude; the columns are {columns}")
    candidates = [label] if label is not None else [name for name in LABELS if name in header]
    if not candidates or candidates[0] not in header:
        wanted = repr(label) if label is not None else " or ".join(map(repr, LABELS))
        raise ClickLogError(f"{where}: no label column {wanted}; name it with --label. The columns are {columns}")
    fields = tuple(name for name in header if name not in {candidates[0], *NOT_FEATURES, *exclude})
    if not fields:
        raise ClickLogError(f"{where}: no feature column is left; the columns are {columns}")
    is_avazu = {"click", "hour", "site_id", "device_id", "C14"} <= set(header)
    return Schema(
        candidates[0],
        fields,
        split=SPLIT if SPLIT in header else None,
        suffixes={"hour": 2} if is_avazu and "hour" in fields else {},
    )
