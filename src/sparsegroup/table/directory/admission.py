"""Which keys get a row: the policies, and the counts of keys that have none yet, exact or in a count-min sketch.

The sketch: Cormode and Muthukrishnan, "An improved data stream summary" (2005), with conservative update (Estan and
Varghese, 2002); halved now and then, as TinyLFU's (Einziger, Friedman and Manes, 2017), so that it does not fill up.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.signals import signals_deferred
from sparsegroup.table.directory.buckets import ABSENT, mix
from sparsegroup.table.directory.index import Index, Removal

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def answer(method: Callable[..., object], dtype: type, asked: Any, *more: Any) -> npt.NDArray[Any]:
    """Return the answer of a policy for `asked`, candidates or rows.

    Raises ValueError unless the answer is `[len(asked)]` of `dtype`.
    """
    result = np.asarray(method(asked, *more))
    if result.dtype != dtype or result.shape != (len(asked),):
        raise ValueError(
            f"{method.__qualname__} must give {np.dtype(dtype)} {[len(asked)]}, got {result.dtype} {list(result.shape)}"
        )
    return result


_FEW = 1 << 12
"""Admitted keys below which it does not pay to take them out of the index."""


class ExactOccurrences:
    """Candidates: keys without a row, each with the number of lookups of the key since it last had a row."""

    lookups = None  # not counted: the count of a key is different in each lookup

    def __init__(self, huge_pages: bool) -> None:
        self._huge_pages = huge_pages
        self._clear()

    def _clear(self) -> None:
        self._index = Index(self._huge_pages, 16)
        self._counts: Int64s = np.zeros(0, np.int64)
        self._num_admitted: int | None = 0  # None: unknown until the next count

    @property
    def nbytes(self) -> int:
        return self._index.bytes + self._counts.nbytes if len(self._counts) else 0

    @property
    def has_candidates(self) -> bool:
        """Return whether a key is waiting. A waiting key must be forgotten when the key gets a row."""
        return self._index.num_keys > self._admitted()

    def _admitted(self) -> int:
        """Return the number of admitted keys that are still in the index, with a count of 0."""
        if self._num_admitted is None:
            self._num_admitted = int(np.count_nonzero(self._counts[: self._index.num_keys] == 0))
        return self._num_admitted

    def stored(self, keys: Int64s) -> Int64s:
        """Return the counts of some keys `[n]`, int64 `[n]`; 0 for a key that is no candidate."""
        places = self._index.find(keys)
        counts = np.zeros(len(keys), np.int64)
        found = places != ABSENT
        counts[found] = self._counts[places[found]]
        return counts

    def note(self, keys: Int64s, counts: Int64s, admitted: Bools, *, again: bool = False) -> None:
        """Remember the counts of some distinct keys, and forget the admitted keys."""
        counts = np.where(admitted, 0, counts)
        places = self._index.find(keys)
        known = places != ABSENT
        change = int(np.count_nonzero(self._counts[places[known]]) - np.count_nonzero(counts[known]))
        now, self._num_admitted = self._admitted() + change, None
        self._counts[places[known]] = counts[known]
        self._num_admitted = now
        self._add(keys[~known & ~admitted], counts[~known & ~admitted])
        if now > max(_FEW, self._index.num_keys // 2):
            self._drop_admitted()

    def _add(self, keys: Int64s, counts: Int64s) -> None:
        first, end = self._index.num_keys, self._index.num_keys + len(keys)
        self._index.reserve(end)
        if end > len(self._counts):
            grown = np.zeros(max(2 * len(self._counts), end), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        self._counts[first:end] = counts
        self._index.settle(len(keys))  # before, for it may be as many as there are
        self._index.insert(keys, np.arange(first, end))

    def _drop_admitted(self) -> None:
        counts = self._counts[: self._index.num_keys]
        removal, counts = Removal(self._index, counts > 0), counts[counts > 0]
        with signals_deferred():
            removal.run()
            self._counts, self._num_admitted = counts, 0
        self._index = self._index.shrunk()

    def keys(self) -> Int64s:
        """Return the candidates, `[n]`, in the order of their first occurrences."""
        count = self._index.num_keys
        return self._index.keys_of_rows(0, count)[self._counts[:count] > 0]

    def content(self) -> dict[str, npt.NDArray[Any]]:
        """Return the candidates in ascending order and their counts, for a checkpoint; nothing without candidates."""
        keys = np.sort(self.keys())  # places of keys that have waited before differ after a load
        return {"candidates": keys, "candidate_counts": self.stored(keys)} if len(keys) else {}

    def load(self, content: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace the candidates by the candidates of saved content."""
        self._clear()
        if "candidates" in content:
            self._add(content["candidates"], content["candidate_counts"])


