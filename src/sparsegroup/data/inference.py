"""What the columns of a log are, by their names and first values."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from sparsegroup.data.kinds import BOOLEANS, ISO, JSON, MISSING, PER_SECOND, ColumnKind, as_seconds, json_list


@dataclass(frozen=True)
class ColumnFinding:
    """What a column was taken for.

    Attributes:
        name: The column.
        kind: What it was taken for, see `ColumnKind`.
        why: The reason, in words.
        examples: A few of its values.
        distinct: Different values in the rows that were looked at, without missing ones.
        missing: Share of those rows, in [0, 1], that have no value.
        warning: What the user should think about, or ""; parameters stand in backquotes.
    """

    name: str
    kind: str
    why: str
    examples: tuple[str, ...] = ()
    distinct: int = 0
    missing: float = 0.0
    warning: str = ""


def kinds_of(findings: Sequence[ColumnFinding]) -> Mapping[str, str]:
    """Column → its kind, in the order of the columns."""
    return {finding.name: finding.kind for finding in findings}


# fmt: off
THINGS = frozenset({
    "id", "ids", "uid", "uuid", "guid", "key", "hash", "code", "zip", "zipcode", "postcode", "postal", "sku", "isbn",
    "token", "session", "cookie", "ip", "user", "member", "account", "customer", "visitor", "item", "article",
    "product", "ad", "campaign", "creative", "advertiser", "publisher", "merchant", "brand", "shop", "site", "domain",
    "app", "device", "model", "query", "document", "news", "video", "song", "movie", "page", "channel", "slot",
    "country", "region", "city", "category", "type",
})
"""They stand for things,"""

AMOUNTS = frozenset({
    "n", "num", "number", "count", "counts", "total", "sum", "size", "length", "width", "height", "price", "cost",
    "amount", "age", "days", "hours", "minutes", "seconds", "duration", "distance", "avg", "mean", "rate", "ratio",
    "share", "score", "rank", "position", "views", "clicks",
})
"""unless one of these is there, too."""

TIMES = frozenset({
    "ts", "time", "times", "timestamp", "date", "datetime", "dt", "at", "created", "updated", "clicked", "served",
    "requested", "when", "epoch", "unixtime",
})
"""They are times, if they are large enough."""

CYCLES = frozenset({"hour", "hr", "minute", "weekday", "dow", "wday"})
"""They come again soon."""

WEIGHTS = (
    "sample_weight", "sample_weights", "row_weight", "example_weight", "instance_weight", "importance_weight",
    "importance_weights", "weight", "weights", "importance",
)
"""Names of a column that is how much a row counts, whole and in any case; the first one that is there."""
# fmt: on


_EXAMPLES, _LENGTH = 3, 24
# 1e5 without a sign or a point is rather the beginning of a hash.
_NUMERAL = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]\d+)?$|^[+-]?\d*\.\d*[eE]\d+$"
_PADDED = r"^[+-]?0\d"
_INFINITE = r"^[+-]?(?i:inf|infinity)$"


@dataclass(frozen=True)
class ColumnProfile:
    """A column of texts, and what of it the rules ask for.

    Attributes:
        name: The column.
        texts: `[rows]` its values; null where there is none.
    """

    name: str
    texts: pl.Series

    @cached_property
    def present(self) -> pl.Series:
        """The values that there are, without blanks around them and without spellings of missing ones."""
        texts = self.texts.str.strip_chars()
        return texts.filter(texts.is_not_null() & ~texts.is_in(list(MISSING)))

    @cached_property
    def counts(self) -> pl.DataFrame:
        """Different values and how often each comes, in columns `value` and `count`."""
        return self.present.alias("value").value_counts(sort=True)

    @property
    def values(self) -> pl.Series:
        """Different values, the most frequent first."""
        return self.counts["value"]

    @property
    def rows(self) -> int:
        """Rows with a value."""
        return len(self.present)

    @property
    def distinct(self) -> int:
        """Number of different values."""
        return len(self.counts)

    @cached_property
    def stretches(self) -> int:
        """In how many pieces the rows fall, each of rows with the same value."""
        return int((self.present != self.present.shift(1)).fill_null(True).sum())

    @property
    def stretch(self) -> float:
        """Rows in a row with the same value, on average."""
        return self.rows / self.stretches

    @property
    def returns(self) -> float:
        """In how many stretches of rows a value comes, on average."""
        return self.stretches / self.distinct

    @property
    def missing(self) -> float:
        """Share of the rows without a value."""
        return 1 - self.rows / max(len(self.texts), 1)

    @property
    def examples(self) -> tuple[str, ...]:
        """The most frequent values, cut to a readable length."""
        return tuple(
            value if len(value) <= _LENGTH else value[: _LENGTH - 1] + "…" for value in self.values.head(_EXAMPLES)
        )

    @cached_property
    def words(self) -> frozenset[str]:
        """The words that the name is made of, in lower case."""
        parts = re.split(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])", self.name)
        return frozenset(re.sub(r"\d+$", "", part.lower()) for part in parts if part)

    def is_named(self, words: Iterable[str]) -> bool:
        """Whether one of these words is in the name."""
        return not self.words.isdisjoint(words)

    def all_match(self, pattern: str) -> bool:
        """Whether every value matches."""
        return bool(self.values.str.contains(pattern).all())

    def any_matches(self, pattern: str) -> bool:
        """Whether some value matches."""
        return bool(self.values.str.contains(pattern).any())

    @cached_property
    def numeral_share(self) -> float:
        """Share of the rows with a value that is a number, infinity among them."""
        is_numeral = self.counts.filter(
            pl.col("value").str.contains(_NUMERAL) | pl.col("value").str.contains(_INFINITE)
        )
        return int(is_numeral["count"].sum()) / max(self.rows, 1)

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return self.rows > 0 and self.numeral_share == 1.0

    @property
    def is_padded(self) -> bool:
        """Whether a value begins with a zero that no number needs."""
        return self.any_matches(_PADDED)

    @cached_property
    def numbers(self) -> npt.NDArray[np.float64]:
        """`[rows]` the values as numbers, in the order of the rows, if all are."""
        return self.present.cast(pl.Float64, strict=False).to_numpy()

    @cached_property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        return bool(np.isfinite(self.numbers).all() and (self.numbers == np.round(self.numbers)).all())

    @property
    def is_iso(self) -> bool:
        """Whether all values are dates, or dates with a time."""
        without_names = re.sub(r"\?P<\w+>", "", ISO)
        return (
            self.rows > 0
            and self.all_match(without_names)
            and self.values.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False).is_not_null().all()
        )

    @cached_property
    def smoothness(self) -> float:
        """Correlation, from -1 to 1, of how often a number comes and how often the next larger one does.

        An amount has a density, which is much the same for neighbours; the numbers of users or articles have none.
        """
        counts = self.counts.with_columns(pl.col("value").cast(pl.Float64)).sort("value")["count"].rank().to_numpy()
        if len(counts) < 3 or counts[:-1].std() == 0 or counts[1:].std() == 0:
            return 0.0
        return float(np.corrcoef(counts[:-1], counts[1:])[0, 1])


_LOOKED_AT = 5_000
_SHARES = {"|": 0.05, ";": 0.05, ",": 0.3, " ": 0.5}
"""Separator → share of the values that must have it. The first that fits is taken."""

_TOKEN = r"^[A-Za-z]{0,3}\d+$"
"""Between spaces there must be such tokens: texts have spaces, too."""

_REPEATS = 2


def list_kind(profile: ColumnProfile) -> tuple[str, str] | None:
    """The kind of a column of lists, and why it is one; None if it is none."""
    values = profile.values.head(_LOOKED_AT)
    if values.str.starts_with("[").all():
        lists = [json_list(value) for value in values]
        if all(one is not None for one in lists):
            return str(ColumnKind("list", JSON)), "JSON arrays"
    for separator, share in _SHARES.items():
        has = values.str.contains(separator, literal=True)
        if has.mean() >= share and _separates(separator, values, profile):  # type: ignore[operator]
            several = 100 * float(has.mean())  # type: ignore[arg-type]
            name = separator if separator != " " else "spaces"
            return str(ColumnKind("list", separator)), f"{several:.0f} % of the values are several, between {name}"
    return None


def _separates(separator: str, values: pl.Series, profile: ColumnProfile) -> bool:
    """Whether what is between separators comes again in other values, and looks like a value."""
    parts = values.str.split(separator)
    elements = parts.explode()
    filled = elements.filter(elements != "")
    if not len(filled) or len(filled) < 0.9 * len(elements) or (filled != filled.str.strip_chars()).any():
        return False
    if separator == " " and not filled.str.contains(_TOKEN).all():
        return False
    if separator != " " and filled.str.contains(r"[(){}]|://").any():
        return False
    lengths = parts.list.len()
    varies = lengths.n_unique() > 1
    return filled.n_unique() * _REPEATS <= len(filled) and (varies or filled.n_unique() < values.n_unique())


CLOCKS = ("ts", "timestamp")
"""Names of the log's own time, whatever its unit."""

