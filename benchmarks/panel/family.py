"""A family of made-up logs, each with another difficulty, and the probabilities that their labels were drawn with.

`FAMILY` is what trials and pairs were chosen on. `KEPT` was unseen then; how a run ends was measured on it later.
`UNSEEN` has been looked at once, when all of that was done. Who changes a default by it needs new ones.
"""

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from panel.logs import PanelLog

Float64s = npt.NDArray[np.float64]

START, DAYS = dt.datetime(2026, 1, 5), 28
TEST_SHARE = 0.1


@dataclass(frozen=True)
class Shape:
    """What a log is like. Effects are standard deviations of the logit."""

    rows: int  # in the order of time
    fields: tuple[int, ...]  # distinct values of each; the first two are the users and the items
    rate: float = 0.2  # share of positives
    skew: float = 1.0  # value k has a weight of k^-skew
    live: float = 1.0  # share of the values that have an effect
    main: float = 1.0  # effect of all fields by themselves
    pair: float = 0.0  # effect of users and items together: each has a vector of 4 numbers
    taste: float = 0.0  # effect of being in the same of 10 groups, for a user and an item
    cross: float = 0.0  # effect of the third and the fourth field together: each combination has one
    favourites: int = 0
    """Items of a user that all positives are of, where items of the negatives are drawn from all rows: how sampled
    negatives look. There is no other effect then but that of the item's own frequency."""
    arrivals: bool = False  # whether users come one after another, so that most users of the test rows are new
    drift: float = 0.0  # of the logit over the log, a random walk
    jump: float = 0.0  # is added to the logit of all test rows
    numbers: int = 0  # numeric columns, one half of them without an effect
    tags: float = 0.0  # effect of a list of up to 5 tags, by their sum
    noise: int = 0  # columns without an effect, of as many values as there are users
    copies: int = 0  # columns that repeat an earlier field, but for one value in ten
    codes: bool = False  # whether values are written as whole numbers without an order
    formatted: bool = False  # has a date, a price, a percentage, an address, a title, each with an effect


FAMILY: Mapping[str, Shape] = {
    "negatives": Shape(290_000, (1_000, 4_000, 233, 80, 9, 7, 7, 3, 2, 2), rate=1 / 3, favourites=30),
    "tastes": Shape(250_000, (3_000, 1_500, 300, 60, 40, 20, 10), rate=0.2, main=0.7, pair=1.0, taste=1.5),
    "ratings": Shape(100_000, (1_000, 1_700, 795, 61, 21, 19, 7, 2), rate=0.55, arrivals=True, drift=0.2, pair=0.5),
    "installs": Shape(250_000, (30_000, 4_000, 800, 100, 20), rate=0.003, main=1.8, noise=1),
    "codes": Shape(33_000, (7_500, 4_200, 2_300, 450, 340, 180, 130, 67), rate=0.94, main=1.2, cross=1.5, codes=True),
    "orders": Shape(50_000, (4_000, 900, 40), rate=0.25, formatted=True, main=0.6),
    "mixed": Shape(300_000, (40_000, 2_000, 300, 20), rate=0.1, numbers=6, tags=0.7, drift=0.3, noise=1),
    "tiny": Shape(10_000, (400, 150, 30, 7), rate=0.3),
    "long tail": Shape(300_000, (200_000, 50_000, 500, 20), rate=0.15, skew=0.8, live=0.1, main=1.5),
}
"""Name → shape, of the logs that defaults are chosen on."""

KEPT: Mapping[str, Shape] = {
    "bookings": Shape(120_000, (8_000, 3_000, 200, 50, 12), rate=0.05, taste=1.2, main=0.8, copies=2),
    "reviews": Shape(60_000, (2_000, 2_500, 100, 10), rate=0.6, pair=0.8, arrivals=True, drift=0.3),
    "plays": Shape(150_000, (3_000, 9_000, 150, 24, 7), rate=0.25, favourites=12),
    "leads": Shape(80_000, (20_000, 600, 90, 25), rate=0.01, main=1.5, numbers=4),
    "claims": Shape(40_000, (5_000, 700, 300, 70, 30), rate=0.4, cross=1.0, codes=True, numbers=2, noise=2),
    "shop": Shape(70_000, (6_000, 1_200, 60), rate=0.15, formatted=True, tags=0.5, main=0.8),
    "season": Shape(200_000, (10_000, 900, 120, 24, 7), rate=0.2, drift=0.6, jump=-0.4),
    "small": Shape(15_000, (900, 300, 50, 12), rate=0.1, main=1.3, numbers=2),
    "ads": Shape(300_000, (120_000, 8_000, 2_000, 300, 40), rate=0.02, skew=1.1, live=0.2, main=1.4, noise=2),
}
"""The logs of the first check."""

