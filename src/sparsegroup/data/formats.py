"""Formats of public logs, which their first lines tell. A format of another package appends itself to `FORMATS`."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import polars as pl

from sparsegroup.data.kinds import SIGNS
from sparsegroup.data.schema import Head, KnownFormat, LogFormat, same
from sparsegroup.settings.names import AvazuHour, CriteoNumbers

# Criteo's display-advertising challenge

_INTEGERS = tuple(f"I{i}" for i in range(1, 14))
_CATEGORIES = tuple(f"C{i}" for i in range(1, 27))


def criteo(numbers: CriteoNumbers = "log") -> LogFormat:
    """Criteo's `train.txt`: a label, 13 integers, 26 categorical columns, without a header.

    Args:
        numbers: "log" takes the 13 integers as numbers, sign(x) ln(1 + |x|), 0 where missing, as DCN does; "buckets"
            makes ⌊(ln x)²⌋ of x > 2, leaves smaller ones unchanged, and embeds them: 39 fields in all.
    """
    columns = ("label", *_INTEGERS, *_CATEGORIES)
    log = LogFormat("criteo", "label", _CATEGORIES, columns=columns, separator="\t", split="last-of-7")
    if numbers == "log":
        return replace(log, numbers=_INTEGERS, derive=_log_of_integers)
    return replace(log, fields=(*_INTEGERS, *_CATEGORIES), derive=_buckets_of_integers, checked=same(_INTEGERS))


def _log_of_integers(frame: pl.DataFrame) -> pl.DataFrame:
    x = pl.col(_INTEGERS).cast(pl.Float64, strict=False)
    return frame.with_columns((x.sign() * x.abs().log1p()).cast(pl.Float32))


def _buckets_of_integers(frame: pl.DataFrame) -> pl.DataFrame:
    def bucket(name: str) -> pl.Expr:
        x = pl.col(name).cast(pl.Int64, strict=False)
        large = (x.cast(pl.Float64).log() ** 2).floor().cast(pl.Int64, strict=False)
        return pl.when(x > 2).then(large).otherwise(x).cast(pl.String).alias(name)

    return frame.with_columns(bucket(name) for name in _INTEGERS)


def _is_criteo(line: str) -> bool:
    columns = line.split("\t")
    return len(columns) == len(_INTEGERS) + len(_CATEGORIES) + 1 and columns[0] in "01"


def _recognised_criteo(head: Head, needs_label: bool) -> LogFormat | None:
    return criteo() if _is_criteo(head.line) or (not needs_label and _is_criteo(f"0\t{head.line}")) else None


# libsvm and libffm


def svm(line: str) -> LogFormat | None:
    """Return the format of a line of libsvm (`label index:1 …`) or libffm (`label field:index:1 …`), else None.

    Labels are 1 and -1 if the label of the line has a sign, else 0 and 1. All rows have as many features as the line.
    The fields are "1", "2", … in the order of the line.
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
        label_rule=SIGNS if re.fullmatch(r"[+-]1(\.0)?", tokens[0]) else "",
        derive=partial(_features, fields=fields, pattern=feature + r":1(?:\.0*)?$"),
        checked=same(fields),
    )


def _features(frame: pl.DataFrame, fields: Sequence[str], pattern: str) -> pl.DataFrame:
    return frame.with_columns(pl.col(fields).str.extract(pattern))


# Avazu's challenge

# fmt: off
_AVAZU_FIELDS = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id",
    "device_ip", "device_model", "device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20",
    "C21",
)
# fmt: on


def avazu(hour: AvazuHour = "hour") -> LogFormat:
    """Avazu's `train.csv`, as Kaggle has it: 21 columns and the hour.

    Args:
        hour: What becomes of `hour`, YYMMDDHH: the hour of the day, the weekday and the hour as two fields, or the
            value unchanged.
    """
    fields = {"hour": ("hour",), "weekday-hour": ("weekday", "hour"), "raw": ("hour",)}[hour]
    return LogFormat(
        "avazu",
        "click",
        (*fields, *_AVAZU_FIELDS),
        time="time",
        split="last-day",
        variant=hour,
        derive=partial(_time_of_avazu, hour=hour),
        checked={"time": "hour"},
        sources={"time": "hour", "weekday": "hour"},
    )


def _time_of_avazu(frame: pl.DataFrame, hour: AvazuHour) -> pl.DataFrame:
    whole = pl.when(pl.col("hour").str.len_bytes() == 8).then(pl.col("hour"))
    time = (whole + "00").str.to_datetime("%y%m%d%H%M", strict=False)
    frame = frame.with_columns(time=time)
    if hour == "weekday-hour":
        frame = frame.with_columns(weekday=time.dt.weekday().cast(pl.String))
    return frame if hour == "raw" else frame.with_columns(hour=pl.col("hour").str.slice(6))


def _recognised_avazu(head: Head, needs_label: bool) -> LogFormat | None:
    return avazu() if head.has_columns("click", ("hour", *_AVAZU_FIELDS), needs_label) else None


# iPinYou's seasons 2 and 3

# fmt: off
_IPINYOU_FIELDS = (
    "weekday", "hour", "IP", "region", "city", "adexchange", "domain", "slotid", "slotwidth", "slotheight",
    "slotvisibility", "slotformat", "creative", "advertiser", "useragent", "slotprice",
)
# fmt: on
_SYSTEMS = ("windows", "ios", "mac", "android", "linux")
_BROWSERS = ("chrome", "sogou", "maxthon", "safari", "firefox", "theworld", "opera", "ie")
_PRICES = ((100, "101+"), (50, "51-100"), (10, "11-50"), (0, "1-10"))


def ipinyou() -> LogFormat:
    """`train.log.txt`, as make-ipinyou-data writes it: the paper's 16 fields.

    The user agent becomes system_browser, the slot's price one of five ranges; user tags are left out, as they leak.
    """
    return LogFormat(
        "ipinyou",
        "click",
        _IPINYOU_FIELDS,
        separator="\t",
        time="timestamp",
        split="file",
        derive=_agent_and_price,
        checked=same(["slotprice"]),
    )


def _agent_and_price(frame: pl.DataFrame) -> pl.DataFrame:
    def first_of(names: Sequence[str]) -> pl.Expr:
        found: pl.Expr = pl.lit("other")
        for name in reversed(names):
            found = pl.when(agent.str.contains(name, literal=True)).then(pl.lit(name)).otherwise(found)
        return found

    agent = pl.col("useragent").str.to_lowercase()
    price = pl.col("slotprice").cast(pl.Int64, strict=False)
    bucket: pl.Expr = pl.lit("0")
    for above, name in reversed(_PRICES):
        bucket = pl.when(price > above).then(pl.lit(name)).otherwise(bucket)
    return frame.with_columns(
        useragent=pl.concat_str(first_of(_SYSTEMS), pl.lit("_"), first_of(_BROWSERS)),
        slotprice=pl.when(price.is_not_null()).then(bucket),
    )


def _recognised_ipinyou(head: Head, needs_label: bool) -> LogFormat | None:
    return ipinyou() if head.has_columns("click", _IPINYOU_FIELDS, needs_label) else None


FORMATS: list[KnownFormat] = [
    KnownFormat(_recognised_criteo, "criteo", criteo, option="criteo_numbers"),
    KnownFormat(lambda head, needs_label: svm(head.line)),
    KnownFormat(_recognised_avazu, "avazu", avazu, option="avazu_hour"),
    KnownFormat(_recognised_ipinyou, "ipinyou", ipinyou),
]
"""Formats that a log's beginning tells, in the order in which they are tried."""
