"""Memory from the operating system in pages of equal size: growing copies nothing, and what is freed is given back."""

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

_HUGE = 2 << 20
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class MappedPages:
    """Zeroed pages whose addresses never change.

    The operating system hands out a page's memory piece by piece when it is first written, so that a page too many
    costs nothing.

    Args:
        page_bytes: Size of a page.
        huge: Ask for huge pages (Linux, madvise): a lookup then misses the address cache once, not twice.

    Attributes:
        addresses: `[pages]` int64; replaced, not changed, when the number of pages does.
    """

    def __init__(self, page_bytes: int, huge: bool) -> None:
        self.page_bytes = page_bytes
        self.huge = huge and hasattr(mmap, "MADV_HUGEPAGE")
        self.addresses: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._mappings: list[mmap.mmap] = []

    def __len__(self) -> int:
        return len(self._mappings)

    @property
    def unit(self) -> int:
        """In how many bytes the system hands memory out."""
        return _HUGE if self.huge else mmap.PAGESIZE

    def resize(self, count: int) -> None:
        """Make it `count` pages: new ones are zero, the last ones are given back.

        Raises:
            MemoryError: The system has no more; nothing has changed.
        """
        mappings, addresses = self._mappings[:count], list(self.addresses[:count])
        while len(mappings) < count:
            mapping, address = self._map()
            mappings.append(mapping)
            addresses.append(address)
        self._mappings, released = mappings, self._mappings[count:]
        self.addresses = np.array(addresses, np.int64)
        for mapping in released:
            mapping.close()

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


def _address(mapping: Any) -> int:
    return int(np.frombuffer(mapping, np.uint8).ctypes.data)
