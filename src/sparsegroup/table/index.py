"""The index: 64-bit key → row, in one open-addressed table that grows in place, a little at a time.

A slot is 16 bytes: the key, and its row + 1, so that a zeroed page is empty slots and every 64-bit key is valid. Four
slots, a cache line, are a bucket; they are compared without branches, and filled from the first on. A key that finds
its home bucket full lies in the next one that is not.

A key's home is `hash · buckets / 2³²`, so the table lies in the order of its hashes, and a larger table is the same
order stretched: every home moves up. It can therefore grow where it is, from its upper end down. Homes below the
*frontier* are still in the old measure, those above it in the new one; each insertion moves the frontier a few buckets
further. Nothing is copied aside, no step pays for the whole, and a large table is between 60 % and 75 % full whatever
its size.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import jitted, kernel, load, prefetch, store
from sparsegroup.table.hashing import mix
from sparsegroup.table.pages import MappedPages

Int64s = npt.NDArray[np.int64]

BUCKET_BYTES = 64
_SHIFT = 17
_PAGE_BUCKETS = 1 << _SHIFT
SLACK = 1 << 12
"""Buckets after the last home, for what is displaced beyond it."""
KEYS_PER_BUCKET, _GROWTH, _FIRST_BUCKETS = 0.75 * 4, 1.25, 1 << 10
_SPEED = 4
"""Buckets that the frontier moves per key inserted: it arrives long before the next stretch is due."""

# The state of an index, an int64 array that the kernels read and write.
_OLD, _NEW, _FRONTIER, COUNT, PHYSICAL, _STATE = 0, 1, 2, 3, 4, 5

ABSENT = -1

AHEAD = 24
"""How many keys ahead memory is asked for."""


@jitted
def hash_of(key: Any) -> Any:
    """The order of a key in the index, int64 in [0, 2³²)."""
    return np.int64(mix(np.uint64(key)) >> np.uint64(32))


@jitted
def measure(state: Any) -> Any:
    """What `home` reads of the state, for loops that don't change it."""
    return state[_OLD], state[_NEW], state[_FRONTIER]


@jitted
def home(hashed: Any, measure: Any) -> Any:
    """The bucket at which the search for a key begins."""
    old, new, frontier = measure
    bucket = (hashed * old) >> 32
    return bucket if bucket < frontier else (hashed * new) >> 32


@jitted
def bucket_address(bucket: Any, pages: Any) -> Any:
    """Where a bucket is; `pages` is the address of the pages' addresses."""
    return load(pages + ((bucket >> _SHIFT) << 3)) + ((bucket & (_PAGE_BUCKETS - 1)) << 6)


@jitted
def _row_plus_1(address: Any, key: Any) -> Any:
    """The row + 1 of `key` in the bucket at `address`, or 0. An empty slot, all 0, matches key 0 and adds nothing."""
    a = load(address + 8) & -np.int64(load(address) == key)
    b = load(address + 24) & -np.int64(load(address + 16) == key)
    c = load(address + 40) & -np.int64(load(address + 32) == key)
    d = load(address + 56) & -np.int64(load(address + 48) == key)
    return (a | b) | (c | d)


@jitted
def _is_full(bucket: Any, pages: Any) -> bool:
    full: bool = load(bucket_address(bucket, pages) + 56) != 0
    return full


@jitted
def put(key: Any, row_plus_1: Any, hashed: Any, state: Any, pages: Any) -> bool:
    """Add a key that is not there. False if the slack ran out."""
    bucket = home(hashed, measure(state))
    while bucket < state[PHYSICAL] - 1:  # the last one stays empty: there every search ends
        if not _is_full(bucket, pages):
            slot = bucket_address(bucket, pages)
            while load(slot + 8) != 0:
                slot += 16
            store(slot, key)
            store(slot + 8, row_plus_1)
            return True
        bucket += 1
    return False


@jitted
def stretch(budget: Any, state: Any, pages: Any) -> bool:
    """Move the frontier down by at least `budget` buckets, or to the end. False if it needs more slack for that."""
    while budget > 0 and state[_FRONTIER] <= state[_OLD]:
        # Runs of full buckets are moved whole: no key outside [begin, end) is looked for through it.
        begin = max(state[_FRONTIER] - min(budget, 1024), 0)
        while begin > 0 and _is_full(begin - 1, pages):
            begin -= 1
        end = state[_FRONTIER]
        while end < state[PHYSICAL] and _is_full(end, pages):
            end += 1
        end = min(end + 1, state[PHYSICAL])
        # What is put back may lengthen the run behind the last home by as much as is taken out.
        last = max(state[_NEW] - 1, end)
        while last < state[PHYSICAL] and _is_full(last, pages):
            last += 1
        if last + (end - begin) + 2 >= state[PHYSICAL]:
            return False
        taken = np.empty((4 * (end - begin), 2), np.int64)
        count = 0
        for bucket in range(begin, end):
            slot = bucket_address(bucket, pages)
            for _ in range(4):
                if load(slot + 8) != 0:
                    taken[count, 0], taken[count, 1] = load(slot), load(slot + 8)
                    count += 1
                store(slot, 0)
                store(slot + 8, 0)
                slot += 16
        budget -= state[_FRONTIER] - begin
        state[_FRONTIER] = begin
        for i in range(count):
            put(taken[i, 0], taken[i, 1], hash_of(taken[i, 0]), state, pages)
        if begin == 0:
            state[_OLD] = state[_NEW]
            state[_FRONTIER] = state[PHYSICAL]
    return True


