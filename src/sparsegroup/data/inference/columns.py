"""Inference of the columns' kinds from their names and first values.

The first matching rule decides. Each rule exists because a column of a real log, or of a simple test case, would
otherwise get the wrong kind. If the reason is not obvious, a comment names the columns.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from operator import or_
from types import MappingProxyType
from typing import cast

import numpy as np
import numpy.typing as npt
import polars as pl

from sparsegroup.data.kinds import (
    AMOUNTS,
    BOOLEANS,
    ISO,
    JSON,
    MISSING,
    PER_SECOND,
    SIGN,
    ColumnFinding,
    ColumnKind,
)
from sparsegroup.data.values import TEXT, as_seconds, json_list, words_of

Float64s = npt.NDArray[np.float64]

SAMPLE_ROWS = 100_000
"""Rows of a log that are looked at."""

# fmt: off
ID_WORDS = frozenset({
    "id", "ids", "uid", "uuid", "guid", "key", "hash", "code", "zip", "zipcode", "postcode", "postal", "sku", "isbn",
    "token", "session", "cookie", "ip", "user", "member", "account", "customer", "visitor", "item", "article",
    "product", "ad", "campaign", "creative", "advertiser", "publisher", "merchant", "brand", "shop", "site", "domain",
    "app", "device", "model", "query", "document", "news", "video", "song", "movie", "page", "channel", "slot",
    "country", "region", "city", "category", "type",
})
"""Words, lower case, in the name of a column whose whole numbers are IDs,"""

AMOUNT_WORDS = frozenset({
    "n", "num", "number", "count", "counts", "total", "sum", "size", "length", "width", "height", "price", "cost",
    "amount", "age", "days", "hours", "minutes", "seconds", "duration", "distance", "avg", "mean", "rate", "ratio",
    "share", "score", "rank", "position", "views", "clicks",
})
"""unless one of these is in it."""

TIME_WORDS = frozenset({
    "ts", "time", "times", "timestamp", "date", "datetime", "dt", "at", "created", "updated", "clicked", "served",
    "requested", "when", "epoch", "unixtime",
})
"""In the name of numbers that are times, if they are large enough."""

VERSION_WORDS = frozenset({"version", "versions", "ver", "release", "build"})
"""In the name of decimals that are versions."""

ROW_WORDS = TIME_WORDS | {"event", "log", "logged", "click", "impression", "request", "row", "server"}
"""Words of a name that only says that it is the time of the rows, such as `event_time`; `release_date` says more."""

CYCLE_WORDS = frozenset({"hour", "hr", "minute", "weekday", "dow", "wday"})
"""In the name of a clock that soon returns to the same value."""

WEIGHTS = (
    "sample_weight", "sample_weights", "row_weight", "example_weight", "instance_weight", "importance_weight",
    "importance_weights", "weight", "weights", "importance",
)
"""Names, in any case, of the column of the rows' weights; the first one that is there."""
# fmt: on

CLOCKS = ("ts", "timestamp")
"""Names of the log's own time, in any unit."""

_ENOUGH = 100
"""Rows with a value, from which on it matters that none repeats, and shares of them decide."""

_NEARLY_ALL = 0.99
"""Share of the rows with a value that decides the kind of a column of numbers, amounts or times."""

_MOST_ODD = 20
"""Different other values of such a column, at most: they mean that the value is missing."""

_NEARLY_UNIQUE = 0.8
"""Values per row of a column that hardly says more than which row it is."""

_FEW, _OFTEN, _REPEATS = 100, 10, 2
"""A number is a category of at most these values with these rows each; of one that may be, mean rows per value."""

_LONG = 500
"""Rows in which a clock keeps its value, a month, a day, while it has returned to one fewer than `_OFTEN` times."""

_EARLIEST, _LATEST = 946_684_800, 2_208_988_800
"""Seconds since 1970 of the years 2000 and 2040: numbers are times only between."""

_EARLIEST_DAY, _LATEST_DAY = 20_000_101, 20_400_101
"""Dates that are written as numbers are within these."""

_EITHER_ORDER = "; the day or the month first, which they do not show"

_SLACK, _IN_ORDER = 0.01, 0.99
"""Rows are in order if this share of them is no later than this share of the whole span after its time."""

