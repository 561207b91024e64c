"""Which pairs of fields say more of the label than a model that knows their parts: measured along a pass."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import Kernel, inline, jitted, kernel
from sparsegroup.kernels.cpu.threads import in_turns
from sparsegroup.objectives import LOGISTIC, Logistic, Objective
from sparsegroup.training.metrics import exceeds_noise
from sparsegroup.training.trainer import Callback, TrainedBatch, Trainer

ROWS, UPDATES = 200_000, 40_000_000
"""Rows that the gains are measured on, the last ones of a pass; fewer where rows times pairs are more than this."""

MOST_PAIRS = 5
SURE = 3.0
"""Standard errors that a pair's gain must be above 0; among a hundred pairs without any, one in ten times one is."""

LR, BETA = 0.5, 1.0
"""FTRL-Proximal's α and β, of the weights by which the gains are measured."""

BITS = 20
"""Combinations of fields with more than 2 ** BITS possible ones share this many weights, by a hash."""
WEIGHT, SUM = 0, 1

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - BITS)

Float64s = npt.NDArray[np.float64]
_POINTS, _SHARES = (
    tuple((one / 2 + half).tolist()) for one, half in zip(np.polynomial.legendre.leggauss(5), (0.5, 0), strict=True)
)


_residual = inline(Logistic.residual)
"""The derivative of an objective's loss; kernels of others have theirs in its place."""


@jitted
def _step(at: Any, gradient: Any) -> None:
    at[SUM] += gradient * gradient
    at[WEIGHT] -= gradient * LR / (math.sqrt(at[SUM]) + BETA)


def _gains(
    left: Any, right: Any, logits: Any, labels: Any, weights: Any, shape: Any, lefts: Any, rights: Any, pairs: Any,
    gains: Any, of_pair: Any,
) -> None:  # fmt: skip
    """See `pair_gains`. `left` and `right` are numbers of values; `lefts`, `rights` and `pairs` are zeros `[n, 2]`, the
    last of `rights` for unseen combinations.
    """
    values = len(rights) - 1
    unseen, is_hashed = rights[values], len(lefts) * values > len(pairs)
    for i in range(len(logits)):
        combination = left[i] * values + right[i]
        if is_hashed:
            combination = np.int64((np.uint64(combination) * _MULTIPLIER) >> _SHIFT)
        pair, first, second = pairs[combination], lefts[left[i]], rights[right[i]]
        is_new = pair[SUM] == 0.0
        weight = unseen[WEIGHT] if is_new else pair[WEIGHT]
        of_parts, label = logits[i] + first[WEIGHT] + second[WEIGHT], labels[i]
        of_pair[i] = weight
        fall = 0.0
        for point in range(len(_POINTS)):
            fall -= _SHARES[point] * _residual(of_parts + _POINTS[point] * weight, label, shape)
        gains[i] = fall * weight * weights[i]
        error = _residual(of_parts, label, shape) * weights[i]
        _step(first, error)
        _step(second, error)
        error = _residual(of_parts + weight, label, shape) * weights[i]
        if is_new:
            _step(unseen, error)
            pair[WEIGHT] = weight
        _step(pair, error)


@cache
def _measured(residual: Callable[..., Any]) -> Kernel:
    return kernel(_gains, "the gains of pairs", {"_residual": inline(residual)})


class Column(NamedTuple):
    """A field's values `[n]`, as numbers below `values`."""

    numbers: npt.NDArray[np.int64]
    values: int

    @classmethod
    def of(cls, keys: npt.NDArray[np.int64]) -> "Column":
        distinct, numbers = np.unique(keys, return_inverse=True)
        return cls(numbers.astype(np.int64, copy=False), len(distinct))


