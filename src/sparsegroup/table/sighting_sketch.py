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

DEPTH = 4
"""Counters of a key; the least of them is its count."""

HIGHEST = 255
"""A counter goes no further."""


class SightingSketch:
    """Counts sightings of keys in `nbytes` bytes: never too few between two halvings, too many with a probability.

    A row of w = nbytes / 4 counters is halved, all of it, after w sightings. With n distinct keys since then a key that
    has never come is taken for one that has with a probability of (1 - e^(-n/w))⁴: .2 % at n = w/4, 16 % at n = w.

    Args:
        nbytes: At least 4,096.
    """

    def __init__(self, nbytes: int) -> None:
        self._counters = np.zeros((DEPTH, nbytes // DEPTH), np.uint8)
        self._since_halving = 0

    @property
    def nbytes(self) -> int:
        """Memory that it takes, whatever it has counted."""
        return self._counters.nbytes

    def false_positive_rate(self, distinct: int) -> float:
        """The probability that a new key counts as seen, after `distinct` keys since a halving."""
        return (1.0 - math.exp(-distinct / self._counters.shape[1])) ** DEPTH

    def sights(self, keys: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """How often each of some keys `[n]` has come, int64 `[n]`, and whether that is more than never."""
        sights = np.empty(len(keys), np.int64)
        _read_kernel(keys, self._counters, sights)
        return sights, sights > 0

    def note(self, keys: Int64s, sights: Int64s) -> None:
        """Some keys have come so often by now; 0, for one that has a row now, is not taken down."""
        coming = sights > 0
        _note_kernel(keys[coming], np.minimum(sights[coming], HIGHEST), self._counters)
        self._since_halving += int(np.count_nonzero(coming))
        if self._since_halving >= self._counters.shape[1]:
            np.right_shift(self._counters, 1, out=self._counters)
            self._since_halving = 0

    def keys(self) -> Int64s:
        """None: a sketch does not know the keys that it has counted."""
        return np.zeros(0, np.int64)

    def content(self) -> dict[str, npt.NDArray[Any]]:
        """What it knows, to be kept."""
        return {"sketch": self._counters.copy(), "sketch_age": np.array([self._since_halving], np.int64)}

    def load(self, content: Mapping[str, npt.NDArray[Any]]) -> None:
        """Know what another one knew, be it a sketch or the keys themselves; nothing where there was none.

        Raises:
            ValueError: It had another size.
        """
        counters = content.get("sketch")
        if counters is None:
            self._counters[:], self._since_halving = 0, 0
            if "waiting" in content:
                self.note(content["waiting"], content["sights"])
            return
        if counters.shape != self._counters.shape or counters.dtype != np.uint8:
            raise ValueError(
                f"sketch: uint8 {list(self._counters.shape)} is expected, got {counters.dtype} {list(counters.shape)}; "
                "the sketch that counts sightings must have the size it had"
            )
        self._counters, self._since_halving = counters.copy(), int(content["sketch_age"][0])


def _read_all(keys: Any, counters: Any, sights: Any) -> None:
    width = np.uint64(counters.shape[1])
    for i in range(len(keys)):
        stream = np.uint64(keys[i])
        least = np.int64(255)
        for row in range(4):
            stream = mix(stream + np.uint64(0x9E3779B97F4A7C15))
            least = min(least, np.int64(counters[row, np.int64(stream % width)]))
        sights[i] = least


def _note_all(keys: Any, sights: Any, counters: Any) -> None:
    width = np.uint64(counters.shape[1])
    for i in range(len(keys)):
        stream = np.uint64(keys[i])
        for row in range(4):
            stream = mix(stream + np.uint64(0x9E3779B97F4A7C15))
            place = np.int64(stream % width)
            counters[row, place] = max(counters[row, place], np.uint8(sights[i]))


_read_kernel = kernel(_read_all, "the sketch of sightings (read)")
_note_kernel = kernel(_note_all, "the sketch of sightings (write)")
