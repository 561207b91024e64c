"""A batch of keys on its way through the table: to distinct keys, to rows, to vectors, and the gradient back to the rows.

Repeated keys are found in a table that fits the second-level cache before the big index is touched; while they are, the
memory that the next loop will need is already on its way.
"""

from typing import Any

import numpy as np

from sparsegroup.kernels.block import move
from sparsegroup.kernels.jit import array_at, kernel, prefetch
from sparsegroup.table.index import ABSENT, find, find_or_insert, hash_of, home, slot_address
from sparsegroup.table.start import start_row


def _distinct(keys: Any, seen: Any, distinct: Any, hashes: Any, inverse: Any, state: Any, pages: Any) -> int:
    """The distinct keys in order of appearance; `seen` is a zeroed int32 table of a power of 2 ≥ 2 n slots."""
    mask = len(seen) - 1
    count = 0
    for i in range(len(keys)):
        key = keys[i]
        hashed = hash_of(key)
        slot = hashed & mask
        while True:
            number = seen[slot]
            if number == 0:
                seen[slot] = count + 1
                distinct[count] = key
                hashes[count] = hashed
                inverse[i] = count
                count += 1
                prefetch(slot_address(home(hashed, state), pages))
                break
            if distinct[number - 1] == key:
                inverse[i] = number - 1
                break
            slot = (slot + 1) & mask
    return count


def _find(
    distinct: Any, hashes: Any, rows: Any, state: Any, pages: Any, row_pages: Any, shift: int, row_bytes: int
) -> None:
    mask = (np.int64(1) << shift) - 1
    for i in range(len(distinct)):
        row = find(distinct[i], hashes[i], state, pages)
        rows[i] = row
        if row != ABSENT:
            address = row_pages[row >> shift] + (row & mask) * row_bytes
            for line in range(0, row_bytes, 64):
                prefetch(address + line)


def _insert(
    distinct: Any, hashes: Any, rows: Any, state: Any, pages: Any, row_pages: Any, shift: int, row_bytes: int,
    count: int, seed: Any, init: int, std: float, dim: int, initial: Any,
) -> tuple[int, int]:  # fmt: skip
    """As `_find`, and keys without a row get the rows from `count` on. Gives the new count and how many are non-zero."""
    mask = (np.int64(1) << shift) - 1
    zero = initial[0]
    live = 0
    for i in range(len(distinct)):
        row = find_or_insert(distinct[i], hashes[i], count, state, pages)
        rows[i] = row
        if row < 0:
            return -1, live
        address = row_pages[row >> shift] + (row & mask) * row_bytes
        if row < count:
            for line in range(0, row_bytes, 64):
                prefetch(address + line)
            continue
        count += 1
        parts = array_at(address, len(initial) * dim, zero)
        start_row(distinct[i], seed, init, std, dim, parts[:dim])
        for k in range(1, len(initial)):
            for l in range(k * dim, (k + 1) * dim):
                parts[l] = initial[k]
        for l in range(dim):
            if parts[l] != zero:
                live += 1
                break
    return count, live


def _expand(rows: Any, inverse: Any, row_pages: Any, shift: int, row_bytes: int, dim: int, out: Any, zero: Any) -> None:
    """out[i] = the vector of row rows[inverse[i]], `[n, dim]`; zeros for `ABSENT`."""
    mask = (np.int64(1) << shift) - 1
    size = out.itemsize
    to = np.int64(out.ctypes.data)
    for i in range(len(inverse)):
        row = rows[inverse[i]]
        target = to + i * dim * size
        if row == ABSENT:
            b = array_at(target, dim, zero)
            for l in range(dim):
                b[l] = zero
        else:
            move(row_pages[row >> shift] + (row & mask) * row_bytes, target, dim, size, zero)


def _add_up(inverse: Any, gradient: Any, out: Any) -> None:
    """out[k] = Σ gradient[i] over inverse[i] = k, in the order of i; `out` is `[distinct, dim]`, zeroed."""
    dim = out.shape[1]
    for i in range(len(inverse)):
        k = inverse[i]
        for l in range(dim):
            out[k, l] += gradient[i, l]


def _gather(inverse: Any, values: Any, out: Any) -> None:
    """out[i] = values[inverse[i]]: the adjoint of `_add_up`."""
    dim = out.shape[1]
    for i in range(len(inverse)):
        k = inverse[i]
        for l in range(dim):
            out[i, l] = values[k, l]


distinct = kernel(_distinct, "the table's lookup (distinct keys)")
find_rows = kernel(_find, "the table's lookup (find)")
insert_rows = kernel(_insert, "the table's lookup (insert)")
expand = kernel(_expand, "the table's lookup (vectors)")
add_up = kernel(_add_up, "the table's gradient")
gather = kernel(_gather, "the table's second derivative")
