"""Taking keys out of an index where it is: nothing is copied aside, whatever its size."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import jitted, kernel, load, store
from sparsegroup.table.buckets import COUNT, PHYSICAL, bucket_address, hash_of, put, secret_of
from sparsegroup.table.index import Index

Int64s = npt.NDArray[np.int64]

_WORD = 64
"""Rows of the mask in a word of bits, before each of which it is noted how many stay."""


def keep_rows(index: Index, kept: npt.NDArray[np.bool_]) -> tuple[Int64s, Int64s]:
    """Keep the rows of the mask `[num_keys]`, renumbered in their order; the index stays as large as it is.

    Returns:
        Keys and former rows of the others, in no particular order.
    """
    words = np.zeros(-(-len(kept) // _WORD), np.uint64)
    bits = np.packbits(kept, bitorder="little")
    words.view(np.uint8)[: len(bits)] = bits  # little-endian, as the machines are that the kernels are compiled for
    before = np.zeros(len(words) + 1, np.int64)
    _count_kernel(words, before)
    gone = len(kept) - int(before[-1])
    keys, rows = np.empty(gone, np.int64), np.empty(gone, np.int64)
    _keep_kernel(words, before, index.state, index.pages, keys, rows)
    return keys, rows


@jitted
def ones(word: Any) -> Any:
    """How many bits of a uint64 are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


def _count_all(words: Any, before: Any) -> None:
    for i in range(len(words)):
        before[i + 1] = before[i] + ones(words[i])


def _keep_all(words: Any, before: Any, state: Any, pages: Any, gone_keys: Any, gone_rows: Any) -> None:
    """Bucket after bucket is emptied, and what stays is put back.

    It goes where it lay or further down, never up: its home is at or below its bucket, which has room again. Buckets
    that have been passed lose nothing any more, so that what lies behind full ones is found.
    """
    secret = secret_of(state)
    gone = stayed = 0
    taken = np.empty((4, 2), np.int64)
    for bucket in range(state[PHYSICAL]):
        slot = bucket_address(bucket, pages)
        count = 0
        for _ in range(4):
            key, row = load(slot), load(slot + 8) - 1
            if row >= 0:
                store(slot, 0)
                store(slot + 8, 0)
                if (words[row >> 6] >> np.uint64(row & 63)) & np.uint64(1):
                    taken[count, 0], taken[count, 1] = key, row
                    count += 1
                else:
                    gone_keys[gone], gone_rows[gone] = key, row
                    gone += 1
            slot += 16
        for i in range(count):
            key, row = taken[i, 0], taken[i, 1]
            earlier = words[row >> 6] & ((np.uint64(1) << np.uint64(row & 63)) - np.uint64(1))
            number = before[row >> 6] + ones(earlier)
            put(key, number + 1, hash_of(key, secret), state, pages)
        stayed += count
    state[COUNT] = stayed


_count_kernel = kernel(_count_all, "the table's index (counting)")
_keep_kernel = kernel(_keep_all, "the table's index (removal)")