_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_SEPARATORS = {"|": 0.05, ";": 0.05, ",": 0.3, " ": 0.5}
"""Separator → share of the values that must have it. The first that fits is taken."""

# Between spaces there must be such tokens: texts also have spaces.
_TOKEN = r"^[A-Za-z]{0,3}\d+$"
# 1e5 without a sign or a point is rather the beginning of a hash.
_NUMERAL = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]\d+)?$|^[+-]?\d*\.\d*[eE]\d+$|^[+-]?(?i:inf|infinity)$"
_PADDED = r"^[+-]?0\d"
_SHORTENED = r"^\d(?:\.\d{1,5})?E\+(?:1[1-9]|[2-9]\d)$"
_QUANTITY = r"^[+-]?\d[\d,.]*(?:\s|[.,]\d+)\s?(?i:([a-zµ°²³/]{1,10}))$"
_DURATION = r"^-?(?:\d+ days?,? )?\d{1,3}:\d\d(?::\d\d(?:\.\d+)?)?$"
_MOST_UNITS = 10
_SAME_CURRENCY = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY", "₽": "RUB", "₹": "INR", "₩": "KRW", "KR.": "KR"}

# fmt: off
_DATES = (
    "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%d %b %Y", "%d-%b-%Y",
    "%b %d, %Y", "%b %d %Y",  # %b also reads the whole name of a month
)
# fmt: on
_CLOCK_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p", "T%H:%M:%S", ", %H:%M")
"""Formats of dates, and of what follows a date."""

_URL, _EMAIL = r"^[A-Za-z][A-Za-z0-9+.-]*://[^/\s]", r"^[^@\s]+@[^@\s]+\.[^@\s]+$"

_NESTED = "lists or objects within JSON"
_IS_NESTED = (
    "column {0!r} holds {1}, which are not read: write the values that matter into separate columns, or into lists. "
    "Its values are such as {2}"
)
_IS_EITHER_ORDER = (
    "the dates of {0!r} may have the day or the month first, which their values do not show; they are read with the "
    "{1} first: if that is wrong, say 'timestamp {2}' in a schema (`sparsegroup columns --schema`)"
)

_HAS_ODD = (
    "column {0!r} is read as {1}; {2:,} of its {3:,} values are no such ones and mean that it is missing: {4}. If they "
    "are more than that, say 'category' in a schema (`sparsegroup columns --schema`)"
)
_MAY_BE = (
    "{0:.1%} of the values of {1!r} are read as {2}, the others are not: {3}. So the column is a category; if the "
    "others are missing values, say '{4}' in a schema (`sparsegroup columns --schema`)"
)

_IS_QUANTITY = (
    "{0:.0%} of the values of {1!r} are {2}, which are not read, such as {3}: the column is a category, in which no "
    "value is larger than another; write numbers of one unit into separate columns"
)
_ARE_SEVERAL = (
    "column {0!r} has amounts in several currencies ({1}), which are read as if they were one: convert them, or write "
    "the currency into a separate column"
)

_IS_NOT_IN_ORDER = (
    "{1} of {0!r}, so it is not the log's own time, and the test set is not the latest rows but the last rows of the "
    "file: if it is the time of the rows, {2}"
)
_IS_SHORTENED = (
    "{0:.0%} of the values of {1!r}, such as {2}, are numbers as a spreadsheet shortens them: different identifiers "
    "may have become the same; export them as text"
)

_IS_WEIGHT = (
    "column {0!r} is used as the rows' weight, because of its name: the loss and the metrics count each row by it; "
    "if it is a feature, set `weight` to none"
)

_IS_UNIQUE = "{0} is nearly unique, {1:,} values in {2:,} rows: if it names single rows, leave it out (`exclude`)"


def kinds_of(findings: Sequence[ColumnFinding]) -> Mapping[str, str]:
    """Column → its kind, in the order of the columns."""
    return {finding.name: finding.kind for finding in findings}


