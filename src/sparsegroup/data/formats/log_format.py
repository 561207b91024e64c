"""The formats that logs come in: which columns they have, and what becomes of them."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import polars as pl

from sparsegroup.names import AvazuHour, CriteoNumbers

Split = Literal["none", "last-day", "last-of-7", "last-fraction", "column", "file"]
"""Where the test set begins: nowhere, at the last calendar day, after 6 of 7 equal parts, where `test_fraction` of the
rows are left, at the first row whose split column is 2, or with the second file."""

TEST_FRACTION = 0.1

Columns = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True)
class LogFormat:
    """How to read a log, and what to make of it.

    Attributes:
        name: Of the data set.
        label: Column with 0 or 1.
        fields: Categorical fields, in the order of their numbers.
        numbers: Numeric ones.
        lists: Field → what separates its values, for fields of several values.
        time: Column of the time, or None: then it is the row's number.
        split: Where the test set begins.
        split_column: Of "column".
        test_fraction: Of "last-fraction", in [0, 1); 0 for no test set.
        weight: Column of the rows' weights, numbers >= 0, or None: then every row counts the same.
        columns: All columns in order, of a log without a header; else empty.
        separator: Between columns.
        variant: Of what `derive` makes, where the fields do not tell.
        derive: Makes the fields and numbers of the raw columns, where they are not simply those; null where it cannot.
        checked: What is made → the raw column it is made of, beside numbers and time: null of a value is a bad row.
        labelled: Whether the log has the label column; a log to score need not. All labels are 0 then.
    """

    name: str
    label: str
    fields: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    lists: Mapping[str, str] = field(default_factory=dict)
    time: str | None = None
    split: Split = "last-fraction"
    split_column: str | None = None
    test_fraction: float = TEST_FRACTION
    weight: str | None = None
    columns: tuple[str, ...] = ()
    separator: str = ","
    variant: str = ""
    derive: Columns | None = None
    checked: Mapping[str, str] = field(default_factory=dict)
    labelled: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise ValueError(f"test_fraction must be in [0, 1), got {self.test_fraction}")
        if unknown := [name for name in self.lists if name not in self.fields]:
            raise ValueError(f"lists must be fields, got {unknown[0]!r}, which is none")

    @property
    def raw(self) -> tuple[str, ...]:
        """The columns of the log that are read."""
        made = {"time", "weekday"} if self.name == "avazu" else set()
        wanted = [
            self.label if self.labelled else None,
            *self.fields,
            *self.numbers,
            self.time,
            self.split_column,
            self.weight,
        ]
        wanted += ["hour"] if made else []
        return tuple(dict.fromkeys(name for name in wanted if name is not None and name not in made))

    @property
    def has_header(self) -> bool:
        """Whether the first line names the columns."""
        return not self.columns


def without_label(log: LogFormat) -> LogFormat:
    """The format of such a log without its label column."""
    return replace(log, labelled=False, columns=tuple(name for name in log.columns if name != log.label))


_CRITEO_INTEGERS = tuple(f"I{i}" for i in range(1, 14))
_CRITEO_FIELDS = tuple(f"C{i}" for i in range(1, 27))


def criteo(numbers: CriteoNumbers = "log") -> LogFormat:
    """Criteo's display-advertising challenge, `train.txt`.

    Args:
        numbers: "log" takes the 13 integers as numbers, sign(x) ln(1 + |x|), 0 where missing, as DCN does; "buckets"
            makes ⌊(ln x)²⌋ of x > 2, leaves smaller ones as they are, and embeds them: 39 fields in all.
    """
    log = LogFormat(
        "criteo",
        "label",
        _CRITEO_FIELDS,
        columns=("label", *_CRITEO_INTEGERS, *_CRITEO_FIELDS),
        separator="\t",
        split="last-of-7",
    )
    if numbers == "log":
        return replace(log, numbers=_CRITEO_INTEGERS, derive=_log_of_integers)
    return replace(
        log,
        fields=(*_CRITEO_INTEGERS, *_CRITEO_FIELDS),
        derive=_buckets_of_integers,
        checked=_same(_CRITEO_INTEGERS),
    )


def _same(names: Sequence[str]) -> dict[str, str]:
    return {name: name for name in names}


def _log_of_integers(frame: pl.DataFrame) -> pl.DataFrame:
    x = pl.col(_CRITEO_INTEGERS).cast(pl.Float64, strict=False)
    return frame.with_columns((x.sign() * x.abs().log1p()).cast(pl.Float32))


def _buckets_of_integers(frame: pl.DataFrame) -> pl.DataFrame:
    def bucket(name: str) -> pl.Expr:
        x = pl.col(name).cast(pl.Int64, strict=False)
        large = (x.cast(pl.Float64).log() ** 2).floor().cast(pl.Int64, strict=False)
        return pl.when(x > 2).then(large).otherwise(x).cast(pl.String).alias(name)

    return frame.with_columns(bucket(name) for name in _CRITEO_INTEGERS)


def is_criteo(line: str) -> bool:
    """Whether a log that begins so is Criteo's."""
    columns = line.split("\t")
    return len(columns) == len(_CRITEO_INTEGERS) + len(_CRITEO_FIELDS) + 1 and columns[0] in "01"