UNSEEN: Mapping[str, Shape] = {
    "returns": Shape(90_000, (15_000, 2_500, 400, 30), rate=0.12, taste=0.8, cross=0.8, numbers=3),
    "alerts": Shape(60_000, (1_200, 800, 60, 12, 5), rate=0.02, main=1.6, noise=1),
    "votes": Shape(120_000, (6_000, 5_000, 50), rate=0.5, pair=1.2, main=0.6),
    "parts": Shape(25_000, (3_000, 1_000, 200, 80), rate=0.8, cross=1.2, codes=True, copies=1),
    "courses": Shape(45_000, (7_000, 500, 30), rate=0.3, formatted=True, tags=0.6, main=0.7),
    "visits": Shape(140_000, (50_000, 6_000, 700, 40, 9), rate=0.06, skew=1.05, live=0.4, main=1.2, drift=0.4),
    "feeds": Shape(3_000_000, (400_000, 30_000, 1_000, 60), rate=0.04, live=0.5, pair=0.5, taste=0.8),
}
"""The logs of the second check."""


_WORDS = [first + second + last for first in "bdkmt" for second in "aeiou" for last in "lnrst"]


@dataclass
class _Logit:
    """The sum of effects, each of which has the standard deviation that it is added with."""

    draw: np.random.Generator
    total: Float64s
    columns: dict[str, pl.Series] = field(default_factory=dict)

    def add(self, effect: Float64s, size: float) -> None:
        self.total += size * (effect - effect.mean()) / max(float(effect.std()), 1e-12)

    def of_values(self, values: npt.NDArray[np.int64], count: int, size: float, live: float = 1.0) -> None:
        """Effects of a field's values, of which a share is `live`."""
        weights = self.draw.normal(size=count) * (self.draw.random(count) < live)
        self.add(weights[values], size)


def made(shape: Shape, seed: int = 0) -> tuple[pl.DataFrame, Float64s]:
    """A log with a column `label`, and the probability of each of its labels, `[rows]`."""
    draw = np.random.default_rng([seed, shape.rows, *shape.fields])
    rows, logit = shape.rows, _Logit(draw, np.zeros(shape.rows))
    columns = logit.columns
    seconds = np.sort(draw.integers(DAYS * 86_400, size=rows))
    fields = [_drawn(draw, count, rows, shape.skew) for count in shape.fields]
    if shape.arrivals:
        fields[0] = _one_after_another(draw, fields[0], shape.fields[0])
    if shape.favourites:
        return _sampled_negatives(draw, shape, fields, seconds)
    for number, (values, count) in enumerate(zip(fields, shape.fields, strict=True)):
        logit.of_values(values, count, shape.main / len(fields) ** 0.5, shape.live)
        columns[f"f{number}"] = _spelled(draw, values, count, shape.codes)
    (users, items), (many, more) = fields[:2], shape.fields[:2]
    if shape.pair:
        vectors = [draw.normal(size=(count, 4)) for count in (many, more)]
        logit.add((vectors[0][users] * vectors[1][items]).sum(1), shape.pair)
    if shape.taste:
        groups = [draw.integers(10, size=count) for count in (many, more)]
        logit.add((groups[0][users] == groups[1][items]).astype(np.float64), shape.taste)
    if shape.cross:
        _, both = np.unique(fields[2] * shape.fields[3] + fields[3], return_inverse=True)
        logit.of_values(both, int(both.max()) + 1, shape.cross)
    for number in range(shape.numbers):
        values = draw.lognormal(2, 1, rows)
        if number % 2 == 0:
            logit.add(np.sin(np.log(values)) + 0.3 * (values > 10), 0.4)
        columns[f"n{number}"] = pl.Series(np.round(values, 2))
    if shape.tags:
        tags, counts = draw.normal(size=200), draw.integers(6, size=rows)
        chosen = [draw.choice(200, count, replace=False) for count in counts]
        logit.add(np.array([tags[one].sum() for one in chosen]), shape.tags)
        columns["tags"] = pl.Series(["|".join(f"t{tag}" for tag in one) for one in chosen])
    if shape.formatted:
        _add_formatted(logit, seconds)
    for number in range(shape.noise):
        columns[f"noise{number}"] = _spelled(draw, _drawn(draw, many, rows, shape.skew), many, shape.codes)
    for number in range(shape.copies):
        other = np.where(draw.random(rows) < 0.1, _drawn(draw, shape.fields[number], rows, 1.0), fields[number])
        columns[f"copy{number}"] = _spelled(draw, other, shape.fields[number], shape.codes)
    if shape.drift:
        logit.add(np.cumsum(draw.normal(size=rows)), shape.drift)
    logit.total[rows - round(TEST_SHARE * rows) :] += shape.jump
    probabilities = 1 / (1 + np.exp(-(logit.total + _bias(logit.total, shape.rate))))
    labels = (draw.random(rows) < probabilities).astype(np.int64)
    times = {} if shape.formatted else {"ts": seconds + int(START.timestamp())}
    return pl.DataFrame({"label": labels, **times, **columns}), probabilities


