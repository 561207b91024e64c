"""Keys that training has seen and an admission policy has not given a row."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.index import Index

Int64s = npt.NDArray[np.int64]


class WaitingKeys:
    """Keys, and in how many lookups each has come since it last had a row.

    Args:
        huge_pages: See `MappedPages`.
    """

    def __init__(self, huge_pages: bool) -> None:
        self._huge_pages = huge_pages
        self._index = Index(huge_pages, 16)
        self._sights: Int64s = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return self._index.bytes + self._sights.nbytes if len(self._sights) else 0

    @property
    def growth(self) -> tuple[int, int]:
        """Buckets of their index before and after a growth that is under way; the same where none is."""
        return self._index.growth

    def sights(self, keys: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
        """How often each of some keys has come, and whether it has ever waited."""
        places = self._index.find(keys)
        known = places != ABSENT
        sights = np.zeros(len(keys), np.int64)
        sights[known] = self._sights[places[known]]
        return sights, known

    def note(self, keys: Int64s, sights: Int64s) -> None:
        """Set how often some distinct keys have come; 0 for one that has a row now."""
        places = self._index.find(keys)
        known = places != ABSENT
        self._sights[places[known]] = sights[known]
        new = ~known & (sights > 0)
        first, count = self._index.num_keys, int(new.sum())
        self._index.reserve(first + count)
        if first + count > len(self._sights):
            grown = np.zeros(max(2 * len(self._sights), first + count), np.int64)
            grown[: len(self._sights)] = self._sights
            self._sights = grown
        self._index.settle(count)  # before, for it may be as many as there are
        self._index.insert(keys[new], np.arange(first, first + count))
        self._sights[first : first + count] = sights[new]

    def keys(self) -> Int64s:
        """The keys that wait, `[n]`, in the order in which they first came."""
        return self._content()[0]

    def _content(self) -> tuple[Int64s, Int64s]:
        count = self._index.num_keys
        sights = self._sights[:count]
        waits = sights > 0
        return self._index.keys_of_rows(0, count)[waits], sights[waits]

    def content(self) -> dict[str, npt.NDArray[Any]]:
        """The keys that wait, in ascending order, and how often each has come, to be kept; nothing if none does."""
        keys, sights = self._content()
        order = np.argsort(keys)  # places of keys that have waited before differ after a load
        return {"waiting": keys[order], "sights": sights[order]} if len(keys) else {}

    def load(self, content: Mapping[str, npt.NDArray[Any]]) -> None:
        """Know what another one knew.

        Raises:
            ValueError: These cannot be keys that wait.
        """
        keys, sights = (content.get(name, np.zeros(0, np.int64)) for name in ("waiting", "sights"))
        if keys.shape != sights.shape or len(np.unique(keys)) != len(keys) or (sights < 1).any():
            raise ValueError("waiting, sights: distinct keys [w] and positive counts [w] are expected")
        self._index, self._sights = Index(self._huge_pages, 16), np.zeros(0, np.int64)
        self.note(keys, sights)
