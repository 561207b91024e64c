"""Whether numbers are finite: the check before every step of a table."""

from typing import Any

import numpy as np
from torch import Tensor

from sparsegroup.kernels.cpu.jit import array_at, kernel
from sparsegroup.kernels.cpu.memory import on_stack
from sparsegroup.kernels.views import array_of

_LANES = 64
_memory_of_sums = on_stack(_LANES * 8)


def _are_finite(values: Any) -> bool:
    zero = values.dtype.type(0)
    sums = array_at(_memory_of_sums(), _LANES, zero)  # of 0 · x, not 0 where x is not finite; side by side, to be quick
    for e in range(_LANES):
        sums[e] = zero
    whole = len(values) // _LANES * _LANES
    for start in range(0, whole, _LANES):
        some = array_at(np.int64(values.ctypes.data) + start * values.itemsize, _LANES, zero)
        for e in range(_LANES):
            sums[e] += some[e] * zero
    for i in range(whole, len(values)):
        sums[0] += values[i] * zero
    are_zero = True
    for e in range(_LANES):
        are_zero &= sums[e] == zero
    return are_zero


finite_kernel = kernel(_are_finite, "the check for finite numbers")


def are_finite(values: Tensor) -> bool:
    """Whether no element of a float32 or float64 CPU tensor is infinite or NaN."""
    return bool(finite_kernel(array_of(values.contiguous()).reshape(-1)))
