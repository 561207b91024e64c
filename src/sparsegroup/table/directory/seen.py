"""How many distinct keys training has seen: exactly, or within some per cent in memory that does not grow, HyperLogLog.

Flajolet, Fusy, Gandouet and Meunier, "HyperLogLog" (2007), with the estimator of Ertl, "New cardinality estimation
algorithms for HyperLogLog sketches" (2017), which needs no corrections for few or many keys.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.table.directory.buckets import mix

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class RememberedKeys:
    """Counts distinct keys exactly: keys that lost their row are remembered, in 8 bytes each."""

    is_exact = True

    def __init__(self) -> None:
        self.dropped: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)  # ascending; some may have a row again
        self._total = 0

    @property
    def nbytes(self) -> int:
        return self.dropped.nbytes

    @property
    def needs_keys(self) -> bool:
        """Whether `add` needs the keys, and not only their number."""
        return len(self.dropped) > 0

    def add(self, keys: Int64s | None, count: int, candidates: Callable[[Int64s], Int64s]) -> None:
        """Count `count` distinct keys that had no row: new ones if no `keys` are given; else some have been counted."""
        again = 0 if keys is None else int(np.count_nonzero(self._were_dropped(keys) | (candidates(keys) > 0)))
        self._total += count - again

    def drop(self, keys: Int64s) -> None:
        """Remember keys whose rows are about to be removed. Counts do not change before the removal."""
        new = np.unique(keys[~self._were_dropped(keys)].view(np.uint64))
        dropped = np.concatenate([self.dropped, new])
        dropped.sort(kind="stable")  # two ascending runs: a merge
        self.dropped = dropped

    def _were_dropped(self, keys: Int64s) -> Bools:
        if not len(self.dropped):
            return np.zeros(len(keys), np.bool_)
        values = keys.view(np.uint64)
        at = np.minimum(np.searchsorted(self.dropped, values), len(self.dropped) - 1)
        found: Bools = self.dropped[at] == values
        return found

    def recount(self, known: Callable[[], Int64s], total: int | None) -> None:
        """Set the count to `total`; None: to the number of `known` keys."""
        self._total = len(known()) if total is None else total

    def total(self, num_rows: int) -> int:
        return self._total

    def by_field(self, rows: Int64s, without_row: Callable[[], Int64s]) -> Int64s:
        """Return the distinct keys of each field, `[fields]`, from the number of `rows` and the keys without a row."""
        fields = without_row().view(np.uint64) >> np.uint64(65 - len(rows).bit_length())
        return rows + np.bincount(fields.astype(np.int64), minlength=len(rows))

    def content(self) -> dict[str, npt.NDArray[Any]]:
        return {}  # the dropped keys are stored apart, and the others are known

    def load(self, content: Mapping[str, npt.NDArray[Any]]) -> None:
        pass


class HyperLogLog:
    """Estimates the number of distinct keys, of each field that a key's top bits name, in memory that does not grow.

    A field's count has a standard error of 1.04 / √registers: .8 % without fields, 1.6 % with 256 of them; that of all
    is their sum. Feature rates, and so the live rows of a `TargetRate`, are as exact as these counts.

    Measured with 3.4 million keys in 39 fields of Criteo's proportions, in 1 MiB: 10 ns a key, an error of at most
    1.8 % in a field and of .4 % in all. The smallest hashes of each field, a simpler estimate, have an error of up to
    9 % in 1 MiB and of 4.7 % in 8 MiB; the exact set takes 27 MB, and more with each key.
    """

    is_exact, needs_keys = False, True
    dropped: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)

    def __init__(self, field_bits: int) -> None:
        self._field_bits = field_bits
        self._registers = np.zeros(self.shape(field_bits), np.uint8)
        self._least = 0  # the estimate may be below a number that was known

    @staticmethod
    def shape(field_bits: int) -> tuple[int, int]:
        """Fields, and registers of each."""
        return 1 << field_bits, 1 << max(8, min(14, 20 - field_bits))

    @property
    def nbytes(self) -> int:
        return self._registers.nbytes

    def add(self, keys: Int64s | None, count: int = 0, candidates: object = None) -> None:
        """Count keys `[n]`; keys that were counted before change nothing."""
        _add_kernel(keys, self._field_bits, self._registers.shape[1].bit_length() - 1, self._registers)

    drop = add  # keys that have lost their row have been seen

    def recount(self, known: Callable[[], Int64s], total: int | None) -> None:
        """Also count the `known` keys; there were at least `total`."""
        self.add(known())
        self._least = total or 0

    def total(self, num_rows: int) -> int:
        """Return the number of distinct keys counted, at least `num_rows`."""
        self._least = max(self._least, num_rows, round(float(self.estimates().sum())))
        return self._least

    def estimates(self) -> npt.NDArray[np.float64]:
        """Return estimates of the distinct keys of each field, `[2 ** field_bits]`."""
        result = np.zeros(len(self._registers))
        for field in np.flatnonzero(self._registers.any(axis=1)):
            result[field] = _estimate(np.bincount(self._registers[field]))
        return result

    def by_field(self, rows: Int64s, without_row: object) -> Int64s:
        """Return the distinct keys of each field, `[fields]`, at least the keys with a row."""
        return np.maximum(rows, np.rint(self.estimates()).astype(np.int64))

    def content(self) -> dict[str, npt.NDArray[Any]]:
        """Return the registers, for a checkpoint."""
        return {"seen_registers": self._registers.copy()}

    def load(self, content: Mapping[str, npt.NDArray[Any]]) -> None:
        """Load the registers of saved content, if any, and count its candidates."""
        self._registers = content.get("seen_registers", self._registers).copy()
        self.add(content.get("candidates", np.zeros(0, np.int64)))


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


def _estimate(counts: npt.NDArray[np.int64]) -> float:
    """Ertl's algorithm 6, for a hash so long that no register is full: `counts` of the registers that hold 0, 1, …"""
    m, powers = float(counts.sum()), 0.5 ** np.arange(len(counts))
    z = float(counts[1:] @ powers[1:]) + m * _sigma(counts[0] / m)
    return m * m / (2.0 * math.log(2.0) * z)


def _sigma(x: float) -> float:
    """x + Σ x^(2^k) · 2^(k-1), k = 1, 2, …, for x < 1."""
    result, weight = x, 1.0
    while (x := x * x) * weight > 1e-18 * result:
        result += x * weight
        weight *= 2.0
    return result