def infer_columns(
    frame: pl.DataFrame,
    *,
    whole: bool,
    known: Mapping[str, tuple[str, str]] | None = None,
    finds_weight: bool = False,
    types: Mapping[str, pl.DataType] = MappingProxyType({}),
) -> tuple[ColumnFinding, ...]:
    """Infer the kinds of the columns from some rows. Return a finding for each column, in order.

    Args:
        frame: The first rows, as columns of texts; null where there is no value.
        whole: Whether these are all rows of the log.
        known: Column → its kind, and why it is that; these are not inferred.
        types: Column → its type in the log, where the log has types.
        finds_weight: Whether a column of numbers >= 0 with one of the names in `WEIGHTS` is the rows' weight.
    """
    columns = [_Column(name, frame[name], types.get(name, TEXT)) for name in frame.columns]
    found = {name: (kind, why, "") for name, (kind, why) in (known or {}).items()}
    others = [column for column in columns if column.name not in found]
    if finds_weight and (weight := _weight_among(others)) is not None:
        found[weight] = ("weight", "how much a row counts, because of its name", _IS_WEIGHT.format(weight))
        others = [column for column in others if column.name != weight]
    found |= {column.name: _verdict(column, whole) for column in others}
    found |= _own_time(others, found)
    return tuple(
        ColumnFinding(column.name, kind, why, column.examples, column.distinct, column.missing, warning=warning)
        for column in columns
        for kind, why, warning in [found[column.name]]
    )


class _Column:
    """A column of texts, null where there is no value, and its properties that rules use.

    Attributes:
        present: `[rows]` the values, without blanks around them and without spellings of missing ones.
        values, counts: Different values, the most frequent first, and how often each occurs.
    """

    def __init__(self, name: str, texts: pl.Series, dtype: pl.DataType = TEXT) -> None:
        stripped = texts.str.strip_chars()
        self.name, self.dtype = name, dtype
        self._texts = stripped.set(stripped.is_in(list(MISSING)).fill_null(True), None)
        self.present = self._texts.drop_nulls()
        counted = self.present.alias("value").value_counts(sort=True)
        self.values, self.counts = counted["value"], counted["count"]
        self.rows, self.distinct = len(self.present), len(self.values)
        self.is_empty = not len(texts)
        self.missing = 1 - self.rows / max(len(texts), 1)
        self.examples = tuple(one if len(one) <= 24 else one[:23] + "…" for one in self.values.head(3))

    @property
    def often(self) -> str:
        """How often values repeat, in words."""
        each = self.rows / self.distinct
        return f"{self.distinct:,} different values, each {each:,.{0 if each >= 10 else 1}f} times on average"

    @cached_property
    def words(self) -> set[str]:
        """Return the words of the name in lower case, without digits at their ends."""
        parts = re.split(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])", self.name)
        return {re.sub(r"\d+$", "", part.lower()) for part in parts if part}

    def is_named(self, words: Collection[str]) -> bool:
        """Whether one of these words is in the name."""
        return not self.words.isdisjoint(words)

    def has(self, pattern: str) -> bool:
        """Whether some value matches."""
        return bool(self.values.str.contains(pattern).any())

    def matches(self, pattern: str) -> bool:
        """Whether all values match."""
        return bool(self.values.str.contains(pattern).all())

    @property
    def kind_of_ids(self) -> str:
        """Return the kind of a category with these values."""
        is_number = self.is_numeric and not self.has(_PADDED) and not self.has_versions
        return "category of numbers" if is_number else "category"

    @property
    def kind_by_type(self) -> str:
        """Return the kind of a column without values, by the type of the column."""
        if self.dtype.is_float() or isinstance(self.dtype, pl.Decimal | pl.Duration):
            return "number"
        if self.dtype.is_integer():
            return "category, number"
        roles = {pl.Boolean: "boolean", pl.Date: "timestamp date", pl.Datetime: "timestamp iso", pl.List: "list json"}
        return roles.get(self.dtype.base_type(), "category")

    @property
    def has_versions(self) -> bool:
        """Return whether numbers are versions, whose trailing zeros count: 1.10 follows 1.9."""
        if self.is_named(VERSION_WORDS):
            return self.has(r"\.")
        decimals = self.values.str.extract(r"\.(\d+)$").drop_nulls()
        lengths = decimals.str.len_chars()
        is_kept = (decimals.str.contains(r"[1-9]0+$") & (lengths > (lengths.min() or 0))).any()
        return bool(is_kept) and self.distinct <= _FEW and self.rows >= _OFTEN * self.distinct

    def without(self, odd: Sequence[str]) -> "_Column":
        """Return the column with some texts as missing values."""
        return _Column(self.name, self._texts.set(self._texts.is_in(list(odd)).fill_null(False), None), self.dtype)

    def share(self, fits: pl.Series) -> float:
        """Share of the rows with a value whose value, one of `values`, fits."""
        return int(self.counts.filter(fits).sum()) / max(self.rows, 1)

    def shown(self, fits: pl.Series) -> str:
        """Return the most frequent of the fitting `values` with their counts, as text for a message."""
        values, counts = self.values.filter(fits), self.counts.filter(fits)
        shown = ", ".join(f"{value[:20]!r} ({count:,})" for value, count in zip(values[:3], counts[:3], strict=True))
        return shown + (", …" if len(values) > 3 else "")

    def times(self, unit: str) -> pl.Series:
        """`[rows]` the values as seconds since 1970, null where they are no times of this unit or format."""
        return _times(self.present, unit)

    @cached_property
    def numeral_share(self) -> float:
        """Share of the rows with a value that is a number, infinity among them."""
        return self.share(self.values.str.contains(_NUMERAL))

    @cached_property
    def are_numbers(self) -> pl.Series:
        """Return a mask of the values that can be read as numbers."""
        return self.values.cast(pl.Float64, strict=False).is_not_null()

    @property
    def is_numeric(self) -> bool:
        """Return whether all values are numbers; 1e12 is a number if nearly all other values are numbers."""
        least = _NEARLY_ALL if self.rows >= _ENOUGH else 1.0
        return self.rows > 0 and self.numeral_share >= least and bool(self.are_numbers.all())

    @cached_property
    def numbers(self) -> Float64s:
        """`[rows]` the values as numbers, in the order of the rows, if all are."""
        return self.present.cast(pl.Float64, strict=False).to_numpy()

    @cached_property
    def is_whole(self) -> bool:
        """Whether all numbers are whole and finite."""
        return bool(np.isfinite(self.numbers).all() and (self.numbers == np.round(self.numbers)).all())

    @property
    def is_clock(self) -> bool:
        """Return whether all rows have whole numbers in ascending order."""
        return not self.missing and self.is_numeric and self.is_whole and _is_in_order(self.numbers)

    @cached_property
    def are_iso(self) -> pl.Series:
        """Return a mask of the values that are dates, with or without a time."""
        days = self.values.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
        return self.values.str.contains(re.sub(r"\?P<\w+>", "", ISO)) & days.is_not_null()

    @property
    def runs(self) -> int:
        """Return the number of runs of consecutive rows with one value, or with no value."""
        return int(self._texts.ne_missing(self._texts.shift(1)).sum()) + self._texts.head(1).null_count()

    @property
    def smoothness(self) -> float:
        """Correlation, from -1 to 1, of how often a number occurs and how often the next larger one does.

        An amount has a density, which is much the same for neighbours; the numbers of users or articles have none.
        """
        counts = self.counts.gather(self.values.cast(pl.Float64).arg_sort()).rank().to_numpy()
        if len(counts) < 3 or counts[:-1].std() == 0 or counts[1:].std() == 0:
            return 0.0
        return float(np.corrcoef(counts[:-1], counts[1:])[0, 1])


