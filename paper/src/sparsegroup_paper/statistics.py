"""Whether one method is better than another: t-tests over seeds, bootstrap intervals, and a word for each."""

import itertools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import ttest_ind, ttest_rel

from sparsegroup_paper.published import published
from sparsegroup_paper.runs import Sample
from sparsegroup_paper.section import Row

MARGIN = 0.001
"""AUC by which a method may be worse and still be called non-inferior."""

SAME_RATE = 0.005
"""Points nearer to a rate than this share of it are at it: a target is met except for one feature."""

WIDEST_GAP = 8.0
"""How many times as large the higher feature rate of two points may be to interpolate between them."""

COLUMNS = "difference|+.4f; 95 % low|+.4f; 95 % high|+.4f; p|.2g; test; verdict"
"""Of a comparison, for `section.table`."""
NOT_COMPARED = (None,) * 6

STATISTICS = (
    "The difference is in mean test AUC, with the 95 % interval of a paired bootstrap over test rows and seeds "
    "(1,000 replicates). p is of a two-sided t-test over seeds: paired by seed where the runs share it (data order, "
    "first weights, dropout), else Welch's. “Better” and “worse” mean that the interval is on one side of 0, “within "
    "noise” that it is not, and “non-inferior” that AUC is less than .001 worse with 95 % confidence."
)
"""What the columns mean."""


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def t_test(a: npt.ArrayLike, b: npt.ArrayLike, paired: bool) -> float | None:
    """The two-sided p-value of a t-test over seeds; None where a method has only one.

    `a` and `b` have a value of each seed, such as AUC; if equal places are not the same seed (`paired`), the test is
    Welch's. Where the values do not vary beyond rounding, p is 1 if the means agree, else 0.

    Example:
        >>> round(t_test([0.80, 0.82, 0.81], [0.79, 0.80, 0.80], paired=True), 4)
        0.0572
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if min(len(first), len(second)) == 1:
        return None
    rounding = 8 * np.finfo(np.float64).eps * max(np.abs(first).max(), np.abs(second).max())
    if all(np.ptp(sample) <= rounding for sample in ([first - second] if paired else [first, second])):
        return float(abs(first.mean() - second.mean()) <= rounding)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of values that hardly vary
        return float((ttest_rel(first, second) if paired else ttest_ind(first, second, equal_var=False)).pvalue)


def bootstrap_difference(a: npt.NDArray[np.floating[Any]], b: npt.NDArray[np.floating[Any]]) -> Interval:
    """The 95 % interval of a − b, `[seeds, replicates]` each, by a paired bootstrap over test rows and seeds.

    Column j holds AUCs under the same resampling j of the test rows, as `resampled_aucs` gives them. In each replicate
    j, seeds are drawn with replacement, and the mean over them of a[:, j] − b[:, j] is taken. With equal numbers of
    seeds, the same seeds are drawn for `a` and `b`; else each draws its own. A method of one seed has nothing to draw:
    the interval then holds the noise of the rows alone, not that between the seeds of that method. With few seeds the
    bootstrap understates the latter: of n seeds, it sees (n − 1)/n of the variance. Replicates with a NaN are left out.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or 0 in a.shape + b.shape:
        raise ValueError(f"a and b must be [seeds, replicates] of equal replicates, got {a.shape} and {b.shape}")
    generator = np.random.default_rng(0)
    chosen_a = generator.integers(len(a), size=a.shape)
    chosen_b = chosen_a if len(a) == len(b) else generator.integers(len(b), size=b.shape)
    differences = np.take_along_axis(a, chosen_a, 0).mean(0) - np.take_along_axis(b, chosen_b, 0).mean(0)
    valid = differences[~np.isnan(differences)]
    if not len(valid):
        return Interval(float("nan"), float("nan"))
    low, high = np.quantile(valid, [0.025, 0.975])
    return Interval(float(low), float(high))


def verdict(interval: Interval) -> str:
    """The interval of a − b in words, of method a.

    "better" is above 0, "worse" below it, and "within noise" holds 0. The last two are "non-inferior" where the
    interval is above −`MARGIN`: a is worse by less than that, if at all.

    Example:
        >>> verdict(Interval(-0.0004, 0.0007))
        'within noise, non-inferior'
    """
    if interval.low > 0:
        return "better"
    is_non_inferior = interval.low > -MARGIN
    if interval.high < 0:
        return "worse, non-inferior" if is_non_inferior else "worse"
    return "within noise, non-inferior" if is_non_inferior else "within noise"


