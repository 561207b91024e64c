"""Occurrences of keys that have no row, counted exactly."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.index import Index
from sparsegroup.table.index_filter import keep_rows

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_FEW = 1 << 12
"""Admitted keys below which it does not pay to take them out of the index."""


class ExactOccurrences:
    """Candidates: keys without a row, each with the number of lookups in which it has come since it last had one."""

    def __init__(self, huge_pages: bool) -> None:
        self._huge_pages = huge_pages
        self._clear()

    def _clear(self) -> None:
        self._index = Index(self._huge_pages, 16)
        self._counts: Int64s = np.zeros(0, np.int64)
        self._num_admitted = 0  # whose count is 0, and which are still in the index

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return self._index.bytes + self._counts.nbytes if len(self._counts) else 0

    @property
    def has_candidates(self) -> bool:
        """Whether a key is remembered that has to be forgotten when it gets a row."""
        return self._index.num_keys > self._num_admitted

    def _stored(self, keys: Int64s) -> Int64s:
        """The count of each key, 0 for one that is no candidate."""
        places = self._index.find(keys)
        counts = np.zeros(len(keys), np.int64)
        found = places != ABSENT
        counts[found] = self._counts[places[found]]
        return counts

    def are_candidates(self, keys: Int64s) -> Bools:
        """`[n]`, which of some keys are remembered."""
        return self._stored(keys) > 0

    def counts(self, keys: Int64s, *, draws: bool, again: bool) -> Int64s:
        """In how many lookups each of some keys has come, this one included."""
        return np.maximum(self._stored(keys) + (not again), 1)

    def note(self, keys: Int64s, counts: Int64s, admitted: Bools, *, again: bool) -> None:
        """Remember the counts of some distinct keys, and forget those that are admitted."""
        counts = np.where(admitted, 0, counts)
        places = self._index.find(keys)
        known = places != ABSENT
        self._num_admitted += int(np.count_nonzero(self._counts[places[known]]) - np.count_nonzero(counts[known]))
        self._counts[places[known]] = counts[known]
        self._add(keys[~known & ~admitted], counts[~known & ~admitted])
        if self._num_admitted > max(_FEW, self._index.num_keys // 2):
            self._drop_admitted()

    def _add(self, keys: Int64s, counts: Int64s) -> None:
        first, end = self._index.num_keys, self._index.num_keys + len(keys)
        self._index.reserve(end)
        if end > len(self._counts):
            grown = np.zeros(max(2 * len(self._counts), end), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        self._index.settle(len(keys))  # before, for it may be as many as there are
        self._index.insert(keys, np.arange(first, end))
        self._counts[first:end] = counts

    def _drop_admitted(self) -> None:
        counts = self._counts[: self._index.num_keys]
        keep_rows(self._index, counts > 0)
        self._counts, self._num_admitted = counts[counts > 0], 0
        self._index = self._index.shrunk()

    def keys(self) -> Int64s:
        """The candidates, `[n]`, in the order in which they first came."""
        return self._content()[0]

    def _content(self) -> tuple[Int64s, Int64s]:
        counts = self._counts[: self._index.num_keys]
        return self._index.keys_of_rows(0, len(counts))[counts > 0], counts[counts > 0]

    def content(self) -> dict[str, npt.NDArray[Any]]:
        """The candidates in ascending order and their counts, to be stored; nothing if there is none."""
        keys, counts = self._content()
        order = np.argsort(keys)  # places of keys that have waited before differ after a load
        return {"candidates": keys[order], "candidate_counts": counts[order]} if len(keys) else {}

    def load(self, content: Mapping[str, npt.NDArray[Any]]) -> None:
        """Have the candidates of some content, and no others."""
        self._clear()
        if "candidates" in content:
            self._add(content["candidates"], content["candidate_counts"])
