"""Reading of a column's values, by kind and type: a value has the same key or number in every format.

A column of a CSV has texts. A column of Parquet, Arrow or a data frame has a type. A value of JSON becomes a text. The
`as_…` functions return a Polars expression of a column of any type.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any, cast

import polars as pl

from sparsegroup.data.kinds import (
    AMOUNTS,
    BOOLEANS,
    ISO,
    JOINT,
    JSON,
    MISSING,
    MOST_WORDS,
    PER_SECOND,
    SIGN,
    ColumnKind,
)
from sparsegroup.errors import ClickLogError

TEXT = pl.String()
_FLOAT = pl.Float64()
_DAY = 24 * 3600

_LARGEST_WHOLE = 1e38
"""Bound below which whole floats are written with all their digits."""

_PLAIN_FLOATS = (1e-4, 1e15)
"""Range of absolute values in which Python and Polars write a float alike."""

_IS_NUMERAL = r"^(?:0|-?[1-9][0-9]*)$"
"""Pattern of whole numbers in the hashed spelling."""


def leaves(schema: Mapping[str, Any]) -> dict[str, pl.Expr]:
    """Return name → values of typed columns, with structs flattened: a field of a struct is the column `column.field`.

    Each field of a list of structs is a list.

    Raises:
        ClickLogError: Two columns would have the same name.
    """
    found: dict[str, pl.Expr] = {}

    def add(name: str, dtype: Any, values: pl.Expr) -> None:
        inner = getattr(dtype, "inner", None)
        if isinstance(dtype, pl.Struct):
            for field in dtype.fields:
                add(f"{name}.{field.name}", field.dtype, values.struct.field(field.name))
        elif isinstance(inner, pl.Struct):
            values = values.arr.to_list() if isinstance(dtype, pl.Array) else values
            for field in inner.fields:
                part = pl.element().struct.field(field.name)
                add(f"{name}.{field.name}", pl.List(field.dtype), values.list.eval(part))
        elif name in found:
            raise ClickLogError(f"two columns are called {name!r}, one of them a field of a struct: rename one")
        else:
            found[name] = values.alias(name)

    for name, dtype in schema.items():
        add(name, dtype, pl.col(name))
    return found


def without_empty(name: str, dtype: pl.DataType, *, is_category: bool = False) -> pl.Expr:
    """Return a column of a frame, with empty texts as null and binary values as texts.

    `is_category`: the column is a dictionary in Arrow or a categorical in pandas, so numbers become categories.
    """
    column = pl.col(name)
    if is_category and dtype.is_numeric():
        return text_of(column, dtype).cast(pl.Categorical).alias(name)
    if dtype == pl.Binary:
        column, dtype = column.cast(pl.String), TEXT
    is_text = isinstance(dtype, pl.String | pl.Categorical | pl.Enum)
    return pl.when(column != "").then(column).alias(name) if is_text else column


def is_pandas_index(name: str) -> bool:
    """Return whether the name is that of a column in which pandas writes its index."""
    return re.fullmatch(r"__index_level_\d+__", name) is not None


def size_of(values: pl.Series) -> pl.Series:
    """Return the bytes `[n]` of the texts in each value, plus 8 bytes for each list element that is not a text."""
    dtype = values.dtype
    if isinstance(dtype, pl.String | pl.Categorical | pl.Enum):
        return values.cast(pl.String).str.len_bytes()
    if not isinstance(dtype, pl.List | pl.Array):
        return pl.Series([0]).new_from_index(0, len(values))
    lists = values.arr.to_list() if isinstance(dtype, pl.Array) else values
    if dtype.inner != pl.String:
        return lists.list.len() * 8
    return lists.list.eval(pl.element().str.len_bytes()).list.sum()


def composed(frame: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """Return the frame with some text columns in Unicode's normalization form C, in which é is one character."""
    if not names:
        return frame
    columns = [pl.col(name).str for name in names]
    beyond_ascii = frame.select(
        (one.len_bytes().sum() != one.len_chars().sum()).alias(name) for name, one in zip(names, columns, strict=True)
    )
    others = [name for name, found in zip(names, beyond_ascii.row(0), strict=True) if found]
    return frame.with_columns(pl.col(name).str.normalize("NFC") for name in others) if others else frame


# Values in their one spelling: typed columns, values of JSON


