"""A batch of keys on its way through the table: distinct keys, rows, vectors, and the gradient back to the rows.

Repeated keys are found in a table that fits the second-level cache before the big index is touched; while they are, the
memory that the next loop will need is already on its way.
"""

from typing import Any

import numpy as np

from sparsegroup.kernels.jit import array_at, copy, kernel, prefetch
from sparsegroup.table.index import ABSENT, AHEAD, bucket_address, find, hash_of, home, insert, measure
from sparsegroup.table.start import start_row


def _distinct(keys: Any, seen: Any, distinct: Any, hashes: Any, inverse: Any) -> int:
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
                break
            if distinct[number - 1] == key:
                inverse[i] = number - 1
                break
            slot = (slot + 1) & mask
    return count


def _find(distinct: Any, hashes: Any, rows: Any, state: Any, pages: Any) -> int:
    """The rows of distinct keys. Gives the number of `ABSENT`."""
    now = measure(state)
    absent = 0
    for i in range(len(distinct)):
        if i + AHEAD < len(distinct):
            prefetch(bucket_address(home(hashes[i + AHEAD], now), pages))
        row = find(distinct[i], hashes[i], now, pages)
        rows[i] = row
        absent += int(row == ABSENT)
    return absent


def _insert(
    distinct: Any, hashes: Any, rows: Any, state: Any, pages: Any, row_pages: Any, shift: int, row_bytes: int,
    count: int, seed: Any, init: int, std: float, dim: int, initial: Any,
) -> int:  # fmt: skip
    """Give the `ABSENT` keys the rows from `count` on, until the slack runs out. Gives how many are non-zero."""
    mask = (np.int64(1) << shift) - 1
    zero = initial[0]
    live = 0
    for i in range(len(distinct)):
        if rows[i] != ABSENT:
            continue
        if not insert(distinct[i], count, hashes[i], state, pages):
            break
        rows[i] = count
        parts = array_at(row_pages[count >> shift] + (count & mask) * row_bytes, len(initial) * dim, zero)
        start_row(distinct[i], seed, init, std, dim, parts[:dim])
        for k in range(1, len(initial)):
            for e in range(k * dim, (k + 1) * dim):
                parts[e] = initial[k]
        for e in range(dim):
            if parts[e] != zero:
                live += 1
                break
        count += 1
    return live


def _fetch(rows: Any, row_pages: Any, shift: int, row_bytes: int, out: Any, zero: Any) -> None:
    """out[i] = the vector of rows[i], zeros for `ABSENT`. The whole rows are in the cache then, for the step."""
    mask = (np.int64(1) << shift) - 1
    dim = out.shape[1]
    to, width = np.int64(out.ctypes.data), dim * out.itemsize
    for i in range(len(rows)):
        if i + AHEAD < len(rows) and rows[i + AHEAD] != ABSENT:
            address = row_pages[rows[i + AHEAD] >> shift] + (rows[i + AHEAD] & mask) * row_bytes
            for line in range(0, row_bytes, 64):
                prefetch(address + line)
        if rows[i] == ABSENT:
            target = array_at(to + i * width, dim, zero)
            for e in range(dim):
                target[e] = zero
        else:
            address = row_pages[rows[i] >> shift] + (rows[i] & mask) * row_bytes
            copy(address, to + i * width, width)


def _expand(inverse: Any, vectors: Any, out: Any) -> None:
    """out[i] = vectors[inverse[i]]."""
    dim = out.shape[1]
    source, target, width = np.int64(vectors.ctypes.data), np.int64(out.ctypes.data), dim * out.itemsize
    for i in range(len(inverse)):
        copy(source + inverse[i] * width, target + i * width, width)


def _add_up(inverse: Any, gradient: Any, out: Any) -> None:
    """out[k] = Σ gradient[i] over inverse[i] = k, in the order of i; `out` is `[distinct, dim]`, zeroed."""
    dim = out.shape[1]
    for i in range(len(inverse)):
        k = inverse[i]
        for e in range(dim):
            out[k, e] += gradient[i, e]


distinct = kernel(_distinct, "the table's lookup (distinct keys)")
find_rows = kernel(_find, "the table's lookup (find)")
insert_rows = kernel(_insert, "the table's lookup (insert)")
fetch = kernel(_fetch, "the table's lookup (rows)")
expand = kernel(_expand, "the table's lookup (vectors)")
add_up = kernel(_add_up, "the table's gradient")
