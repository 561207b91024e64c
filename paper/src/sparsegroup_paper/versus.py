"""One method against another, in cells of a table."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sparsegroup_paper.lab import Sample
from sparsegroup_paper.section import Cell, Column
from sparsegroup_paper.statistics import (
    MARGIN,
    Comparison,
    Interval,
    Verdict,
    bootstrap_difference,
    compare,
    verdict,
)

COLUMNS = (
    Column("difference", "+.4f"),
    Column("95 % low", "+.4f"),
    Column("95 % high", "+.4f"),
    Column("p", ".2g"),
    Column("test"),
    Column("verdict"),
)

SAME_RATE = 0.005
"""Points nearer to a rate than this share of it are at it: a target is met except for one feature."""

WIDEST_GAP = 8.0
"""How many times as large the higher feature rate of two points may be to interpolate between them."""

STATISTICS = (
    "The difference is in mean test AUC, with the 95 % interval of a paired bootstrap over test rows and seeds "
    "(1,000 replicates). p is of a two-sided t-test over seeds: paired by seed where the runs share it (data order, "
    "first weights, dropout), else Welch's. “Better” and “worse” mean that the interval is on one side of 0, “within "
    "noise” that it is not, and “non-inferior” that AUC is less than .001 worse with 95 % confidence."
)
"""What the columns mean."""


@dataclass(frozen=True)
class Versus:
    """Method a against method b, by AUC.

    Attributes:
        comparison: Over seeds.
        interval: Over test rows and seeds.
    """

    comparison: Comparison
    interval: Interval

    @property
    def verdict(self) -> Verdict | Literal["diverged"]:
        """In words."""
        return verdict(self.interval) if np.isfinite(self.comparison.difference) else "diverged"

    @property
    def cells(self) -> tuple[Cell, ...]:
        """As `COLUMNS`."""
        if self.verdict == "diverged":
            return (*(None,) * (len(COLUMNS) - 1), self.verdict)
        return (
            self.comparison.difference,
            self.interval.low,
            self.interval.high,
            self.comparison.p_value,
            self.comparison.test if self.comparison.p_value is not None else "one seed",
            self.verdict,
        )


def versus(a: Sample, b: Sample, *, paired: bool = True) -> Versus:
    """Method a against method b on the same test rows; `paired` where equal seeds mean equal starts."""
    return Versus(compare(list(a.aucs), list(b.aucs), paired), bootstrap_difference(a.resampled, b.resampled))


def tally(comparisons: Sequence[Versus]) -> str:
    """How many of each verdict, in words."""
    words = [one.verdict.split(",")[0] for one in comparisons]
    counts = {word: words.count(word) for word in ("better", "within noise", "worse")}
    non_inferior = sum(one.interval.low > -MARGIN for one in comparisons)
    diverged = f", diverged at {words.count('diverged')}" if "diverged" in words else ""
    return (
        f"better at {counts['better']}, within noise at {counts['within noise']}, worse at {counts['worse']}"
        f"{diverged} of {len(words)}; non-inferior at {non_inferior}"
    )


def at_rate(samples: Sequence[Sample], rate: float) -> Sample | None:
    """What a method does at a feature rate: at a point, or between two, linear in the logarithm of the rate.

    Args:
        samples: One method's samples, at several strengths, each with the same seeds.
        rate: In (0, 1).

    Returns:
        Outcomes that have AUC, resampled AUCs and this rate; None if the rate is not between two points', or
        the points are too far apart.
    """
    ordered = sorted(
        (sample for sample in samples if sample.rate > 0 and np.isfinite(sample.auc)), key=lambda s: s.rate
    )
    for sample in ordered:
        if abs(sample.rate / rate - 1) < SAME_RATE:
            return sample.between(sample, 0.0, rate)
    for low, high in itertools.pairwise(ordered):
        if low.rate <= rate <= high.rate <= WIDEST_GAP * low.rate:
            span = np.log(high.rate / low.rate)
            share = float(np.log(rate / low.rate) / span) if span > 0 else 0.0
            return low.between(high, share, rate)
    return None
