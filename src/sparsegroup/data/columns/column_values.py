"""How values are read: numbers, booleans, times and lists from a column of texts, as Polars expressions."""

import json

import polars as pl

from sparsegroup.data.columns.column_kind import JOINT, JSON, PER_SECOND

MISSING = ("", "NA", "N/A", "n/a", "null", "NULL", "Null", "None", "none", "NaN", "nan", "\\N", "?", "-")
"""Spellings of a missing number, boolean, time or list. In a category they stand for themselves: NA is a country."""

BOOLEANS = {
    "true": "1",
    "false": "0",
    "yes": "1",
    "no": "0",
    "t": "1",
    "f": "0",
    "y": "1",
    "n": "0",
    "1": "1",
    "0": "0",
}
"""Spelling in lower case → what is hashed."""

ISO = (
    r"^\s*(?P<date>\d{4}-\d\d-\d\d)(?:[T ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,]\d+)?)?"
    r"\s*(?P<zone>Z|UTC|[+-]\d\d(?::?\d\d)?)?)?\s*$"
)
"""A date, or a date and a time, with or without a zone."""

_DAY = 24 * 3600


def stripped(name: str) -> pl.Expr:
    """The texts of a column without blanks around them."""
    return pl.col(name).str.strip_chars()


def is_missing(text: pl.Expr) -> pl.Expr:
    """Whether a text says that there is no value; true of null."""
    return text.is_null() | text.is_in(MISSING)


def as_number(name: str) -> pl.Expr:
    """Float32: NaN for a missing or infinite number, null for what is none."""
    text = stripped(name)
    value = text.cast(pl.Float64, strict=False)
    narrow = value.cast(pl.Float32, strict=False)
    nan = pl.lit(float("nan"), pl.Float32)
    return pl.when(narrow.is_finite()).then(narrow).when(value.is_not_null() | is_missing(text)).then(nan)


def as_numeral(name: str) -> pl.Expr:
    """A number in one spelling, as text; what is none stays as it is, and a missing one is empty."""
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
    """What is hashed for the spellings of true and false, empty for missing ones; anything else as it stands."""
    text = stripped(name)
    read = text.str.to_lowercase().replace_strict(BOOLEANS, default=None, return_dtype=pl.String)
    return pl.when(is_missing(text)).then(pl.lit("")).otherwise(pl.coalesce(read, text))


def as_seconds(name: str, unit: str) -> tuple[pl.Expr, pl.Expr]:
    """Whole seconds since 1970, int64, null where they cannot be read: in UTC, and in the zone that is written.

    Args:
        name: The column.
        unit: One of `UNITS`.
    """
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
    distinct = texts.unique()
    return texts.replace_strict(distinct, [_of_json(text) for text in distinct], return_dtype=pl.String)


def _of_json(text: str) -> str | None:
    values = json_list(text) if text else []
    return None if values is None else JOINT.join(values)


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
