"""Objectives for the order of rows within a group: losses of pairs of rows, and the pairs.

A group of more than `PAIRED` rows is taken as several: each `PAIRED` rows in their order are paired with each other.
"""

from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup.objectives.losses import Squared
from sparsegroup.objectives.objective import Float64s, Objective
from sparsegroup.penalties.penalty import parameter
from sparsegroup.rules.hyperparameter import Described

PAIRED = 1024
"""Rows of a group that are paired with each other, at most: 8,192 rows have at most 4 million pairs."""

_PORTION = 1 << 22
"""Pairs that are made at a time, and at most `PAIRED` more."""


def _whole(least: int) -> Described:
    def holds(value: object) -> bool:
        return isinstance(value, int | float) and value % 1 == 0 and value >= least

    return Described(f"a whole number >= {least}", holds)


PairWeights = Callable[[Tensor, Tensor], Tensor]
"""From the rows of pairs `[m]`, the better and the worse ones, to weights `[m]`."""


class Pairwise(Objective):
    """Scores that put the rows of a group in order, by logistic losses of pairs.

    RankNet (Burges et al., ICML 2005), and BPR (Rendle et al., UAI 2009) for labels 0 and 1. The loss of a group
    of r rows is r times the mean, over its pairs with y_i > y_j, of softplus(s_j - s_i); each pair counts half for
    either of its rows. With equal scores it is r ln 2, and without a pair 0. Scores have no level: a constant that is
    added to all scores of a group changes nothing.

    Args:
        group: Place of the key that is the same for rows of a group, among a row's keys of fields of one value.
    """

    name = "pairwise"
    takes_groups = True
    prediction = "score"
    least = 0.0
    group: int = parameter(0, _whole(0))
    residual = staticmethod(Squared.residual)
    """Of the baseline, which learns the labels themselves."""

    def groups_of(self, keys: Tensor) -> Tensor:
        """See `Objective`."""
        return keys[:, int(self.group)]

    def in_groups(self, place: int) -> Self:
        """See `Objective`."""
        parameters: Any = {**self.parameters, "group": place}
        return type(self)(**parameters)

    def pair_weights(self, scores: Tensor, labels: Tensor, numbers: Tensor) -> PairWeights:
        """The weights of pairs of rows with scores, labels and numbers of their groups `[n]`: here 1."""
        return lambda better, worse: scores.new_ones(len(better))

    def losses(self, scores: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """The losses `[n]` of scores `[n]` and labels `[n]` of rows in groups `[n]` int64; None: they are one group."""
        numbers = numbered(torch.zeros_like(labels, dtype=torch.int64) if groups is None else groups.to(scores.device))
        rows, weights = torch.bincount(numbers), self.pair_weights(scores.detach(), labels, numbers)
        totals, of_group = scores * 0, scores.new_zeros(len(rows))
        for better, worse in pairs_of(labels, numbers):
            weight = weights(better, worse)
            losses = nn.functional.softplus(scores[worse] - scores[better]) * weight
            totals = totals.index_add(0, better, losses).index_add(0, worse, losses)
            of_group = of_group.index_add(0, numbers[better], weight)
        factors = torch.where(of_group > 0, rows / (2 * of_group), 0.0)  # without a pair, their losses are 0
        return totals * factors[numbers]

    def gradient(self, scores: Tensor, labels: Tensor, groups: Tensor | None = None) -> Tensor:
        """The derivative `[n]` of the sum of the losses by the scores `[n]`."""
        with torch.enable_grad():
            given = scores.detach().requires_grad_()
            return torch.autograd.grad(self.losses(given, labels, groups).sum(), given)[0]

    def deviance(self, labels: Float64s, predictions: Float64s, groups: np.ndarray | None = None) -> Float64s:
        """The losses `[n]`; see `losses`."""
        of = None if groups is None else torch.from_numpy(groups)
        found: Float64s = self.losses(torch.from_numpy(predictions), torch.from_numpy(labels), of).numpy()
        return found

    def shift(self, scores: Float64s, labels: Float64s, weights: Float64s) -> float:
        """0: the level of the scores makes no difference."""
        return 0.0


class LambdaRank(Pairwise):
    """Scores that put the best rows of a group first: pairs weighted by what they change of NDCG (Burges, 2010).

    A pair's weight is |ΔNDCG@k|, the change of NDCG@k if its rows changed places in the present order, with gains
    2^y - 1 and discounts 1 / log2(1 + place) up to place k. The derivative takes weights as constants. A weighted mean
    over a group's pairs replaces the mean of `Pairwise`, so the ideal DCG of the group cancels out.

    Args:
        group: See `Pairwise`.
        at: k, at least 1.
    """

    name = "lambdarank"
    at: int = parameter(10, _whole(1))

    def pair_weights(self, scores: Tensor, labels: Tensor, numbers: Tensor) -> PairWeights:
        """See `Pairwise`."""
        highest = torch.zeros_like(labels).scatter_reduce(0, numbers, labels, "amax")  # over it, gains are finite
        gains = torch.exp2(labels - highest[numbers]).to(scores.dtype)
        places = places_within(numbers, scores).to(scores.dtype)
        discounts = (places + 2).log2().reciprocal() * (places < self.at)
        return lambda better, worse: (gains[better] - gains[worse]) * (discounts[better] - discounts[worse]).abs()


def numbered(groups: Tensor, most: int = PAIRED) -> Tensor:
    """Numbers `[n]` from 0 of the groups `[n]` int64 of rows; more than `most` rows are several groups."""
    numbers: Tensor = torch.unique(groups, return_inverse=True)[1]
    blocks = places_within(numbers, torch.zeros_like(numbers)) // most
    found: Tensor = torch.unique(numbers * (len(groups) // most + 1) + blocks, return_inverse=True)[1]
    return found


def pairs_of(labels: Tensor, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows of all pairs within a group, `[m]` of the higher label and `[m]` of the lower, a portion at a time.

    Args:
        labels: `[n]`.
        numbers: `[n]`, of the groups, from 0 without gaps.
    """
    order = _ordered(numbers, labels)
    number, label = numbers[order], labels[order]
    begins = torch.ones_like(number)
    begins[1:] = (number[1:] != number[:-1]) | (label[1:] != label[:-1])
    # In this order, the rows of lower labels are those from the end of the row's equals to the end of its group.
    first = torch.bincount(begins.cumsum(0) - 1).cumsum(0)[begins.cumsum(0) - 1]
    counts = torch.bincount(number).cumsum(0)[number] - first
    before = counts.cumsum(0) - counts
    sizes = torch.bincount(before // _PORTION).tolist()
    for rows in torch.split(torch.arange(len(order), device=order.device), sizes):
        count = counts[rows]
        better = rows.repeat_interleave(count)
        worse = torch.arange(len(better), device=order.device) + (first - before)[rows].repeat_interleave(count)
        if len(rows):
            yield order[better], order[worse + before[rows[0]]]


def places_within(numbers: Tensor, values: Tensor) -> Tensor:
    """Place `[n]` from 0 of each row in its group, by falling value `[n]`; equal ones in their order.

    `numbers` `[n]` are the groups' numbers, from 0 without gaps.
    """
    order, sizes = _ordered(numbers, values), torch.bincount(numbers)
    begins = (sizes.cumsum(0) - sizes)[numbers[order]]
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device) - begins
    return places


def _ordered(numbers: Tensor, values: Tensor) -> Tensor:
    """The rows by group, and within one by falling value; equal ones in their order."""
    order = values.argsort(descending=True, stable=True)
    return order[numbers[order].argsort(stable=True)]