@jitted
def row_at_home(address: Any, key: Any) -> Any:
    """The row of a key that lies in its home bucket, at `address`, or `ABSENT`; and whether it may lie further on."""
    row_plus_1 = _row_plus_1(address, key)
    return row_plus_1 - 1, (row_plus_1 == 0) & (load(address + 56) != 0)


@jitted
def row_beyond(key: Any, hashed: Any, measure: Any, pages: Any) -> Any:
    """The row of a key that does not lie in its home bucket, or `ABSENT`."""
    bucket = home(hashed, measure) + 1
    while True:
        address = bucket_address(bucket, pages)
        row_plus_1 = _row_plus_1(address, key)
        if row_plus_1 != 0 or load(address + 56) == 0:
            return row_plus_1 - 1
        bucket += 1


@jitted
def find(key: Any, hashed: Any, measure: Any, pages: Any) -> Any:
    """The row of a key, or `ABSENT`."""
    row, beyond = row_at_home(bucket_address(home(hashed, measure), pages), key)
    return row_beyond(key, hashed, measure, pages) if beyond else row


@jitted
def insert(key: Any, row: Any, hashed: Any, state: Any, pages: Any) -> bool:
    """Add a key that is not there. False if the slack ran out."""
    if not put(key, row + 1, hashed, state, pages):
        return False
    state[COUNT] += 1
    return True


def _insert_all(keys: Any, rows: Any, state: Any, pages: Any) -> int:
    """The number of keys inserted; -1 - i if key i is there already."""
    now = measure(state)
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            prefetch(bucket_address(home(hash_of(keys[i + AHEAD]), now), pages))
        hashed = hash_of(keys[i])
        if find(keys[i], hashed, now, pages) != ABSENT:
            return -1 - i
        if not insert(keys[i], rows[i], hashed, state, pages):
            return i
    return len(keys)


def _find_all(keys: Any, state: Any, pages: Any, rows: Any) -> None:
    now = measure(state)
    for i in range(len(keys)):
        if i + AHEAD < len(keys):
            prefetch(bucket_address(home(hash_of(keys[i + AHEAD]), now), pages))
        rows[i] = find(keys[i], hash_of(keys[i]), now, pages)


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


def _keys_of_rows(first: int, last: int, state: Any, pages: Any, keys: Any) -> None:
    """Write the keys of the rows first, …, last - 1 into `keys`."""
    for bucket in range(state[PHYSICAL]):
        slot = bucket_address(bucket, pages)
        for _ in range(4):
            row = load(slot + 8) - 1
            if first <= row < last:
                keys[row - first] = load(slot)
            slot += 16


def _entries_of(wanted: Any, state: Any, pages: Any, keys: Any, rows: Any) -> None:
    """Write keys and rows of the rows that the mask `wanted` names."""
    count = 0
    for bucket in range(state[PHYSICAL]):
        slot = bucket_address(bucket, pages)
        for _ in range(4):
            row = load(slot + 8) - 1
            if row >= 0 and wanted[row]:
                keys[count], rows[count] = load(slot), row
                count += 1
            slot += 16


def _end(state: Any, pages: Any) -> int:
    """One past the last bucket that may hold a key: behind the homes, a run of full ones and what follows it."""
    end = state[_NEW]
    while end < state[PHYSICAL] and load(bucket_address(end - 1, pages) + 56) != 0:
        end += 1
    return int(end)


def _stretch(budget: int, state: Any, pages: Any) -> bool:
    return bool(stretch(budget, state, pages))


_insert_kernel = kernel(_insert_all, "the table's index (insert)")
_find_kernel = kernel(_find_all, "the table's index (find)")
_scan_kernel = kernel(_scan, "the table's index (scan)")
_keys_kernel = kernel(_keys_of_rows, "the table's index (keys)")
_entries_kernel = kernel(_entries_of, "the table's index (entries)")
_end_kernel = kernel(_end, "the table's index (end)")
_stretch_kernel = kernel(_stretch, "the table's index (growth)")


