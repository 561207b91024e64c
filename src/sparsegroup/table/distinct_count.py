"""How many distinct keys there have been, within some per cent, in memory that does not grow: HyperLogLog.

Flajolet, Fusy, Gandouet and Meunier, "HyperLogLog" (2007), with the estimator of Ertl, "New cardinality estimation
algorithms for HyperLogLog sketches" (2017), which needs no corrections for few or many keys.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.table.hashing import mix

Int64s = npt.NDArray[np.int64]


class DistinctCount:
    """Counts distinct keys, apart for each field that a key's top bits say.

    A field's count has a standard error of 1.04 / √registers: .8 % without fields, 1.6 % with 256 of them; that of all
    is their sum.

    Args:
        field_bits: See `HashEmbedding`.
    """

    def __init__(self, field_bits: int) -> None:
        self._field_bits = field_bits
        self._log2 = max(8, min(14, 20 - field_bits))
        self._registers = np.zeros((1 << field_bits, 1 << self._log2), np.uint8)

    @property
    def nbytes(self) -> int:
        """Memory that it takes, whatever it has counted."""
        return self._registers.nbytes

    @property
    def relative_error(self) -> float:
        """The standard error of a field's count, as a share of it."""
        return 1.04 / math.sqrt(1 << self._log2)

    def add(self, keys: Int64s) -> None:
        """Count keys `[n]`; those that have been counted before change nothing."""
        _add_kernel(keys, self._field_bits, self._log2, self._registers)

    def by_field(self) -> npt.NDArray[np.float64]:
        """`[2 ** field_bits]`, how many distinct keys of each field have been counted."""
        result = np.zeros(len(self._registers))
        for field in np.flatnonzero(self._registers.any(axis=1)):
            result[field] = _estimate(np.bincount(self._registers[field], minlength=2), self._log2)
        return result

    @property
    def total(self) -> int:
        """How many distinct keys have been counted."""
        return round(float(self.by_field().sum()))

    def clear(self) -> None:
        """Have counted nothing."""
        self._registers[:] = 0

    def content(self) -> dict[str, npt.NDArray[Any]]:
        """What it knows, to be kept."""
        return {"seen_registers": self._registers.copy()}

    def load(self, content: Mapping[str, npt.NDArray[Any]]) -> None:
        """Know what another one knew, if that is told.

        Raises:
            ValueError: It counted by other fields.
        """
        registers = content.get("seen_registers", self._registers)
        if registers.shape != self._registers.shape or registers.dtype != np.uint8:
            raise ValueError(
                f"seen_registers: uint8 {list(self._registers.shape)} is expected, got {registers.dtype} "
                f"{list(registers.shape)}"
            )
        if (highest := int(registers.max(initial=0))) > (most := 65 - self._log2):
            raise ValueError(f"seen_registers: numbers from 0 to {most} are expected, got {highest}")
        self._registers = registers.copy()


def _add_all(keys: Any, field_bits: int, log2: int, registers: Any) -> None:
    for i in range(len(keys)):
        key = np.uint64(keys[i])
        hashed = mix(key)
        field = np.int64(key >> np.uint64(64 - field_bits)) if field_bits > 0 else np.int64(0)
        place = np.int64(hashed >> np.uint64(64 - log2))
        rank = np.uint8(1)
        bit = np.uint64(1) << np.uint64(63 - log2)
        while bit != np.uint64(0) and (hashed & bit) == np.uint64(0):
            rank += np.uint8(1)
            bit >>= np.uint64(1)
        registers[field, place] = max(registers[field, place], rank)


_add_kernel = kernel(_add_all, "the count of distinct keys")


def _estimate(counts: npt.NDArray[np.int64], log2: int) -> float:
    """Ertl's algorithm 6.

    Args:
        counts: How many registers hold 0, 1, …
        log2: That of the number of registers.
    """
    m, q = float(1 << log2), 64 - log2
    counts = np.pad(counts, (0, max(0, q + 2 - len(counts))))
    z = m * _tau(1.0 - counts[q + 1] / m)
    for k in range(q, 0, -1):
        z = 0.5 * (z + counts[k])
    z += m * _sigma(counts[0] / m)
    return m * m / (2.0 * math.log(2.0) * z)


def _sigma(x: float) -> float:
    if x == 1.0:
        return math.inf
    y, z = 1.0, x
    while True:
        x *= x
        before = z
        z += x * y
        y += y
        if z == before:
            return z


def _tau(x: float) -> float:
    if x in (0.0, 1.0):
        return 0.0
    y, z = 1.0, 1.0 - x
    while True:
        x = math.sqrt(x)
        before = z
        y *= 0.5
        z -= (1.0 - x) ** 2 * y
        if z == before:
            return z / 3.0
