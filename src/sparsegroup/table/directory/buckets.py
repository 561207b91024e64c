"""Buckets of keys in memory, as the kernels of the index and of a lookup read and write them: see `index`."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.intrinsics import allocate, match_4, release
from sparsegroup.kernels.cpu.jit import array_at, jitted, kernel, load, store


@jitted
def mix(key: Any) -> Any:
    """A bijection of 64-bit numbers in which every bit depends on every bit (the finalizer of MurmurHash3)."""
    key = (key ^ (key >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    key = (key ^ (key >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return key ^ (key >> np.uint64(33))


def mixed(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """`mix` of each key, `[n]`."""
    out = np.empty(len(keys), np.uint64)
    _mix_kernel(keys, out)
    return out


def _mix_all(keys: Any, out: Any) -> None:
    for i in range(len(keys)):
        out[i] = mix(np.uint64(keys[i]))


_mix_kernel = kernel(_mix_all, "the table's keys (mixing)")


BUCKET_BYTES = 64
SHIFT = 17
PAGE_BUCKETS = 1 << SHIFT
SLACK = 1 << 12
"""Buckets after the last home, for what is displaced beyond it."""
# The state of an index, an int64 array that the kernels read and write. Home buckets are where searches begin.
OLD = 0  # home buckets before the growth that is under way
NEW = 1  # home buckets after it; as many as OLD if none is under way
FRONTIER = 2  # from this bucket on, keys of old homes have been moved to new homes; PHYSICAL between growths
COUNT = 3  # keys
PHYSICAL = 4  # buckets in memory, with those after the last home
MASK, FACTOR = 5, 6  # the secret of `hash_of`
STATE_LENGTH = 7

MOST_ROWS = 10_000_000_000
"""An index of more would grow beyond 2³² buckets, and a hash has only 32 bits."""

ABSENT = -1

AHEAD = 48
"""How many keys ahead memory is asked for: as many as are looked up while it comes."""


@jitted
def secret_of(state: Any) -> Any:
    """Return what `hash_of` reads of the state, for loops."""
    return np.uint64(state[MASK]), np.uint64(state[FACTOR])


@jitted
def hash_of(key: Any, secret: Any) -> Any:
    """Return the order of a key in the index, int64 in [0, 2³²).

    Multiplication by a secret odd number is universal: two keys share the upper 32 bits with probability 2⁻³¹ at most,
    whatever they are (Dietzfelbinger et al. 1997, A reliable randomized algorithm for the closest-pair problem). The
    secret mask and the mixing before it take away what structure one could give the keys for it.
    """
    mask, factor = secret
    return np.int64((mix(np.uint64(key) ^ mask) * factor) >> np.uint64(32))


@jitted
def sizes_of(state: Any) -> Any:
    """Return what `home` reads of the state, for loops that don't change it."""
    return state[OLD], state[NEW], state[FRONTIER]


@jitted
def home(hashed: Any, sizes: Any) -> Any:
    """Return the bucket at which the search for a key begins."""
    old, new, frontier = sizes
    bucket = _scaled(hashed, old)
    return bucket if bucket < frontier else _scaled(hashed, new)


@jitted
def _scaled(hashed: Any, buckets: Any) -> Any:
    """hashed · buckets / 2³²; unsigned, because int64 overflows from 2³¹ buckets."""
    return np.int64((np.uint64(hashed) * np.uint64(buckets)) >> np.uint64(32))


@jitted
def bucket_address(bucket: Any, pages: Any) -> Any:
    """Return the address of a bucket; `pages` is the address of the pages' addresses."""
    return load(pages + ((bucket >> SHIFT) << 3)) + ((bucket & (PAGE_BUCKETS - 1)) << 6)


@jitted
def is_full(bucket: Any, pages: Any) -> bool:
    full: bool = load(bucket_address(bucket, pages) + 56) != 0
    return full


