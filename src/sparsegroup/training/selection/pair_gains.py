"""Which pairs of fields say more of the label than a model that knows their parts: measured along a pass."""

import math
from collections import deque
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import jitted, kernel
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
WEIGHT, SUM = 0, 1

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - BITS)

Float64s = npt.NDArray[np.float64]


@jitted
def _loss(logit: Any, label: Any) -> Any:
    z = -logit if label > 0.5 else logit
    return math.log1p(math.exp(-abs(z))) + max(z, 0.0)


@jitted
def _step(at: Any, gradient: Any) -> None:
    at[SUM] += gradient * gradient
    at[WEIGHT] -= gradient * LR / (math.sqrt(at[SUM]) + BETA)


def _gains(
    left: Any, right: Any, logits: Any, labels: Any, weights: Any, memory: Any, gains: Any, of_pair: Any
) -> None:  # fmt: skip
    """See `pair_gains`; `memory` is zeros `[4, 2 ** BITS, 2]`: of the pairs, the left, the right, and the unseen."""
    pairs, lefts, rights, unseen = memory[0], memory[1], memory[2], memory[3, 0]
    for i in range(len(logits)):
        mixed = left[i] * _MULTIPLIER + right[i]
        pair = pairs[(mixed * _MULTIPLIER) >> _SHIFT]
        first, second = lefts[(left[i] * _MULTIPLIER) >> _SHIFT], rights[(right[i] * _MULTIPLIER) >> _SHIFT]
        is_new = pair[SUM] == 0.0
        weight = unseen[WEIGHT] if is_new else pair[WEIGHT]
        of_parts = logits[i] + first[WEIGHT] + second[WEIGHT]
        of_pair[i] = weight
        gains[i] = (_loss(of_parts, labels[i]) - _loss(of_parts + weight, labels[i])) * weights[i]
        error = (1.0 / (1.0 + math.exp(-of_parts)) - labels[i]) * weights[i]
        _step(first, error)
        _step(second, error)
        error = (1.0 / (1.0 + math.exp(-(of_parts + weight))) - labels[i]) * weights[i]
        if is_new:
            _step(unseen, error)
            pair[WEIGHT] = weight
        _step(pair, error)


_measured = kernel(_gains, "the gains of pairs")


def pair_gains(
    left: npt.NDArray[np.int64],
    right: npt.NDArray[np.int64],
    logits: Float64s,
    labels: Float64s,
    weights: Float64s,
) -> tuple[Float64s, Float64s]:
    """By how much weights of a pair's combinations lower the log loss of rows, each before its label is known.

    Three kinds of weights are learnt by FTRL-Proximal, one row after the other: of the values of each field, which are
    added to a model's logits, and of the combinations, which are added to that. A combination that was never seen has
    the weight that was learnt of the first rows of all combinations.

    Args:
        left, right: The fields' keys `[n]`.
        logits: `[n]`, each from before the model learnt from the row.
        labels: `[n]`, 0 or 1.
        weights: `[n]`, how much each row counts.

    Returns:
        The gain of each row `[n]`, and the weight of its combination `[n]`.
    """
    gains, of_pair = np.empty(len(logits)), np.empty(len(logits))
    memory = np.zeros((4, 1 << BITS, 2))
    _measured(left.view(np.uint64), right.view(np.uint64), logits, labels, weights, memory, gains, of_pair)
    return gains, of_pair


class PairGains(Callback):
    """Keeps the rows of the first pass with their logits from before each step, and finds pairs that tell more."""

    def __init__(self) -> None:
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
        columns = np.ascontiguousarray(keys[len(keys) - rows :].T)
        logits, labels, weights = (part[len(part) - rows :].astype(np.float64) for part in others)
        chosen: list[tuple[int, int]] = []
        while candidates and len(chosen) < MOST_PAIRS:
            sure: dict[tuple[int, int], float] = {}
            for left, right in candidates:
                gains, _ = pair_gains(columns[left], columns[right], logits, labels, weights)
                if exceeds_noise(gains[rows // 2 :], SURE):
                    sure[left, right] = float(gains[rows // 2 :].mean())
            if not sure:
                break
            best = max(sure, key=lambda pair: sure[pair])
            logits = logits + pair_gains(columns[best[0]], columns[best[1]], logits, labels, weights)[1]
            chosen.append(best)
            candidates = [pair for pair in sure if pair != best]
        return chosen
