"""Which rank a key belongs to: by its hash to one of a fixed number of buckets, and ranks have ranges of these."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import jitted, kernel
from sparsegroup.table.hashing import mix
from sparsegroup.table.row_locations import Int64s

BUCKETS = 1 << 12
"""Logical buckets: the most ranks that a table can lie on."""

HASH = "murmur3-fmix64"
"""The name of the hash: `sparsegroup.table.hashing.mix` of the key, salted."""

_SALT = np.uint64(0xB0CE_75A1_7C0D_E5D1)
"""Makes it another hash than those of a row's start, its admission and its fallback."""

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
    """Which of some ranks has a key.

    Attributes:
        ranks: How many there are, 1 to `BUCKETS`.

    Raises:
        ValueError: Too many or too few.

    Examples:
        >>> import numpy as np
        >>> from sparsegroup.table.sharded.routing import Routing
        >>> keys = np.arange(1000)
        >>> np.bincount(Routing(3).ranks_of(keys)).tolist()
        [336, 315, 349]
        >>> Routing(1).ranks_of(keys).any()
        np.False_
    """

    ranks: int

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= BUCKETS:
            raise ValueError(f"a table can lie on 1 to {BUCKETS:,} ranks, got {self.ranks}")

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
        """What a checkpoint says of it."""
        return {"hash": HASH, "buckets": BUCKETS, "ranges": self.edges.tolist()}

    @classmethod
    def of_plain(cls, content: Mapping[str, Any]) -> "Routing":
        """The one of which `as_plain` speaks.

        Raises:
            ValueError: There is none such.
        """
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
