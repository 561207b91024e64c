"""Whether two methods differ: t-tests over seeds, bootstrap intervals over test rows and seeds, and a word for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

MARGIN = 0.001
"""AUC by which a method may be worse and still be called non-inferior."""

Verdict = Literal["better", "within noise, non-inferior", "within noise", "worse, non-inferior", "worse"]


class Interval(NamedTuple):
    """A confidence interval, from `low` to `high`."""

    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """What a t-test says of method a against method b.

    Attributes:
        difference: Mean of a minus mean of b.
        interval: 95 % t-interval of the difference; None where a seed has no other to be compared with.
        p_value: Two-sided; None where the interval is.
        test: "paired t", by seed, or "Welch t", for groups of seeds with different variances.
    """

    difference: float
    interval: Interval | None
    p_value: float | None
    test: Literal["paired t", "Welch t"]


def compare(a: Sequence[float], b: Sequence[float], paired: bool) -> Comparison:
    """The t-test of a − b over seeds.

    Where the values do not vary beyond rounding, the interval is one point, and p is 1 if the means agree, else 0.

    Args:
        a: A value of each seed, such as AUC, of one method.
        b: The same of the other method.
        paired: Whether equal places in `a` and `b` are the same seed.

    Raises:
        ValueError: No values, or paired ones of different number.

    Example:
        >>> result = compare([0.80, 0.82, 0.81], [0.79, 0.80, 0.80], paired=True)
        >>> round(result.difference, 4), round(result.p_value, 4)
        (0.0133, 0.0572)
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if not len(first) or not len(second):
        raise ValueError(f"a comparison needs a value of each method, got {len(first)} and {len(second)}")
    if paired and len(first) != len(second):
        raise ValueError(f"paired values must be of equal number, got {len(first)} and {len(second)}")
    difference = float(first.mean() - second.mean())
    rounding = 8 * np.finfo(np.float64).eps * float(max(np.abs(first).max(), np.abs(second).max()))
    test: Literal["paired t", "Welch t"] = "paired t" if paired else "Welch t"
    if min(len(first), len(second)) == 1:
        return Comparison(difference, None, None, test)
    samples = [first - second] if paired else [first, second]
    if all(np.ptp(sample) <= rounding for sample in samples):
        return Comparison(difference, Interval(difference, difference), float(abs(difference) <= rounding), test)
    # Squared standard error of each mean, and the degrees of freedom by Welch and Satterthwaite: n - 1 for one sample.
    squares = np.array([sample.var(ddof=1) / len(sample) for sample in samples])
    freedom = squares.sum() ** 2 / sum(
        square**2 / (len(sample) - 1) for square, sample in zip(squares, samples, strict=True)
    )
    error = float(np.sqrt(squares.sum()))
    half = float(stdtrit(freedom, 0.975)) * error
    p_value = 2 * float(stdtr(freedom, -abs(difference) / error))
    return Comparison(difference, Interval(difference - half, difference + half), p_value, test)


def bootstrap_difference(
    a: npt.NDArray[np.floating[Any]], b: npt.NDArray[np.floating[Any]], seed: int = 0, level: float = 0.95
) -> Interval:
    """The percentile interval of a − b, by a paired bootstrap over test rows and seeds.

    Column j holds AUCs under the same resampling j of the test rows, as `resampled_aucs` gives them. In each replicate
    j, seeds are drawn with replacement, and the mean over them of a[:, j] − b[:, j] is taken. With equal numbers of
    seeds, the same seeds are drawn for `a` and `b`; else each draws its own. A method of one seed has nothing to draw:
    the interval then holds the noise of the rows alone, not that between the seeds of that method. With few seeds the
    bootstrap understates the latter: of n seeds, it sees (n − 1)/n of the variance. Replicates with a NaN are left out.

    Args:
        a: `[seeds, replicates]` of one method.
        b: `[seeds, replicates]` of the other.
        seed: Seed of the draws.
        level: Share of the replicates inside the interval.

    Returns:
        The interval; of NaN where every replicate has one.

    Raises:
        ValueError: Different numbers of replicates, or no seed.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or 0 in a.shape + b.shape:
        raise ValueError(f"a and b must be [seeds, replicates] of equal replicates, got {a.shape} and {b.shape}")
    generator = np.random.default_rng(seed)
    chosen_a = generator.integers(len(a), size=a.shape)
    chosen_b = chosen_a if len(a) == len(b) else generator.integers(len(b), size=b.shape)
    differences = np.take_along_axis(a, chosen_a, 0).mean(0) - np.take_along_axis(b, chosen_b, 0).mean(0)
    valid = differences[~np.isnan(differences)]
    if not len(valid):
        return Interval(float("nan"), float("nan"))
    low, high = np.quantile(valid, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def verdict(interval: Interval, margin: float = MARGIN) -> Verdict:
    """A confidence interval of a − b in words, of which more is better.

    - better: the interval is above 0.
    - worse: it is below 0.
    - within noise: 0 is in it.

    The last two are "non-inferior" where the interval is above −margin: a is worse by less than the margin, if at all.

    Args:
        interval: Such as `bootstrap_difference` gives.
        margin: What is too little to matter.

    Example:
        >>> verdict(Interval(-0.0004, 0.0007))
        'within noise, non-inferior'
    """
    if interval.low > 0:
        return "better"
    is_non_inferior = interval.low > -margin
    if interval.high < 0:
        return "worse, non-inferior" if is_non_inferior else "worse"
    return "within noise, non-inferior" if is_non_inferior else "within noise"


class Count(NamedTuple):
    """`significant` of `cells` comparisons."""

    significant: int
    cells: int

    @property
    def share(self) -> float:
        """Share of the comparisons that count; NaN where there are none."""
        return self.significant / self.cells if self.cells else float("nan")


def share_significant(
    p_values: Sequence[float | None],
    rates: Sequence[float],
    differences: Sequence[float],
    level: float = 0.9,
    below: float | None = None,
) -> Count:
    """In how many comparisons a method is significantly better, as the paper counts for its Table 2 (section 4.2).

    Args:
        p_values: Two-sided, one for each comparison; one that is None is not significant.
        rates: Feature rate of each.
        differences: In AUC; above 0 favours the method.
        level: Confidence: p must be below 1 − level.
        below: Count only comparisons at a feature rate below this.

    Example:
        >>> share_significant([0.03, 0.5, None], rates=[0.01, 0.02, 0.9], differences=[0.01, 0.02, 0.03]).share
        0.3333333333333333
        >>> share_significant([0.03, 0.5, None], [0.01, 0.02, 0.9], [0.01, 0.02, 0.03], below=0.05)
        Count(significant=1, cells=2)
    """
    cells = [
        p_value is not None and p_value < 1 - level and difference > 0
        for p_value, rate, difference in zip(p_values, rates, differences, strict=True)
        if below is None or rate < below
    ]
    return Count(sum(cells), len(cells))
