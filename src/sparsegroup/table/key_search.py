"""A search for keys: what it is given, what it finds, and the kernel's run."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.views import array_of
from sparsegroup.table import batch
from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.index import Index
from sparsegroup.table.row_locations import Generation, Int32s, Int64s

GRAIN = 1 << 12
"""Keys, some tens of microseconds of work, below which waking a thread costs more than it does."""


NO_ROW = np.iinfo(np.int64).max
"""Beyond all rows."""


class KeySearch:
    """Keys, and what is known of them so far.

    Args:
        keys: `[n]`.

    Attributes:
        inverse: `[n]` int32, the place of each key among the distinct ones.
        rows: `[n]` int64, the rows of the distinct keys, as many as `count` says; `ABSENT` for none.
        count: `[1]`, how many are distinct.
        out: `[n, dim]`, the vectors of all keys, where they are fetched on the way.
        absent: How many of the distinct keys have no row.
        has_new: Whether keys were given rows after `out` was filled.
        first_new: Rows with this number and beyond belong to keys that have come for the first time.
        earlier: The same search, made before its time, if what it found is no longer so.
        zeroed: The places of keys whose vectors fallback vectors replaced because the keys were new.
    """

    first_new: int = NO_ROW
    earlier: "KeySearch | None" = None
    zeroed: Int64s = np.empty(0, np.int64)

    def __init__(self, keys: Int64s) -> None:
        self.keys = keys
        self.inverse: Int32s = np.empty(len(keys), np.int32)
        self.rows = torch.empty(len(keys), dtype=torch.int64)
        self.count = np.zeros(1, np.int64)
        self.out: Tensor | None = None
        self.absent = 0
        self.has_new = False

    @classmethod
    def with_rows(cls, keys: Int64s, inverse: Int32s, rows: Int64s) -> "KeySearch":
        """One that has ended: the rows of the distinct keys, and each key's place among them."""
        search = cls.__new__(cls)
        search.keys, search.inverse, search.rows = keys, inverse, torch.from_numpy(rows)
        search.count = np.array([len(rows)])
        search.absent = int((rows == ABSENT).sum())
        search.out, search.has_new = None, False
        return search

    def fetch_into(self, out: Tensor | None) -> None:
        """Have the vectors put into `out`; None: fetch none."""
        self.out = out

    def count_given(self, count: int) -> None:
        """So many of the keys that had no row have been given one."""
        self.absent -= count
        self.has_new = True

    def note_new(self, first: int) -> None:
        """Keys that came for the first time have been given the rows from `first` on."""
        self.first_new = min(self.first_new, first)

    @property
    def new_places(self) -> Int64s:
        """Which of the keys have come for the first time: their places, ascending."""
        is_new = array_of(self.distinct_rows) >= self.first_new
        new = np.flatnonzero(is_new[self.inverse]) if is_new.any() else np.empty(0, np.int64)
        return new if self.earlier is None else np.union1d(new, self.earlier.new_places)

    def is_like(self, other: "KeySearch") -> bool:
        """Whether a search of the same keys gave each the same vector."""
        same_rows = np.array_equal(array_of(self.distinct_rows), array_of(other.distinct_rows))
        return same_rows and np.array_equal(self.zeroed, other.zeroed)

    @property
    def distinct_rows(self) -> Tensor:
        """The rows of the distinct keys, without the memory behind them."""
        return self.rows[: int(self.count[0])]


@dataclass(frozen=True)
class RowAddresses:
    """The rows as the search's kernel reaches them in the host's memory.

    Attributes:
        pages: Address of the pages' addresses.
        shift: log2 of the rows of a page.
        row_bytes: Bytes of a row.
    """

    pages: int
    shift: int
    row_bytes: int


_NOWHERE = np.zeros(1, np.int64)
NOWHERE = RowAddresses(_NOWHERE.ctypes.data, 62, 0)
"""For rows that are not in the host's memory: the kernel, which would ask for them, asks for nothing."""


@dataclass(frozen=True)
class NewRowBuffer:
    """Memory on the host in which new rows begin: they themselves, or what will be sent to where they are.

    Attributes:
        addresses: `[p]` int64, of pages.
        shift: log2 of the rows of a page.
        row_bytes: Bytes of a row.
        initial: What the parts after the weights begin with.
    """

    addresses: Int64s
    shift: int
    row_bytes: int
    initial: tuple[float, ...]


@dataclass
class LookAhead:
    """A lookup that has been begun before its time.

    Attributes:
        search: Where it looks, and what it finds.
        insert: Whether new keys may get a row.
        generation: That of the rows that were found; None if the search has failed, or is not done.
        rows: How many there were by then: with more, keys that had none may have one.
    """

    search: KeySearch
    insert: bool
    generation: Generation | None = None
    rows: int = 0

    def end(self, generation: Generation, rows: int) -> None:
        """All is found, as of `generation` with so many rows."""
        self.generation, self.rows = generation, rows

    def is_for(self, keys: Int64s, insert: bool) -> bool:
        """Whether it is the lookup of these keys."""
        return self.insert == insert and np.array_equal(self.search.keys, keys)


def run_search(
    search: KeySearch,
    index: Index,
    scratch: batch.Scratch,
    vectors: npt.NDArray[np.floating],
    rows_at: RowAddresses,
    *,
    finds: bool = True,
    alone: bool = False,
) -> None:
    """Find the rows of the keys, and fetch their vectors where `search.out` is there for them.

    Args:
        search: Changed: all that is found.
        index: Where the keys are looked for.
        scratch: For as many keys, if they are to be found.
        vectors: `[≥ distinct, dim]`, out: of the distinct keys.
        rows_at: Where the vectors are.
        finds: Without it the rows are known already.
        alone: Do not share the work with other threads.
    """
    n, out = len(search.keys), search.out
    absent = threads.share(
        batch.look_up,
        finds,
        out is not None,
        search.keys,
        scratch.seen_for(n),
        scratch.distinct,
        scratch.hashes,
        search.inverse,
        search.count,
        array_of(search.rows),
        index.state,
        index.pages,
        rows_at.pages,
        rows_at.shift,
        rows_at.row_bytes,
        vectors,
        vectors if out is None else array_of(out),
        vectors.dtype.type(0),
        alone=alone or n < GRAIN,
    )
    if finds:
        search.absent = absent