DEPTH, HIGHEST = 4, 255
"""Counters of a key, the least of which is its count; where a counter stops."""


class OccurrenceSketch:
    """Counts occurrences in `nbytes` bytes: never too few between two halvings, too many with a probability.

    A row of w = nbytes / 4 counters is halved, all of it, after w occurrences. With n distinct keys since then a key
    that has never come is taken for one that has with a probability of (1 - e^(-n/w))⁴: .2 % at n = w/4, 16 % at n = w.
    Without bytes nothing is counted.
    """

    has_candidates = False  # what is in it need not be forgotten

    def __init__(self, nbytes: int) -> None:
        self._counters = np.zeros(self.shape(nbytes), np.uint8)
        self._since_halving = self.lookups = 0

    @staticmethod
    def shape(nbytes: int) -> tuple[int, int]:
        """Return the shape of the counters that fit in this many bytes."""
        return DEPTH, nbytes // DEPTH

    @property
    def nbytes(self) -> int:
        return self._counters.nbytes

    def stored(self, keys: Int64s) -> Int64s:
        """Return the counts of some keys `[n]`, int64 `[n]`."""
        counts = np.empty(len(keys), np.int64)
        _read_kernel(keys, self._counters, counts)
        return counts

    def note(self, keys: Int64s, counts: Int64s, admitted: Bools, *, again: bool = False) -> None:
        """Raise the counters of distinct keys, except of the admitted keys."""
        waiting = ~admitted
        _note_kernel(keys[waiting], np.minimum(counts[waiting], HIGHEST), self._counters)
        self.lookups += not again
        self._since_halving += int(np.count_nonzero(waiting))
        if self._since_halving >= self._counters.shape[1]:
            self._since_halving = 0  # first, so that an interrupt cannot halve the counters twice
            np.right_shift(self._counters, 1, out=self._counters)

    def keys(self) -> Int64s:
        """Return no keys: a sketch does not know the keys that it has counted."""
        return np.zeros(0, np.int64)

    def content(self) -> dict[str, npt.NDArray[Any]]:
        """Return the counters, the occurrences since they were halved, and the lookups, for a checkpoint."""
        age = np.array([self._since_halving, self.lookups], np.int64)
        return {"sketch": self._counters.copy(), "sketch_age": age} if self.nbytes else {}

    def load(self, content: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the counters from saved content, or from its exact counts, if any."""
        self._counters[:], self._since_halving, self.lookups = 0, 0, 0
        if not self.nbytes:
            return
        if "sketch" in content:
            self._counters[:] = content["sketch"]
            self._since_halving, self.lookups = map(int, content["sketch_age"])
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


class Candidates:
    """Distinct keys of a lookup that have no row, as an admission policy looks at them.

    Attributes:
        keys: `[n]` int64.
    """

    def __init__(self, keys: Int64s, occurrences: ExactOccurrences | OccurrenceSketch, *, is_counted: bool) -> None:
        self.keys, self.is_counted, self._occurrences = keys, is_counted, occurrences

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def counts(self) -> Int64s:
        """`[n]` int64 ≥ 1, the number of training lookups of each key since it last had a row, with this lookup.

        A sketch may count too many, and stops after 255.
        """
        return np.maximum(self._occurrences.stored(self.keys) + (not self.is_counted), 1)

    @property
    def draws(self) -> Int64s:
        """`[n]` int64, for decisions by chance: a number that differs from lookup to lookup of a key.

        Exact counts, or, because the counts of a sketch repeat, the number of the lookup.
        """
        lookups = self._occurrences.lookups
        return self.counts if lookups is None else np.full(len(self), lookups + (not self.is_counted))


class AdmissionPolicy(ABC):
    """Decides which keys that have no row get one: derive from it, and give it as `HashEmbedding(admission=policy)`.

    It is asked in training mode, once per lookup that brings such keys. A key that is not admitted gives zeros and gets
    no gradient; it counts as seen all the same. The policy is copied and pickled with its table.

    Attributes:
        sketch_bytes: Count occurrences in a sketch of this many bytes, ≥ 4,096. None: exactly, or, in a table with
            `max_bytes`, in a sketch of a sixteenth of these.
    """

    sketch_bytes: int | None = None

    @abstractmethod
    def admits(self, candidates: Candidates) -> npt.NDArray[np.bool_]:
        """Return which of the candidates get a row now, `[len(candidates)]` bool."""

    def check_counts(self, highest: int) -> None:  # noqa: B027  # most policies take any counts
        """Raise ValueError if the policy needs counts above `highest`, which the table's sketch cannot count."""


class EveryKey(AdmissionPolicy):
    """Every key gets a row when training first sees it."""

    def admits(self, candidates: Candidates) -> npt.NDArray[np.bool_]:
        """Return True for all candidates. A table asks only if keys are waiting."""
        return np.ones(len(candidates), np.bool_)


SET_KEYS = EveryKey()  # for keys whose vectors are set from outside: room has been found for them


@dataclass(frozen=True)
class MinCount(AdmissionPolicy):
    """A key gets a row when it comes for the k-th time.

    Args:
        k: In this many lookups of training mode, ≥ 1; twice in one lookup counts once.
        sketch_bytes: Count in this many bytes, ≥ 4,096: a key may then get its row early; k is 255 at most. None:
            exactly, in some 40 bytes for each key that waits (with `max_bytes`: in a sketch of a sixteenth of these).

    Raises:
        ValueError: A number out of range.

    Examples:
        >>> import torch
        >>> from sparsegroup import HashEmbedding, MinCount
        >>> table = HashEmbedding(4, admission=MinCount(2))
        >>> bool(table(torch.tensor([7])).any()), table.num_rows, table.num_seen
        (False, 0, 1)
        >>> bool(table(torch.tensor([7])).any()), table.num_rows
        (True, 1)
    """

    k: int = field()
    sketch_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be >= 1, got {self.k}")
        if self.sketch_bytes is not None:
            if self.sketch_bytes < 4096:
                raise ValueError(f"sketch_bytes must be >= 4,096, got {self.sketch_bytes:,}")
            self.check_counts(HIGHEST)

    def check_counts(self, highest: int) -> None:
        if self.k > highest:
            raise ValueError(
                f"a sketch counts to {highest}: k must be <= {highest} with sketch_bytes or max_bytes, got {self.k}"
            )

    def admits(self, candidates: Candidates) -> npt.NDArray[np.bool_]:
        admitted: npt.NDArray[np.bool_] = candidates.counts >= self.k
        return admitted


@dataclass(frozen=True)
class Probabilistic(AdmissionPolicy):
    """A key gets a row at each occurrence with a probability: after 1 / p of them on average.

    Whether it does is a function of key, count and seed, so that a resumed training decides alike. (In a table of
    limited bytes, of key, number of the lookup, and seed.)

    Args:
        p: In (0, 1].
        seed: In [0, 2⁶³).

    Raises:
        ValueError: p is out of range.
    """

    p: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ValueError(f"p must be in (0, 1], got {self.p}")

    def admits(self, candidates: Candidates) -> npt.NDArray[np.bool_]:
        keys, draws = candidates.keys.view(np.uint64), candidates.draws.view(np.uint64)
        drawn = _mixed(keys ^ _mixed(draws ^ _mixed(np.uint64(self.seed))))
        admitted: npt.NDArray[np.bool_] = (drawn >> np.uint64(11)) * 2.0**-53 < self.p
        return admitted


def _mixed(value: Any) -> Any:
    """SplitMix64's output function (Steele et al., 2014): uint64 → uint64."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