def _verdict(column: _Column, whole: bool) -> tuple[str, str, str]:
    """Kind, reason and warning."""
    kind, why = _kind_of(column, whole)
    rows, distinct, warning = column.rows, column.distinct, ""
    if rows >= _ENOUGH and ColumnKind.of(kind).role in ("category", "list", "words"):
        kind, why, warning = _typed_but_for_odd_values(column, whole) or (kind, why, _of_units(column))
    elif "amount" in kind:
        warning = _of_currencies(column)
    if why == _NESTED:
        return kind, why, _IS_NESTED.format(column.name, _NESTED, column.shown(column.values.str.len_bytes() > 0))
    shortened = column.values.str.contains(_SHORTENED)
    if (share := column.share(shortened)) >= 0.5:
        return kind, why, _IS_SHORTENED.format(share, column.name, column.shown(shortened))
    if why.endswith(_EITHER_ORDER):
        return kind, why, _either_order(column.name, ColumnKind.of(kind).detail)
    if warning or kind not in ("category", "category of numbers"):
        return kind, why, warning
    if rows < _ENOUGH or distinct < _NEARLY_UNIQUE * rows:
        return kind, why, ""
    if distinct == rows:
        return "ignore", f"never repeats: {rows:,} rows with {rows:,} values", ""
    return kind, why, _IS_UNIQUE.format(column.name, distinct, rows)


