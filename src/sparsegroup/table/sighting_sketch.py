"""How often keys without a row have come, within limits, in memory that does not grow: a count-min sketch.

Cormode and Muthukrishnan, "An improved data stream summary" (2005), with conservative update (Estan and Varghese,
2002); halved now and then, as TinyLFU's (Einziger, Friedman and Manes, 2017), so that it does not fill up.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.table.hashing import mix

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

DEPTH = 4
"""Counters of a key; the least of them is its count."""

HIGHEST = 255
"""A counter goes no further."""


class OccurrenceSketch:
    """Counts occurrences in `nbytes` bytes: never too few between two halvings, too many with a probability.

    A row of w = nbytes / 4 counters is halved, all of it, after w occurrences. With n distinct keys since then a key
    that has never come is taken for one that has with a probability of (1 - e^(-n/w))⁴: .2 % at n = w/4, 16 % at n = w.

    Args:
        nbytes: At least 4,096; or 0, and nothing is counted.
    """

    has_candidates = False  # what is in it need not be forgotten

    def __init__(self, nbytes: int) -> None:
        self._counters = np.zeros(self.shape(nbytes), np.uint8)
        self._since_halving = self._lookups = 0

    @staticmethod
    def shape(nbytes: int) -> tuple[int, int]:
        """The shape of the counters that fit in so many bytes."""
        return DEPTH, nbytes // DEPTH

    @property
    def nbytes(self) -> int:
        """Memory that it takes, whatever it has counted."""
        return self._counters.nbytes

    def false_positive_rate(self, distinct: int) -> float:
        """The probability that a new key counts as seen, after `distinct` keys since a halving."""
        return (1.0 - math.exp(-distinct / self._counters.shape[1])) ** DEPTH

    def stored(self, keys: Int64s) -> Int64s:
        """How often each of some keys `[n]` has come, int64 `[n]`."""
        counts = np.empty(len(keys), np.int64)
        _read_kernel(keys, self._counters, counts)
        return counts

    def are_candidates(self, keys: Int64s) -> Bools:
        """`[n]`, which of some keys may have come."""
        return self.stored(keys) > 0

    def counts(self, keys: Int64s, *, draws: bool, again: bool) -> Int64s:
        """In how many lookups each of some keys has come, this one included; where chance `draws`, the lookup's number.

        Counts that stop at 255 and are halved would let chance decide on a key by the same number again and again.
        """
        if draws:
            return np.full(len(keys), self._lookups + (not again))
        return np.maximum(self.stored(keys) + (not again), 1)

    def note(self, keys: Int64s, counts: Int64s, admitted: Bools, *, again: bool = False) -> None:
        """Raise the counters of some distinct keys, but of those that are admitted."""
        waiting = ~admitted
        _note_kernel(keys[waiting], np.minimum(counts[waiting], HIGHEST), self._counters)
        self._lookups += not again
        self._since_halving += int(np.count_nonzero(waiting))
        if self._since_halving >= self._counters.shape[1]:
            np.right_shift(self._counters, 1, out=self._counters)
            self._since_halving = 0

    def keys(self) -> Int64s:
        """None: a sketch does not know the keys that it has counted."""
        return np.zeros(0, np.int64)

    def content(self) -> dict[str, npt.NDArray[Any]]:
        """Its counters, occurrences since they were halved, and lookups, to be stored."""
        age = np.array([self._since_halving, self._lookups], np.int64)
        return {"sketch": self._counters.copy(), "sketch_age": age} if self.nbytes else {}

    def load(self, content: Mapping[str, npt.NDArray[Any]]) -> None:
        """Have the counters of some content, or those of its exact counts, if any."""
        self._counters[:], self._since_halving, self._lookups = 0, 0, 0
        if not self.nbytes:
            return
        if "sketch" in content:
            self._counters[:] = content["sketch"]
            self._since_halving, self._lookups = map(int, content["sketch_age"])
        elif "candidates" in content:
            keys = content["candidates"]
            self.note(keys, content["candidate_counts"], np.zeros(len(keys), np.bool_), again=True)


def _read_all(keys: Any, counters: Any, counts: Any) -> None:
    width = np.uint64(counters.shape[1])
    for i in range(len(keys)):
        stream = np.uint64(keys[i])
        least = np.int64(255)
        for row in range(4):
            stream = mix(stream + np.uint64(0x9E3779B97F4A7C15))
            least = min(least, np.int64(counters[row, np.int64(stream % width)]))
        counts[i] = least


def _note_all(keys: Any, counts: Any, counters: Any) -> None:
    width = np.uint64(counters.shape[1])
    for i in range(len(keys)):
        stream = np.uint64(keys[i])
        for row in range(4):
            stream = mix(stream + np.uint64(0x9E3779B97F4A7C15))
            place = np.int64(stream % width)
            counters[row, place] = max(counters[row, place], np.uint8(counts[i]))


_read_kernel = kernel(_read_all, "the sketch of occurrences (read)")
_note_kernel = kernel(_note_all, "the sketch of occurrences (write)")
