"""Logistic regression learnt row by row by FTRL-Proximal, over hashed features: the baseline of a training run.

Each coordinate's step is `rules.ftrl` and `prox`, as everywhere; McMahan et al., KDD 2013, Algorithm 1, for the loop.
"""

import math
from typing import Any

import numpy as np

from sparsegroup import prox
from sparsegroup.kernels.cpu.jit import inline, jitted, kernel, prefetch
from sparsegroup.rules.ftrl import FTRL

AHEAD = 2
"""Rows whose weights are asked for before they are needed."""

WEIGHT, RESIDUAL, SUM = 0, 1, 2
PARTS = 3
"""What is kept of a coordinate: x, u, and the rule's Σ g²."""

COUNT, MEAN, SQUARES = 0, 1, 2
MOMENTS = 3
"""What is kept of a number: how many there were, their mean, and the sum of their squared distances from it."""

PER_NUMBER = 3
"""Features made of a number: itself, standardized, and two buckets."""

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio
_KIND = np.uint64(1) << np.uint64(48)
_LIMIT = 4.0
_STEPS = 4.0

_update = inline(FTRL.update)
_soft_threshold, _clip = inline(prox.soft_threshold), inline(prox.clip)
_closed_form, _next_residual = inline(prox.closed_form), inline(prox.next_residual)


@jitted
def _slot(key: Any, shift: Any) -> Any:
    return np.int64((key * _MULTIPLIER) >> shift)


@jitted
def _bucket(number: Any, kind: Any, value: Any, shift: Any) -> Any:
    key = np.uint64(number * 4 + kind + 1) * _KIND + np.uint64(value)
    return _slot(key * _MULTIPLIER ^ (key >> np.uint64(29)), shift)


@jitted
def _is_finite(value: Any) -> Any:
    return value - value == 0.0


@jitted
def _standardized(value: Any, moments: Any) -> Any:
    deviation = math.sqrt(moments[SQUARES] / moments[COUNT]) if moments[COUNT] > 1 else 0.0
    distance = (value - moments[MEAN]) / deviation if deviation > 0 else 0.0
    return max(-_LIMIT, min(_LIMIT, distance))


@jitted
def _note(value: Any, moments: Any) -> None:
    """Welford's update."""
    moments[COUNT] += 1
    distance = value - moments[MEAN]
    moments[MEAN] += distance / moments[COUNT]
    moments[SQUARES] += distance * (value - moments[MEAN])


@jitted
def _gather(
    i: Any, keys: Any, bag_keys: Any, bag_offsets: Any, numbers: Any, bits: Any, moments: Any, shift: Any,
    slots: Any, values: Any,
) -> Any:  # fmt: skip
    """Places and values of the features of row `i`; gives how many there are."""
    plain = np.int64(1) << np.int64(np.uint64(64) - shift)  # behind the hashed ones: the bias, and a number itself
    slots[0], values[0] = plain, 1.0
    count = 1
    for j in range(keys.shape[1]):
        slots[count], values[count] = _slot(keys[i, j], shift), 1.0
        count += 1
    for j in range(bag_offsets.shape[0]):
        begin, end = bag_offsets[j, i], bag_offsets[j, i + 1]
        for k in range(begin, end):
            slots[count], values[count] = _slot(bag_keys[k], shift), 1.0 / (end - begin)
            count += 1
    for j in range(numbers.shape[1]):
        value = np.float64(numbers[i, j])
        if not _is_finite(value):
            slots[count], values[count] = _bucket(j, 0, 0, shift), 1.0
            count += 1
            continue
        standardized = _standardized(value, moments[j])
        slots[count], values[count] = plain + 1 + j, standardized
        slots[count + 1], values[count + 1] = _bucket(j, 1, bits[i, j] >> np.uint32(20), shift), 1.0
        steps = np.int64(math.floor((standardized + _LIMIT) * _STEPS + 0.5))
        slots[count + 2], values[count + 2] = _bucket(j, 2, steps, shift), 1.0
        count += PER_NUMBER
    return count


def _online_pass(
    keys: Any, bag_keys: Any, bag_offsets: Any, numbers: Any, bits: Any, labels: Any, weights: Any,
    memory: Any, moments: Any, slots: Any, values: Any, shift: Any,
    beta: Any, inverse_lr: Any, l1: Any, two_l2: Any, learns: Any, logits: Any,
) -> None:  # fmt: skip
    address, row = np.int64(memory.ctypes.data), memory.shape[1] * memory.itemsize
    for i in range(len(logits)):
        if i + AHEAD < len(logits):
            for j in range(keys.shape[1]):
                prefetch(address + _slot(keys[i + AHEAD, j], shift) * row)
        count = _gather(i, keys, bag_keys, bag_offsets, numbers, bits, moments, shift, slots, values)
        logit = 0.0
        for c in range(count):
            logit += memory[slots[c], WEIGHT] * values[c]
        logits[i] = logit
        if not learns:
            continue
        error = (1.0 / (1.0 + math.exp(-logit)) - labels[i]) * weights[i]
        for c in range(count):
            at = memory[slots[c]]
            m, sigma, total = _update(error * values[c], np.float64(at[SUM]), beta, inverse_lr)
            z = at[RESIDUAL] + m - sigma * at[WEIGHT]
            s = _soft_threshold(z, l1, 0.0)
            y = _closed_form(np.float64(at[WEIGHT]), s, 0.0, sigma + two_l2, 1.0, 0.0, 1.0)
            at[RESIDUAL] = _next_residual(_clip(z, l1), s, 0.0, y, two_l2, 0.0)
            at[WEIGHT], at[SUM] = y, total
        for j in range(numbers.shape[1]):
            if _is_finite(np.float64(numbers[i, j])):
                _note(np.float64(numbers[i, j]), moments[j])


online_pass = kernel(_online_pass, "the baseline")
"""Predict rows, and learn from each before the next one.

Args:
    keys: `[n, fields]` uint64.
    bag_keys, bag_offsets: `[m]` uint64 and `[lists, n + 1]` int64: row i of a list has the keys from `offsets[i]` on;
        each counts as one over how many there are.
    numbers, bits: `[n, numbers]` float32, and the same as uint32. What is not finite is missing.
    labels, weights: `[n]` float32.
    memory: `[2 ** bits + 1 + numbers, PARTS]` float32, zeros at first; changed if `learns`.
    moments: `[numbers, MOMENTS]` float64, zeros at first; changed if `learns`.
    slots, values: Scratch for the features of a row, int64 and float64.
    shift: uint64; 64 less the number of bits of a hash.
    beta, inverse_lr, l1, two_l2: float64.
    learns: Whether to.
    logits: `[n]` float32, written.
"""