@jitted
def put(key: Any, row_plus_1: Any, hashed: Any, state: Any, pages: Any) -> bool:
    """Add a key that is not there. False if the slack ran out."""
    bucket = home(hashed, sizes_of(state))
    while bucket < state[PHYSICAL] - 1:  # the last one stays empty: there every search ends
        if not is_full(bucket, pages):
            address = bucket_address(bucket, pages)
            # The slots before the first empty one, added up without branches, which could not be predicted.
            taken = (load(address + 8) != 0) + (load(address + 24) != 0) + (load(address + 40) != 0)
            slot = address + (taken << 4)
            store(slot, key)
            store(slot + 8, row_plus_1)
            return True
        bucket += 1
    return False


@jitted
def stretch(budget: Any, state: Any, pages: Any) -> bool:
    """Move the frontier down by at least `budget` buckets, or to the end. False if it needs more slack for that."""
    while budget > 0 and state[FRONTIER] <= state[OLD]:
        # Runs of full buckets are moved whole: no key outside [begin, end) is looked for through it.
        begin = max(state[FRONTIER] - min(budget, 1024), 0)
        while begin > 0 and is_full(begin - 1, pages):
            begin -= 1
        end = state[FRONTIER]
        while end < state[PHYSICAL] and is_full(end, pages):
            end += 1
        end = min(end + 1, state[PHYSICAL])
        # What is put back may lengthen the run behind the last home by as much as is taken out.
        last = max(state[NEW] - 1, end)
        while last < state[PHYSICAL] and is_full(last, pages):
            last += 1
        if last + (end - begin) + 2 >= state[PHYSICAL]:
            return False
        memory = allocate(64 * (end - begin) + 16)
        if memory == 0:
            raise MemoryError
        taken = array_at(memory, 8 * (end - begin) + 2, np.int64(0))
        count = 0
        for bucket in range(begin, end):
            slot = bucket_address(bucket, pages)
            for _ in range(4):
                taken[2 * count], taken[2 * count + 1] = load(slot), load(slot + 8)  # over an empty slot goes the next
                count += load(slot + 8) != 0
                store(slot, 0)
                store(slot + 8, 0)
                slot += 16
        budget -= state[FRONTIER] - begin
        state[FRONTIER] = begin
        secret = secret_of(state)
        for i in range(count):
            put(taken[2 * i], taken[2 * i + 1], hash_of(taken[2 * i], secret), state, pages)
        release(memory)
        if begin == 0:
            state[OLD] = state[NEW]
            state[FRONTIER] = state[PHYSICAL]
    return True


@jitted
def row_at_home(address: Any, key: Any) -> Any:
    """Return the row of a key in its home bucket at `address`, or `ABSENT`, and whether it may be in a later bucket.

    An empty slot, all 0, matches key 0 and adds nothing.
    """
    row_plus_1 = match_4(address, key)
    return row_plus_1 - 1, (row_plus_1 == 0) & (load(address + 56) != 0)


@jitted
def row_beyond(key: Any, hashed: Any, sizes: Any, pages: Any) -> Any:
    """Return the row of a key that is not in its home bucket, or `ABSENT`."""
    bucket = home(hashed, sizes) + 1
    while True:
        address = bucket_address(bucket, pages)
        row_plus_1 = match_4(address, key)
        if row_plus_1 != 0 or load(address + 56) == 0:
            return row_plus_1 - 1
        bucket += 1


@jitted
def find(key: Any, hashed: Any, sizes: Any, pages: Any) -> Any:
    """Return the row of a key, or `ABSENT`."""
    row, beyond = row_at_home(bucket_address(home(hashed, sizes), pages), key)
    return row_beyond(key, hashed, sizes, pages) if beyond else row


@jitted
def insert(key: Any, row: Any, hashed: Any, state: Any, pages: Any) -> bool:
    """Add a key that is not there. False if the slack ran out."""
    if not put(key, row + 1, hashed, state, pages):
        return False
    state[COUNT] += 1
    return True
