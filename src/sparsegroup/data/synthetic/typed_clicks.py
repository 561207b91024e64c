"""A raw click log such as a stranger has: names, floats, counts, a timestamp, tags, and a truth that drifts.

The columns, each as its owner would write it:

- `request_id` never repeats; `event_time` ascends, in whole seconds, over `DAYS` days.
- `user_id`, `segment`, `country`, `device`, `age`, `is_member`: a user, Zipf-distributed, and what is known of it.
- `ad_id`, `category`, `tags`, `price`: an ad. More than half are there from the start and others appear later; each is
  shown less as it gets older.
- `visits`, `ctr_7d`: a count of the user's, and the ad's rate of clicks of late, which is missing in its first days.
- `clicked`: the label.

P(clicked) = sigmoid(base + drift of the time + effects of user, ad, category, tags, device, country and membership +
curves of price, ctr_7d, age, visits, hour and weekday + an effect of each pair of segment and category). A missing
value has no effect, so that it is a function of the row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import pi
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sparsegroup.data.synthetic.log_shapes import DAY
from sparsegroup.data.synthetic.truth import check_seed, keys_of_values, salt_of
from sparsegroup.data.synthetic.zipf_log import bounded_zipf

LABEL_COLUMN = "clicked"
POSITIVE_RATE = 0.2
DAYS = 28
START = 1_740_960_000
"""Unix time of the first row, in seconds: a Monday, 2025-03-03."""

BLOCK = 1 << 14
"""Rows that are made at once, from a random generator of their own."""

_USERS, _ADS, _CATEGORIES, _SEGMENTS, _COUNTRIES, _DEVICES, _TAGS = 30_000, 3_000, 24, 12, 40, 120, 150
_MOST_TAGS = 4
_CALIBRATION_BLOCKS = 8

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class TypedBlock(NamedTuple):
    """Rows of the log.

    Attributes:
        rows: Its columns, in the types of `TypedClicks.schema`.
        probabilities: P(clicked), `[rows]` float64.
    """

    rows: pa.RecordBatch
    probabilities: Floats


@dataclass(frozen=True)
class _Draws:
    """What is drawn for a block: whole numbers of users and ads, and the values that are not theirs; NaN is missing."""

    time: Ints
    user: Ints
    ad: Ints
    price: Floats
    age: Floats
    visits: Ints
    ctr: Floats
    member: Floats
    country: Ints
    uniform: Floats


class TypedClicks:
    """The log of so many rows: the same rows and seed give the same log.

    Args:
        rows: >= 1. Its days are squeezed into them.
        seed: >= 0.

    Attributes:
        rows: Number of rows.
        schema: Types of the columns; texts that repeat are dictionaries.

    Raises:
        ValueError: `rows` or `seed` out of range.

    Example:
        >>> block = next(TypedClicks(1_000, seed=0).blocks())
        >>> block.rows.schema.names[:5], block.probabilities.shape
        (['request_id', 'event_time', 'user_id', 'segment', 'country'], (1000,))
    """

    schema = pa.schema(
        [
            ("request_id", pa.string()),
            ("event_time", pa.timestamp("us")),
            *((name, pa.dictionary(pa.int32(), pa.string())) for name in ("user_id", "segment", "country", "device")),
            ("age", pa.int64()),
            ("is_member", pa.bool_()),
            ("ad_id", pa.int64()),
            ("category", pa.dictionary(pa.int32(), pa.string())),
            ("tags", pa.list_(pa.string())),
            ("price", pa.float64()),
            ("visits", pa.int64()),
            ("ctr_7d", pa.float64()),
            (LABEL_COLUMN, pa.uint8()),
        ]
    )

    def __init__(self, rows: int, seed: int = 0) -> None:
        if rows < 1:
            raise ValueError(f"rows must be >= 1, got {rows:,}")
        check_seed(seed)
        self.rows, self._seed = rows, seed
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
        self._tag_count = draw.integers(0, _MOST_TAGS + 1, _ADS)
        self._ad_tags = np.argsort(draw.random((_ADS, _TAGS)) * np.arange(1, _TAGS + 1) ** 0.4, axis=1)[:, :_MOST_TAGS]
        self._born = np.where(draw.random(_ADS) < 0.6, -draw.random(_ADS), draw.random(_ADS))
        self._popularity = (1.0 + draw.permutation(_ADS)) ** -0.8
        self._fading = draw.uniform(0.2, 1.0, _ADS)
        self._category_effect = draw.normal(0, 0.2, _CATEGORIES)
        self._country_effect = draw.normal(0, 0.2, _COUNTRIES)
        self._device_effect = draw.normal(0, 0.2, _DEVICES)
        self._tag_effect = draw.normal(0, 0.2, _TAGS)
        self._pair_effect = draw.normal(0, 0.38, (_SEGMENTS, _CATEGORIES))
        self._base = self._calibrated()

    def blocks(self) -> Iterator[TypedBlock]:
        """All rows in order, `BLOCK` at a time, the last ones fewer."""
        for number in range(-(-self.rows // BLOCK)):
            drawn = self._drawn(number)
            probabilities = 1 / (1 + np.exp(-self._base - self._score(drawn)))
            count = min(BLOCK, self.rows - number * BLOCK)
            yield TypedBlock(self._columns(drawn, number, probabilities).slice(0, count), probabilities[:count])

    def _drawn(self, number: int) -> _Draws:
        generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence((self._seed, number))))
        time = START + (number * BLOCK + np.arange(BLOCK)) * (DAYS * DAY) // self.rows
        now = (time[0] - START) / (DAYS * DAY)
        user = bounded_zipf(generator.random(BLOCK), _USERS, 0.8)
        shown = np.cumsum(self._popularity * (self._born <= now) * np.exp((self._born - now) / self._fading))
        ad = np.searchsorted(shown, generator.random(BLOCK) * shown[-1], side="right")
        price = np.round(self._price[ad] * generator.lognormal(0, 0.3, BLOCK), 2)
        price[generator.random(BLOCK) < 0.04] = np.nan
        clicks = generator.beta(*_beta(1 / (1 + np.exp(1.5 - self._ad_effect[ad])), 60.0))
        ctr = np.where(now - self._born[ad] > 2 / DAYS, np.round(clicks, 4), np.nan)
        visits = generator.poisson(self._visits[user])
        member = np.where(generator.random(BLOCK) < 0.05, np.nan, self._member[user])
        country = np.where(generator.random(BLOCK) < 0.02, -1, self._country[user])
        return _Draws(time, user, ad, price, self._age[user], visits, ctr, member, country, generator.random(BLOCK))

    def _score(self, drawn: _Draws) -> Floats:
        """The logit of each row without the base."""
        user, ad = drawn.user, drawn.ad
        category = self._category[ad]
        total = self._user_effect[user] + self._ad_effect[ad] + self._device_effect[self._device[user]]
        total += np.where(drawn.country >= 0, self._country_effect[drawn.country], 0)
        total += self._category_effect[category] + self._pair_effect[self._segment[user], category]
        has_tag = np.arange(_MOST_TAGS) < self._tag_count[ad, None]
        total += (self._tag_effect[self._ad_tags[ad]] * has_tag).sum(axis=1)
        total += _known(0.35 * np.clip((np.log(np.maximum(drawn.price, 0.01)) - 3) / 0.85, -3, 3) ** 2)
        total += _known(0.65 * np.tanh((drawn.ctr - 0.2) / 0.08))
        total += _known(0.45 * np.cos((drawn.age - 16) / 12)) + _known(0.4 * drawn.member)
        total -= 0.25 * np.log1p(drawn.visits)
        hour = drawn.time % DAY / 3600
        total += 0.3 * np.sin((hour - 14) * (pi / 12)) + 0.15 * np.cos(hour * (pi / 6))
        total += 0.2 * (drawn.time // DAY % 7 >= 2) * (drawn.time // DAY % 7 <= 3)  # 1970-01-01 was a Thursday
        now = (drawn.time - START) / (DAYS * DAY)
        summed: Floats = total + 0.1 * np.sin(now * (1.5 * pi))
        return summed

    def _columns(self, drawn: _Draws, number: int, probabilities: Floats) -> pa.RecordBatch:
        user, ad = drawn.user, drawn.ad
        ids = keys_of_values(number * BLOCK + np.arange(BLOCK), 0).view(np.uint64) ^ salt_of(self._seed)
        columns: dict[str, Any] = {
            "request_id": pl.Series(ids.astype(">u8").view("V8").tolist(), dtype=pl.Binary)
            .bin.encode("hex")
            .to_arrow(),
            "event_time": pa.array(drawn.time * 1_000_000, pa.timestamp("us")),
            "user_id": _texts(user, self._user_names),
            "segment": _texts(self._segment[user], _names("segment ", np.arange(_SEGMENTS), 1)),
            "country": _texts(drawn.country, _COUNTRY_CODES),
            "device": _texts(self._device[user], _names("phone-", np.arange(_DEVICES), 3)),
            "age": pa.array(drawn.age, from_pandas=True).cast(pa.int64()),
            "is_member": pa.array(drawn.member, from_pandas=True).cast(pa.bool_()),
            "ad_id": pa.array(self._ad_ids[ad]),
            "category": _texts(self._category[ad], _names("category-", np.arange(_CATEGORIES), 2)),
            "tags": self._tag_lists(ad),
            "price": pa.array(drawn.price, from_pandas=True),
            "visits": pa.array(drawn.visits),
            "ctr_7d": pa.array(drawn.ctr, from_pandas=True),
            LABEL_COLUMN: pa.array((drawn.uniform < probabilities).astype(np.uint8)),
        }
        return pa.record_batch([columns[name] for name in self.schema.names], schema=self.schema)

    def _tag_lists(self, ad: Ints) -> pa.Array:
        counts = self._tag_count[ad]
        tags = self._ad_tags[ad][np.arange(_MOST_TAGS) < counts[:, None]]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, _texts(tags, _names("t", np.arange(_TAGS), 1)).dictionary_decode())

    def _calibrated(self) -> float:
        """The logit's constant for which a few blocks, spread over the log, have the positive rate on average."""
        blocks = -(-self.rows // BLOCK)
        sample = sorted({int((part + 0.5) / _CALIBRATION_BLOCKS * blocks) for part in range(_CALIBRATION_BLOCKS)})
        scores = np.concatenate([self._score(self._drawn(number)) for number in sample])
        low, high = -30.0 - scores.max(), 30.0 - scores.min()
        for _ in range(40):
            middle = (low + high) / 2
            too_many = np.mean(1 / (1 + np.exp(-middle - scores))) > POSITIVE_RATE
            low, high = (low, middle) if too_many else (middle, high)
        return float(low + high) / 2


# fmt: off
_COUNTRY_CODES = pa.array([
    "DE", "FR", "US", "GB", "ES", "IT", "PL", "NL", "BR", "IN", "JP", "CA", "MX", "AT", "CH", "SE", "NO", "DK", "FI",
    "BE", "PT", "IE", "CZ", "GR", "HU", "RO", "TR", "ZA", "AU", "NZ", "KR", "AR", "CL", "CO", "PE", "EG", "MA", "KE",
    "NG", "TH",
])
# fmt: on


def _names(prefix: str, numbers: Ints, digits: int) -> pa.Array:
    return pa.array([f"{prefix}{number:0{digits}}" for number in numbers.tolist()])


def _texts(numbers: Ints, names: pa.Array) -> pa.DictionaryArray:
    """Names by number; that of -1 is missing."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32), mask=numbers < 0), names)


def _known(effects: Floats) -> Floats:
    """Effects of values, 0 where they are missing."""
    return np.nan_to_num(effects, nan=0.0)


def _beta(mean: Floats, total: float) -> tuple[Floats, Floats]:
    """The parameters of a beta distribution of that mean, as sharp as after `total` impressions."""
    return mean * total, (1 - mean) * total
