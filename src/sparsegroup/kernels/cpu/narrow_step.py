"""The step over rows that `narrow_copies` knows: `block`'s, whose arithmetic is float32, on arrays of its own.

The globals marked below are replaced when the source is bound to a rule, see `compiled_step`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegroup.kernels.cpu.block import BLOCK, STRIDE, block_memory, s_memory
from sparsegroup.kernels.cpu.jit import array_at
from sparsegroup.kernels.cpu.memory import allocate, release
from sparsegroup.kernels.cpu.row_copies import find_rows, live_groups
from sparsegroup.kernels.cpu.turns import enter, leave, take

IS_WIDE: bool = True  # bound: whether a row may have more than `BLOCK` elements
PARTS: int = 0  # bound: weights, u, and the rule's state
_unbound: Callable[..., Any] = lambda *arguments: None  # noqa: E731
unpack = scratch_parts = gradient_at = r_memory = advance = advance_large = _unbound  # bound
gather_narrow = scatter_narrow = _unbound  # bound: `narrow_copies`


def step_narrow(
    turns: Any, work: Any, counts: Any, base: Any, gradients: Any, widths: Any,
    pages: Any, shift: int, stride: int, lines: Any, rows: Any,
    scalars: Any, taus: Any, initial: Any, constants: Any, penalty: Any, weigh_at: int, shrink_at: int, frozen: bool,
) -> None:  # fmt: skip
    """The step over rows. Gives how many more of them are non-zero than before.

    The rounding depends on the seed and on the rows' numbers, as on the GPU, not on how threads share the work.

    Args:
        base: `[tensors, PARTS + 1]` int64, where the parts of a row lie in it, and the seed of the rounding.
        turns, work, counts, gradients, widths, pages, shift, stride, lines, rows, scalars, taus: See `block.step`.
        initial, constants, penalty, weigh_at, shrink_at, frozen: See `block.step`.
    """
    zero, one = constants[4], constants[5]
    parameters = (constants[0], constants[1], constants[2], constants[3], zero, one)
    threshold = (np.int64(weigh_at), np.int64(shrink_at), np.int64(penalty.ctypes.data))
    S = array_at(s_memory(), 6 * STRIDE, zero)
    T = array_at(block_memory(), BLOCK, zero)
    R_address = r_memory()
    quiet = array_at(block_memory(), BLOCK, np.int64(0))
    places = array_at(block_memory(), BLOCK, np.int64(0))
    mask = (np.int64(1) << np.int64(shift)) - 1
    d = widths[0]
    if IS_WIDE:
        wide_address = allocate((3 + PARTS) * max(d, np.int64(1)) * 4)
        if wide_address == 0:
            raise MemoryError
        H = array_at(wide_address, 3 * d, zero)
        W_address = wide_address + 3 * d * 4
    born = 0
    thread = enter(turns)
    k = take(turns, 0, thread, len(work))
    while k >= 0:
        t, first = work[k, 0], work[k, 1]
        last = min(work[k, 2], counts[t])
        row_scalars, tau, seed = unpack(scalars, t), taus[t], base[t, PARTS]
        if IS_WIDE:
            x, u, state = scratch_parts(W_address, d * 4, d, zero)
            for j in range(first, last):
                places[0] = pages[rows[j] >> shift] + (rows[j] & mask) * stride
                gather_narrow(places, 1, base[t], W_address, d * 4, d, zero)
                born -= live_groups(x, 1, d, zero)
                g, hessian = gradient_at(gradients, t, j * d * 4, d, zero)
                advance_large(
                    x, u, state, g, hessian, d, S, T, H,
                    row_scalars, initial, parameters, tau, threshold, frozen,
                )  # fmt: skip
                scatter_narrow(places, rows, j, 1, base[t], W_address, d * 4, d, seed)
                born += live_groups(x, 1, d, zero)
        else:
            per_block, is_8 = BLOCK // d, d == 8  # known to the compiler where it says so
            x, u, state = scratch_parts(R_address, STRIDE * 4, STRIDE, zero)
            for j in range(first, last, per_block):
                groups = min(per_block, last - j)
                find_rows(rows, j, groups, per_block, last, pages, shift, stride, lines, places)
                if is_8:
                    gather_narrow(places, groups, base[t], R_address, STRIDE * 4, 8, zero)
                else:
                    gather_narrow(places, groups, base[t], R_address, STRIDE * 4, d, zero)
                born -= live_groups(x, groups, d, zero)
                g, hessian = gradient_at(gradients, t, j * d * 4, groups * d, zero)
                advance(
                    x, u, state, g, hessian, groups, d, S, T, quiet,
                    row_scalars, initial, parameters, tau, threshold, frozen,
                )  # fmt: skip
                born += live_groups(x, groups, d, zero)
                if is_8:
                    scatter_narrow(places, rows, j, groups, base[t], R_address, STRIDE * 4, 8, seed)
                else:
                    scatter_narrow(places, rows, j, groups, base[t], R_address, STRIDE * 4, d, seed)
        k = take(turns, 0, thread, len(work))
    leave(turns, born)
    if IS_WIDE:
        release(wide_address)
