"""A batch of keys on its way through the table: distinct keys, rows, vectors, and the gradient back to the rows.

Repeated keys are found in a table that fits the second-level cache before the big index is touched. The loops have no
branches that depend on the keys but rare ones: what a wrong guess costs is more than what the loops do.

Where a new row starts is a function of (seed, key) and nothing else, so that order, threads and shards don't matter.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.cpu.intrinsics import add, log, on_stack, sin_cos
from sparsegroup.kernels.cpu.jit import array_at, copy, jitted, kernel, load, prefetch
from sparsegroup.kernels.cpu.rows import WHOLE, load_weights, store_weights
from sparsegroup.kernels.cpu.threads import done, enter, leave, take, wait
from sparsegroup.kernels.step import NUMPY_DTYPES, array_of
from sparsegroup.table.directory.buckets import (
    ABSENT,
    AHEAD,
    BUCKET_BYTES,
    bucket_address,
    hash_of,
    home,
    insert,
    mix,
    row_at_home,
    row_beyond,
    secret_of,
    sizes_of,
)

Init = Literal["normal", "uniform"]
INITS: tuple[Init, ...] = ("normal", "uniform")
NORMAL, UNIFORM = 0, 1


PAIRS = 256
"""Pairs of elements of new rows that are computed at a time."""

_memory_of_pairs = on_stack(PAIRS * 8)


@jitted
def start_rows(keys: Any, seed: Any, init: int, std: float, dim: int, out: Any) -> None:
    """Write where the rows of `keys` `[n]` start into `out` `[n dim]`: N(0, std²), or uniform on ±√3 std.

    Element pairs 2i, 2i + 1 come from counter i of a generator in counter mode: numbers mixed from (seed, key, i).
    `seed` is uint64, already mixed.
    """
    of_row, row, pair = (dim + 1) // 2, 0, 0
    first, second = array_at(_memory_of_pairs(), PAIRS, 0.0), array_at(_memory_of_pairs(), PAIRS, 0.0)
    stream = np.uint64(0)
    while row < len(keys):
        count, from_row, from_pair = 0, row, pair
        while count < PAIRS and row < len(keys):
            if pair == 0:
                stream = mix(np.uint64(keys[row]) ^ seed)
            stream += np.uint64(0x9E3779B97F4A7C15)
            bits = mix(stream)
            first[count] = (np.float64(bits >> np.uint64(32)) + 0.5) * 2.0**-32  # in (0, 1)
            second[count] = (np.float64(bits & np.uint64(0xFFFFFFFF)) + 0.5) * 2.0**-32
            count += 1
            pair += 1
            if pair == of_row:
                row, pair = row + 1, 0
        if init == NORMAL:  # Box and Muller; in a separate loop, for vector instructions
            for i in range(count):
                radius = std * math.sqrt(-2.0 * log(first[i]))
                sine, cosine = sin_cos(second[i])
                first[i], second[i] = radius * cosine, radius * sine
        else:
            for i in range(count):
                first[i] = math.sqrt(3.0) * std * (2.0 * first[i] - 1.0)
                second[i] = math.sqrt(3.0) * std * (2.0 * second[i] - 1.0)
        to, at = from_row * dim, from_pair
        for i in range(count):
            out[to + 2 * at] = first[i]
            if 2 * at + 1 < dim:
                out[to + 2 * at + 1] = second[i]
            at += 1
            if at == of_row:
                to, at = to + dim, 0


def _start_rows(keys: Any, seed: Any, init: int, std: float, out: Any) -> None:
    start_rows(keys, seed, init, std, out.shape[1], array_at(np.int64(out.ctypes.data), out.size, out.dtype.type(0)))


start_kernel = kernel(_start_rows, "the table's initializer")


class RowStarts:
    """Initial vectors of a table's rows of `dim` elements. `seed` is mixed so that every bit matters."""

    def __init__(self, init: Init, std: float, seed: int, dim: int, dtype: np.dtype[Any]) -> None:
        mix_array = mix.py_func  # by NumPy: not worth a kernel
        mixed = mix_array(mix_array(np.array([seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15)))[0]
        self.kernel_arguments = mixed, INITS.index(init), std  # the `seed`, `init` and `std` of `start_rows`
        self.dim, self.dtype = dim, dtype

    def of(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the initial vectors of the rows of `keys`, `[n, dim]`."""
        out = np.empty((len(keys), self.dim), self.dtype)
        start_kernel(keys, *self.kernel_arguments, out)
        return out


PIECE, _BAGS_OF_PIECE = 256, 32
"""Keys that a thread looks up at a time, and bags that it pools."""

GRAIN = 1 << 12
"""Keys, some tens of microseconds of work, below which waking a thread costs more than it does."""


class BagPooling(NamedTuple):
    """How the vectors of `[n]` keys are pooled: into the sum or the mean of each bag, zero for an empty one."""

    ends: npt.NDArray[np.int64]  # `[bags + 1]`: bag i is the keys ends[i] to ends[i + 1] - 1; from 0 to n
    is_mean: bool

    @property
    def num_bags(self) -> int:
        """Number of bags."""
        return len(self.ends) - 1


NOT_POOLED = None, False
"""What kernels take where nothing is pooled; Numba compiles a kernel for this and another one for bags."""


_DISTINCT, _ROWS, _GIVE = (np.int64(phase) for phase in range(3))
"""The phases of `look_up_kernel`. For literals Numba would compile `take`, `done` and `wait` again."""

_memory_of_piece, _memory_of_homes = on_stack(PIECE * 8), on_stack((PIECE + AHEAD) * 8)


@jitted
def distinct_in_order(keys: Any, scratch: Any, inverse: Any, secret: Any, guess: Any) -> Any:
    """Find the distinct ones of `keys` `[n]` in order of appearance. Return their number.

    `inverse` `[n]` becomes the place of each key among them, and `hashes` their hashes. `guess` is about how many there
    are: a table of eight times as many slots is sparse, and small enough for the second-level cache.

    A first loop, without branches, looks only at the slot that a key's hash gives. The few keys whose slot another key
    has come after that, and the new ones among them are merged with the others.

    `scratch` are `SeenKeys.arrays`. `distinct`, `hashes` and `appeared` have 2 n places, those from n on for keys whose
    slot another key has. `count` ≤ i, and `end` ≤ k: nothing is overwritten before it has been read.
    """
    seen, distinct, hashes, appeared = scratch
    n = len(keys)
    slots = 16
    while slots < 2 * n:
        slots *= 2
    most = slots
    while slots > 16 and slots >= 16 * guess:
        slots //= 2
    while True:
        for i in range(n):  # in a separate loop, for vector instructions
            hashes[i] = hash_of(keys[i], secret)
        for slot in range(slots):
            seen[slot] = 0
        mask = slots - 1
        count, left = 0, n
        for i in range(n):
            key, hashed = keys[i], hashes[i]
            slot = hashed & mask
            number = seen[slot]
            is_new = int(number == 0)
            is_there = is_new | int(distinct[number - 1 + is_new] == key)
            # As if it were new: what is written here is overwritten if it is not.
            distinct[count], hashes[count], appeared[count] = key, hashed, i
            place = count if is_new else number - 1
            seen[slot] = place + 1
            inverse[i] = place
            count += is_new
            appeared[left] = i
            left += int(is_there == 0)
        end = n
        if 2 * count <= slots:
            for k in range(n, left):
                i = appeared[k]
                hashed = hash_of(keys[i], secret)
                slot = hashed & mask
                while True:
                    slot = (slot + 1) & mask
                    number = seen[slot]
                    if number == 0:
                        distinct[end], hashes[end], appeared[end], inverse[i] = keys[i], hashed, i, end
                        end += 1
                        seen[slot] = end
                        break
                    if distinct[number - 1] == keys[i]:
                        inverse[i] = number - 1
                        break
                if 2 * (count + end - n) > slots:
                    break
            if 2 * (count + end - n) <= slots:
                break
        slots = min(4 * slots, most)
    if end > n:
        _merge(distinct, hashes, appeared, inverse, count, end)
    return count + end - n


@jitted
def _merge(distinct: Any, hashes: Any, appeared: Any, inverse: Any, count: Any, end: Any) -> None:
    """Put the distinct keys at the places n, …, `end` - 1 among the first `count`, by where each has `appeared`."""
    n = len(inverse)
    to, last = count + end - n - 1, count - 1
    for k in range(end - 1, n - 1, -1):
        while last >= 0 and appeared[last] > appeared[k]:
            distinct[to], hashes[to], appeared[last] = distinct[last], hashes[last], to
            to -= 1
            last -= 1
        distinct[to], hashes[to], appeared[k] = distinct[k], hashes[k], to
        to -= 1
    for k in range(last + 1):
        appeared[k] = k
    for i in range(n):
        inverse[i] = appeared[inverse[i]]


class SeenKeys:
    """Scratch memory of `distinct_in_order` for `size` keys; `share` is that of distinct keys when it was used last."""

    def __init__(self, size: int) -> None:
        seen, appeared = np.empty(1 << max(4, (2 * size - 1).bit_length()), np.int32), np.empty(2 * size, np.int32)
        self.distinct, self.hashes = np.empty((2, 2 * size), np.int64)
        self.arrays = seen, self.distinct, self.hashes, appeared
        self.nbytes = sum(array.nbytes for array in self.arrays)
        self.size, self.share = size, 1.0


@jitted
def _row_address(row: Any, memory: Any) -> Any:
    """Return the address of a row. `memory` is `RowStorage.for_lookup`."""
    pages, shift, row_bytes, _ = memory
    return load(pages + ((row >> shift) << 3)) + (row & ((np.int64(1) << shift) - 1)) * row_bytes


@jitted
def _find(distinct: Any, hashes: Any, rows: Any, first: int, last: int, count: int, index: Any) -> None:
    """Find the rows of some of `count` distinct keys, `ABSENT` for a key without a row.

    Also prefetches the buckets of the next keys: most likely the same thread looks for them.
    """
    homes = array_at(_memory_of_homes(), PIECE + AHEAD, np.int64(0))
    later = array_at(_memory_of_piece(), PIECE, np.int64(0))
    state, pages = index
    sizes, until = sizes_of(state), min(last + AHEAD, count)
    for i in range(first, until):
        homes[i - first] = home(hashes[i], sizes)
    for i in range(min(AHEAD, until - first)):
        prefetch(bucket_address(homes[i], pages))
    left = 0
    for i in range(first, last):
        prefetch(bucket_address(homes[min(i + AHEAD, until - 1) - first], pages))
        address = bucket_address(homes[i - first], pages)
        row, beyond = row_at_home(address, distinct[i])
        rows[i] = row
        later[left] = i
        left += int(beyond)
        prefetch(address + BUCKET_BYTES * int(beyond))
    for k in range(left):
        i = later[k]
        rows[i] = row_beyond(distinct[i], hashes[i], sizes, pages)


@jitted
def _ask_for(rows: Any, first: int, last: int, memory: Any) -> Any:
    """Prefetch the whole memory of some rows. Return the number of `ABSENT` rows."""
    absent, row_bytes = 0, memory[2]
    for i in range(first, last):
        if rows[i] == ABSENT:
            absent += 1
        else:
            address = _row_address(rows[i], memory)
            for cache_line in range(0, row_bytes, 64):
                prefetch(address + cache_line)
    return absent


@jitted
def _copy_rows(rows: Any, first: int, last: int, memory: Any, vectors: Any) -> None:
    """Copy the vectors of some rows, 0 for `ABSENT`."""
    dim, zero = vectors.shape[1], vectors.dtype.type(0)
    to, width = np.int64(vectors.ctypes.data), dim * vectors.itemsize
    for i in range(first, last):
        if rows[i] == ABSENT:
            target = array_at(to + i * width, dim, zero)
            for e in range(dim):
                target[e] = zero
        else:
            load_weights(_row_address(rows[i], memory), to + i * width, dim, width, memory[3])


@jitted
def _spread(inverse: Any, first: int, last: int, source: Any, target: Any, width: Any) -> None:
    """Copy, for some of the keys, the `width` bytes of each one's vector."""
    if width == 32:  # eight float32, without `copy`'s questions
        for i in range(first, last):
            copy(source + inverse[i] * 32, target + i * 32, 32)
    else:
        for i in range(first, last):
            copy(source + inverse[i] * width, target + i * width, width)


@jitted
def _pool(inverse: Any, ends: Any, is_mean: bool, first: int, last: int, source: Any, target: Any, like: Any) -> None:
    """Sum or average, for some of the bags, the vectors of the keys of each bag, in their order; see `BagPooling`.

    `like` `[n, dim]` has the vectors' length and dtype.
    """
    dim, size, zero = like.shape[1], np.int64(like.itemsize), like.dtype.type(0)
    width = dim * size
    for bag in range(first, last):
        to, begin, end = target + bag * width, ends[bag], ends[bag + 1]
        if end - begin == 1:
            copy(source + inverse[begin] * width, to, width)
            continue
        pooled = array_at(to, dim, zero)
        for e in range(dim):
            pooled[e] = zero
        if dim == 8:  # known to the compiler
            for i in range(begin, end):
                add(source + inverse[i] * 8 * size, to, 8, size, zero)
        else:
            for i in range(begin, end):
                add(source + inverse[i] * width, to, dim, size, zero)
        if is_mean and end > begin:
            for e in range(dim):
                pooled[e] /= end - begin


@jitted
def _give(turns: Any, thread: Any, inverse: Any, vectors: Any, target: Any, ends: Any, is_mean: bool) -> None:
    """Give each key its vector in `target`, or, unless `ends` is None, each bag the sum or mean of its keys'."""
    source, width = np.int64(vectors.ctypes.data), vectors.shape[1] * vectors.itemsize
    count, of_piece = (len(inverse), PIECE) if ends is None else (len(ends) - 1, _BAGS_OF_PIECE)
    pieces = (count + of_piece - 1) // of_piece
    k = take(turns, _GIVE, thread, pieces)
    while k >= 0:
        first, last = k * of_piece, min((k + 1) * of_piece, count)
        if ends is None:
            _spread(inverse, first, last, source, target, width)
        else:
            _pool(inverse, ends, is_mean, first, last, source, target, vectors)
        k = take(turns, _GIVE, thread, pieces)


def _look_up(
    turns: Any, finds: bool, fetches: bool, keys: Any, found: Any, scratch: Any, index: Any, memory: Any, output: Any
) -> None:
    """Look keys up in three phases, of which the first is one piece.

    The result of `threads.share` is the number of distinct keys not found.

    The first finds the distinct keys in order of appearance, and the place of each key among them (`inverse`, `count`);
    the second their `rows`, or `ABSENT`, prefetches these and copies the vectors, a piece at a time; the third gives
    each key its vector in `target`, or each bag the sum or mean of its keys' vectors. Without `finds`, what is `found`
    is known. Without `fetches`, the rows are only prefetched, for another call that fetches.

    Args:
        turns: See `kernels.cpu.threads`.
        keys: `[n]` int64.
        found: `inverse` `[n]` int32; `count` `[1]` int64, a guess before it is known; address of `rows` `[n]` int64.
        scratch: `SeenKeys.arrays`.
        index: `Index.state` and `Index.pages`.
        memory: `RowStorage.for_lookup`.
        output: `vectors` `[≥ count, dim]` of the distinct keys; address of the `target`, 0 where `vectors` is the
            result; `ends` and `is_mean` of `BagPooling`, or `NOT_POOLED`.
    """
    inverse, count, rows_at = found
    vectors, target, ends, is_mean = output
    rows = array_at(rows_at, len(keys), np.int64(0))
    thread = enter(turns)
    if finds:
        if take(turns, _DISTINCT, thread, np.int64(1)) == 0:
            count[0] = distinct_in_order(keys, scratch, inverse, secret_of(index[0]), count[0])
            done(turns, _DISTINCT)
        wait(turns, _DISTINCT, np.int64(1))
    n = count[0]
    pieces = (n + PIECE - 1) // PIECE
    absent = 0
    k = take(turns, _ROWS, thread, pieces)
    while k >= 0:
        first, last = k * PIECE, min((k + 1) * PIECE, n)
        if finds:
            _find(scratch[1], scratch[2], rows, first, last, n, index)
        absent += _ask_for(rows, first, last, memory)
        if fetches:
            _copy_rows(rows, first, last, memory, vectors)
        done(turns, _ROWS)
        k = take(turns, _ROWS, thread, pieces)
    if target != 0:
        wait(turns, _ROWS, pieces)
        _give(turns, thread, inverse, vectors, target, ends, is_mean)
    leave(turns, absent)


def _insert(absent: Any, index: Any, space: Any, count: int, starts: Any, out: Any, scratch: Any) -> int:
    """Give the `ABSENT` keys the rows from `count` on, until the slack runs out. Return the number of non-zero rows.

    Args:
        absent: Keys `[n]`, their hashes and their rows, which are written.
        index: `Index.state` and `Index.pages`.
        space: A `NewRowBuffer`.
        starts: `RowStarts.kernel_arguments`.
        out: `[n, dim]`, becomes the vectors of the new rows.
        scratch: Memory for keys and their places, `[new]` int64, and vectors, `[new dim]`.
    """
    distinct, hashes, rows = absent
    state, pages = index
    row_pages, shift, row_bytes, kind, initial = space
    keys, places, vectors = scratch
    dim = out.shape[1]
    mask = (np.int64(1) << shift) - 1
    zero = out.dtype.type(0)
    target, width = np.int64(out.ctypes.data), dim * out.itemsize
    weight_bytes = width if kind == WHOLE else (dim + 1) // 2 * 4
    new, before = 0, count
    for i in range(len(distinct)):
        if rows[i] == ABSENT:
            if not insert(distinct[i], count, hashes[i], state, pages):
                break
            rows[i] = count
            keys[new], places[new] = distinct[i], i
            new += 1
            count += 1
    seed, init, std = starts
    start_rows(keys[:new], seed, init, std, dim, vectors)
    live = 0
    for k in range(new):
        place = row_pages[(before + k) >> shift] + ((before + k) & mask) * row_bytes
        source = np.int64(vectors.ctypes.data) + k * width
        store_weights(source, place, dim, width, kind)
        load_weights(place, source, dim, width, kind)  # as stored
        copy(source, target + places[k] * width, width)
        state_parts = array_at(place + weight_bytes, len(initial), zero)
        for e in range(len(initial)):
            state_parts[e] = initial[e]
        is_live = False
        for e in range(k * dim, (k + 1) * dim):
            is_live |= vectors[e] != zero
        live += int(is_live)
    return live


def _expand(turns: Any, inverse: Any, output: Any) -> None:
    """Run the last phase of `_look_up`."""
    vectors, target, ends, is_mean = output
    _give(turns, enter(turns), inverse, vectors, target, ends, is_mean)
    leave(turns, np.int64(0))


def _add_up(inverse: Any, source: int, target: int, count: int, dim: int, zero: Any) -> None:
    """Σ source[i] over inverse[i] = k to target[k], in the order of i: vectors `[dim]` at addresses, `count` sums."""
    sums = array_at(target, count * dim, zero)
    size = np.int64(sums.itemsize)
    for e in range(len(sums)):
        sums[e] = zero
    if dim == 8:  # known to the compiler
        for i in range(len(inverse)):
            add(source + i * 8 * size, target + inverse[i] * 8 * size, 8, size, zero)
    else:
        for i in range(len(inverse)):
            add(source + i * dim * size, target + inverse[i] * dim * size, dim, size, zero)


def _add_up_bags(inverse: Any, ends: Any, is_mean: bool, source: Any, target: int, count: int, share: Any) -> None:
    """Add to target[k], of `count` vectors, source[b] for each key i of bag b with inverse[i] = k: `_pool`'s adjoint.

    source[b] is divided by the bag's size if `is_mean`. `source` is `[bags, dim]`, `share` `[dim]` scratch memory.
    """
    dim, zero = source.shape[1], source.dtype.type(0)
    size = np.int64(source.itemsize)
    sums, from_ = array_at(target, count * dim, zero), np.int64(share.ctypes.data)
    for e in range(len(sums)):
        sums[e] = zero
    for bag in range(len(ends) - 1):
        begin, end = ends[bag], ends[bag + 1]
        for e in range(dim):
            share[e] = source[bag, e] / max(end - begin, 1) if is_mean else source[bag, e]
        for i in range(begin, end):
            add(from_, target + inverse[i] * dim * size, dim, size, zero)


def _sum_pieces(pieces: Any, slots: Any, distinct: Any, sums: Any) -> int:
    """Sum the lines of each row, in their order, to a line of `sums` `[n, dim]`. Return the number of distinct rows.

    `pieces` `[k, 3]` are the addresses of rows and of lines, and the number of lines, n in all. `distinct` `[n]`
    becomes the rows in order of appearance. `slots` are zeros, a power of two and at least 2 n.
    """
    target, dim, zero = np.int64(sums.ctypes.data), sums.shape[1], sums.dtype.type(0)
    size, mask, count = np.int64(sums.itemsize), len(slots) - 1, 0
    width = dim * size
    for piece in range(len(pieces)):
        rows, source = array_at(pieces[piece, 0], pieces[piece, 2], np.int64(0)), pieces[piece, 1]
        for i in range(len(rows)):
            slot = (rows[i] * 0x9E3779B1 >> 8) & mask
            place = slots[slot] - 1
            while place >= 0 and distinct[place] != rows[i]:
                slot = (slot + 1) & mask
                place = slots[slot] - 1
            if place < 0:
                distinct[count] = rows[i]
                copy(source + i * width, target + count * width, width)
                count += 1
                slots[slot] = count
            elif dim == 8:  # known to the compiler
                add(source + i * 8 * size, target + place * 8 * size, 8, size, zero)
            else:
                add(source + i * width, target + place * width, dim, size, zero)
    return count


def _replace_zeros(keys: Any, vectors: Any, by_field: Any, shift: int, mask: int, places: Any, fields: Any) -> int:
    """Replace each zero vector by that of its key's field, `(key >> shift) & mask`. Return the number of zero vectors.

    `vectors` `[n, dim]` are the keys', `by_field` `[fields, dim]` those that replace them. Where they go and of which
    fields they are is written to `places` and `fields` `[n + 1]`.
    """
    count, dim, zero = 0, vectors.shape[1], vectors.dtype.type(0)
    for i in range(len(keys)):
        is_live = False
        for e in range(dim):
            is_live |= vectors[i, e] != zero
        places[count], fields[count] = i, (keys[i] >> shift) & mask  # of a live one, which the next overwrites
        count += int(not is_live)
    for k in range(count):
        for e in range(dim):
            vectors[places[k], e] = by_field[fields[k], e]
    return count


def _sort_runs(inverse: Any, rows: Any, of_keys: Any, order: Any, starts: Any) -> int:
    """Write the rows of all keys, the keys sorted by `inverse`, equal keys in their order, and the start of each run.

    The last of `starts` is the end of the last run. Return the length of the longest run.
    """
    for k in range(len(starts)):
        starts[k] = 0
    for i in range(len(inverse)):
        of_keys[i] = rows[inverse[i]]
        starts[inverse[i] + 1] += 1
    longest = 0
    for k in range(1, len(starts)):
        longest = max(longest, starts[k])
        starts[k] += starts[k - 1]
    for i in range(len(inverse)):
        order[starts[inverse[i]]] = i
        starts[inverse[i]] += 1
    for k in range(len(starts) - 1, 0, -1):
        starts[k] = starts[k - 1]
    starts[0] = 0
    return longest


look_up_kernel = kernel(_look_up, "the table's lookup")
insert_rows = kernel(_insert, "the table's lookup (insert)")
expand = kernel(_expand, "the table's lookup (vectors)")
add_up = kernel(_add_up, "the table's gradient")
add_up_bags = kernel(_add_up_bags, "the table's gradient (bags)")
sum_pieces = kernel(_sum_pieces, "the table's gradient (sums)")
replace_zeros = kernel(_replace_zeros, "the table's fallback vectors")
sort_runs = kernel(_sort_runs, "the table's gradient (order)")


class Scratch(SeenKeys):
    """Working memory of `look_up_kernel` for `n` keys with vectors `[dim]`, reused by the next lookup."""

    def __init__(self, n: int, dim: int, dtype: np.dtype[Any]) -> None:
        super().__init__(n)
        self.vectors = np.empty((n, dim), dtype)
        self.nbytes += self.vectors.nbytes


def expanded(inverse: Any, vectors: Tensor, bags: BagPooling | None = None) -> Tensor:
    """Return vectors[inverse[i]] for each key i, `[len(inverse), dim]`, or their pools by `bags`, `[bags, dim]`."""
    vectors, count = vectors.resolve_neg().contiguous(), len(inverse) if bags is None else bags.num_bags
    out = vectors.new_empty(count, vectors.shape[1])
    expand_into(inverse, array_of(vectors), out, bags)
    return out


def expand_into(inverse: Any, vectors: Any, out: Tensor, bags: BagPooling | None) -> None:
    """Write `expanded` of an array of vectors into `out`."""
    threads.share(expand, inverse, (vectors, out.data_ptr(), *(bags or NOT_POOLED)), alone=len(inverse) < GRAIN)


def added_up(inverse: Any, values: Tensor, count: int, bags: BagPooling | None = None) -> Tensor:
    """Return Σ `values` `[…, dim]` over inverse[i] = k for each k, `[count, dim]`: the adjoint of `expanded`."""
    values, dim = values.resolve_neg().contiguous(), values.shape[-1]
    out = values.new_empty(count, dim)
    if bags is None:
        add_up(inverse, values.data_ptr(), out.data_ptr(), count, dim, NUMPY_DTYPES[values.dtype].type(0))
    else:
        source = array_of(values).reshape(-1, dim)
        add_up_bags(inverse, *bags, source, out.data_ptr(), count, np.empty(dim, source.dtype))
    return out


def sum_of_pieces(pieces: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the distinct rows of a gradient, in order of appearance, and the sums of the lines of each row."""
    kept = [(rows.contiguous(), values.resolve_neg().contiguous()) for rows, values in pieces]
    n, values = sum(len(rows) for rows, _ in kept), kept[0][1]
    places = np.array([(rows.data_ptr(), lines.data_ptr(), len(rows)) for rows, lines in kept], np.int64)
    slots, distinct = np.zeros(1 << max(2 * n - 1, 1).bit_length(), np.int32), np.empty(n, np.int64)
    sums = values.new_empty(n, values.shape[1])
    count = int(sum_pieces(places, slots, distinct, array_of(sums)))
    return torch.from_numpy(distinct[:count]), sums[:count]