def _either_order(name: str, read: str) -> str:
    """Return the warning of a column of dates whose day and month may also be read in the other order."""
    is_day_first = read.startswith("%d")
    other = read.replace(*("%d/%m", "%m/%d") if is_day_first else ("%m/%d", "%d/%m"))
    other = other.replace(*("%d-%m", "%m-%d") if is_day_first else ("%m-%d", "%d-%m"))
    return _IS_EITHER_ORDER.format(name, "day" if is_day_first else "month", other)


def _typed_but_for_odd_values(column: _Column, whole: bool) -> tuple[str, str, str] | None:
    """Return kind, reason and warning of numbers, amounts or times with odd values; None for other columns.

    Odd values in at most 1 % of the rows count as missing. With more odd values, the column is a category, and the
    warning names the likely kind.
    """
    if column.is_numeric:
        return None
    for fits in _likely_typed(column):
        share, count = column.share(fits), int((~fits).sum())
        if not 0.5 <= share < 1:
            continue
        odd = column.values.filter(~fits)
        kind, why = _kind_of(column.without(odd.to_list()), whole)
        read = ColumnKind.of(kind)
        if read.role == "category of numbers" and share >= _NEARLY_ALL:
            return kind, f"{why}; other values are read as texts", ""
        if not (read.is_time or read.role.endswith(("number", "amount"))):
            continue
        others, plain = column.shown(~fits), f"{read.role} {read.detail}".strip()
        if share >= _NEARLY_ALL and count <= _MOST_ODD:
            rows = column.rows - int(column.counts.filter(fits).sum())
            warning = _HAS_ODD.format(column.name, kind, rows, column.rows, others)
            if why.endswith(_EITHER_ORDER):
                warning = f"{_either_order(column.name, read.detail)}; {warning}"
                why = why.removesuffix(_EITHER_ORDER)
            return str(replace(read, missing=tuple(odd))), f"{why}; other values mean that it is missing", warning
        proposed = str(replace(read, missing=tuple(odd[:3])))
        why = _why_of_texts(column)
        return "category", why, _MAY_BE.format(share, column.name, plain, others, proposed)
    return None


def _likely_typed(column: _Column) -> Iterator[pl.Series]:
    """Yield a mask of the values for each type of number, date or amount that values may have."""
    if not column.has(_PADDED):
        yield column.are_numbers
    yield column.are_iso
    first = column.values.head(20)
    formats = [date + time for date in _DATES for time in _CLOCK_TIMES if _times(first, date + time).count() >= 10]
    if formats:
        of_format = [_times(column.values, one).is_not_null() for one in formats]
        yield reduce(or_, of_format)
    numbers = _without_sign(column.values)
    for pattern in AMOUNTS.values():
        yield numbers.str.contains(pattern) & (numbers != "")


def _of_units(column: _Column) -> str:
    """Return the warning of a category of numbers with a unit, or of durations; empty for other columns."""
    if column.distinct <= _FEW:
        return ""
    units = column.values.str.extract(_QUANTITY, 1)
    for fits, what in (
        (units.is_not_null(), "numbers with a unit"),
        (column.values.str.contains(_DURATION), "times or durations"),
        (column.values.str.contains(r"^\{.*\}$"), "JSON objects"),
    ):
        if (share := column.share(fits)) >= 0.5 and units.drop_nulls().n_unique() <= _MOST_UNITS:
            return _IS_QUANTITY.format(share, column.name, what, column.shown(fits))
    return ""


def _of_currencies(column: _Column) -> str:
    """Return the warning of amounts in several currencies; empty for other amounts."""
    signs = column.values.str.extract(f"({SIGN})", 1).str.to_uppercase().replace(_SAME_CURRENCY)
    found = pl.DataFrame({"sign": signs, "rows": column.counts}).drop_nulls().group_by("sign").sum()
    found = found.filter(pl.col("rows") >= (1 - _NEARLY_ALL) * column.rows).sort("rows", descending=True)
    if len(found) < 2:
        return ""
    shown = ", ".join(f"{sign} {rows / column.rows:.0%}" for sign, rows in found.head(5).iter_rows())
    return _ARE_SEVERAL.format(column.name, shown)


