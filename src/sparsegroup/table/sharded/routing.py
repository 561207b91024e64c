"""Which rank a key belongs to: by its hash to one of a fixed number of buckets, and ranks have ranges of these."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import jitted, kernel
from sparsegroup.table.directory.buckets import mix
from sparsegroup.table.lookup.autograd import Int32s, Int64s
from sparsegroup.table.lookup.kernels import SeenKeys, distinct_in_order

BUCKETS = 1 << 12
"""Logical buckets: the most ranks of a table."""

HASH = "murmur3-fmix64"
"""The name of the hash: `sparsegroup.table.directory.buckets.mix` of the key, salted."""

_SALT = np.uint64(0xB0CE_75A1_7C0D_E5D1)
"""Makes it differ from the hashes of a row's initial vector, its admission and its fallback."""

_SHIFT = np.uint64(64 - 12)


@jitted
def bucket_of(key: Any) -> Any:
    """The logical bucket of an int64 key: the top bits of its hash."""
    return np.int64(mix(np.uint64(key) ^ _SALT) >> _SHIFT)


def _find_buckets(keys: Any, out: Any) -> None:
    for i in range(len(keys)):
        out[i] = bucket_of(keys[i])


_buckets_kernel = kernel(_find_buckets, "the ranks of keys")


@dataclass(frozen=True)
class Routing:
    """Which of `ranks` ranks, 1 to `BUCKETS`, has a key."""

    ranks: int

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= BUCKETS:
            raise ValueError(f"a table can be divided among 1 to {BUCKETS:,} ranks, got {self.ranks}")

    @property
    def edges(self) -> Int64s:
        """`[ranks + 1]`: rank r has the buckets from edges[r] up to edges[r + 1]."""
        return -(-np.arange(self.ranks + 1) * BUCKETS // self.ranks)

    def range_of(self, rank: int) -> range:
        """The buckets of a rank."""
        first, end = self.edges[rank : rank + 2]
        return range(int(first), int(end))

    def ranks_of(self, keys: Int64s) -> npt.NDArray[np.int64]:
        """The rank of each key, `[n]`."""
        return buckets_of(keys) * self.ranks // BUCKETS

    def as_plain(self) -> dict[str, Any]:
        """Its description in a checkpoint."""
        return {"hash": HASH, "buckets": BUCKETS, "ranges": self.edges.tolist()}

    @classmethod
    def of_plain(cls, content: Mapping[str, Any]) -> "Routing":
        """The routing with this description. Raises ValueError if there is none."""
        found = cls(len(content["ranges"]) - 1)
        if dict(content) != found.as_plain():
            raise ValueError(
                f"a table is routed by {HASH} over {BUCKETS:,} buckets in even ranges, got {content['hash']!r} over "
                f"{content['buckets']!r}"
            )
        return found


def buckets_of(keys: Int64s) -> Int64s:
    """The logical bucket of each key, `[n]`, from 0 to `BUCKETS`."""
    out = np.empty(len(keys), np.int64)
    _buckets_kernel(np.ascontiguousarray(keys), out)
    return out


def are_in(keys: Int64s, buckets: range) -> npt.NDArray[np.bool_]:
    """Which keys have their logical bucket in a range, `[n]`."""
    if len(buckets) == BUCKETS:
        return np.ones(len(keys), np.bool_)
    own = buckets_of(keys)
    inside: npt.NDArray[np.bool_] = (buckets.start <= own) & (own < buckets.stop)
    return inside


def _sort_by_rank(
    keys: Any, scratch: Any, owners: Any, ends: Any, outgoing: Any, inverse: Any, secret: Any, guess: int
) -> int:
    """Write the distinct `keys` `[n]`, sorted by rank, into `outgoing`; gives their number.

    `ends` `[ranks]` becomes where the keys of each rank end, and `inverse` `[n]` the place of each key in `outgoing`.
    `secret` is that of the hash, `guess` about how many keys are distinct; `SeenKeys.arrays` and `owners` `[n]` are
    scratch memory.
    """
    count = distinct_in_order(keys, scratch, inverse, secret, guess)
    distinct, places = scratch[1], scratch[2]
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
class SendPlan:
    """The distinct keys of a batch, in the order of the ranks that they belong to."""

    keys: Int64s  # `[distinct]`, rank 0's first; of one rank, in the order in which they appeared
    counts: Int64s  # `[ranks]`, how many belong to each
    inverse: Int32s  # `[n]`, the place among them of each key that was looked up


class Sorter:
    """Sorts keys by the ranks that they belong to; retains at most `scratch_bytes` of memory for the next call."""

    def __init__(self, routing: Routing, scratch_bytes: int) -> None:
        self.routing, self._scratch_bytes = routing, scratch_bytes
        self._secret = np.uint64(secrets.randbits(64)), np.uint64(secrets.randbits(64) | 1)
        self._scratch, self._owners = SeenKeys(0), np.empty(0, np.int64)

    def sort(self, keys: Int64s) -> SendPlan:
        """Which keys go where, for `keys` `[n]`."""
        n = len(keys)
        if self._scratch.size < n:
            self._scratch, self._owners = SeenKeys(n), np.empty(n, np.int64)
        scratch = self._scratch
        ends, inverse = np.empty(self.routing.ranks, np.int64), np.empty(n, np.int32)
        outgoing = np.empty(n, np.int64)
        guess = int(scratch.share * n) + 1
        count = _sort(keys, scratch.arrays, self._owners, ends, outgoing, inverse, self._secret, guess)
        scratch.share = count / max(n, 1)
        if self.nbytes > self._scratch_bytes:
            self._scratch, self._owners = SeenKeys(0), np.empty(0, np.int64)
        return SendPlan(outgoing[:count].copy(), np.diff(ends, prepend=0), inverse)

    @property
    def nbytes(self) -> int:
        """Working memory that is kept for the next call."""
        return self._scratch.nbytes + self._owners.nbytes
