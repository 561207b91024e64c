"""What the columns of a log are, by their names and first values; and which of them predict the label by themselves.

One walk through rules: the first that fits decides. Each is here because without it a column of a real log, or of a
plain case in the tests, would be taken for something else; where that is not obvious, a comment names the columns.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import isnan, nan

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from sparsegroup.data.keys import Int64s
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
    Label,
    as_seconds,
    json_list,
    words_of,
)
from sparsegroup.data.log import Log
from sparsegroup.data.schema import ColumnTransform

Float64s = npt.NDArray[np.float64]
Labels = npt.NDArray[np.bool_]

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
"""Rows with a value, from which on it matters that none repeats."""

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

_DAY_FIRST = "; the day or the month first, which they do not show"

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
    "column {0!r} holds {1}, which are not read: write the values that matter into separate columns, or into lists"
)
_EITHER_ORDER = (
    "the dates of {0!r} may have the day or the month first, which their values do not show; they are read with the "
    "day first: if that is wrong, say 'timestamp {1}' in a schema (`sparsegroup columns --schema`)"
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
) -> tuple[ColumnFinding, ...]:
    """What the columns are, by some rows; a finding for each, in order.

    Args:
        frame: The first rows, as columns of texts; null where there is no value.
        whole: Whether these are all rows of the log.
        known: Column → its kind, and why it is that; these are not inferred.
        finds_weight: Whether a column of numbers >= 0 with one of the names in `WEIGHTS` is the rows' weight.
    """
    columns = [_Column(name, frame[name]) for name in frame.columns]
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

    def __init__(self, name: str, texts: pl.Series) -> None:
        stripped = texts.str.strip_chars()
        self.name = name
        self.present = stripped.filter(stripped.is_not_null() & ~stripped.is_in(list(MISSING)))
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

    def is_named(self, words: Collection[str]) -> bool:
        """Whether one of these words is in the name."""
        parts = re.split(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])", self.name)
        return any(re.sub(r"\d+$", "", part.lower()) in words for part in parts if part)

    def has(self, pattern: str) -> bool:
        """Whether some value matches."""
        return bool(self.values.str.contains(pattern).any())

    def matches(self, pattern: str) -> bool:
        """Whether all values match."""
        return bool(self.values.str.contains(pattern).all())

    def times(self, unit: str) -> pl.Series:
        """`[rows]` the values as seconds since 1970, null where they are no times of this unit or format."""
        return _times(self.present, unit)

    @cached_property
    def numeral_share(self) -> float:
        """Share of the rows with a value that is a number, infinity among them."""
        return int(self.counts.filter(self.values.str.contains(_NUMERAL)).sum()) / max(self.rows, 1)

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return self.rows > 0 and self.numeral_share == 1.0

    @cached_property
    def numbers(self) -> Float64s:
        """`[rows]` the values as numbers, in the order of the rows, if all are."""
        return self.present.cast(pl.Float64, strict=False).to_numpy()

    @cached_property
    def is_whole(self) -> bool:
        """Whether all numbers are whole and finite."""
        return bool(np.isfinite(self.numbers).all() and (self.numbers == np.round(self.numbers)).all())

    @property
    def is_iso(self) -> bool:
        """Whether all values are dates, or dates with a time."""
        if not self.rows or not self.values.str.contains(re.sub(r"\?P<\w+>", "", ISO)).all():
            return False
        return self.values.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False).is_not_null().all()

    @property
    def runs(self) -> int:
        """In how many runs the rows fall, each of rows with the same value."""
        return int((self.present != self.present.shift(1)).fill_null(True).sum())

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
    rows, distinct = column.rows, column.distinct
    if why == _NESTED:
        return kind, why, _IS_NESTED.format(column.name, _NESTED)
    if why.endswith(_DAY_FIRST):
        return kind, why, _EITHER_ORDER.format(column.name, kind.split(" ", 1)[1].replace("%d/%m", "%m/%d"))
    if kind not in ("category", "category of numbers") or rows < _ENOUGH or distinct < _NEARLY_UNIQUE * rows:
        return kind, why, ""
    if distinct == rows:
        return "ignore", f"never repeats: {rows:,} rows with {rows:,} values", ""
    return kind, why, _IS_UNIQUE.format(column.name, distinct, rows)


def _kind_of(column: _Column, whole: bool) -> tuple[str, str]:
    """Kind and reason by the first rule that fits."""
    if column.is_empty:
        return "category", "no rows to infer it from"
    if not column.rows:
        return ("ignore", "no value at all") if whole else ("category", "no value so far")
    if column.distinct == 1 and not column.missing:
        useless = whole and column.rows >= _ENOUGH
        return "ignore" if useless else "category", f"always {column.examples[0]}{'' if whole else ' so far'}"
    if column.name.lower() == "id" and column.rows < _REPEATS * column.distinct:  # in a log too small for the rest
        return "ignore", "names the row, and hardly repeats"
    lower = set(column.values.head(len(BOOLEANS) + 1).str.to_lowercase())
    if lower <= BOOLEANS.keys() and len({BOOLEANS[value] for value in lower}) == 2:
        return "boolean", f"only {' and '.join(sorted(column.examples))}"
    if column.is_iso:
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
        if distinct <= 20 and rows >= _OFTEN * distinct:
            return "category, number", f"decimals, of which only {distinct} differ"
        return "number", "decimals"
    as_written = "category of numbers" if column.has(r"\.") else "category"
    if np.abs(numbers).max() >= 2.0**53:
        return "category", f"{often}; too large for amounts"
    if distinct == rows >= _ENOUGH and (np.diff(numbers) > 0).all():
        return "ignore", "counts the rows: no value repeats"
    if column.is_named(ID_WORDS) and not column.is_named(AMOUNT_WORDS):
        return as_written, f"{often}; treated as IDs because of the column name"
    # The month and day of nycflights13; not its dow and hour, nor globo_clicks', which return soon.
    runs = column.runs
    if rows >= _LONG * runs and runs < _OFTEN * distinct and not column.is_named(CYCLE_WORDS):
        came = f"{distinct:,} values in {runs:,} runs of {rows / runs:,.0f} rows"
        return "ignore", f"a clock: {came}; later rows have other values"
    if rows < _ENOUGH or (distinct <= _FEW and rows >= _OFTEN * distinct):
        return as_written, often
    if rows < _REPEATS * distinct:
        return "number", f"whole numbers that rarely repeat: {often}"
    if distinct >= 1_000 and column.smoothness < 0.1:  # nycflights13's flight, and not its sched_arr
        return as_written, f"{often}; neighbouring numbers differ in how often they occur, as IDs do"
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
    if len(found) == 1 or not (in_order := [one for one in found if _is_in_order(found[one].to_numpy().astype(float))]):
        why = "dates, with the day first" if next(iter(found)).startswith("%d") else "dates"
        return f"timestamp {next(iter(found))}", f"{why}{_DAY_FIRST if len(found) > 1 else ''}"
    return f"timestamp {in_order[0]}", "dates, which are in order if they are read so"


def _amount_kind(column: _Column) -> tuple[str, str] | None:
    """The kind of a column of numbers with a currency or percent, or with decimal commas; None if it is neither."""
    signed = column.values.str.contains(SIGN)
    numbers = column.values.str.replace_all(SIGN, "").str.strip_chars()
    fits = [comma for comma, pattern in AMOUNTS.items() if (numbers.str.contains(pattern) & (numbers != "")).all()]
    if not fits:
        return None
    decimals = numbers.str.extract(r",(\d+)$").drop_nulls().str.len_chars()
    has_sign = 2 * int(column.counts.filter(signed).sum()) >= column.rows
    # Without a sign, 9,84 is a number, and 7,12 and 101,203 are lists: numbers have as many decimals, and not three.
    if not has_sign and not (len(decimals) == len(numbers) and decimals.n_unique() == 1 and decimals[0] != 3):
        return None
    has_groups = bool(numbers.str.contains(r"\.\d{3}$").any())
    comma = fits[0] if len(fits) == 1 else "," if has_groups else ""  # 1.234 € are more than a thousand
    what = "numbers with a currency or percent" if has_sign else "numbers"
    why = f"{what}{', with decimal commas' if comma else ''}"
    if column.distinct <= 20 and column.rows >= _OFTEN * column.distinct:
        return str(ColumnKind("category, amount", comma)), f"{why}, of which only {column.distinct} differ"
    return str(ColumnKind("amount", comma)), why


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
    """The verdict on the column of the log's own time: named as a time, never missing, and nearly in order."""
    named = [column for column in columns if column.is_named(TIME_WORDS) and not column.missing]
    for column in sorted(named, key=lambda column: column.name.lower() not in CLOCKS):
        name, (kind, why, warning) = column.name, found[column.name]
        role, _, unit = kind.partition(" ")
        if role == "timestamp":
            if _is_in_order(column.times(unit).to_numpy().astype(np.float64)):
                return {name: (f"time {unit}", f"{why}; the log's own time: in order", warning)}
        elif name.lower() in CLOCKS and column.is_numeric and column.is_whole and _is_in_order(column.numbers):
            return {name: ("time", "the log's own time: a clock of its own, in order", warning)}
    return {}


