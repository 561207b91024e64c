"""The least that a step of a table can do: read the index's lines and read and write the rows of a batch's keys.

A kernel as the library's are, shared by as many threads, over addresses that are there already: no hashing, no repeated
keys, no comparison, no arithmetic, no Python between lookup and update. All lines come before all rows, as a row is
known when its line has been read.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup import HashEmbedding
from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.cpu.jit import kernel, load, prefetch, store
from sparsegroup.kernels.cpu.threads import done, enter, leave, take, wait
from sparsegroup.table.directory.buckets import AHEAD, bucket_address, hash_of, home, measure, secret_of

Int64s = npt.NDArray[np.int64]

PIECE = 256


def _addresses_of_lines(keys: Any, state: Any, pages: Any, lines: Any) -> None:
    for i in range(len(keys)):
        lines[i] = bucket_address(home(hash_of(keys[i], secret_of(state)), measure(state)), pages)


def _touch(turns: Any, lines: Any, rows: Any, row_bytes: int, change: int) -> None:
    """Read `lines`, and add `change`, which is 0 and not known to the compiler, to the numbers in `rows`."""
    n = len(lines)
    pieces = (n + PIECE - 1) // PIECE
    total = np.int64(0)
    thread = enter(turns)
    k = take(turns, 0, thread, pieces)
    while k >= 0:
        for i in range(k * PIECE, min((k + 1) * PIECE, n)):
            prefetch(lines[min(i + AHEAD, n - 1)])
            total += load(lines[i]) & 1
        done(turns, 0)
        k = take(turns, 0, thread, pieces)
    wait(turns, 0, pieces)
    k = take(turns, 1, thread, pieces)
    while k >= 0:
        for i in range(k * PIECE, min((k + 1) * PIECE, n)):
            ahead = rows[min(i + AHEAD, n - 1)]
            for line in range(0, row_bytes, 64):
                prefetch(ahead + line)
            for place in range(0, row_bytes, 8):
                store(rows[i] + place, load(rows[i] + place) + change)
        k = take(turns, 1, thread, pieces)
    leave(turns, total)


_lines_kernel = kernel(_addresses_of_lines, "the addresses of a batch")
_touch_kernel = kernel(_touch, "random access")


@dataclass(frozen=True)
class Places:
    """Where the distinct keys of a batch are.

    Attributes:
        lines: `[n]`, the addresses of their lines in the index.
        rows: `[n]`, the addresses of their rows.
        row_bytes: Bytes of a row.
    """

    lines: Int64s
    rows: Int64s
    row_bytes: int

    @classmethod
    def of(cls, table: HashEmbedding, keys: Int64s) -> "Places":
        """Of keys that have a row, in the order in which they appear; valid until the table changes."""
        distinct = keys.ravel()[np.sort(np.unique(keys, return_index=True)[1])]
        index, memory = table.table.directory.index, table.table.storage.rows
        lines = np.empty(len(distinct), np.int64)
        _lines_kernel(distinct, index.state, index.pages, lines)
        numbers = index.find(distinct)
        pages = memory.pages.addresses[numbers >> memory.shift]
        within = numbers & ((1 << memory.shift) - 1)
        return cls(lines, pages + within * memory.row_bytes, memory.row_bytes)

    def touch(self) -> None:
        """Read the lines, read and write the rows."""
        threads.share(_touch_kernel, self.lines, self.rows, self.row_bytes, 0)