def write(shape: Shape, path: Path, seed: int = 0) -> Float64s:
    """Write a log as CSV, or as Parquet by its suffix, and give the probabilities of the labels of its test rows."""
    frame, probabilities = made(shape, seed)
    frame.write_parquet(path) if path.suffix == ".parquet" else frame.write_csv(path)
    return probabilities[len(frame) - round(TEST_SHARE * len(frame)) :]


def family_logs(folder: Path, shapes: Mapping[str, Shape] = FAMILY) -> Iterator[PanelLog]:
    """The logs of the family as CSV, each written when its turn comes."""
    for name, shape in shapes.items():
        write(shape, folder / f"{name}.csv")
        yield PanelLog(name, folder / f"{name}.csv")


def _drawn(draw: np.random.Generator, count: int, rows: int, skew: float) -> npt.NDArray[np.int64]:
    weights = np.cumsum(np.arange(1, count + 1) ** -skew)
    order = draw.permutation(count)
    drawn: npt.NDArray[np.int64] = order[np.searchsorted(weights, draw.random(rows) * weights[-1])]
    return drawn


def _one_after_another(draw: np.random.Generator, users: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """The same users, each in a stretch of rows from a moment on."""
    return users[np.argsort(draw.random(count)[users] + draw.exponential(0.03, len(users)))]


def _sampled_negatives(
    draw: np.random.Generator, shape: Shape, fields: list[npt.NDArray[np.int64]], seconds: npt.NDArray[np.int64]
) -> tuple[pl.DataFrame, Float64s]:
    """See `Shape.favourites`: item i of user u is positive as r q(i | u) against (1 - r) q(i), by Bayes' rule."""
    (users, items, *others), (many, more, *counts) = fields, shape.fields
    favourites = draw.choice(items, (many, shape.favourites))
    weights = np.arange(1, shape.favourites + 1) ** -1.0
    labels = (draw.random(shape.rows) < shape.rate).astype(np.int64)
    ranks = draw.choice(shape.favourites, shape.rows, p=weights / weights.sum())
    items = np.where(labels == 1, favourites[users, ranks], items)
    of_all = np.bincount(fields[1], minlength=more) / shape.rows
    of_user = ((favourites[users] == items[:, None]) * weights).sum(1) / weights.sum()
    against = of_all[items] * (1 - shape.rate)
    probabilities = shape.rate * of_user / np.maximum(shape.rate * of_user + against, 1e-12)
    columns = zip([users, items, *others], [many, more, *counts], strict=True)
    spelled = {f"f{number}": _spelled(draw, *one, shape.codes) for number, one in enumerate(columns)}
    return pl.DataFrame({"label": labels, "ts": seconds + int(START.timestamp()), **spelled}), probabilities


def _spelled(draw: np.random.Generator, values: npt.NDArray[np.int64], count: int, codes: bool) -> pl.Series:
    if codes:
        return pl.Series(draw.choice(10 * count + 1_000, count, replace=False)[values] + 100)
    return pl.Series([f"v{number:x}" for number in range(count)]).gather(values)


def _add_formatted(logit: _Logit, seconds: npt.NDArray[np.int64]) -> None:
    draw, rows = logit.draw, len(seconds)
    times = [START + dt.timedelta(seconds=int(second)) for second in seconds]
    logit.of_values(seconds // 3_600 % 24, 24, 0.5)
    prices, rebates = draw.lognormal(3, 0.8, rows), draw.integers(5, size=rows) * 10
    logit.add(-np.log(prices), 0.7)
    logit.add(rebates.astype(np.float64), 0.3)
    domains = draw.integers(30, size=rows)
    logit.of_values(domains, 30, 0.3)
    words = draw.integers(len(_WORDS), size=(rows, 5))
    logit.add(draw.normal(size=len(_WORDS))[words].sum(1), 0.5)
    missing = draw.random(rows) < 0.05
    texts = [f"{price:.2f} €".replace(".", ",") for price in prices]
    logit.columns |= {
        "order_date": pl.Series([time.strftime("%d/%m/%Y %H:%M") for time in times]),
        "price": pl.Series(["NULL" if gone else text for gone, text in zip(missing, texts, strict=True)]),
        "rebate": pl.Series([f"{rebate}%" for rebate in rebates]),
        "email": pl.Series([f"a{i * 7919 % 9_973}@d{domain}.com" for i, domain in enumerate(domains)]),
        "title": pl.Series([" ".join(_WORDS[word] for word in one) for one in words]),
    }


def _bias(logits: Float64s, rate: float) -> float:
    """What is added to the logits for this share of positives, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-(logits + middle)))).mean() < rate else (low, middle)
    return low
