"""What a column of a log can be, as one text, and how its values are read.

Every column is read as texts: that of a CSV unchanged, a typed one (Parquet, Arrow, data frames) by `text_of`.
"""

import json
from dataclasses import dataclass
from typing import Self

import polars as pl

from sparsegroup.errors import ClickLogError

# fmt: off
_PLAIN = (
    "category", "category of numbers", "number", "category, number", "boolean", "ignore", "label", "split", "weight",
)
# fmt: on

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Unit of whole numbers that are times → how many of them make a second."""

UNITS = (*PER_SECOND, "iso", "date")
"""Units of times."""

JSON = "json"
JOINT = "\x1f"
"""Between the values of a JSON list, once they are read."""

_NAMED = {"space": " ", "comma": ",", "tab": "\t"}

MISSING = ("", "NA", "N/A", "n/a", "null", "NULL", "Null", "None", "none", "NaN", "nan", "\\N", "?", "-")
"""Spellings of a missing number, boolean, time or list. In a category they stand for themselves: NA is a country."""

BOOLEANS = dict.fromkeys(("true", "yes", "t", "y", "1"), "1") | dict.fromkeys(("false", "no", "f", "n", "0"), "0")
"""Spelling in lower case → what is hashed."""

SPELLED_LABELS = {"0": "0", "0.0": "0", "false": "0", "no": "0", "1": "1", "1.0": "1", "true": "1", "yes": "1"}
"""Label in lower case → 0 or 1."""

ISO = (
    r"^\s*(?P<date>\d{4}-\d\d-\d\d)(?:[T ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,]\d+)?)?"
    r"\s*(?P<zone>Z|UTC|[+-]\d\d(?::?\d\d)?)?)?\s*$"
)
"""A date, or a date and a time, with or without a zone."""

_DAY = 24 * 3600


@dataclass(frozen=True)
class ColumnKind:
    """What a column is, and so what becomes of it.

    - `category`: a field; its values are hashed unchanged.
    - `category of numbers`: a field whose values are numbers, so that 1, 1.0 and 01 are one of them.
    - `number`: an unchanged number, float32; a missing or infinite one is NaN.
    - `category, number`: both of the last two.
    - `boolean`: a field of 0 and 1; true, yes, t, y are 1, false, no, f, n are 0, in any case.
    - `timestamp UNIT`: two fields, hour (0 to 23) and weekday (1, Monday, to 7); of a date the weekday alone. Units are
      s, ms, us, ns (whole numbers since 1970, UTC), iso (2024-01-31T09:30:00+01:00, in the zone written) and date.
    - `time UNIT`: the same, and the log's own time, in seconds since 1970. `time` alone: unchanged whole numbers, and
      no fields.
    - `list SEPARATOR`: a field of several values; the separator is one or more characters, `space`, `comma`, `tab`, or
      `json` for arrays.
    - `label`, `split`, `weight`: the label, what marks the test rows (2), and how much a row counts, a number >= 0.
    - `ignore`: nothing.

    Attributes:
        role: The kind without its detail.
        detail: Unit of a time, separator of a list, or "".

    Examples:
        >>> from sparsegroup.data import ColumnKind
        >>> ColumnKind.of("time ms")
        ColumnKind(role='time', detail='ms')
        >>> str(ColumnKind("list", ","))
        'list comma'
    """

    role: str
    detail: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        """The kind with this text.

        Raises:
            ClickLogError: There is none.
        """
        words = " ".join(text.replace(",", ", ", 1).split()) if not text.strip().startswith("list") else text.strip()
        if words in _PLAIN or words == "time":
            return cls(words)
        if words == "number, category":
            return cls("category, number")
        role, _, detail = words.partition(" ")
        if role in ("time", "timestamp") and detail in UNITS:
            return cls(role, detail)
        if role == "list" and detail.strip():
            return cls(role, _NAMED.get(detail.strip(), detail.strip()))
        raise ClickLogError(
            f"a column is one of {'; '.join(_PLAIN)}; time or timestamp with one of {', '.join(UNITS)}; or list with "
            f"what separates its values, such as |, comma, space or json: got {text!r}"
        )

    def __str__(self) -> str:
        named = {separator: name for name, separator in _NAMED.items()}
        return f"{self.role} {named.get(self.detail, self.detail)}".strip()

    @property
    def is_time(self) -> bool:
        """Whether it is a time, the log's own or another."""
        return self.role in ("time", "timestamp")

    @property
    def separator(self) -> str:
        """What separates a list's values, once it is read."""
        return JOINT if self.detail == JSON else self.detail


@dataclass(frozen=True)
class ColumnFinding:
    """What a column was taken for, and why.

    Attributes:
        name: The column.
        kind: What it was taken for, see `ColumnKind`.
        why: The reason, in words.
        examples: A few of its values.
        distinct: Different values in the rows that were looked at, without missing ones.
        missing: Share of those rows, in [0, 1], that have no value.
        warning: What the user should think about, or ""; parameters are in backquotes.
    """

    name: str
    kind: str
    why: str
    examples: tuple[str, ...] = ()
    distinct: int = 0
    missing: float = 0.0
    warning: str = ""