@dataclass(frozen=True)
class Versus:
    """Method a against method b, by AUC; `difference` is a's mean minus b's, and seeds may be `paired`."""

    difference: float
    interval: Interval
    p_value: float | None
    paired: bool

    @property
    def verdict(self) -> str:
        return verdict(self.interval) if np.isfinite(self.difference) else "diverged"

    @property
    def cells(self) -> Row:
        """As `COLUMNS`."""
        if self.verdict == "diverged":
            return (*NOT_COMPARED[1:], self.verdict)
        test = "one seed" if self.p_value is None else "paired t" if self.paired else "Welch t"
        return self.difference, *self.interval, self.p_value, test, self.verdict


def versus(a: Sample, b: Sample, *, paired: bool = True) -> Versus:
    """Method a against method b on the same test rows; `paired` where equal seeds mean equal starts."""
    interval = bootstrap_difference(a.each("resampled"), b.each("resampled"))
    return Versus(a.auc - b.auc, interval, t_test(a.each("auc"), b.each("auc"), paired), paired)


def tally(comparisons: Sequence[Versus]) -> str:
    """How many of each verdict, in words."""
    words = [one.verdict.split(",")[0] for one in comparisons]
    counts = {word: words.count(word) for word in ("better", "within noise", "worse")}
    non_inferior = sum(one.interval.low > -MARGIN for one in comparisons)
    diverged = f", diverged at {words.count('diverged')}" if "diverged" in words else ""
    at = ", ".join(f"{word} at {count}" for word, count in counts.items())
    return f"{at}{diverged} of {len(words)}; non-inferior at {non_inferior}"


def at_rate(samples: Sequence[Sample], rate: float) -> Sample | None:
    """What a method does at a feature rate: at one of its samples, or between two, linear in the logarithm of the rate.

    None if the rate is not between two points, or these are too far apart.
    """
    ordered = sorted((one for one in samples if one.rate > 0 and np.isfinite(one.auc)), key=lambda one: one.rate)
    for sample in ordered:
        if abs(sample.rate / rate - 1) < SAME_RATE:
            return sample.between(sample, 0.0, rate)
    for low, high in itertools.pairwise(ordered):
        if low.rate <= rate <= high.rate <= WIDEST_GAP * low.rate:
            span = np.log(high.rate / low.rate)
            return low.between(high, float(np.log(rate / low.rate) / span) if span > 0 else 0.0, rate)
    return None


class Count(NamedTuple):
    """`significant` of `cells` comparisons."""

    significant: int
    cells: int

    @property
    def share(self) -> float:
        """NaN of none."""
        return self.significant / self.cells if self.cells else float("nan")


def count_significant(
    cells: Iterable[tuple[float | None, float, float]], confidence: float, below: float | None = None
) -> Count:
    """In how many comparisons a method is significantly better, as the paper counts for its Table 2 (section 4.2).

    A cell is a p-value (None is not significant), which must be less than 1 − `confidence`; a feature rate, which must
    be less than `below`; and a difference in AUC, which must be above 0.

    Example:
        >>> count_significant([(0.03, 0.01, 0.01), (0.5, 0.02, 0.02), (None, 0.9, 0.03)], confidence=0.9, below=0.05)
        Count(significant=1, cells=2)
    """
    counted = [
        p_value is not None and p_value < 1 - confidence and difference > 0
        for p_value, rate, difference in cells
        if below is None or rate < below
    ]
    return Count(sum(counted), len(counted))


def counted(cells: Iterable[tuple[float | None, float, float]]) -> str:
    """How often a method is better as the paper counts, everywhere and at low feature rates, beside its own shares."""
    cells, claims = list(cells), published()["claims"]
    everywhere = count_significant(cells, claims["confidence"])
    low = count_significant(cells, claims["confidence"], below=claims["low_feature_rate"])
    share = f"{low.share:.0%}; " if low.cells else ""
    return (
        f"significantly at {claims['confidence']:.0%} confidence at {everywhere.significant} of {everywhere.cells} "
        f"points ({everywhere.share:.0%}; the paper: {claims['share_significant']:.0%}), below a feature rate of "
        f"{claims['low_feature_rate']:g} at {low.significant} of {low.cells} ({share}the paper: "
        f"{claims['share_significant_at_low_rate']:.1%})"
    )
