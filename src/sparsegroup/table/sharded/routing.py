"""Which rank a key belongs to: by its hash to one of a fixed number of buckets, and ranks have ranges of these."""

import secrets
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.table.directory.buckets import mix
from sparsegroup.table.lookup.autograd import Int32s, Int64s
from sparsegroup.table.lookup.kernels import SeenKeys, distinct_in_order

BUCKETS: Literal[4096] = 4096
"""Logical buckets: the most ranks of a table."""

_SALT = np.uint64(0xB0CE_75A1_7C0D_E5D1)
"""Makes it differ from the hashes of a row's initial vector, its admission and its fallback."""

_SHIFT = np.uint64(64 - 12)


def _find_buckets(keys: Any, out: Any) -> None:
    for i in range(len(keys)):
        out[i] = np.int64(mix(np.uint64(keys[i]) ^ _SALT) >> _SHIFT)


_buckets_kernel = kernel(_find_buckets, "the ranks of keys")


@dataclass(frozen=True)
class Routing:
    """Assignment of keys to `ranks` ranks, 1 to `BUCKETS`. Each rank has an even range of buckets."""

    ranks: int
    buckets: Literal[4096] = BUCKETS
    hash: Literal["murmur3-fmix64"] = "murmur3-fmix64"  # `table.directory.buckets.mix` of the key, salted

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


def buckets_of(keys: Int64s) -> Int64s:
    """Return the logical bucket of each key, `[n]`, from 0 to `BUCKETS`: the top bits of the key's hash."""
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


def _distinct(keys: Any, scratch: Any, inverse: Any, secret: Any, guess: int) -> int:
    return distinct_in_order(keys, scratch, inverse, secret, guess)  # type: ignore[no-any-return]


_distinct_kernel = kernel(_distinct, "the keys of a sharded table")


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
        self._scratch = SeenKeys(0)

    def sort(self, keys: Int64s) -> SendPlan:
        """Which keys go where, for `keys` `[n]`."""
        n = len(keys)
        if self._scratch.size < n:
            self._scratch = SeenKeys(n)
        scratch = self._scratch
        inverse = np.empty(n, np.int32)
        count = _distinct_kernel(keys, scratch.arrays, inverse, self._secret, int(scratch.share * n) + 1)
        scratch.share = count / max(n, 1)
        distinct = scratch.distinct[:count]
        owners = self.routing.ranks_of(distinct).astype(np.int16)  # of 16 bits, which NumPy sorts by radix
        order, places = np.argsort(owners, kind="stable"), np.empty(count, np.int32)
        places[order] = np.arange(count, dtype=np.int32)
        if self.nbytes > self._scratch_bytes:
            self._scratch = SeenKeys(0)
        return SendPlan(distinct[order], np.bincount(owners, minlength=self.routing.ranks), places[inverse])

    @property
    def nbytes(self) -> int:
        """Working memory that is kept for the next call."""
        return self._scratch.nbytes
