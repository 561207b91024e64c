"""The distinct keys of a batch, put in the order of the ranks that they belong to."""

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.table.batch import distinct_in_order, slots_for
from sparsegroup.table.row_locations import Int32s, Int64s
from sparsegroup.table.sharded.routing import BUCKETS, Routing, bucket_of


def _sort_by_rank(
    keys: Any, seen: Any, mask: Any, factor: Any, distinct: Any, places: Any, owners: Any, ends: Any, outgoing: Any,
    inverse: Any,
) -> int:  # fmt: skip
    """The distinct keys, sorted by their ranks, in `outgoing`, and the place there of each key. Gives their number.

    Args:
        keys: `[n]` int64.
        seen: `[2**k]` int32, scratch memory for at least 2 n.
        mask, factor: Secret of the scratch table's hash, uint64; `factor` is odd.
        distinct, places, owners: `[n]` int64, scratch memory.
        ends: `[ranks]` int64, out: where the keys of each rank end.
        outgoing: `[n]` int64, out.
        inverse: `[n]` int32, out.
    """
    count = distinct_in_order(keys, seen, distinct, places, inverse, (mask, factor))
    ranks = len(ends)
    ends[:] = 0
    for k in range(count):
        owner = bucket_of(distinct[k]) * ranks // BUCKETS
        owners[k] = owner
        ends[owner] += 1
    begin = 0
    for rank in range(ranks):
        its = ends[rank]
        ends[rank] = begin
        begin += its
    for k in range(count):
        place = ends[owners[k]]
        ends[owners[k]] = place + 1
        outgoing[place] = distinct[k]
        places[k] = place
    for i in range(len(keys)):
        inverse[i] = places[inverse[i]]
    return count  # type: ignore[no-any-return]


_sort = kernel(_sort_by_rank, "the keys of a sharded table")


@dataclass(frozen=True)
class Outgoing:
    """What a rank asks the others for.

    Attributes:
        keys: `[distinct]`, those of rank 0 first; of one rank, in the order in which they came.
        counts: `[ranks]`, how many belong to each.
        inverse: `[n]`, the place among them of each key that was looked up.
    """

    keys: Int64s
    counts: Int64s
    inverse: Int32s


class Sorter:
    """Sorts keys by the ranks that they belong to.

    Args:
        routing: Says which.
        scratch_bytes: Working memory that is kept for the next call, at most.
    """

    def __init__(self, routing: Routing, scratch_bytes: int) -> None:
        self.routing, self._scratch_bytes = routing, scratch_bytes
        self._secret = np.uint64(secrets.randbits(64)), np.uint64(secrets.randbits(64) | 1)
        self._scratch = np.empty((3, 0), np.int64)
        self._seen = np.empty(0, np.int32)

    def sort(self, keys: Int64s) -> Outgoing:
        """What is to be asked of whom for `keys` `[n]`."""
        n = len(keys)
        if self._scratch.shape[1] < n or not len(self._seen):
            self._scratch, self._seen = np.empty((3, n), np.int64), np.empty(slots_for(n), np.int32)
        distinct, places, owners = self._scratch
        ends, inverse = np.empty(self.routing.ranks, np.int64), np.empty(n, np.int32)
        outgoing = np.empty(n, np.int64)
        seen = self._seen[: slots_for(n)]
        count = _sort(keys, seen, *self._secret, distinct, places, owners, ends, outgoing, inverse)
        if self.nbytes > self._scratch_bytes:
            self._scratch, self._seen = np.empty((3, 0), np.int64), np.empty(0, np.int32)
        return Outgoing(outgoing[:count].copy(), np.diff(ends, prepend=0), inverse)

    @property
    def nbytes(self) -> int:
        """Working memory that is kept for the next call."""
        return self._scratch.nbytes + self._seen.nbytes
