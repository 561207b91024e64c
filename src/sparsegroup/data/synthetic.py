"""Made-up click logs: one in memory, and a raw one of typed columns as a file.

The raw log is such as strangers bring: ids that never repeat, an ascending time over `DAYS` days, Zipf-distributed
users, ads that appear and are shown less as they age, tags, prices, rates, and missing values. P(clicked) is a function
of the row: effects of most values, curves of the numbers, of hour and weekday, and an effect of each pair of segment
and category; a missing value has no effect. The rate of clicks drifts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.data.keys import VALUE_BITS
from sparsegroup.data.local_files import check_name, parquet_writer
from sparsegroup.data.log import MemoryLog
from sparsegroup.errors import ClickLogError

LABEL_COLUMN = "clicked"
POSITIVE_RATE = 0.2
DAY, DAYS = 86_400, 28
"""Seconds of a day; days of the raw log."""

START = 1_740_960_000
"""Unix time of the first row, in seconds: a Monday, 2025-03-03."""

BLOCK = 1 << 14
"""Rows that are drawn by one random generator, whose seed contains the block's number."""

_USERS, _ADS, _CATEGORIES, _SEGMENTS, _COUNTRIES, _DEVICES, _TAGS, _MAX_TAGS = 30_000, 3_000, 24, 12, 40, 120, 150, 4
# fmt: off
_COUNTRY_CODES = [
    "DE", "FR", "US", "GB", "ES", "IT", "PL", "NL", "BR", "IN", "JP", "CA", "MX", "AT", "CH", "SE", "NO", "DK", "FI",
    "BE", "PT", "IE", "CZ", "GR", "HU", "RO", "TR", "ZA", "AU", "NZ", "KR", "AR", "CL", "CO", "PE", "EG", "MA", "KE",
    "NG", "TH",
]
# fmt: on
_CALIBRATION_BLOCKS = 8

# A one-to-one mix of 56 bits: add, multiply, xor-shift, multiply, xor-shift. Odd factors have an inverse mod 2^56, and
# a xor-shift by half the width undoes itself.
VALUE_MASK = np.uint64((1 << VALUE_BITS) - 1)
HALF_SHIFT = np.uint64(28)
FACTORS = (0xA0761D6478BD642F, 0x9FB21C651E98DF25)
FIELD_OFFSET = 0x9E3779B97F4A7C15

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SyntheticConfig:
    """Shape of a synthetic click log.

    Attributes:
        rows: Number of rows; the last tenth is the test set.
        cardinalities: Number of possible values of each field.
        exponent: a of the Zipf law, P(rank r) ∝ about r^-a; not 1.
        informative: Share of the values of a field that have an effect.
        effect: Standard deviation of the effects on the logit.
        bias: Logit of a row without informative values.
    """

    rows: int = 200_000
    cardinalities: Sequence[int] = (10, 50, 200, 1_000, 5_000, 20_000, 50_000, 100_000)
    exponent: float = 1.1
    informative: float = 0.1
    effect: float = 1.5
    bias: float = -1.5