def text_of(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Return the texts of typed values, with null for missing values.

    A number has the same text in each type: 7 is the text of the integer 7, the float 7.0 and the decimal 7.00.
    Booleans become true and false, times ISO 8601 (with the offset of a time zone), durations seconds, and lists and
    structs JSON.
    """
    if dtype.is_float():
        column = column.fill_nan(None)
        whole = (column == column.round()) & (column.abs() < _LARGEST_WHOLE)
        as_whole = column.cast(pl.Int128, strict=False).cast(pl.String)
        return pl.when(whole).then(as_whole).otherwise(column.cast(pl.String))
    if isinstance(dtype, pl.Decimal):
        return column.cast(pl.String).map_batches(numerals, return_dtype=pl.String)
    if isinstance(dtype, pl.Datetime):
        return column.dt.strftime("%Y-%m-%dT%H:%M:%S" + ("%z" if dtype.time_zone else ""))
    if isinstance(dtype, pl.Duration):
        return text_of(_seconds_of(column, dtype), pl.Float64())
    if dtype.is_nested():
        # What is written of a struct of only this column, {"":…}, without the braces around.
        encoded = pl.struct(column.alias("")).struct.json_encode()
        return pl.when(column.is_not_null()).then(encoded.str.slice(4, encoded.str.len_chars() - 5))
    return column.cast(pl.String)


def plain_text_of(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Return the texts of typed values for formats without kinds: booleans as 0 and 1, times as whole seconds."""
    match dtype:
        case pl.Boolean():
            column = column.cast(pl.UInt8)
        case pl.Time():
            column = column.cast(pl.Int64) // PER_SECOND["ns"]
        case pl.Duration():
            column = column.dt.total_seconds()
        case pl.Date() | pl.Datetime():
            column = column.cast(pl.Datetime).dt.epoch("s")
        case _:
            return text_of(column, dtype)
    return column.cast(pl.String)


def texts_of(frame: pl.DataFrame, names: Collection[str], *, plain: bool = False) -> pl.DataFrame:
    """Return the frame with some of its columns as texts, empty ones as null; `plain`: see `plain_text_of`."""
    of = plain_text_of if plain else text_of
    schema = frame.schema  # each access makes another one
    typed = [name for name in names if schema[name] != pl.String]
    return frame.with_columns(of(pl.col(name), schema[name]).replace("", None).alias(name) for name in typed)


def stacked(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Concatenate one or more frames of the same columns. A column of different types becomes texts."""
    schemas = [frame.schema for frame in frames]
    mixed = [name for name in schemas[0] if len({schema[name] for schema in schemas}) > 1]
    return pl.concat([texts_of(frame, mixed) for frame in frames])


def text_of_value(value: object, kind: ColumnKind | None = None) -> str | None:
    """Return the text of a JSON value, which gives the same key or number as a typed column of the value.

    Args:
        value: A text, number, boolean, list of these, or None.
        kind: The kind of the column; None for formats without kinds.

    Raises:
        ValueError: The column does not accept lists, or a value of a list contains its separator.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return _text_of_list(value, kind)
    if isinstance(value, bool):
        return str(value).lower() if kind is not None else str(int(value))
    if not isinstance(value, int | float):
        raise ValueError("takes no object")
    if kind is not None and kind.role in ("amount", "category, amount") and isfinite(value):
        return f"{Decimal(repr(value)):f}".replace(".", kind.detail or ".")
    return _numeral_of(value)


def _numeral_of(value: float) -> str | None:
    """Return the text of a JSON number in the spelling of `text_of`."""
    if isinstance(value, int):
        return str(value)
    if value.is_integer() and abs(value) < _LARGEST_WHOLE:
        return str(int(value))
    if _PLAIN_FLOATS[0] <= abs(value) < _PLAIN_FLOATS[1]:
        return repr(value)
    text: str | None = pl.Series([value], dtype=pl.Float64).fill_nan(None).cast(pl.String)[0]
    return text


def _text_of_list(values: list[Any], kind: ColumnKind | None) -> str:
    if kind is None or kind.role != "list":
        raise ValueError(f"takes {'no object' if is_object(values) else 'one value, got a list'}")
    if is_object(values):
        raise ValueError("takes no object")
    if kind.detail == JSON:
        return json.dumps(values)
    texts = [_text_of_part(value) for value in values]
    if clash := next((text for text in texts if kind.detail in text), None):
        raise ValueError(f"has {kind.detail!r}, which separates values, in the value {clash[:100]!r}")
    return kind.detail.join(texts)


def _text_of_part(value: object) -> str:
    """Return the text of one value in a JSON list."""
    if isinstance(value, list | dict):
        return json.dumps(value, separators=(",", ":"))
    return text_of_value(value, ColumnKind("category")) or ""


def opened(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a JSON object with additional columns for the parts of its inner objects, named as in `leaves`.

    The inner objects remain.
    """
    if not any(map(is_object, row.values())):
        return row
    found = dict[str, Any]()
    levels = [("", iter(row.items()))]  # as deep as JSON may be, deeper than functions may call themselves
    while levels:
        prefix, items = levels[-1]
        for key, value in items:
            name = prefix + key
            found.setdefault(name, value)
            if isinstance(value, dict):
                levels.append((f"{name}.", iter(value.items())))
                break
            if is_object(value):
                objects = [one if isinstance(one, dict) else {} for one in value]
                for part in dict.fromkeys(key for one in objects for key in one):
                    found[f"{name}.{part}"] = [one.get(part) for one in objects]
        else:
            levels.pop()
    return found


def is_object(value: object) -> bool:
    """Return whether a JSON value is an object or a list with objects."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value))


# Reading of a column's values: expressions of a column of texts, or of another type


def stripped(name: str, dtype: pl.DataType = TEXT) -> pl.Expr:
    """Return the texts of a column without blanks around them."""
    return text_of(pl.col(name), dtype).str.strip_chars()


def is_missing(text: pl.Expr) -> pl.Expr:
    """Return whether a text is null or a spelling of a missing value."""
    return text.is_null() | text.is_in(MISSING)


def as_category(name: str, dtype: pl.DataType = TEXT) -> pl.Expr:
    """Return the values in the hashed spelling. Texts are unchanged.

    Raises:
        ClickLogError: The values are lists or structs.
    """
    if dtype.is_nested():
        raise _refused(name, dtype, "a category", "; let its kind be list")
    return text_of(pl.col(name), dtype)


def as_number(name: str, dtype: pl.DataType = TEXT) -> pl.Expr:
    """Return float32: NaN for a missing or infinite number, null for a value that is not a number.

    Raises:
        ClickLogError: The type has no numbers.
    """
    column = pl.col(name)
    if isinstance(dtype, pl.Duration):
        column = _seconds_of(column, dtype)
    elif dtype == pl.String:
        return column.map_batches(_numbers, return_dtype=pl.Float32)
    elif not dtype.is_numeric() and dtype != pl.Null:
        raise _refused(name, dtype, "a number")
    return _finite(column.cast(pl.Float64))


def _finite(values: pl.Expr) -> pl.Expr:
    narrow = values.cast(pl.Float32, strict=False)
    return pl.when(narrow.is_finite()).then(narrow).otherwise(pl.lit(float("nan"), pl.Float32))


def _numbers(texts: pl.Series) -> pl.Series:
    values = texts.cast(pl.Float64, strict=False)
    finite = pl.DataFrame({"value": values}).select(_finite(pl.col("value"))).to_series()
    if values.null_count() == texts.null_count():
        return finite
    both = pl.DataFrame({"text": texts, "value": finite, "is_number": values.is_not_null()})
    text = stripped("text")
    padded = text.cast(pl.Float64, strict=False)
    read = pl.when("is_number").then("value").when(padded.is_not_null() | is_missing(text)).then(_finite(padded))
    return both.select(read).to_series()


def as_numeral(name: str, dtype: pl.DataType = TEXT) -> pl.Expr:
    """Return numbers as text in one spelling. Other texts lose the blanks around them; a missing number is empty."""
    if dtype.is_nested():
        raise _refused(name, dtype, "a category", "; let its kind be list")
    text = text_of(pl.col(name), dtype)
    return text if dtype.is_numeric() else text.map_batches(numerals, return_dtype=pl.String)


def numerals(texts: pl.Series) -> pl.Series:
    """Return texts `[n]` with numbers in one spelling: 7 for 7.0, +7 and 007. Whole numbers of any size are exact."""
    is_canonical = texts.str.contains(_IS_NUMERAL)
    if is_canonical.all():
        return texts
    given = texts.filter(~is_canonical).unique()
    text = pl.col("text")
    whole = text.str.extract(r"^([+-]?[0-9]+)(?:\.0*)?$").str.replace(r"^\+?(-?)0*([0-9])", "$1$2").replace("-0", "0")
    value = text.cast(pl.Float64, strict=False)
    spelled = pl.when(is_missing(text)).then(pl.lit("")).otherwise(pl.coalesce(whole, text_of(value, _FLOAT), text))
    stripped_texts = pl.DataFrame({"text": given.str.strip_chars()})
    return texts.replace(given, stripped_texts.select(spelled).to_series())


def classes_in(texts: pl.Series) -> list[str]:
    """Return the different texts `[n]` of a label: sorted as numbers, if all are, else as texts."""
    every = texts.str.strip_chars().str.normalize("NFC").replace("", None).drop_nulls().unique()
    if every.cast(pl.Float64, strict=False).is_finite().fill_null(False).all():
        return sorted(numerals(every).unique(), key=float)
    return sorted(every)


def padded_twins(texts: pl.Series) -> list[str]:
    """Return two texts of a label that differ only by blanks around them; empty if there are no such texts."""
    every = pl.DataFrame({"text": texts.unique().drop_nulls()}).filter(stripped("text") != "")
    twins = every.filter(stripped("text").is_duplicated()).sort(stripped("text"), "text")
    return twins["text"].head(2).to_list()


def as_amount(name: str, comma: str, dtype: pl.DataType = TEXT) -> pl.Expr:
    """Return float32 of amounts without their currency, see `as_number`. `comma` is the kind's detail.

    Typed numbers are unchanged: the decimal comma applies to texts only.
    """
    if dtype.is_numeric():
        return as_number(name, dtype)
    text = stripped(name, dtype)
    number = text.str.replace_all(SIGN, "").str.strip_chars()
    digits = number.str.replace_all(r"[^\d,+-]" if comma else r"[^\d.+-]", "").str.replace(",", ".", literal=True)
    value = pl.when(number.str.contains(AMOUNTS[comma])).then(digits.cast(pl.Float64, strict=False).cast(pl.Float32))
    nan = pl.lit(float("nan"), pl.Float32)
    return pl.when(is_missing(text)).then(nan).when(value.is_finite()).then(value)


def as_amount_numeral(name: str, comma: str, dtype: pl.DataType = TEXT) -> pl.Expr:
    """Return amounts without their currency as text: $1.50 and 1.5 are equal. A missing amount is empty."""
    return text_of(as_amount(name, comma, dtype), pl.Float32())


def as_domain(name: str, dtype: pl.DataType = TEXT) -> pl.Expr:
    """Return the domain of an e-mail address or a URL in lower case, else the text in lower case, empty if missing."""
    text = stripped(name, dtype).str.to_lowercase()
    host = pl.coalesce(text.str.extract(r"^[a-z][a-z0-9+.-]*://(?:[^/@]*@)?([^/:?#]*)"), text.str.extract(r"@([^@]+)$"))
    return pl.when(is_missing(stripped(name, dtype))).then(pl.lit("")).otherwise(pl.coalesce(host, text))


def words_of(text: pl.Expr) -> pl.Expr:
    """Return the different words of a text in lower case, in the order of the text."""
    found = text.str.normalize("NFC").str.to_lowercase().str.extract_all(r"[\p{L}\p{N}]+")
    return found.list.head(MOST_WORDS).list.unique(maintain_order=True)


def as_words(name: str, dtype: pl.DataType = TEXT) -> pl.Expr:
    """Return the words of a text, joined by `JOINT`. A missing text has no words."""
    text = text_of(pl.col(name), dtype)
    return pl.when(is_missing(stripped(name, dtype))).then(pl.lit("")).otherwise(words_of(text).list.join(JOINT))


def as_boolean(name: str, dtype: pl.DataType = TEXT) -> pl.Expr:
    """Return 1 and 0 for the spellings of true and false, and the result of `as_numeral` for other values."""
    if dtype == pl.Boolean:
        return pl.col(name).cast(pl.UInt8).cast(pl.String)
    if dtype != pl.String:
        return as_numeral(name, dtype)
    return pl.col(name).map_batches(_booleans, return_dtype=pl.String)


def _booleans(texts: pl.Series) -> pl.Series:
    given = texts.unique()  # few: to read each text takes 15 times as long
    read = stripped("text").str.to_lowercase().replace_strict(BOOLEANS, default=None, return_dtype=pl.String)
    found = pl.DataFrame({"text": given}).select(pl.coalesce(read, as_numeral("text"))).to_series()
    return texts.replace_strict(given, found, return_dtype=pl.String)


def as_seconds(name: str, unit: str, dtype: pl.DataType = TEXT) -> tuple[pl.Expr, pl.Expr]:
    """Return whole seconds since 1970, int64, in UTC and in the written zone. Unreadable values are null."""
    column = pl.col(name)
    if isinstance(dtype, pl.Date | pl.Datetime):
        local = column.dt.replace_time_zone(None) if isinstance(dtype, pl.Datetime) else column
        return column.dt.epoch("s"), local.dt.epoch("s")
    if unit in PER_SECOND:
        if dtype.is_integer():
            seconds = column.cast(pl.Int64, strict=False) // PER_SECOND[unit]
            return seconds, seconds
        text = stripped(name, dtype)
        number = text.cast(pl.Float64, strict=False).floor().cast(pl.Int64, strict=False)
        seconds = pl.coalesce(text.cast(pl.Int64, strict=False), number) // PER_SECOND[unit]
        return seconds, seconds
    if "%" in unit:
        seconds = stripped(name, dtype).str.to_datetime(unit, strict=False, time_unit="us").dt.epoch("s")
        return seconds, seconds
    parts = text_of(column, dtype).str.extract_groups(ISO)
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
    """Return the hour of seconds since 1970, 0 to 23, as text."""
    return (local % _DAY // 3600).cast(pl.String)


def weekday_of(local: pl.Expr) -> pl.Expr:
    """Return the weekday of seconds since 1970, 1 (Monday) to 7, as text."""
    return ((local // _DAY + 3) % 7 + 1).cast(pl.String)


def without_missing(name: str, dtype: pl.DataType, part: pl.Expr) -> pl.Expr:
    """Return the derived texts of a column, with an empty text for each missing value of the column."""
    return (
        pl.when(is_missing(stripped(name, dtype) if dtype == pl.String else pl.col(name).cast(pl.String)))
        .then(pl.lit(""))
        .otherwise(part)
    )


def as_list(name: str, separator: str, dtype: pl.DataType = TEXT, spelling: str = "list") -> pl.Expr:
    """Return the values of a list, joined by its separator; of a JSON array, by `JOINT`. Null: the value is not a list.

    A typed list is null if one of its values contains the separator. A list spells its values as the column whose
    vocabulary it shares, see `ColumnKind.spelling`: among texts, a lone NA is a value.
    """
    are_texts = spelling == "texts" and separator != JSON
    if isinstance(dtype, pl.List | pl.Array):
        joined = _joined_lists(pl.col(name), dtype, separator, are_texts)
    else:
        is_absent = pl.col(name).is_null() if are_texts else is_missing(stripped(name, dtype))
        joined = pl.when(is_absent).then(pl.lit("")).otherwise(text_of(pl.col(name), dtype))
        joined = joined.map_batches(_joined_arrays, return_dtype=pl.String) if separator == JSON else joined
    if spelling != "numerals":
        return joined
    joint = JOINT if separator == JSON else separator
    values = joined.str.split(joint).list.eval(pl.element().map_batches(numerals, return_dtype=pl.String))
    return values.list.join(joint)


def _joined_lists(column: pl.Expr, dtype: pl.List | pl.Array, separator: str, are_texts: bool) -> pl.Expr:
    values = column.arr.to_list() if isinstance(dtype, pl.Array) else column
    texts = values.list.eval(text_of(pl.element(), cast("pl.DataType", dtype.inner)).fill_null(""))
    joined = texts.list.join(JOINT if separator == JSON else separator)
    if separator != JSON:
        clashes = texts.list.eval(pl.element().str.contains(separator, literal=True)).list.any()
        is_absent = pl.lit(False) if are_texts else is_missing(joined.str.strip_chars())  # as a text
        joined = pl.when(~clashes).then(pl.when(is_absent).then(pl.lit("")).otherwise(joined))
    return pl.when(column.is_null()).then(pl.lit("")).otherwise(joined)


def _joined_arrays(texts: pl.Series) -> pl.Series:
    lists = {text: json_list(text) if text else [] for text in texts.unique()}
    joined = [None if values is None else JOINT.join(values) for values in lists.values()]
    return texts.replace_strict(list(lists), joined, return_dtype=pl.String)


def json_list(text: str) -> list[str] | None:
    """Return the values of a JSON array as texts: 1.0 is "1", null is "". None: the text is not an array."""
    try:
        values = json.loads(text)
    except ValueError:
        return None
    return [_text_of_part(value) for value in values] if isinstance(values, list) else None


def _seconds_of(column: pl.Expr, dtype: pl.Duration) -> pl.Expr:
    """Return durations as seconds, float64."""
    return column.cast(pl.Int64) / PER_SECOND[dtype.time_unit]


def _refused(name: str, dtype: pl.DataType, what: str, advice: str = "") -> ClickLogError:
    return ClickLogError(f"column {name!r} is of type {dtype}, which cannot be {what}{advice}")
