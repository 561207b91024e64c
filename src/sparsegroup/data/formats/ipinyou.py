"""iPinYou's seasons 2 and 3."""

from collections.abc import Sequence

import polars as pl

from sparsegroup.data.schema import Head, KnownFormat, LogFormat, same

# fmt: off
_FIELDS = (
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


def _derived(frame: pl.DataFrame) -> pl.DataFrame:
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
    """`train.log.txt`, as make-ipinyou-data writes it: the paper's 16 fields.

    The user agent becomes system_browser, the slot's price one of five ranges; user tags are left out, as they leak.
    """
    return LogFormat(
        "ipinyou",
        "click",
        _FIELDS,
        separator="\t",
        time="timestamp",
        split="file",
        derive=_derived,
        checked=same(["slotprice"]),
    )


def _recognised(head: Head, needs_label: bool) -> LogFormat | None:
    return ipinyou() if head.has_columns("click", _FIELDS, needs_label) else None


IPINYOU = KnownFormat(_recognised, "ipinyou", ipinyou)
