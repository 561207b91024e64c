"""What a sample of a numeric column says of it: whether its tails are heavy, and how to cut it into buckets."""

import torch
from torch import Tensor

HEAVY = 6.0
"""Kurtosis above which tails are heavy: that of a Laplace distribution; a normal one's is 3."""

_LIGHTER = 0.9
"""By which factor the logarithm must lower the kurtosis to be taken."""


def has_heavy_tails(values: Tensor) -> bool:
    """Whether the signed logarithm of a column is closer to what a network takes well than the column itself.

    That is where its kurtosis, E[(x - m)⁴] / s⁴, is above 6 and the logarithm's is lower.

    Args:
        values: `[k]` float64, finite.
    """
    before = _kurtosis(values)
    return before > HEAVY and _kurtosis(values.sign() * (values.abs() / log_unit(values)).log1p()) < _LIGHTER * before


def log_unit(values: Tensor) -> float:
    """The unit of the signed logarithm: 1, or where a column is smaller, the 5 % quantile of |x| other than 0.

    Args:
        values: `[k]` float64, finite.
    """
    sizes = values.abs()
    sizes = sizes[sizes > 0].sort().values
    return min(1.0, float(sizes[len(sizes) // 20])) if len(sizes) else 1.0


def bucket_edges(values: Tensor, buckets: int) -> Tensor:
    """Where to cut a column into buckets of about as many numbers.

    Few different values have a bucket each. Of many, a frequent one, which fills a bucket, has it for itself, and the
    others share those that are left.

    Args:
        values: `[k]` float64, finite and ascending.
        buckets: At most so many.

    Returns:
        `[e]` ascending, e < `buckets`: x is in bucket #{e : x > e}. An edge lies midway between two values.
    """
    distinct, counts = torch.unique_consecutive(values, return_counts=True)
    if len(distinct) > buckets:
        weight = counts.double()
        for _ in range(buckets):  # what a frequent value has too much of leaves smaller shares to the others
            capped = weight.clamp(max=float(weight.sum()) / buckets)
            if torch.equal(capped, weight):
                break
            weight = capped
        middle = weight.cumsum(0) - weight / 2
        place = (middle / weight.sum() * buckets).floor()
        last = place.diff().nonzero().squeeze(1)
    else:
        last = torch.arange(max(len(distinct) - 1, 0))
    edges: Tensor = distinct[last] + (distinct[last + 1] - distinct[last]) / 2
    return edges


def _kurtosis(values: Tensor) -> float:
    if not len(values):
        return 0.0
    size = float(values.abs().max())
    scaled = values / size if size else values  # so that fourth powers neither overflow nor vanish
    apart = scaled - scaled.mean()
    variance = float(apart.square().mean())
    return float(apart.pow(4).mean()) / variance**2 if variance > 1e-14 else 0.0