def pair_gains(
    left: Column,
    right: Column,
    logits: Float64s,
    labels: Float64s,
    weights: Float64s,
    objective: Objective = LOGISTIC,
) -> tuple[Float64s, Float64s]:
    """By how much weights of a pair's combinations lower the loss of rows, each before its label is known.

    Three kinds of weights are learnt by FTRL-Proximal, one row after the other: of the values of each field, which are
    added to a model's logits, and of the combinations, which are added to that. A combination that was never seen has
    the weight that was learnt of the first rows of all combinations. By how much a weight lowers a loss is the integral
    of its derivative, by the rule of Gauss and Legendre with five points.

    Args:
        left, right: The fields.
        logits: `[n]`, each from before the model learnt from the row.
        labels: `[n]`, in units of the scores, see `Objective.in_scores`.
        weights: `[n]`, how much each row counts.
        objective: What is learnt.

    Returns:
        The gain of each row `[n]`, and the weight of its combination `[n]`.
    """
    gains, of_pair = np.empty(len(logits)), np.empty(len(logits))
    learnt = (np.zeros((n, 2)) for n in (left.values, right.values + 1, min(left.values * right.values, 1 << BITS)))
    measured = _measured(type(objective).residual)
    measured(left.numbers, right.numbers, logits, labels, weights, objective.shape, *learnt, gains, of_pair)
    return gains, of_pair


class PairGains(Callback):
    """Keeps the rows of the first pass with their logits from before each step, and finds pairs that tell more.

    Args:
        objective: What is learnt, of one output.
    """

    def __init__(self, objective: Objective = LOGISTIC) -> None:
        self.objective = objective
        self._batches: deque[tuple[npt.NDArray[Any], ...]] = deque()
        self._rows = 0

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        """See `Callback`."""
        if trainer.progress.epoch:
            return
        batch = trained.batch
        weights = np.ones(len(batch)) if batch.weights is None else batch.weights.cpu().numpy()
        logits = trained.logits.detach().cpu().numpy()
        self._batches.append((batch.keys.cpu().numpy(), logits, batch.labels.cpu().numpy(), weights))
        self._rows += len(batch)
        while self._rows - len(self._batches[0][1]) >= ROWS:
            self._rows -= len(self._batches.popleft()[1])

    def best(self) -> list[tuple[int, int]]:
        """The places of the fields of at most five pairs, the one of the largest gain first.

        A pair counts if its gain in the last half of the rows is above 0 by three standard errors. Each further pair is
        measured with the weights of those before it added to the logits.
        """
        if not self._batches:
            return []
        keys, *others = (np.concatenate(part) for part in zip(*self._batches, strict=True))
        candidates = list(combinations(range(keys.shape[1]), 2))
        rows = min(len(keys), UPDATES // max(len(candidates), 1))
        columns = [Column.of(column) for column in keys[len(keys) - rows :].T]
        logits, labels, weights = (part[len(part) - rows :].astype(np.float64) for part in others)
        labels, objective = self.objective.in_scores(labels), self.objective
        chosen: list[tuple[int, int]] = []
        while candidates and len(chosen) < MOST_PAIRS:
            gains = _sure_gains(columns, candidates, logits, labels, weights, objective)
            if not gains.any():
                break
            best = candidates[int(gains.argmax())]
            logits = logits + pair_gains(columns[best[0]], columns[best[1]], logits, labels, weights, objective)[1]
            chosen.append(best)
            candidates = [pair for pair, gain in zip(candidates, gains, strict=True) if gain and pair != best]
        return chosen


def _sure_gains(
    columns: Sequence[Column],
    pairs: Sequence[tuple[int, int]],
    logits: Float64s,
    labels: Float64s,
    weights: Float64s,
    objective: Objective,
) -> Float64s:
    """The mean gain of each pair in the last half of the rows; 0 where it is not above 0 by three standard errors."""
    means = np.zeros(len(pairs))

    def measure(number: int) -> None:
        left, right = pairs[number]
        gains = pair_gains(columns[left], columns[right], logits, labels, weights, objective)[0][len(logits) // 2 :]
        means[number] = gains.mean() if exceeds_noise(gains, SURE) else 0.0

    in_turns(measure, len(pairs))
    return means
