"""Memory from the operating system in pages of equal size: growing copies nothing, and what is freed is given back."""

import ctypes
import mmap
import sys
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu import threads

_HUGE = 2 << 20
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class MappedPages:
    """Zeroed pages whose addresses never change; `addresses`, `[pages]` int64, is replaced when their number does.

    `place` is where `addresses` is itself.

    The operating system hands out a page's memory piece by piece when it is first written, so that a page too many
    costs nothing. With `huge` it is asked for huge pages (Linux, madvise): a lookup then misses the address cache once,
    not twice.
    """

    def __init__(self, page_bytes: int, huge: bool) -> None:
        self.page_bytes = page_bytes
        self.huge = huge and hasattr(mmap, "MADV_HUGEPAGE")
        self.addresses: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self.place = int(self.addresses.ctypes.data)
        self._mappings: list[mmap.mmap] = []
        self._prefaulted: set[tuple[int, int]] = set()  # numbers of pages, and huge pages in them

    def __len__(self) -> int:
        return len(self._mappings)

    @property
    def unit(self) -> int:
        """Bytes that the system hands out at a time."""
        return _HUGE if self.huge else mmap.PAGESIZE

    def reserve(self, size: int, soon: int = 0) -> None:
        """Have pages for the first `size` bytes, or raise MemoryError; then nothing has changed.

        The `soon` bytes after them are about to be written: a helper thread prefaults what there is memory for.
        """
        wanted = -(-size // self.page_bytes)
        if wanted > len(self):
            self.resize(wanted)
        if soon:
            with suppress(MemoryError):  # then the last page is the one there is
                self.reserve(size + soon)
            self.prefault(self.whole_units(size), size + max(soon, self.unit))

    def whole_units(self, size: int) -> int:
        """`size` bytes, rounded up to what the system hands out."""
        return size + -size % self.unit

    def resize(self, count: int) -> None:
        """Make it `count` pages; see `reserve`. New ones are zero, the last ones are given back."""
        mappings, addresses = self._mappings[:count], list(self.addresses[:count])
        while len(mappings) < count:
            mapping, address = self._map()
            mappings.append(mapping)
            addresses.append(address)
        released, prefaulted = self._mappings[count:], {place for place in self._prefaulted if place[0] < count}
        array = np.array(addresses, np.int64)
        place = int(array.ctypes.data)
        # One statement, which no signal interrupts: kernels read the memory at `place`, which `addresses` owns.
        self._mappings, self._prefaulted, self.addresses, self.place = mappings, prefaulted, array, place
        for mapping in released:
            mapping.close()

    def prefault(self, begin: int, end: int) -> None:
        """Let a helper thread have the system hand out the bytes from `begin` to `end`, each huge page once.

        Handing out a huge page, which must be zeroed, takes some milliseconds: too long in the middle of a lookup.
        Tables of one page are skipped.
        """
        if not self.huge or sys.platform != "linux" or len(self) < 2 or threads.get_num_threads() == 1:
            return
        places = []
        while begin < min(end, len(self) * self.page_bytes):
            page, offset = divmod(begin, self.page_bytes)
            first = offset - offset % _HUGE
            last = min(first + _HUGE, self.page_bytes)
            if (page, first) not in self._prefaulted:
                self._prefaulted.add((page, first))
                places.append((int(self.addresses[page]) + first, last - first))
            begin = page * self.page_bytes + last
        if places:
            threads.submit(partial(_hand_out, places))

    def release(self, index: int) -> None:
        """Give one page back ahead of `resize(0)`. Nothing may use its address any more."""
        self._mappings[index].close()

    def _map(self) -> tuple[mmap.mmap, int]:
        try:
            mapping = mmap.mmap(-1, self.page_bytes + (_HUGE if self.huge else 0), **_PRIVATE)
        except (OSError, ValueError, OverflowError) as error:
            raise MemoryError(f"no memory for another {self.page_bytes:,} bytes of a table: {error}") from error
        address = _address(mapping)
        if self.huge:
            mapping.madvise(mmap.MADV_HUGEPAGE)
            address += -address % _HUGE
        elif hasattr(mmap, "MADV_NOHUGEPAGE"):
            mapping.madvise(mmap.MADV_NOHUGEPAGE)
        return mapping, address

    def clear_after(self, offset: int) -> None:
        """Zero the last page from byte `offset` on, and give the memory back."""
        self._prefaulted.clear()
        mapping = self._mappings[-1]
        begin = int(self.addresses[-1]) - _address(mapping) + offset
        end = begin - offset + self.page_bytes
        whole = min(end, begin + -begin % mmap.PAGESIZE)
        np.frombuffer(mapping, np.uint8)[begin:whole] = 0
        if hasattr(mmap, "MADV_DONTNEED"):
            if whole < end:
                mapping.madvise(mmap.MADV_DONTNEED, whole, end - whole)
        else:
            np.frombuffer(mapping, np.uint8)[whole:end] = 0


_POPULATE_WRITE = 23  # Linux 5.14; an older one refuses, and hands memory out when it is written to


def _hand_out(places: list[tuple[int, int]]) -> None:
    for address, size in places:
        _madvise()(address, size, _POPULATE_WRITE)


@cache
def _madvise() -> Any:
    """The C library's, which leaves the interpreter free."""
    function = ctypes.CDLL(None).madvise
    function.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    return function


def _address(mapping: Any) -> int:
    return int(np.frombuffer(mapping, np.uint8).ctypes.data)
