"""The mean of g² over each row of a gradient, without waking PyTorch's threads, which takes longer than the sums."""

from typing import Any

import torch
from torch import Tensor

from sparsegroup.groups import mean_square
from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.kernels.views import NUMPY_DTYPES, array_of


def mean_squares_of_rows(gradient: Tensor) -> Tensor:
    """The mean of g² over its row for each element of `gradient`, `[n, d]`, shaped as it; of any device."""
    if gradient.device.type != "cpu" or gradient.dtype not in NUMPY_DTYPES:
        return mean_square(gradient, "rows")
    values = gradient.contiguous()
    out = torch.empty_like(values)
    _mean_squares(array_of(values), array_of(out))
    return out


def _mean_squares_of(values: Any, out: Any) -> None:
    n, d = values.shape
    whole = d // 4 * 4
    for i in range(n):
        a, b, c, total = 0.0, 0.0, 0.0, 0.0  # four sums at a time: one would wait for itself
        for e in range(0, whole, 4):
            a += values[i, e] * values[i, e]
            b += values[i, e + 1] * values[i, e + 1]
            c += values[i, e + 2] * values[i, e + 2]
            total += values[i, e + 3] * values[i, e + 3]
        for e in range(whole, d):
            total += values[i, e] * values[i, e]
        mean = ((a + b) + (c + total)) / d
        for e in range(d):
            out[i, e] = mean


_mean_squares = kernel(_mean_squares_of, "the mean squares of rows")