class Index:
    """64-bit keys → rows.

    Args:
        huge_pages: See `MappedPages`.
        buckets: To begin with.

    Attributes:
        state: What the kernels above read and write.
    """

    def __init__(self, huge_pages: bool, buckets: int = _FIRST_BUCKETS) -> None:
        self._huge_pages = huge_pages
        self._pages = MappedPages(_PAGE_BUCKETS * BUCKET_BYTES, huge_pages)
        self.state: Int64s = np.zeros(_STATE, np.int64)
        self._lay_out(buckets)
        self.state[_OLD] = buckets
        self.state[_FRONTIER] = self.state[PHYSICAL]

    @property
    def num_keys(self) -> int:
        """Keys in it."""
        return int(self.state[COUNT])

    @property
    def pages(self) -> int:
        """Where the pages' addresses are, for the kernels."""
        return int(self._pages.addresses.ctypes.data)

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""
        return (int(self.state[_NEW]) + SLACK) * BUCKET_BYTES

    @property
    def buckets(self) -> int:
        """Homes, those of a growth that is under way included."""
        return int(self.state[_NEW])

    @property
    def growth(self) -> tuple[int, int]:
        """Homes before and after a growth that is under way; the same where none is."""
        return int(self.state[_OLD]), int(self.state[_NEW])

    def bytes_for(self, count: int) -> int:
        """What `bytes` will be with `count` keys."""
        return (self._buckets_for(count) + SLACK) * BUCKET_BYTES

    def _buckets_for(self, count: int) -> int:
        buckets = int(self.state[_NEW])
        if count <= KEYS_PER_BUCKET * buckets:
            return buckets
        return max(int(buckets * (_GROWTH if buckets > 1 << 18 else 2)), int(count / KEYS_PER_BUCKET * 1.1))

    @staticmethod
    def buckets_for(count: int) -> int:
        """How many an index of `count` keys takes that has grown no further than it must."""
        return max(_FIRST_BUCKETS, int(count / KEYS_PER_BUCKET * 1.1))

    def with_buckets(self, buckets: int) -> "Index":
        """The same keys in an index of so many buckets, which must suffice."""
        other = Index(self._huge_pages, buckets)
        for keys, rows in self.scan():
            other.insert(keys, rows)
        return other

    def reserve(self, count: int) -> None:
        """Make room for `count` keys in all.

        Raises:
            MemoryError: The system has no more; nothing has changed.
        """
        while (buckets := self._buckets_for(count)) > self.state[_NEW]:
            self._stretch(int(self.state[_OLD]) + 1)  # to the end; it has arrived long since, but in a small table
            self._lay_out(buckets)
        if count > 2 * self.num_keys:  # more at a time than the frontier keeps pace with
            self._stretch(int(self.state[_OLD]) + 1)

    def settle(self, inserted: int) -> None:
        """Go on with the growth, in proportion to the keys just inserted."""
        if inserted and self.state[_OLD] != self.state[_NEW]:
            self._stretch(_SPEED * inserted)

    def _lay_out(self, buckets: int) -> None:
        self._pages.resize(max(len(self._pages), -(-(buckets + SLACK) // _PAGE_BUCKETS)))
        self.state[_NEW] = buckets
        self.state[_FRONTIER] = self.state[_OLD]
        self.state[PHYSICAL] = len(self._pages) * _PAGE_BUCKETS

    def extend(self) -> None:
        """Add slack: so many keys crowd at the upper end that they don't fit behind their homes.

        Only keys made for it do that; they are found all the same, if slowly.
        """
        self._pages.resize(len(self._pages) + 1)
        settled = self.state[_FRONTIER] > self.state[_OLD]
        self.state[PHYSICAL] = len(self._pages) * _PAGE_BUCKETS
        if settled:
            self.state[_FRONTIER] = self.state[PHYSICAL]

    def _stretch(self, budget: int) -> None:
        while not _stretch_kernel(budget, self.state, self.pages):
            self.extend()

    def insert(self, keys: Int64s, rows: Int64s) -> None:
        """Add keys that are not there yet. `reserve` first.

        Raises:
            ValueError: One is there; those before it are added.
        """
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
        """The keys of rows first, …, last - 1, in the order of the rows."""
        keys = np.empty(last - first, np.int64)
        _keys_kernel(first, last, self.state, self.pages, keys)
        return keys

    def entries_of(self, wanted: npt.NDArray[np.bool_]) -> tuple[Int64s, Int64s]:
        """Keys and rows of the rows that a mask over all rows names, in no particular order."""
        count = int(np.count_nonzero(wanted))
        keys, rows = np.empty(count, np.int64), np.empty(count, np.int64)
        _entries_kernel(wanted, self.state, self.pages, keys, rows)
        return keys, rows

    def scan(self, at_most: int = 1 << 20) -> Iterator[tuple[Int64s, Int64s]]:
        """All `(keys, rows)`, in batches of at most `at_most` ≥ 4. Not to be changed meanwhile."""
        step = at_most // 4
        end = _end_kernel(self.state, self.pages)
        for first in range(0, end, step):
            last = min(first + step, end)
            keys, rows = np.empty(4 * (last - first), np.int64), np.empty(4 * (last - first), np.int64)
            count = _scan_kernel(first, last, self.state, self.pages, keys, rows)
            yield keys[:count], rows[:count]