_EARLIEST, _LATEST = 946_684_800, 2_208_988_800
"""Seconds since 1970 of the years 2000 and 2040: numbers are times only between."""

_SLACK, _IN_ORDER = 0.01, 0.99
"""Rows are in order if this share of them comes no later than this share of the whole span after its time."""

_UNIT_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def time_kind(profile: ColumnProfile) -> tuple[str, str] | None:
    """The kind of a column of times, and why it is one; None if it is none.

    Args:
        profile: A column of dates, or of numbers.
    """
    if profile.is_iso:
        has_time = profile.any_matches(r":")
        unit = "iso" if has_time else "date"
        return str(ColumnKind("timestamp", unit)), "dates with a time" if has_time else "dates"
    if not profile.is_named(TIMES):
        return None
    low, high = float(profile.numbers.min()), float(profile.numbers.max())
    for unit, scale in PER_SECOND.items():
        if low >= _EARLIEST * scale and high < _LATEST * scale and (profile.is_whole or unit == "s"):
            year = int(np.datetime64(int(low) // scale, "s").astype("datetime64[Y]").astype(int)) + 1970
            return str(ColumnKind("timestamp", unit)), f"{_UNIT_WORDS[unit]} since 1970, from {year} on"
    return None


def own_time(columns: Sequence[tuple[ColumnProfile, str]]) -> tuple[str, str, str] | None:
    """The column of the log's own time, what kind that makes it, and the reason if it is another than for that kind.

    It has a name of a time, no missing value, and is in order, but for a little.

    Args:
        columns: Each with the kind that it was found to have.
    """
    named = [(profile, kind) for profile, kind in columns if profile.is_named(TIMES) and not profile.missing]
    clocks = [one for one in named if one[0].name.lower() in CLOCKS]
    for profile, text in (*clocks, *(one for one in named if one not in clocks)):
        kind = ColumnKind.of(text)
        if kind.role == "timestamp" and _in_order(_seconds(profile, kind.detail)):
            return profile.name, str(ColumnKind("time", kind.detail)), ""
        is_clock = profile.name.lower() in CLOCKS and kind.role not in ("timestamp", "label", "split")
        if is_clock and profile.rows and profile.is_numeric and profile.is_whole and _in_order(profile.numbers):
            return profile.name, "time", "the log's own time: a clock of its own, in order"
    return None


def _seconds(profile: ColumnProfile, unit: str) -> npt.NDArray[np.float64]:
    seconds: npt.NDArray[np.float64] = (
        profile.present.to_frame(profile.name)
        .select(as_seconds(profile.name, unit)[0])
        .to_series()
        .to_numpy()
        .astype(np.float64)
    )
    return seconds


def _in_order(times: npt.NDArray[np.float64]) -> bool:
    late = np.maximum.accumulate(times) - times
    return bool((late <= _SLACK * (times.max() - times.min())).mean() >= _IN_ORDER)


SAMPLE_ROWS = 100_000

ENOUGH = 100
"""Rows with a value, from which on it says something that none repeats."""

FEW, OFTEN = 100, 10
"""So few different values, each so often: a number is a category."""

_FEW_FLOATS = 20

_LONG = 500
"""Rows in which a clock stands still, a month, a day, while it has come to the same place fewer than `OFTEN` times."""

_NEARLY_UNIQUE = 0.8
_LARGEST_AMOUNT = 2.0**53
_MANY, _ROUGH = 1_000, 0.1


@dataclass(frozen=True)
class LogSample:
    """The first rows of a log.

    Attributes:
        frame: Columns of texts, null where there is no value; without those that have no name.
        whole: Whether these are all rows.
    """

    frame: pl.DataFrame
    whole: bool


def infer_columns(
    frame: pl.DataFrame,
    *,
    whole: bool,
    known: Mapping[str, tuple[str, str]] | None = None,
    finds_weight: bool = False,
) -> tuple[ColumnFinding, ...]:
    """What the columns are, told from some rows.

    Args:
        frame: The first rows, as columns of texts; null where there is no value.
        whole: Whether these are all rows of the log.
        known: Column → its kind, and why it is that; these are not told from the rows.
        finds_weight: Whether a column of numbers >= 0 with one of the names in `WEIGHTS` is the rows' weight.

    Returns:
        A finding for each column, in order.
    """
    profiles = [ColumnProfile(name, frame[name]) for name in frame.columns]
    known = known or {}
    others = [profile for profile in profiles if profile.name not in known]
    weight = _weight_among(others) if finds_weight else None
    findings = []
    for profile in profiles:
        if profile.name in known:
            kind, why, warning = *known[profile.name], ""
        elif profile is weight:
            kind, why, warning = "weight", "how much a row counts, because of its name", _WEIGHS.format(profile.name)
        else:
            kind, why, warning = _kind_of(profile, whole)
        findings.append(
            ColumnFinding(profile.name, kind, why, profile.examples, profile.distinct, profile.missing, warning)
        )
    return tuple(_with_own_time(findings, [one for one in others if one is not weight]))


_WEIGHS = (
    "column {0!r} is used as the rows' weight, because of its name: the loss and the metrics count each row by it; "
    "if it is a feature, set `weight` to none"
)


def _weight_among(profiles: Sequence[ColumnProfile]) -> ColumnProfile | None:
    named = [one for name in WEIGHTS for one in profiles if one.name.lower() == name]
    return next((one for one in named if one.is_numeric and not one.missing and _can_weigh(one.numbers)), None)


def _can_weigh(numbers: np.ndarray) -> bool:
    return bool(np.isfinite(numbers).all() and numbers.min() >= 0 and numbers.max() > 0)


def _with_own_time(findings: Sequence[ColumnFinding], profiles: Sequence[ColumnProfile]) -> list[ColumnFinding]:
    kinds = kinds_of(findings)
    found = own_time([(profile, kinds[profile.name]) for profile in profiles])
    if found is None:
        return list(findings)
    name, kind, why = found
    return [
        replace(one, kind=kind, why=why or f"{one.why}; the log's own time: in order") if one.name == name else one
        for one in findings
    ]


def _kind_of(profile: ColumnProfile, whole: bool) -> tuple[str, str, str]:
    """Kind, reason and warning."""
    if not len(profile.texts):
        return "category", "no rows that would tell", ""
    if not profile.rows:
        what = "no value at all" if whole else "no value so far"
        return ("ignore" if whole else "category"), what, ""
    if profile.distinct == 1 and not profile.missing:
        useless = whole and profile.rows >= ENOUGH
        return "ignore" if useless else "category", f"always {profile.examples[0]}{'' if whole else ' so far'}", ""
    if profile.name.lower() == "id" and profile.rows < _REPEATS * profile.distinct:
        return "ignore", "names the row, and hardly repeats", ""
    lower = set(profile.values.head(len(BOOLEANS) + 1).str.to_lowercase())
    if lower <= BOOLEANS.keys() and len({BOOLEANS[value] for value in lower}) == 2:
        return "boolean", f"only {' and '.join(sorted(profile.examples))}", ""
    if profile.is_iso or (profile.is_numeric and not profile.is_padded):
        return _kind_of_times_and_numbers(profile)
    if found := list_kind(profile):
        return *found, ""
    return _kind_of_texts(profile)


def _kind_of_times_and_numbers(profile: ColumnProfile) -> tuple[str, str, str]:
    if found := time_kind(profile):
        return *found, ""
    if not profile.is_whole:
        if profile.distinct <= _FEW_FLOATS and profile.rows >= OFTEN * profile.distinct:
            return "category, number", f"decimals, of which only {profile.distinct} differ", ""
        return "number", "decimals", ""
    return _kind_of_whole_numbers(profile)


def _kind_of_whole_numbers(profile: ColumnProfile) -> tuple[str, str, str]:
    rows, distinct, values = profile.rows, profile.distinct, profile.numbers
    often, repeats = _often(profile), rows / distinct
    as_written = "category of numbers" if profile.any_matches(r"\.") else "category"
    if np.abs(values).max() >= _LARGEST_AMOUNT:
        return _unless_unique(profile, "category", f"{often}; too large for amounts")
    if distinct == rows and rows >= ENOUGH and _counts_up(values):
        return "ignore", "counts the rows: no value comes twice", ""
    if profile.is_named(THINGS) and not profile.is_named(AMOUNTS):
        return _unless_unique(profile, as_written, f"{often}; its name says that they stand for things")
    if profile.stretch >= _LONG and profile.returns < OFTEN and not profile.is_named(CYCLES):
        came = f"{distinct:,} values in {profile.stretches:,} stretches of {profile.stretch:,.0f} rows"
        return "ignore", f"a clock: {came}, so that later rows have others", ""
    if distinct <= FEW and repeats >= OFTEN:
        return as_written, often, ""
    if rows < ENOUGH:
        return as_written, often, ""
    if repeats < _REPEATS:
        return "number", f"whole numbers that rarely repeat: {often}", ""
    if distinct >= _MANY and profile.smoothness < _ROUGH:
        why = f"{often}; how often one comes says nothing of the next: no amounts"
        return as_written, why, ""
    return "category, number", f"{often}; may stand for things or be amounts, so both", ""


def _kind_of_texts(profile: ColumnProfile) -> tuple[str, str, str]:
    why = _often(profile)
    if profile.is_padded and profile.is_numeric:
        why += "; zeros in front: codes, not amounts"
    elif profile.numeral_share >= 0.5:
        other = profile.values.filter(~profile.values.str.contains(r"^[\d.+-]+$"))
        example = f", such as {other[0][:20]!r}" if len(other) else ""
        why += f"; {1 - profile.numeral_share:.2%} are no numbers{example}"
    return _unless_unique(profile, "category", why)


def _unless_unique(profile: ColumnProfile, kind: str, why: str) -> tuple[str, str, str]:
    """The kind, unless each value comes once; with a warning if most do."""
    if profile.rows < ENOUGH:
        return kind, why, ""
    if profile.distinct == profile.rows:
        return "ignore", f"never repeats: {profile.rows:,} rows with {profile.rows:,} values", ""
    if profile.distinct >= _NEARLY_UNIQUE * profile.rows:
        warning = (
            f"{profile.name} is nearly unique, {profile.distinct:,} values in {profile.rows:,} rows: if it names single"
            " rows, leave it out (`exclude`)"
        )
        return kind, why, warning
    return kind, why, ""


def _often(profile: ColumnProfile) -> str:
    each = profile.rows / profile.distinct
    return f"{profile.distinct:,} different values, each {each:,.{0 if each >= 10 else 1}f} times on average"


def _counts_up(values: np.ndarray) -> bool:
    steps = np.diff(values)
    return bool((steps > 0).all() and values[-1] - values[0] < 4 * len(values))