def text_of(name: str, dtype: pl.DataType, *, plain: bool = False) -> pl.Expr:
    """A typed column as the texts that a CSV of the same data has, null where there is no value.

    Whole numbers have no decimals, booleans are true and false, times ISO's (with the offset of their zone, if they
    have one), lists and structs JSON. If `plain`, for formats without kinds: booleans are 0 and 1, times and durations
    whole seconds, and there are no lists and structs.
    """
    column = pl.col(name)
    if dtype.is_float():
        column = column.fill_nan(None)
        whole = (column == column.round()) & (column.abs() < 2.0**53)
        as_whole = column.cast(pl.Int64, strict=False).cast(pl.String)
        column = pl.when(whole).then(as_whole).otherwise(column.cast(pl.String))
    elif plain and dtype == pl.Boolean:
        column = column.cast(pl.UInt8)
    elif plain and dtype.is_temporal():
        match dtype:
            case pl.Time():
                column = column.cast(pl.Int64) // PER_SECOND["ns"]
            case pl.Duration():
                column = column.dt.total_seconds()
            case _:
                column = column.cast(pl.Datetime).dt.epoch("s")
    elif isinstance(dtype, pl.Datetime):
        column = column.dt.strftime("%Y-%m-%dT%H:%M:%S" + ("%z" if dtype.time_zone else ""))
    elif isinstance(dtype, pl.Duration):
        column = column.cast(pl.Int64)
    elif isinstance(dtype, pl.List | pl.Array | pl.Struct):
        # What is written of a struct of only this column, {"":…}, without the braces around.
        encoded = pl.struct(column.alias("")).struct.json_encode()
        column = pl.when(column.is_not_null()).then(encoded.str.slice(4, encoded.str.len_chars() - 5))
    return column.cast(pl.String).replace("", None).alias(name)


# How values are read: expressions of a column of texts


def stripped(name: str) -> pl.Expr:
    """The texts of a column without blanks around them."""
    return pl.col(name).str.strip_chars()


def is_missing(text: pl.Expr) -> pl.Expr:
    """Whether a text is a spelling of no value; true of null."""
    return text.is_null() | text.is_in(MISSING)


def as_number(name: str) -> pl.Expr:
    """Float32: NaN for a missing or infinite number, null for what is none."""
    text = stripped(name)
    value = text.cast(pl.Float64, strict=False)
    narrow = value.cast(pl.Float32, strict=False)
    nan = pl.lit(float("nan"), pl.Float32)
    return pl.when(narrow.is_finite()).then(narrow).when(value.is_not_null() | is_missing(text)).then(nan)


def as_numeral(name: str) -> pl.Expr:
    """A number in one spelling, as text; anything else is unchanged, and a missing number is empty."""
    text = stripped(name)
    whole, value = text.cast(pl.Int64, strict=False), text.cast(pl.Float64, strict=False)
    is_whole = value.is_finite() & (value == value.round()) & (value.abs() < 2.0**53)
    return (
        pl.when(is_missing(text))
        .then(pl.lit(""))
        .when(whole.is_not_null())
        .then(whole.cast(pl.String))
        .when(is_whole)
        .then(value.cast(pl.Int64, strict=False).cast(pl.String))
        .otherwise(pl.coalesce(value.cast(pl.String), text))
    )


def as_boolean(name: str) -> pl.Expr:
    """What is hashed for the spellings of true and false, empty for missing ones; anything else is unchanged."""
    text = stripped(name)
    read = text.str.to_lowercase().replace_strict(BOOLEANS, default=None, return_dtype=pl.String)
    return pl.when(is_missing(text)).then(pl.lit("")).otherwise(pl.coalesce(read, text))


def as_seconds(name: str, unit: str) -> tuple[pl.Expr, pl.Expr]:
    """Whole seconds since 1970, int64, null where they cannot be read: in UTC, and in the zone that is written."""
    if unit in PER_SECOND:
        text = stripped(name)
        number = text.cast(pl.Float64, strict=False).floor().cast(pl.Int64, strict=False)
        seconds = pl.coalesce(text.cast(pl.Int64, strict=False), number) // PER_SECOND[unit]
        return seconds, seconds
    parts = pl.col(name).str.extract_groups(ISO)
    day = parts.struct.field("date").str.to_date("%Y-%m-%d", strict=False).cast(pl.Int64) * _DAY
    hour, minute, second = (
        parts.struct.field(part).cast(pl.Int64, strict=False).fill_null(0) for part in ("hour", "minute", "second")
    )
    local = pl.when((hour < 24) & (minute < 60) & (second < 61)).then(day + hour * 3600 + minute * 60 + second)
    zone = parts.struct.field("zone")
    hours = zone.str.slice(1, 2).cast(pl.Int64, strict=False).fill_null(0)
    minutes = zone.str.slice(3).str.strip_prefix(":").cast(pl.Int64, strict=False).fill_null(0)
    ahead = (hours * 3600 + minutes * 60) * pl.when(zone.str.starts_with("-")).then(-1).otherwise(1).fill_null(1)
    return local - ahead, local


def hour_of(local: pl.Expr) -> pl.Expr:
    """The hour of seconds since 1970, 0 to 23, as text."""
    return (local % _DAY // 3600).cast(pl.String)


def weekday_of(local: pl.Expr) -> pl.Expr:
    """The weekday of seconds since 1970, 1 (Monday) to 7, as text."""
    return ((local // _DAY + 3) % 7 + 1).cast(pl.String)


def as_list(name: str, separator: str) -> pl.Expr:
    """The values of a list with one separator between them; of a JSON array `JOINT`."""
    text = pl.when(is_missing(stripped(name))).then(pl.lit("")).otherwise(pl.col(name))
    return text.map_batches(_joined, return_dtype=pl.String) if separator == JSON else text


def _joined(texts: pl.Series) -> pl.Series:
    lists = {text: json_list(text) if text else [] for text in texts.unique()}
    joined = [None if values is None else JOINT.join(values) for values in lists.values()]
    return texts.replace_strict(list(lists), joined, return_dtype=pl.String)


def json_list(text: str) -> list[str] | None:
    """The values of a JSON array as texts: 1.0 is "1", null is ""; None where it is no array."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return [_text_of(value) for value in values] if isinstance(values, list) else None


def _text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else json.dumps(value)