def _times(texts: pl.Series, unit: str) -> pl.Series:
    return texts.to_frame("text").select(as_seconds("text", unit)[0]).to_series()


def _is_in_order(times: Float64s) -> bool:
    late = np.maximum.accumulate(times) - times
    return bool((late <= _SLACK * (times.max() - times.min())).mean() >= _IN_ORDER)


# Columns that know the label: one that alone predicts it nearly perfectly is rarely known before the label is

LEAK = 0.99
"""An AUC above this is too good to be true for a single column."""

_LEAK_ROWS, _LEAST_OF_A_CLASS = 10_000, 10
"""Rows that are looked at, and rows of each class below which nothing is said."""


def with_aucs(findings: Sequence[ColumnFinding], frame: pl.DataFrame, label: Label) -> tuple[ColumnFinding, ...]:
    """The findings for the columns of texts of `frame`, with their AUCs, and a warning at each above `LEAK`."""
    rows = frame.gather_every(max(1, len(frame) // _LEAK_ROWS))
    read = label.read(rows[label.column])
    rows, labels = rows.filter(read.is_not_null()), (read.drop_nulls() == 1).to_numpy()
    measured = []
    for one in findings:
        auc = _auc_of_finding(one, rows, labels)
        warning = one.warning
        if auc is not None and auc > LEAK:
            warning = (
                f"column {one.name!r} alone predicts the label with an AUC of {auc:.4f}: if it is known only after the "
                "label, leave it out (`exclude`)"
            )
        measured.append(replace(one, auc=auc, warning=warning))
    return tuple(measured)


def leaks_of(log: Log) -> dict[str, float]:
    """Fields and numbers that predict the label by themselves in the first training rows, with their AUCs."""
    batches = list(log.batches(0, min(log.train_rows, _LEAK_ROWS), _LEAK_ROWS))
    labels = torch.cat([batch.labels for batch in batches]).numpy() > 0
    keys = torch.cat([batch.keys for batch in batches]).numpy()
    numbers = torch.cat([batch.numbers for batch in batches]).double().numpy()
    fields = log.schema.single
    aucs = {name: _auc_of_values(keys[:, place], labels) for place, name in enumerate(fields)}
    aucs |= {name: _auc_of_numbers(numbers[:, place], labels) for place, name in enumerate(log.numbers)}
    return {name: auc for name, auc in aucs.items() if auc > LEAK}


def _auc_of_finding(finding: ColumnFinding, rows: pl.DataFrame, labels: Labels) -> float | None:
    """The largest AUC of what is made of a column; None of a label, of texts, and where a class is too rare."""
    if finding.kind in ("label", "split", "weight", "words") or finding.name not in rows.columns:
        return None
    aucs = []
    for _, role, name, how in ColumnTransform(((finding.name, finding.kind),)).outputs:
        values = rows.select(how.alias(name)).to_series()
        if role == "number":
            aucs.append(_auc_of_numbers(values.fill_null(nan).cast(pl.Float64).to_numpy(), labels))
        elif role == "field":
            aucs.append(_auc_of_values(values.rank("dense").fill_null(0).cast(pl.Int64).to_numpy(), labels))
    return max((auc for auc in aucs if not isnan(auc)), default=None)


def _auc_of_values(values: Int64s, labels: Labels) -> float:
    """AUC of a category's values `[n]`: the even rows' share of positives for each, on the odd rows; NaN as `_auc`."""
    distinct, codes = np.unique(values, return_inverse=True)
    learnt, measured = slice(0, None, 2), slice(1, None, 2)
    counts = np.bincount(codes[learnt], minlength=len(distinct))
    positives = np.bincount(codes[learnt], labels[learnt], minlength=len(distinct))
    rates = (positives + labels.mean()) / (counts + 1.0) if len(labels) else np.zeros(0)
    return _auc(rates[codes[measured]], labels[measured])


def _auc_of_numbers(numbers: Float64s, labels: Labels) -> float:
    """AUC of numbers `[n]`, ascending or descending; a missing one, NaN, is below all others. NaN as `_auc`."""
    auc = _auc(np.where(np.isnan(numbers), -np.inf, numbers), labels)
    return max(auc, 1 - auc)


def _auc(scores: Float64s, labels: Labels) -> float:
    """AUC; NaN where a class is too rare."""
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if min(positives, negatives) < _LEAST_OF_A_CLASS:
        return nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))