def _kind_of(column: _Column, whole: bool) -> tuple[str, str]:
    """Kind and reason by the first rule that fits."""
    if column.is_empty:
        return "category", "no rows to infer it from"
    if not column.rows:
        return ("ignore", "no value at all") if whole else (column.kind_by_type, "no value so far")
    if column.distinct == 1 and not column.missing and whole and column.rows >= _ENOUGH:
        return "ignore", f"always {column.examples[0]}"
    if isinstance(column.dtype, pl.Categorical | pl.Enum):
        return "category", f"{column.often}; of a categorical type"
    if column.dtype == pl.Boolean:
        return "boolean", "true and false, by the column's type"
    if isinstance(column.dtype, pl.List | pl.Array):
        is_nested = cast("pl.DataType", column.dtype.inner).is_nested()
        return ("ignore", _NESTED) if is_nested else (str(ColumnKind("list", JSON)), "lists, by the column's type")
    if column.distinct == 1 and column.values[0].lower() in (BOOLEANS if column.missing else ("true", "false")):
        return "boolean", f"{column.values[0]}, or nothing"
    if column.distinct == 1:
        why = f"{column.examples[0]}, or nothing" if column.missing else f"always {column.examples[0]}"
        return column.kind_of_ids, why + ("" if whole or column.missing else " so far")
    if column.name.lower() == "id" and column.rows < _REPEATS * column.distinct:  # in a log too small for the rest
        return "ignore", "names the row, and hardly repeats"
    lower = set(column.values.head(len(BOOLEANS) + 1).str.to_lowercase())
    if lower <= BOOLEANS.keys() and len({BOOLEANS[value] for value in lower}) == 2:
        return "boolean", f"only {' and '.join(sorted(column.examples))}"
    if column.are_iso.all():
        return ("timestamp iso", "dates with a time") if column.has(":") else ("timestamp date", "dates")
    if column.is_numeric and not column.has(_PADDED):
        return _kind_of_numbers(column)
    for kind_of in (_date_kind, _amount_kind, _domain_kind, _list_kind, _words_kind):
        if (found := kind_of(column)) is not None:
            return found
    return "category", _why_of_texts(column)


