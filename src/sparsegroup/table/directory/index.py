"""The index: 64-bit key → row, in one open-addressed table that grows in place, a little at a time.

A slot is 16 bytes: the key, and its row + 1, so that a zeroed page is empty slots and every 64-bit key is valid. Four
slots, a cache line, are a bucket; they are compared without branches, and filled from the first on. A key that finds
its home bucket full is in the next one that is not.

A key's home is `hash · buckets / 2³²`, so the table is in the order of its hashes, and a larger table is the same
order stretched: every home moves up. It can therefore grow where it is, from its upper end down. Homes below the
*frontier* are still of the old size, those above it of the new one; each insertion moves the frontier a few buckets
further. Nothing is copied aside, no step pays for the whole, and a large table is between 50 % and 75 % full whatever
its size.

The hash has a secret that each index draws for itself, so that no forged log can make its keys share homes. No
result depends on it, and no file holds it.
"""

import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import jitted, kernel, load, prefetch, store
from sparsegroup.table.directory.buckets import (
    ABSENT,
    AHEAD,
    BUCKET_BYTES,
    COUNT,
    FACTOR,
    FRONTIER,
    MASK,
    NEW,
    OLD,
    PAGE_BUCKETS,
    PHYSICAL,
    SLACK,
    STATE_LENGTH,
    bucket_address,
    find,
    hash_of,
    home,
    insert,
    put,
    secret_of,
    sizes_of,
    stretch,
)
from sparsegroup.table.rows.pages import MappedPages

Int64s = npt.NDArray[np.int64]


KEYS_PER_BUCKET, _GROWTH, _FIRST_BUCKETS = 0.75 * 4, 1.5, 1 << 10
_SPEED = 4
"""Buckets that the frontier moves per key inserted: it arrives long before the next stretch is due."""

_LEAST_AHEAD = 1 << 15
"""Buckets, 2 MiB of them."""


def _insert_all(keys: Any, rows: Any, state: Any, pages: Any) -> int:
    """Insert keys. Return the number of inserted keys; -1 - i if key i is there already."""
    sizes, secret = sizes_of(state), secret_of(state)
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            prefetch(bucket_address(home(hash_of(keys[i + AHEAD], secret), sizes), pages))
        hashed = hash_of(keys[i], secret)
        if find(keys[i], hashed, sizes, pages) != ABSENT:
            return -1 - i
        if not insert(keys[i], rows[i], hashed, state, pages):
            return i
    return len(keys)


def _find_all(keys: Any, state: Any, pages: Any, rows: Any) -> None:
    sizes, secret = sizes_of(state), secret_of(state)
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            prefetch(bucket_address(home(hash_of(keys[i + AHEAD], secret), sizes), pages))
        rows[i] = find(keys[i], hash_of(keys[i], secret), sizes, pages)


def _scan(first: int, last: int, state: Any, pages: Any, keys: Any, rows: Any) -> int:
    count = 0
    for bucket in range(first, last):
        slot = bucket_address(bucket, pages)
        for _ in range(4):
            if load(slot + 8) != 0:
                keys[count], rows[count] = load(slot), load(slot + 8) - 1
                count += 1
            slot += 16
    return count


@jitted
def end_of_keys(state: Any, pages: Any) -> Any:
    """Return the end of the buckets that may hold a key.

    Keys overflow from the home buckets into the run of full buckets after them, and into one more bucket.
    """
    end = state[NEW]
    while end < state[PHYSICAL] and load(bucket_address(end - 1, pages) + 56) != 0:
        end += 1
    return end


def _end(state: Any, pages: Any) -> Any:
    return end_of_keys(state, pages)


def _keys_of_rows(first: int, last: int, state: Any, pages: Any, keys: Any) -> None:
    """Write the keys of the rows first, …, last - 1 into `keys`."""
    for bucket in range(end_of_keys(state, pages)):
        slot = bucket_address(bucket, pages)
        for _ in range(4):
            row = load(slot + 8) - 1
            if first <= row < last:
                keys[row - first] = load(slot)
            slot += 16


def _stretch(budget: int, state: Any, pages: Any) -> bool:
    return bool(stretch(budget, state, pages))


_insert_kernel = kernel(_insert_all, "the table's index (insert)")
_find_kernel = kernel(_find_all, "the table's index (find)")
_scan_kernel = kernel(_scan, "the table's index (scan)")
_keys_kernel = kernel(_keys_of_rows, "the table's index (keys)")
_end_kernel = kernel(_end, "the table's index (end)")
_stretch_kernel = kernel(_stretch, "the table's index (growth)")