# fmt: off
_AVAZU_FIELDS = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id",
    "device_ip", "device_model", "device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20",
    "C21",
)
# fmt: on


def avazu(hour: AvazuHour = "hour") -> LogFormat:
    """Avazu's challenge, Kaggle's `train.csv`: 21 columns and the hour.

    Args:
        hour: What becomes of `hour`, YYMMDDHH: the hour of the day, the weekday and the hour as two fields, or the
            value as it is.
    """
    fields = {"hour": ("hour",), "weekday-hour": ("weekday", "hour"), "raw": ("hour",)}[hour]

    def derive(frame: pl.DataFrame) -> pl.DataFrame:
        whole = pl.when(pl.col("hour").str.len_bytes() == 8).then(pl.col("hour"))
        time = (whole + "00").str.to_datetime("%y%m%d%H%M", strict=False)
        frame = frame.with_columns(time=time)
        if hour == "weekday-hour":
            frame = frame.with_columns(weekday=time.dt.weekday().cast(pl.String))
        return frame if hour == "raw" else frame.with_columns(hour=pl.col("hour").str.slice(6))

    return LogFormat(
        "avazu",
        "click",
        (*fields, *_AVAZU_FIELDS),
        time="time",
        split="last-day",
        variant=hour,
        derive=derive,
        checked={"time": "hour"},
    )


def is_avazu(header: Collection[str]) -> bool:
    """Whether a log with these columns is Avazu's."""
    return {"click", "hour", *_AVAZU_FIELDS} <= set(header)


# fmt: off
_IPINYOU_FIELDS = (
    "weekday", "hour", "IP", "region", "city", "adexchange", "domain", "slotid", "slotwidth", "slotheight",
    "slotvisibility", "slotformat", "creative", "advertiser", "useragent", "slotprice",
)
# fmt: on
_SYSTEMS = ("windows", "ios", "mac", "android", "linux")
_BROWSERS = ("chrome", "sogou", "maxthon", "safari", "firefox", "theworld", "opera", "ie")
_PRICES = ((100, "101+"), (50, "51-100"), (10, "11-50"), (0, "1-10"))


def _first_of(text: pl.Expr, names: Sequence[str]) -> pl.Expr:
    found: pl.Expr = pl.lit("other")
    for name in reversed(names):
        found = pl.when(text.str.contains(name, literal=True)).then(pl.lit(name)).otherwise(found)
    return found


def _ipinyou_fields(frame: pl.DataFrame) -> pl.DataFrame:
    agent = pl.col("useragent").str.to_lowercase()
    price = pl.col("slotprice").cast(pl.Int64, strict=False)
    bucket: pl.Expr = pl.lit("0")
    for above, name in reversed(_PRICES):
        bucket = pl.when(price > above).then(pl.lit(name)).otherwise(bucket)
    return frame.with_columns(
        useragent=pl.concat_str(_first_of(agent, _SYSTEMS), pl.lit("_"), _first_of(agent, _BROWSERS)),
        slotprice=pl.when(price.is_not_null()).then(bucket),
    )


def ipinyou() -> LogFormat:
    """iPinYou's seasons 2 and 3 as make-ipinyou-data writes them, `train.log.txt`: the paper's 16 fields.

    The user agent becomes system_browser, the slot's price one of five ranges; user tags are left out, as they leak.
    """
    return LogFormat(
        "ipinyou",
        "click",
        _IPINYOU_FIELDS,
        separator="\t",
        time="timestamp",
        split="file",
        derive=_ipinyou_fields,
        checked=_same(["slotprice"]),
    )


def is_ipinyou(header: Collection[str]) -> bool:
    """Whether a log with these columns is iPinYou's."""
    return {"click", *_IPINYOU_FIELDS} <= set(header)


def svm(line: str) -> LogFormat | None:
    """libsvm (`label index:1 …`) or libffm (`label field:index:1 …`), told from a line; None if it is neither.

    All rows have as many features as this line; the fields are "1", "2", … in the order of a line.
    """
    tokens = line.split()
    if len(tokens) < 2 or not all(re.fullmatch(r"(\d+:)?\d+:[^:]+", token) for token in tokens[1:]):
        return None
    fields = tuple(str(number) for number in range(1, len(tokens)))
    name, feature = ("libffm", r"^\d+:(\d+)") if tokens[1].count(":") == 2 else ("libsvm", r"^(\d+)")
    return LogFormat(
        name,
        "label",
        fields,
        columns=("label", *fields),
        separator=" ",
        split="file",
        derive=lambda frame: frame.with_columns(pl.col(fields).str.extract(feature + r":1(?:\.0*)?$")),
        checked=_same(fields),
    )