def _kind_of_numbers(column: _Column) -> tuple[str, str]:
    rows, distinct, numbers, often = column.rows, column.distinct, column.numbers, column.often
    if column.is_named(TIME_WORDS):
        for unit, scale in PER_SECOND.items():
            if numbers.min() >= _EARLIEST * scale and numbers.max() < _LATEST * scale:
                year = np.datetime64(int(numbers.min()) // scale, "s").astype("datetime64[Y]")
                return f"timestamp {unit}", f"{_UNITS[unit]} since 1970, from {year} on"
        is_day = column.is_whole and numbers.min() >= _EARLIEST_DAY and numbers.max() < _LATEST_DAY
        if is_day and not column.times("%Y%m%d").null_count():
            return "timestamp %Y%m%d", "dates, written as numbers"
    if not column.is_whole:
        if column.has_versions:
            return "category", f"versions, {often}: 1.1 is not 1.10"
        if distinct <= 20 and rows >= _OFTEN * distinct:
            return "category, number", f"decimals, of which only {distinct} differ"
        return "number", "decimals"
    if np.abs(numbers).max() >= 2.0**53:
        return column.kind_of_ids, f"{often}; too large for amounts"
    if distinct == rows >= _ENOUGH and (np.diff(numbers) > 0).all():
        return "ignore", "counts the rows: no value repeats"
    if column.is_named(ID_WORDS) and not column.is_named(AMOUNT_WORDS):
        return "category of numbers", f"{often}; treated as IDs because of the column name"
    # The month and day of nycflights13; not its dow and hour, nor globo_clicks', which return soon.
    runs = column.runs
    if rows >= _LONG * runs and runs < _OFTEN * distinct and not column.is_named(CYCLE_WORDS):
        came = f"{distinct:,} values in {runs:,} runs of {rows / runs:,.0f} rows"
        return "ignore", f"a clock: {came}; later rows have other values"
    if rows < _ENOUGH or (distinct <= _FEW and rows >= _OFTEN * distinct):
        return "category of numbers", often
    if rows < _REPEATS * distinct:
        return "number", f"whole numbers that rarely repeat: {often}"
    if distinct >= 1_000 and column.smoothness < 0.1:  # nycflights13's flight, and not its sched_arr
        return "category of numbers", f"{often}; neighbouring numbers differ in how often they occur, as IDs do"
    return "category, number", f"{often}; may be IDs or amounts, so both"


def _date_kind(column: _Column) -> tuple[str, str] | None:
    """The kind of a column of dates in another order than ISO's, and why it is one; None if it is none."""
    if not column.has(r"\d{4}") or not column.values.head(20).str.contains(r"^\s*\w+[/. -]\w+[/., -]+\w").all():
        return None
    first = column.values.head(20)
    likely = [date + time for date in _DATES for time in _CLOCK_TIMES if not _times(first, date + time).null_count()]
    found = {one: times for one in likely if not (times := column.times(one)).null_count()}
    if not found:
        return None
    in_order = [one for one in found if _is_in_order(found[one].to_numpy().astype(float))] if len(found) > 1 else []
    if len(in_order) == 1:
        return f"timestamp {in_order[0]}", "dates, which are in order if they are read so"
    # Rows in order of both are rather of some days than of the same day in each of some months.
    read = min(in_order, key=lambda one: np.ptp(found[one].to_numpy())) if in_order else next(iter(found))
    why = "dates, with the day first" if read.startswith("%d") else "dates"
    return f"timestamp {read}", f"{why}{_EITHER_ORDER if len(found) > 1 else ''}"


def _amount_kind(column: _Column) -> tuple[str, str] | None:
    """The kind of a column of numbers with a currency or percent, or with decimal commas; None if it is neither."""
    signed, numbers = column.values.str.contains(SIGN), _without_sign(column.values)
    fits = [comma for comma, pattern in AMOUNTS.items() if (numbers.str.contains(pattern) & (numbers != "")).all()]
    if not fits:
        return None
    decimals = numbers.str.extract(r",(\d+)$").drop_nulls().str.len_chars()
    has_sign = 2 * int(column.counts.filter(signed).sum()) >= column.rows
    # Without a sign, 9,84 is a number, and 7,12 and 101,203 are lists: numbers have as many decimals, and not three.
    has_decimals = len(decimals) == len(numbers) and decimals.n_unique() == 1 and decimals[0] != 3
    if not has_sign and not has_decimals and not _are_in_groups(numbers):
        return None
    has_groups = bool(numbers.str.contains(r"\.\d{3}$").any())
    comma = fits[0] if len(fits) == 1 else "," if has_groups else ""  # 1.234 € are more than a thousand
    what = f"numbers{' with a currency or percent' if has_sign else '' if has_decimals else ', digits in groups'}"
    why = f"{what}{', with decimal commas' if comma else ''}"
    if column.distinct <= 20 and column.rows >= _OFTEN * column.distinct:
        return str(ColumnKind("category, amount", comma)), f"{why}, of which only {column.distinct} differ"
    return str(ColumnKind("amount", comma)), why


def _without_sign(values: pl.Series) -> pl.Series:
    return values.str.replace_all(SIGN, "").str.strip_chars()


def _are_in_groups(numbers: pl.Series) -> bool:
    """Return whether amounts have digit groups and are not lists of numbers: 1,234.50 and 7,045, but not 101,203.

    Lists have no decimals behind their last value and none that begins with 0, unless all values may.
    """
    is_sure = numbers.str.contains(r"\d[,.'’\s]\d{3}[.,]\d+$|\d[,.'’\s]0\d\d")
    return bool(is_sure.any()) and not numbers.str.contains(r"^[+-]?0[\d,'’\s]").any()


def _domain_kind(column: _Column) -> tuple[str, str] | None:
    """The kind of a column of e-mail addresses or URLs, and why it is one; None if it is neither."""
    what = next((what for what, one in (("e-mail addresses", _EMAIL), ("URLs", _URL)) if column.matches(one)), None)
    if what is None:
        return None
    kind = "domain" if column.distinct >= _NEARLY_UNIQUE * column.rows else "category, domain"
    return kind, f"{what}: {column.often}"


def _words_kind(column: _Column) -> tuple[str, str] | None:
    """The kind of a column of texts that rarely repeat but share words, and why it is one; None if it is none."""
    if column.rows < _ENOUGH or column.rows >= _REPEATS * column.distinct:
        return None
    values = column.values.head(5_000)
    words = values.to_frame("text").select(words_of(pl.col("text"))).to_series()
    count, several = int(words.list.len().sum()), int(values.str.contains(r"\S\s+\S").sum())
    if count < 2 * len(values) or 2 * several < len(values) or words.explode().n_unique() * _REPEATS > count:
        return None
    return "words", f"texts of {count / len(values):.0f} words on average that rarely repeat"


def _why_of_texts(column: _Column) -> str:
    if column.has(_PADDED) and column.is_numeric:
        return f"{column.often}; zeros in front: codes, not amounts"
    if column.numeral_share < 0.5:
        return column.often
    other = column.values.filter(~column.values.str.contains(r"^[\d.+-]+$"))
    example = f", such as {other[0][:20]!r}" if len(other) else ""
    return f"{column.often}; {1 - column.numeral_share:.2%} are no numbers{example}"


def _list_kind(column: _Column) -> tuple[str, str] | None:
    """The kind of a column of lists, and why it is one; None if it is none."""
    values = column.values.head(5_000)
    if values.str.starts_with("{").all() and all(json_list(f"[{value}]") is not None for value in values):
        return "ignore", _NESTED
    if values.str.starts_with("[").all() and None not in (lists := [json_list(value) for value in values]):
        nested = any(one.startswith(("{", "[")) for values_of_one in lists for one in values_of_one or ())
        return ("ignore", _NESTED) if nested else (str(ColumnKind("list", JSON)), "JSON arrays")
    for separator, least in _SEPARATORS.items():
        share = values.str.contains(separator, literal=True).sum() / len(values)
        if share < least:
            continue
        pieces = values.str.split(separator).explode()
        pieces = pieces.filter(pieces != "")
        if not len(pieces) or (pieces != pieces.str.strip_chars()).any():
            continue
        # The pieces must recur in other values, and look like values, not like prose.
        if (separator != " " or pieces.str.contains(_TOKEN).all()) and pieces.n_unique() * _REPEATS <= len(pieces):
            name = separator if separator != " " else "spaces"
            why = f"{100 * share:.0f} % of the values are several, between {name}"
            return str(ColumnKind("list", separator)), why
    return None


def _weight_among(columns: Sequence[_Column]) -> str | None:
    for name in WEIGHTS:
        for column in columns:
            if column.name.lower() == name and column.is_numeric and not column.missing:
                numbers = column.numbers
                if np.isfinite(numbers).all() and numbers.min() >= 0 and numbers.max() > 0:
                    return column.name
    return None


def _own_time(columns: Sequence[_Column], found: Mapping[str, tuple[str, str, str]]) -> dict[str, tuple[str, str, str]]:
    """Return the verdict on the log's time column, which is named as a time, never missing, and nearly in order.

    Without such a column, return a verdict with a warning on a column whose name means the time of the rows.
    """
    named = [column for column in columns if column.is_named(TIME_WORDS)]
    late: dict[str, tuple[str, str, str]] = {}
    for column in sorted(named, key=lambda column: column.name.lower() not in CLOCKS):
        name, (kind, why, warning) = column.name, found[column.name]
        read = ColumnKind.of(kind)
        if read.role == "timestamp":
            missing = column.missing or read.missing
            if not missing and _is_in_order(column.times(read.detail).to_numpy().astype(np.float64)):
                return {name: (f"time {read.detail}", f"{why}; the log's own time: in order", warning)}
            if not late and not column.words - ROW_WORDS:
                problem = "some rows have no value" if missing else "the rows are not in the order"
                remedy = "leave out the rows without it, or give it to them" if missing else "sort the log by it"
                late[name] = kind, why, warning or _IS_NOT_IN_ORDER.format(name, problem, remedy)
        elif name.lower() in CLOCKS and column.is_clock:
            return {name: ("time", "the log's own time: a clock of its own, in order", warning)}
    kinds = {kind for kind, _, _ in found.values()}
    return late if "label" in kinds and "split" not in kinds else {}


def _times(texts: pl.Series, unit: str) -> pl.Series:
    return texts.to_frame("text").select(as_seconds("text", unit)[0]).to_series()


def _is_in_order(times: Float64s) -> bool:
    late = np.maximum.accumulate(times) - times
    return bool((late <= _SLACK * (times.max() - times.min())).mean() >= _IN_ORDER)
