"""Where a row starts: a function of (seed, key) and nothing else, so that order, threads and shards don't matter."""

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import array_at, jitted, kernel
from sparsegroup.table.hashing import mix

Init = Literal["normal", "uniform"]
INITS: tuple[Init, ...] = ("normal", "uniform")
NORMAL, UNIFORM = 0, 1


@jitted
def start_row(key: Any, seed: Any, init: int, std: float, dim: int, out: Any) -> None:
    """Write the start of `key`'s row, `[dim]`, into `out`: N(0, std²), or uniform on ±√3 std.

    Element pairs 2i, 2i + 1 come from counter i of a generator in counter mode: numbers mixed from (seed, key, i).

    Args:
        key: int64.
        seed: uint64, already mixed.
        init: `NORMAL` or `UNIFORM`.
        std: Standard deviation.
        dim: Length of the row.
        out: `[dim]` float.
    """
    stream = mix(np.uint64(key) ^ seed)
    for pair in range((dim + 1) // 2):
        stream += np.uint64(0x9E3779B97F4A7C15)
        bits = mix(stream)
        a: Any = (np.float64(bits >> np.uint64(32)) + 0.5) * 2.0**-32  # in (0, 1)
        b: Any = (np.float64(bits & np.uint64(0xFFFFFFFF)) + 0.5) * 2.0**-32
        if init == NORMAL:  # Box and Muller
            radius, angle = std * math.sqrt(-2.0 * math.log(a)), 2.0 * math.pi * b
            a, b = radius * math.cos(angle), radius * math.sin(angle)
        else:
            a, b = math.sqrt(3.0) * std * (2.0 * a - 1.0), math.sqrt(3.0) * std * (2.0 * b - 1.0)
        out[2 * pair] = a
        if 2 * pair + 1 < dim:
            out[2 * pair + 1] = b


def _start_rows(keys: Any, seed: Any, init: int, std: float, out: Any) -> None:
    address, dim, zero = np.int64(out.ctypes.data), out.shape[1], out.dtype.type(0)
    for i in range(len(keys)):
        start_row(keys[i], seed, init, std, dim, array_at(address + i * dim * out.itemsize, dim, zero))


start_rows = kernel(_start_rows, "the table's initializer")


class RowStarts:
    """Where a table's rows start.

    Args:
        init: "normal" or "uniform".
        std: Standard deviation.
        seed: In [0, 2⁶⁴).
        dim: Length of a row.
        dtype: That of the vectors.

    Attributes:
        seed: uint64, mixed so that every bit matters.
        init: `NORMAL` or `UNIFORM`.
    """

    def __init__(self, init: Init, std: float, seed: int, dim: int, dtype: np.dtype[Any]) -> None:
        mix_array = mix.py_func  # by NumPy: not worth a kernel
        self.seed = mix_array(mix_array(np.array([seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15)))[0]
        self.init = INITS.index(init)
        self.std, self.dim, self.dtype = std, dim, dtype

    def of(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The vectors that rows of `keys` start from, `[n, dim]`."""
        out = np.empty((len(keys), self.dim), self.dtype)
        start_rows(keys, self.seed, self.init, self.std, out)
        return out
