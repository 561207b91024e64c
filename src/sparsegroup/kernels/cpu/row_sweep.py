"""The closed form without a gradient over rows in the host's memory, as Numba compiles it for a rule.

It is `sparsegroup.kernels.eager.eager_sweep` in the blocks of `sparsegroup.kernels.cpu.block`. The globals marked below
are replaced when the source is bound to a rule, see `compiled_sweep`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegroup.kernels.cpu.block import (
    AT_M,
    AT_SIGMA,
    AT_W,
    AT_X,
    AT_Z,
    BLOCK,
    STRIDE,
    block_memory,
    s_memory,
    solve,
    spread_groups,
    sum_groups,
)
from sparsegroup.kernels.cpu.jit import array_at, call, copy, jitted, prefetch
from sparsegroup.kernels.cpu.row_copies import is_live
from sparsegroup.kernels.cpu.turns import enter, leave, take

PARTS: int = 0  # bound: weights, u, and the rule's state
_unbound: Callable[..., Any] = lambda *arguments: None  # noqa: E731
update_at = unpack = scratch_parts = untouched = r_memory = _unbound  # bound


@jitted
def write(source: Any, place: Any, base: Any, width: int, d: int, zero: Any) -> bool:
    """Put weights and u of a row back to where it lies; gives whether they differ from what was there."""
    differs = False
    for p in range(2):
        new = array_at(source + p * STRIDE * (width // d), d, zero)
        old = array_at(place + base[p], d, zero)
        for e in range(d):
            differs |= new[e] != old[e]
            old[e] = new[e]
    return differs


def sweep(
    turns: Any, work: Any, count: int, d: int, base: Any, pages: Any, shift: int, stride: int, lines: Any, rows: Any,
    scalars: Any, tau: Any, initial: Any, constants: Any, penalty: Any, weigh_at: int, shrink_at: int,
    norms: Any, changed: Any, applies: bool, drops: bool,
) -> None:  # fmt: skip
    """The norms of rows, and with `applies` the closed form on them. Gives how many more are non-zero than before.

    Args:
        turns: See `sparsegroup.kernels.cpu.turns`; a piece is a line of `work`.
        work: `[k, 3]` int64: 0, first row, and one past the last, if there are so many.
        count: The number of rows.
        d: Elements of a part of a row, at most `BLOCK`.
        base: `[PARTS]` int64, where the parts of a row lie in it.
        pages, shift, stride, lines: See `block.step`.
        rows: `[count]` int64, distinct where `applies`; or empty: then they are the rows 0, …, count - 1.
        scalars, initial, constants, penalty, weigh_at, shrink_at: See `block.step`, of one tensor.
        tau: √d λ21 scaled to the norm.
        norms: `[count]`: set to ‖weigh(s)‖ of each row; infinite where it never had a non-zero gradient.
        changed: `[count]` bool, or empty where not `applies`: set to whether weights or u of a row have changed.
        applies: Whether they may.
        drops: Whether weights of rows that never had a non-zero gradient become zero; else these rows stay.
    """
    zero, one = constants[4], constants[5]
    l1, two_l2, keep = constants[0], constants[1], constants[2]
    parameters = np.int64(penalty.ctypes.data)
    S_at, R_at = s_memory(), r_memory()
    S = array_at(S_at, 6 * STRIDE, zero)
    T = array_at(block_memory(), BLOCK, zero)
    G = array_at(block_memory(), BLOCK, zero)
    for i in range(BLOCK):
        G[i] = zero
    size = constants.itemsize
    x, u, state = scratch_parts(R_at, STRIDE * size, STRIDE, zero)
    quiet = array_at(block_memory(), BLOCK, np.int64(0))
    places = array_at(block_memory(), BLOCK, np.int64(0))
    width = d * size
    per_block = BLOCK // d
    mask = (np.int64(1) << np.int64(shift)) - 1
    row_scalars = unpack(scalars, 0)
    born = 0
    thread = enter(turns)
    k = take(turns, 0, thread, len(work))
    while k >= 0:
        last = min(work[k, 2], count)
        for first in range(work[k, 1], last, per_block):
            groups = min(per_block, last - first)
            n = groups * d
            for i in range(groups):
                ahead = min(first + i + per_block, last - 1)
                row = rows[ahead] if len(rows) else ahead
                place = pages[row >> shift] + (row & mask) * stride
                for line in range(len(lines)):
                    prefetch(place + lines[line])
                row = rows[first + i] if len(rows) else first + i
                places[i] = pages[row >> shift] + (row & mask) * stride
                for p in range(PARTS):
                    copy(places[i] + base[p], R_at + p * STRIDE * size + i * width, width)
                born -= int(is_live(x, i * d, d, zero))
                quiet[i] = untouched(u, state, G, i * d, d, initial, zero, one)
            for i in range(n):
                S[AT_X + i] = x[i]
            for i in range(n):
                _, sigma = update_at(G, G, state, i, row_scalars)
                S[AT_M + i] = zero
                S[AT_SIGMA + i] = sigma
                S[AT_Z + i] = u[i] - sigma * x[i]
            call(weigh_at, (S_at, np.int64(n), l1, two_l2, zero))
            sum_groups(S, T, groups, d, zero)
            for i in range(groups):
                norms[first + i] = np.inf if quiet[i] else math.sqrt(S[AT_W + i])
            if applies:
                call(shrink_at, (S_at, np.int64(groups), tau, parameters, zero, one))
                spread_groups(S, groups, d, zero)
                solve(x, u, S, n, l1, two_l2, keep, zero, one)
            for i in range(groups if applies else 0):
                if quiet[i]:
                    for e in range(i * d, (i + 1) * d):
                        x[e] = zero if drops else S[AT_X + e]
                        u[e] = zero
                changed[first + i] = write(R_at + i * width, places[i], base, width, d, zero)
            for i in range(groups):
                born += int(is_live(x, i * d, d, zero))
        k = take(turns, 0, thread, len(work))
    leave(turns, born)