class Index:
    """64-bit keys → rows. Kernels read and write `state`, and find the pages' addresses at the address `pages`.

    It begins with `buckets`; `secret` is the mask and the odd factor of the hash, uint64, drawn if it is None.
    """

    def __init__(self, huge_pages: bool, buckets: int = _FIRST_BUCKETS, secret: tuple[int, int] | None = None) -> None:
        self._huge_pages = huge_pages
        self._pages = MappedPages(PAGE_BUCKETS * BUCKET_BYTES, huge_pages)
        self.state: Int64s = np.zeros(STATE_LENGTH, np.int64)
        mask, factor = secret or (secrets.randbits(64), secrets.randbits(64) | 1)
        self.state[[MASK, FACTOR]] = np.array([mask, factor], np.uint64).view(np.int64)
        self._lay_out(buckets)
        self.state[OLD] = buckets
        self.state[FRONTIER] = self.state[PHYSICAL]

    @property
    def num_keys(self) -> int:
        return int(self.state[COUNT])

    @property
    def bytes(self) -> int:
        return (int(self.state[NEW]) + SLACK) * BUCKET_BYTES

    @property
    def buckets(self) -> int:
        """Homes, including those of a growth that is under way."""
        return int(self.state[NEW])

    def _buckets_for(self, count: int) -> int:
        buckets = int(self.state[NEW])
        if count <= KEYS_PER_BUCKET * buckets:
            return buckets
        return max(int(buckets * (_GROWTH if buckets > 1 << 18 else 2)), int(count / KEYS_PER_BUCKET * 1.1))

    @staticmethod
    def buckets_for(count: int) -> int:
        """Return the buckets of an index of `count` keys that has grown no further than necessary."""
        return max(_FIRST_BUCKETS, int(count / KEYS_PER_BUCKET * 1.1))

    def with_buckets(self, buckets: int) -> "Index":
        """Return an index of this many buckets, which must suffice, with the same keys: itself, if it has as many."""
        if buckets == self.buckets:
            return self
        other = Index(self._huge_pages, buckets)
        for keys, rows in self.scan():
            other.insert(keys, rows)
        return other

    def shrunk(self) -> "Index":
        """Return an index half as large, or smaller, with the same keys, if that is enough; else itself."""
        least = Index.buckets_for(self.num_keys)
        return self.with_buckets(least) if 2 * least <= self.buckets else self

    def reserve(self, count: int) -> None:
        """Make room for `count` keys in all; MemoryError changes nothing."""
        while (buckets := self._buckets_for(count)) > self.state[NEW]:
            self._stretch(int(self.state[OLD]) + 1)  # to the end; it has arrived long since, but in a small table
            self._lay_out(buckets)
        if 8 * (count - self.num_keys) > self.num_keys:  # more at a time than the frontier keeps pace with
            self._stretch(int(self.state[OLD]) + 1)

    def settle(self, inserted: int) -> None:
        """Continue the growth, in proportion to the keys just inserted."""
        if inserted and self.state[OLD] != self.state[NEW]:
            self._stretch(_SPEED * inserted)
            self._prefault(2 * _SPEED * inserted)

    def _prefault(self, budget: int) -> None:
        """Prefault the memory that the next `budget` buckets of a growth move to, from the upper end down."""
        old, new, frontier = (int(self.state[place]) for place in (OLD, NEW, FRONTIER))
        if frontier <= old:
            fresh, end = old + SLACK, frontier * new // old
            self._pages.prefault(max(fresh, end - max(budget, _LEAST_AHEAD)) * BUCKET_BYTES, end * BUCKET_BYTES)

    def _lay_out(self, buckets: int) -> None:
        self._pages.reserve((buckets + SLACK) * BUCKET_BYTES)
        self._note_pages()
        self.state[[NEW, FRONTIER]] = buckets, self.state[OLD]  # one statement, which no signal interrupts

    def _note_pages(self) -> None:
        pages = self._pages
        # One statement, which no signal interrupts: kernels read the memory at `pages`, which `_addresses` owns.
        self._addresses, self.pages, self.state[PHYSICAL] = pages.addresses, pages.place, len(pages) * PAGE_BUCKETS

    def extend(self) -> None:
        """Add slack: the keys at the upper end don't fit behind their homes.

        Only keys made for it do that; they are found all the same, if slowly.
        """
        self._pages.resize(len(self._pages) + 1)
        settled = self.state[FRONTIER] > self.state[OLD]
        self._note_pages()
        if settled:
            self.state[FRONTIER] = self.state[PHYSICAL]

    def _stretch(self, budget: int) -> None:
        if self.state[FRONTIER] > self.state[OLD]:  # no growth is under way
            return
        while not _stretch_kernel(budget, self.state, self.pages):
            self.extend()

    def insert(self, keys: Int64s, rows: Int64s) -> None:
        """Add keys that are not there yet, after `reserve`; ValueError if one is: those before it are added."""
        while (done := _insert_kernel(keys, rows, self.state, self.pages)) < len(keys):
            if done < 0:
                raise ValueError(f"key {keys[-1 - done]} appears twice")
            self.extend()
            keys, rows = keys[done:], rows[done:]

    def find(self, keys: Int64s) -> Int64s:
        """Rows of keys, `ABSENT` where a key has none."""
        rows = np.empty(len(keys), np.int64)
        _find_kernel(keys, self.state, self.pages, rows)
        return rows

    def keys_of_rows(self, first: int, last: int) -> Int64s:
        """Return the keys of rows first, …, last - 1, in the order of the rows."""
        keys = np.empty(last - first, np.int64)
        _keys_kernel(first, last, self.state, self.pages, keys)
        return keys

    def scan(self, at_most: int = 1 << 20) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield all `(keys, rows)`, at most `at_most` ≥ 4 at a time. The index must not change."""
        step = at_most // 4
        end = _end_kernel(self.state, self.pages)
        for first in range(0, end, step):
            last = min(first + step, end)
            keys, rows = np.empty(4 * (last - first), np.int64), np.empty(4 * (last - first), np.int64)
            count = _scan_kernel(first, last, self.state, self.pages, keys, rows)
            yield keys[:count], rows[:count]


_WORD = 64
"""Rows of the mask in a word of bits, before each of which it is noted how many stay."""


class Removal:
    """Removal of all rows of an index outside the mask `[num_keys]`; `run` allocates no memory.

    Attributes:
        keys, rows: `[removed]` int64, keys and numbers of the removed rows, in the order of the index.
    """

    def __init__(self, index: Index, kept: npt.NDArray[np.bool_]) -> None:
        self._index = index
        words = np.zeros(-(-len(kept) // _WORD), np.uint64)
        bits = np.packbits(kept, bitorder="little")
        words.view(np.uint8)[: len(bits)] = bits  # little-endian, as the machines are that the kernels are compiled for
        before = np.zeros(len(words) + 1, np.int64)
        if len(kept):
            np.cumsum(np.add.reduceat(kept, np.arange(0, len(kept), _WORD), dtype=np.int64), out=before[1:])
        self._words, self._before = words, before
        removed = len(kept) - int(before[-1])
        self.keys, self.rows = np.empty(removed, np.int64), np.empty(removed, np.int64)
        _find_removed_kernel(words, index.state, index.pages, self.keys, self.rows)

    def run(self) -> None:
        """Remove the rows, and renumber the other rows in their order. The index keeps its size."""
        _keep_kernel(self._words, self._before, self._index.state, self._index.pages)


@jitted
def ones(word: Any) -> Any:
    """Return the number of set bits of a uint64."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@jitted
