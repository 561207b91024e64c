"""The shapes of the public data sets: their fields, how many values each has, and how skewed they are."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from types import MappingProxyType

DAY = 86_400
"""Seconds."""

KNOWN_AT_ONCE = 256
"""Values of a field that the first block introduces, if it has as many."""


@dataclass(frozen=True)
class FieldShape:
    """A categorical field.

    Attributes:
        name: Column name.
        cardinality: Distinct values at the data set's full size.
        exponent: a of the Zipf law P(rank r) ∝ about r^-a among the values introduced so far.
        seconds: If > 0, the value is not drawn but read off the clock: (time // seconds) mod cardinality.
    """

    name: str
    cardinality: int
    exponent: float = 1.0
    seconds: int = 0

    def introduced(self, rows: int, full_rows: int) -> int:
        """How many values the first `rows` of `full_rows` rows may hold."""
        if not rows:
            return 0
        heaps = exp(log(self.cardinality) * log(rows) / log(full_rows))
        return round(min(self.cardinality, max(heaps, KNOWN_AT_ONCE)))


@dataclass(frozen=True)
class LogShape:
    """The shape of a data set.

    Attributes:
        name: Its name.
        fields: Categorical fields; a field's position is its number in the keys.
        positive_rate: Share of rows with label 1.
        full_rows: Rows of the real data set.
        full_features: Its published number of distinct features, rounded; the fields' cardinalities add up to about it.
        start: Unix time of the first row, in seconds.
        days: Time that the log spans.
        numbers: Names of the numeric columns.
        slopes: Effect of each number on the logit, per unit.
    """

    name: str
    fields: tuple[FieldShape, ...]
    positive_rate: float
    full_rows: int
    full_features: int
    start: int
    days: int
    numbers: tuple[str, ...] = ()
    slopes: tuple[float, ...] = ()


def _criteo() -> LogShape:
    cardinalities = (
        *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
        *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
    )
    return LogShape(
        name="criteo",
        fields=tuple(FieldShape(f"C{number}", n) for number, n in enumerate(cardinalities, start=1)),
        positive_rate=0.256,
        full_rows=45_840_617,
        full_features=33_800_000,
        start=1_401_580_800,  # 2014-06-01: Criteo says 7 days, not which
        days=7,
        numbers=tuple(f"I{number}" for number in range(1, 14)),
        slopes=(0.12, 0.0, -0.1, 0.0, 0.08, 0.0, -0.12, 0.0, 0.1, 0.0, -0.08, 0.0, 0.0),
    )


def _avazu() -> LogShape:
    hour = FieldShape("hour", 24, seconds=3600)
    device = FieldShape("device_id", 2_686_408, exponent=1.5)  # four in five real rows have the same device
    return LogShape(
        name="avazu",
        fields=(
            *(hour, FieldShape("C1", 7), FieldShape("banner_pos", 7), FieldShape("site_id", 4737)),
            *(FieldShape("site_domain", 7745), FieldShape("site_category", 26), FieldShape("app_id", 8552)),
            *(FieldShape("app_domain", 559), FieldShape("app_category", 36), device),
            *(FieldShape("device_ip", 6_729_486), FieldShape("device_model", 8251), FieldShape("device_type", 5)),
            *(FieldShape("device_conn_type", 4), FieldShape("C14", 2626), FieldShape("C15", 8), FieldShape("C16", 9)),
            *(FieldShape("C17", 435), FieldShape("C18", 4), FieldShape("C19", 68), FieldShape("C20", 172)),
            FieldShape("C21", 60),
        ),
        positive_rate=0.17,
        full_rows=40_428_967,
        full_features=9_400_000,
        start=1_413_849_600,  # 2014-10-21
        days=10,
    )


def _ipinyou() -> LogShape:
    weekday = FieldShape("weekday", 7, seconds=DAY)
    hour = FieldShape("hour", 24, seconds=3600)
    return LogShape(
        name="ipinyou",
        # Only the total is published. How IP, domain and slotid share it is a guess.
        fields=(
            *(weekday, hour, FieldShape("IP", 820_000), FieldShape("region", 35, 0.4), FieldShape("city", 370, 0.4)),
            *(FieldShape("adexchange", 5, 0.4), FieldShape("domain", 52_000), FieldShape("slotid", 160_300)),
            *(
                FieldShape("slotwidth", 21, 0.4),
                FieldShape("slotheight", 14, 0.4),
                FieldShape("slotvisibility", 11, 0.4),
            ),
            *(FieldShape("slotformat", 4, 0.4), FieldShape("creative", 155, 0.4), FieldShape("advertiser", 9, 0.4)),
            *(FieldShape("useragent", 40, 0.4), FieldShape("slotprice", 5, 0.4)),
        ),
        positive_rate=0.00075,
        full_rows=19_495_974,
        full_features=1_033_000,
        start=1_370_476_800,  # 2013-06-06
        days=10,
    )


DATASETS: Mapping[str, LogShape] = MappingProxyType({shape.name: shape for shape in (_criteo(), _avazu(), _ipinyou())})
"""Name → shape of the real data sets."""
