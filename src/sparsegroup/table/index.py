"""The index: 64-bit key → row, in one open-addressed table that grows in place, a little at a time.

A key's home is `hash · slots / 2³²`, so the table lies in the order of its hashes, and a larger table is the same order
stretched: every home moves up. It can therefore grow where it is, from its upper end down. Homes below the *frontier* are
still in the old measure, those above it in the new one; each insertion moves the frontier a few slots further. Nothing is
copied aside, no step pays for the whole, and the load stays between 0.6 and 0.75 whatever the size.

A slot is 16 bytes: the key, and its row + 1, so that a zeroed page is empty slots and every 64-bit key is valid.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.jit import array_at, jitted, kernel, prefetch
from sparsegroup.table.hashing import mix
from sparsegroup.table.pages import Pages

Int64s = npt.NDArray[np.int64]

SLOT_BYTES = 16
_SHIFT = 19
_PAGE_SLOTS = 1 << _SHIFT
_SLACK = 1 << 14
"""Slots after the last home, for what is displaced beyond it."""
_FULLEST, _GROWTH, _FIRST_SLOTS = 0.75, 1.25, 1 << 12
_SPEED = 16
"""Slots that the frontier moves per key inserted: it arrives long before the next stretch is due."""

# The state of an index, an int64 array that the kernels read and write.
_OLD, _NEW, _FRONTIER, _COUNT, _PHYSICAL, _STATE = 0, 1, 2, 3, 4, 5

ABSENT = -1
_OVERFULL = -2


@jitted
def hash_of(key: Any) -> Any:
    """The order of a key in the index, int64 in [0, 2³²)."""
    return np.int64(mix(np.uint64(key)) >> np.uint64(32))


@jitted
def home(hashed: Any, state: Any) -> Any:
    """The slot at which the search for a key begins."""
    slot = (hashed * state[_OLD]) >> 32
    if slot >= state[_FRONTIER]:
        slot = (hashed * state[_NEW]) >> 32
    return slot


@jitted
def slot_address(slot: Any, pages: Any) -> Any:
    return pages[slot >> _SHIFT] + ((slot & (_PAGE_SLOTS - 1)) << 4)


@jitted
def _put(key: Any, row_plus_1: Any, hashed: Any, state: Any, pages: Any) -> bool:
    slot = home(hashed, state)
    while slot < state[_PHYSICAL]:
        entry = array_at(slot_address(slot, pages), 2, np.int64(0))
        if entry[1] == 0:
            entry[0] = key
            entry[1] = row_plus_1
            return True
        slot += 1
    return False


@jitted
def stretch(budget: Any, state: Any, pages: Any) -> bool:
    """Move the frontier down by at least `budget` slots, or to the end. False if the slack ran out."""
    while budget > 0 and state[_FRONTIER] <= state[_OLD]:
        # Whole runs of occupied slots: no key outside [begin, end) is looked for through it.
        begin = max(state[_FRONTIER] - min(budget, 4096), 0)
        while begin > 0 and array_at(slot_address(begin - 1, pages), 2, np.int64(0))[1] != 0:
            begin -= 1
        end = state[_FRONTIER]
        while end < state[_PHYSICAL] and array_at(slot_address(end, pages), 2, np.int64(0))[1] != 0:
            end += 1
        taken = np.empty((end - begin, 2), np.int64)
        count = 0
        for slot in range(begin, end):
            entry = array_at(slot_address(slot, pages), 2, np.int64(0))
            if entry[1] != 0:
                taken[count, 0], taken[count, 1] = entry[0], entry[1]
                count += 1
                entry[0] = 0
                entry[1] = 0
        budget -= state[_FRONTIER] - begin
        state[_FRONTIER] = begin
        for i in range(count):
            if not _put(taken[i, 0], taken[i, 1], hash_of(taken[i, 0]), state, pages):
                return False
        if begin == 0:
            state[_OLD] = state[_NEW]
            state[_FRONTIER] = state[_PHYSICAL]
    return True


@jitted
def find(key: Any, hashed: Any, state: Any, pages: Any) -> Any:
    """The row of a key, or `ABSENT`."""
    slot = home(hashed, state)
    while slot < state[_PHYSICAL]:
        entry = array_at(slot_address(slot, pages), 2, np.int64(0))
        if entry[1] == 0:
            return np.int64(ABSENT)
        if entry[0] == key:
            return entry[1] - 1
        slot += 1
    return np.int64(ABSENT)


@jitted
def find_or_insert(key: Any, hashed: Any, row: Any, state: Any, pages: Any) -> Any:
    """The row of a key, which becomes `row` if it has none yet; `_OVERFULL` if the slack ran out."""
    slot = home(hashed, state)
    while slot < state[_PHYSICAL]:
        entry = array_at(slot_address(slot, pages), 2, np.int64(0))
        if entry[1] == 0:
            entry[0] = key
            entry[1] = row + 1
            state[_COUNT] += 1
            return row
        if entry[0] == key:
            return entry[1] - 1
        slot += 1
    return np.int64(_OVERFULL)


def _insert_all(keys: Any, rows: Any, state: Any, pages: Any) -> bool:
    for i in range(len(keys)):
        if find_or_insert(keys[i], hash_of(keys[i]), rows[i], state, pages) == _OVERFULL:
            return False
    return True


def _find_all(keys: Any, state: Any, pages: Any, rows: Any) -> None:
    ahead = 16
    for i in range(min(ahead, len(keys))):
        prefetch(slot_address(home(hash_of(keys[i]), state), pages))
    for i in range(len(keys)):
        if i + ahead < len(keys):
            prefetch(slot_address(home(hash_of(keys[i + ahead]), state), pages))
        rows[i] = find(keys[i], hash_of(keys[i]), state, pages)


def _scan(first: int, last: int, state: Any, pages: Any, keys: Any, rows: Any) -> int:
    count = 0
    for slot in range(first, last):
        entry = array_at(slot_address(slot, pages), 2, np.int64(0))
        if entry[1] != 0:
            keys[count], rows[count] = entry[0], entry[1] - 1
            count += 1
    return count


def _stretch(budget: int, state: Any, pages: Any) -> bool:
    return bool(stretch(budget, state, pages))


_insert_kernel = kernel(_insert_all, "the table's index (insert)")
_find_kernel = kernel(_find_all, "the table's index (find)")
_scan_kernel = kernel(_scan, "the table's index (scan)")
_stretch_kernel = kernel(_stretch, "the table's index (growth)")


class Index:
    """64-bit keys → rows.

    Args:
        huge_pages: See `Pages`.

    Attributes:
        state: What the kernels above read and write.
    """

    def __init__(self, huge_pages: bool) -> None:
        self._pages = Pages(_PAGE_SLOTS * SLOT_BYTES, huge_pages)
        self.state: Int64s = np.zeros(_STATE, np.int64)
        self._lay_out(_FIRST_SLOTS)
        self.state[_OLD] = _FIRST_SLOTS
        self.state[_FRONTIER] = self.state[_PHYSICAL]

    def __len__(self) -> int:
        return int(self.state[_COUNT])

    @property
    def pages(self) -> Int64s:
        """Addresses, for the kernels."""
        return self._pages.addresses

    @property
    def bytes(self) -> int:
        """Of all slots."""
        return (int(self.state[_NEW]) + _SLACK) * SLOT_BYTES

    def reserve(self, count: int) -> None:
        """Make room for `count` keys in all.

        Raises:
            MemoryError: The system has no more; nothing has changed.
        """
        while count > _FULLEST * self.state[_NEW]:
            self._stretch(int(self.state[_OLD]) + 1)  # to the end; it has arrived long since, but in a small table
            slots = int(self.state[_NEW])
            self._lay_out(max(int(slots * (_GROWTH if slots > 1 << 20 else 2)), int(count / _FULLEST * 1.1)))

    def settle(self, inserted: int) -> None:
        """Go on with the growth, in proportion to the keys just inserted."""
        if inserted and self.state[_OLD] != self.state[_NEW]:
            self._stretch(_SPEED * inserted)

    def _lay_out(self, slots: int) -> None:
        self._pages.resize(-(-(slots + _SLACK) // _PAGE_SLOTS))
        self.state[_NEW] = slots
        self.state[_FRONTIER] = self.state[_OLD]
        self.state[_PHYSICAL] = len(self._pages) * _PAGE_SLOTS

    def _stretch(self, budget: int) -> None:
        if not _stretch_kernel(budget, self.state, self.pages):
            raise overfull()

    def insert(self, keys: Int64s, rows: Int64s) -> None:
        """Add keys that are not there yet. `reserve` first."""
        if not _insert_kernel(keys, rows, self.state, self.pages):
            raise overfull()

    def find(self, keys: Int64s) -> Int64s:
        """Rows of keys, `ABSENT` where a key has none."""
        rows = np.empty(len(keys), np.int64)
        _find_kernel(keys, self.state, self.pages, rows)
        return rows

    def scan(self, slots: int = 1 << 20) -> Any:
        """All `(keys, rows)`, in batches of at most `slots`, in the order of the hashes. Not to be changed meanwhile."""
        for first in range(0, int(self.state[_PHYSICAL]), slots):
            last = min(first + slots, int(self.state[_PHYSICAL]))
            keys, rows = np.empty(last - first, np.int64), np.empty(last - first, np.int64)
            count = _scan_kernel(first, last, self.state, self.pages, keys, rows)
            yield keys[:count], rows[:count]


def overfull() -> RuntimeError:
    """The error of an index whose hashes are not spread out."""
    return RuntimeError("the table's index is full: more than 16,384 keys crowd at one end of the range of hashes")