def _is_kept(row: Any, words: Any) -> Any:
    return (words[row >> 6] >> np.uint64(row & 63)) & np.uint64(1)


def _find_removed(words: Any, state: Any, pages: Any, keys: Any, rows: Any) -> None:
    removed = 0
    for bucket in range(end_of_keys(state, pages)):
        slot = bucket_address(bucket, pages)
        for _ in range(4):
            row = load(slot + 8) - 1
            if row >= 0 and not _is_kept(row, words):
                keys[removed], rows[removed] = load(slot), row
                removed += 1
            slot += 16


def _keep_all(words: Any, before: Any, state: Any, pages: Any) -> None:
    """Bucket after bucket is emptied, and what stays is put back.

    It goes where it lay or further down, never up: its home is at or below its bucket, which has room again. Buckets
    that have been passed lose nothing, so that what is behind full ones is found.
    """
    secret = secret_of(state)
    stayed = 0
    taken = np.empty((4, 2), np.int64)
    for bucket in range(end_of_keys(state, pages)):
        slot = bucket_address(bucket, pages)
        count = 0
        for _ in range(4):
            key, row = load(slot), load(slot + 8) - 1
            if row >= 0:
                store(slot, 0)
                store(slot + 8, 0)
                if _is_kept(row, words):
                    taken[count, 0], taken[count, 1] = key, row
                    count += 1
            slot += 16
        for i in range(count):
            key, row = taken[i, 0], taken[i, 1]
            earlier = words[row >> 6] & ((np.uint64(1) << np.uint64(row & 63)) - np.uint64(1))
            number = before[row >> 6] + ones(earlier)
            put(key, number + 1, hash_of(key, secret), state, pages)
        stayed += count
    state[COUNT] = stayed


_find_removed_kernel = kernel(_find_removed, "the table's index (rows to remove)")
_keep_kernel = kernel(_keep_all, "the table's index (removal)")