def synthetic_log(config: SyntheticConfig = SyntheticConfig(), seed: int = 0) -> MemoryLog:
    """Draw a log whose label is Bernoulli(sigmoid(bias + Σ effect of the row's values)).

    A value is informative with probability `informative`, at any frequency; its effect is N(0, effect²). All
    other values have effect 0. The key of value v of field f is f · 2⁵⁶ + v.

    Args:
        config: Shape of the log.
        seed: The same seed gives the same log.
    """
    generator = np.random.default_rng(seed)
    logits = np.full(config.rows, config.bias)
    columns, truths = [], []
    for number, cardinality in enumerate(config.cardinalities):
        informative = generator.random(cardinality) < config.informative
        effects = np.where(informative, generator.normal(0, config.effect, cardinality), 0.0)
        # Ranks are scattered over the values, so that a value's name says nothing of its frequency.
        values = generator.permutation(cardinality)[
            bounded_zipf(generator.random(config.rows), cardinality, config.exponent)
        ]
        logits += effects[values]
        first = number << VALUE_BITS
        columns.append(first + values)
        truths.append(first + np.flatnonzero(informative))
    labels = (generator.random(config.rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return MemoryLog(
        "synthetic",
        tuple(f"field_{number}" for number in range(len(columns))),
        np.stack(columns, axis=1),
        labels,
        config.rows - config.rows // 10,
        np.concatenate(truths),
    )


class TypedClicks:
    """The raw log of `rows` rows, into which the days are squeezed; the same rows and seed give the same log.

    Raises:
        ValueError: `rows` < 1 or `seed` < 0.

    Example:
        >>> rows, probabilities = next(TypedClicks(1_000, seed=0).blocks())
        >>> rows.schema.names[:5], probabilities.shape
        (['request_id', 'event_time', 'user_id', 'segment', 'country'], (1000,))
    """

    def __init__(self, rows: int, seed: int = 0) -> None:
        if rows < 1:
            raise ValueError(f"rows must be >= 1, got {rows:,}")
        self._rows, self._seed, self._salt = rows, seed, salt_of(seed)
        draw = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2,)))
        self._user_names = _names("u", draw.permutation(_USERS), 5)
        self._user_effect = draw.normal(0, 0.3, _USERS)
        self._segment = bounded_zipf(draw.random(_USERS), _SEGMENTS, 0.5)
        self._country = bounded_zipf(draw.random(_USERS), _COUNTRIES, 1.2)
        self._device = bounded_zipf(draw.random(_USERS), _DEVICES, 0.9)
        self._age = np.clip(np.round(draw.gamma(6, 4.5, _USERS) + 14), 16, 90)
        self._age[draw.random(_USERS) < 0.15] = np.nan
        self._visits = draw.lognormal(1.5, 1.0, _USERS)
        self._member = draw.random(_USERS) < 0.3
        self._ad_ids = 1_000_000 + draw.choice(9_000_000, _ADS, replace=False)
        self._ad_effect = draw.normal(0, 0.4, _ADS)
        self._category = bounded_zipf(draw.random(_ADS), _CATEGORIES, 0.7)
        self._price = draw.lognormal(3, 0.8, _ADS)
        self._tag_count = draw.integers(0, _MAX_TAGS + 1, _ADS)
        self._ad_tags = np.argsort(draw.random((_ADS, _TAGS)) * np.arange(1, _TAGS + 1) ** 0.4, axis=1)[:, :_MAX_TAGS]
        self._since = np.where(draw.random(_ADS) < 0.6, -draw.random(_ADS), draw.random(_ADS))
        self._popularity = (1.0 + draw.permutation(_ADS)) ** -0.8
        self._fading = draw.uniform(0.2, 1.0, _ADS)
        self._category_effect = draw.normal(0, 0.2, _CATEGORIES)
        self._country_effect = draw.normal(0, 0.2, _COUNTRIES)
        self._device_effect = draw.normal(0, 0.2, _DEVICES)
        self._tag_effect = draw.normal(0, 0.2, _TAGS)
        self._pair_effect = draw.normal(0, 0.38, (_SEGMENTS, _CATEGORIES))
        self._base = calibrated_base(rows, POSITIVE_RATE, lambda number: self._logits(self._draw(number)))

    def blocks(self) -> Iterator[tuple[pa.RecordBatch, Floats]]:
        """All rows in order and their P(clicked), `[n]` float64; `BLOCK` rows at a time, the last ones fewer."""
        for first in range(0, self._rows, BLOCK):
            drawn = self._draw(first // BLOCK)
            probabilities = 1 / (1 + np.exp(-self._base - self._logits(drawn)))
            count = min(BLOCK, self._rows - first)
            yield self._columns(drawn, first, probabilities).slice(0, count), probabilities[:count]

    def _draw(self, number: int) -> dict[str, npt.NDArray[Any]]:
        """What is drawn for a block: numbers of users and ads, and further values; NaN or -1 is missing."""
        generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence((self._seed, number))))
        time = START + (number * BLOCK + np.arange(BLOCK)) * (DAYS * DAY) // self._rows
        now = (time[0] - START) / (DAYS * DAY)
        user = bounded_zipf(generator.random(BLOCK), _USERS, 0.8)
        shown = np.cumsum(self._popularity * (self._since <= now) * np.exp((self._since - now) / self._fading))
        ad = np.searchsorted(shown, generator.random(BLOCK) * shown[-1], side="right")
        price = np.round(self._price[ad] * generator.lognormal(0, 0.3, BLOCK), 2)
        price[generator.random(BLOCK) < 0.04] = np.nan
        rate = 1 / (1 + np.exp(1.5 - self._ad_effect[ad]))
        clicks = generator.beta(60.0 * rate, (1 - rate) * 60.0)  # as sharp as after 60 impressions
        ctr = np.where(now - self._since[ad] > 2 / DAYS, np.round(clicks, 4), np.nan)
        visits = generator.poisson(self._visits[user])
        member = np.where(generator.random(BLOCK) < 0.05, np.nan, self._member[user])
        country = np.where(generator.random(BLOCK) < 0.02, -1, self._country[user])
        drawn = {"time": time, "user": user, "ad": ad, "price": price, "age": self._age[user], "visits": visits}
        return drawn | {"ctr": ctr, "member": member, "country": country, "uniform": generator.random(BLOCK)}

    def _logits(self, drawn: dict[str, npt.NDArray[Any]]) -> Floats:
        """The logit of each row without the base."""
        user, ad, country, time = drawn["user"], drawn["ad"], drawn["country"], drawn["time"]
        category = self._category[ad]
        total = self._user_effect[user] + self._ad_effect[ad] + self._device_effect[self._device[user]]
        total += np.where(country >= 0, self._country_effect[country], 0)
        total += self._category_effect[category] + self._pair_effect[self._segment[user], category]
        has_tag = np.arange(_MAX_TAGS) < self._tag_count[ad, None]
        total += (self._tag_effect[self._ad_tags[ad]] * has_tag).sum(axis=1)
        for effect in (
            0.35 * np.clip((np.log(np.maximum(drawn["price"], 0.01)) - 3) / 0.85, -3, 3) ** 2,
            0.65 * np.tanh((drawn["ctr"] - 0.2) / 0.08),
            np.nan_to_num(0.45 * np.cos((drawn["age"] - 16) / 12)) + np.nan_to_num(0.4 * drawn["member"]),
        ):
            total += np.nan_to_num(effect)  # a missing value has none
        total -= 0.25 * np.log1p(drawn["visits"])
        hour = time % DAY / 3600
        total += 0.3 * np.sin((hour - 14) * (pi / 12)) + 0.15 * np.cos(hour * (pi / 6))
        total += 0.2 * (time // DAY % 7 >= 2) * (time // DAY % 7 <= 3)  # 1970-01-01 was a Thursday
        now = (time - START) / (DAYS * DAY)
        summed: Floats = total + 0.1 * np.sin(now * (1.5 * pi))
        return summed

    def _columns(self, drawn: dict[str, npt.NDArray[Any]], first: int, probabilities: Floats) -> pa.RecordBatch:
        user, ad = drawn["user"], drawn["ad"]
        ids = keys_of_values(first + np.arange(BLOCK), 0).view(np.uint64) ^ self._salt
        hexadecimal = pl.Series(ids.astype(">u8").view("V8").tolist(), dtype=pl.Binary).bin.encode("hex")
        counts = self._tag_count[ad]
        tags = self._ad_tags[ad][np.arange(_MAX_TAGS) < counts[:, None]]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        tag_names = _texts(tags, _names("t", np.arange(_TAGS), 1)).dictionary_decode()
        columns: dict[str, pa.Array] = {
            "request_id": hexadecimal.to_arrow().cast(pa.string()),
            "event_time": pa.array(drawn["time"] * 1_000_000, pa.timestamp("us")),
            "user_id": _texts(user, self._user_names),
            "segment": _texts(self._segment[user], _names("segment ", np.arange(_SEGMENTS), 1)),
            "country": _texts(drawn["country"], pa.array(_COUNTRY_CODES)),
            "device": _texts(self._device[user], _names("phone-", np.arange(_DEVICES), 3)),
            "age": pa.array(drawn["age"], from_pandas=True).cast(pa.int64()),
            "is_member": pa.array(drawn["member"], from_pandas=True).cast(pa.bool_()),
            "ad_id": pa.array(self._ad_ids[ad]),
            "category": _texts(self._category[ad], _names("category-", np.arange(_CATEGORIES), 2)),
            "tags": pa.ListArray.from_arrays(offsets, tag_names),
            "price": pa.array(drawn["price"], from_pandas=True),
            "visits": pa.array(drawn["visits"]),
            "ctr_7d": pa.array(drawn["ctr"], from_pandas=True),
            LABEL_COLUMN: pa.array((drawn["uniform"] < probabilities).astype(np.uint8)),
        }
        return pa.record_batch(columns)


def write_clicks(
    path: Path,
    rows: int = 300_000,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write the raw log block by block; the same rows and seed give the same file.

    In CSV, times are ISO 8601 without a zone, booleans true and false, tags "t1|t20", and missing values are empty. In
    Parquet, times are timestamps of microseconds, booleans booleans, tags lists of strings, other texts dictionaries.

    Args:
        path: A `.csv` or `.parquet` file.
        rows: >= 1.
        seed: Seed of everything random.
        on_progress: Called with the rows written so far.
        overwrite: Replace the file if it exists, once the new one is complete.

    Raises:
        ValueError: Rows or seed out of range.
        ClickLogError: Another suffix, a name that is not text, the file exists and `overwrite` is False, or it is a
            folder.
    """
    check_name(path)
    if path.suffix not in (".csv", ".parquet"):
        raise ClickLogError(f"{path}: the log of typed columns is a file; name it *.csv or *.parquet")
    if path.is_dir():
        raise ClickLogError(f"{path}: is a folder; give another file")
    if path.exists() and not overwrite:
        raise ClickLogError(f"{path}: exists; give another file, or `overwrite`", "overwrite")
    log = TypedClicks(rows, seed)

    def batches() -> Iterator[pa.RecordBatch]:
        done = 0
        for batch, _ in log.blocks():
            yield batch
            done += batch.num_rows
            if on_progress:
                on_progress(done)

    path.parent.mkdir(parents=True, exist_ok=True)
    write = _write_csv if path.suffix == ".csv" else _write_parquet
    write_atomically(path, lambda temporary: write(temporary, batches()))


def _write_parquet(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    first = next(batches)
    with parquet_writer(path, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)


def _write_csv(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    with path.open("wb") as file:
        for number, batch in enumerate(batches):
            frame = pl.DataFrame(pl.from_arrow(batch)).with_columns(pl.col("tags").list.join("|").replace("", None))
            frame.write_csv(file, include_header=number == 0, datetime_format="%Y-%m-%dT%H:%M:%S")


# What both logs, and logs of other shapes, are drawn with


def bounded_zipf(uniform: Floats, cardinality: int, exponent: float) -> Ints:
    """Ranks in [0, cardinality) by inverting the distribution function of r^-exponent on [1, cardinality]."""
    power = 1 - exponent
    ranks = np.floor(((float(cardinality) ** power - 1) * uniform + 1) ** (1 / power)) - 1
    clipped: Ints = np.clip(ranks, 0, cardinality - 1).astype(np.int64)
    return clipped


def salt_of(seed: int) -> np.uint64:
    """64 bits that follow from a seed; ValueError if it is negative."""
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")
    salt: np.uint64 = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1, np.uint64)[0]
    return salt


def keys_of_values(values: Ints, field: int) -> Ints:
    """Keys of value numbers `[n]`: the field's number in the top 8 bits, a one-to-one mix of the value's below."""
    mixed = values.view(np.uint64) + np.uint64((field + 1) * FIELD_OFFSET & (1 << VALUE_BITS) - 1)
    for factor in FACTORS:
        mixed *= np.uint64(factor)
        mixed &= VALUE_MASK
        mixed ^= mixed >> HALF_SHIFT
    mixed |= np.uint64(field) << np.uint64(VALUE_BITS)
    return mixed.view(np.int64)


def calibrated_base(rows: int, positive_rate: float, score: Callable[[int], npt.NDArray[Any]]) -> float:
    """The constant of the logit with which a few blocks, spread over `rows` rows, have the positive rate on average.

    `score` gives the logits of a block without it, by the block's number.
    """
    blocks = -(-rows // BLOCK)
    sample = sorted({int((part + 0.5) / _CALIBRATION_BLOCKS * blocks) for part in range(_CALIBRATION_BLOCKS)})
    scores = np.concatenate([score(number) for number in sample]).astype(np.float64)
    low, high = -30.0 - scores.max(), 30.0 - scores.min()
    for _ in range(40):
        middle = (low + high) / 2
        too_many = np.mean(1 / (1 + np.exp(-middle - scores))) > positive_rate
        low, high = (low, middle) if too_many else (middle, high)
    return float(low + high) / 2


def _names(prefix: str, numbers: Ints, digits: int) -> pa.Array:
    return pa.array([f"{prefix}{number:0{digits}}" for number in numbers.tolist()])


def _texts(numbers: Ints, names: pa.Array) -> pa.DictionaryArray:
    """Names by number; that of -1 is missing."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32), mask=numbers < 0), names)
