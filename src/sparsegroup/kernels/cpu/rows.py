"""Rows of a table gathered into blocks and scattered back, whatever dtype their parts have."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from torch import Tensor

from sparsegroup.groups import mean_square
from sparsegroup.kernels import rounding
from sparsegroup.kernels.cpu import intrinsics, jit
from sparsegroup.kernels.cpu.intrinsics import on_stack
from sparsegroup.kernels.cpu.jit import array_at, copy, intrinsic_of, jitted, kernel, prefetch
from sparsegroup.kernels.step import NUMPY_DTYPES, array_of
from sparsegroup.rules import bind

PARTS: int = 0  # bound: weights, u, and the rule's state


def gather(places: Any, groups: int, offsets: Any, to: Any, between: int, width: int) -> None:
    """Copy the parts of the rows at `places` to arrays that begin `between` bytes apart, the first at `to`.

    Args:
        places: `[≥ groups]` int64, addresses of rows.
        groups: How many rows.
        offsets: `[PARTS]` int64, from where a row begins to each of its parts.
        to: Where the first array begins.
        between: Bytes from one array to the next.
        width: Bytes of a part.
    """
    for i in range(groups):
        for p in range(PARTS):
            copy(places[i] + offsets[p], to + i * width + p * between, width)


def scatter(places: Any, groups: int, offsets: Any, source: Any, between: int, width: int) -> None:
    """Copy the parts back from the arrays at `source`; see `gather`."""
    for i in range(groups):
        for p in range(PARTS):
            copy(source + i * width + p * between, places[i] + offsets[p], width)


@jitted
def find_rows(
    rows: Any,
    first: int,
    groups: int,
    ahead: int,
    last: int,
    pages: Any,
    shift: int,
    stride: int,
    lines: Any,
    places: Any,
) -> None:
    """Where some rows are, while the memory of those that come `ahead` numbers later is asked for.

    Args:
        rows, pages, shift, stride, lines: See `block.step`.
        first, groups: The first of them, by its place in `rows`, and how many.
        ahead: How much later those come that are asked for.
        last: One past the last that may be.
        places: `[≥ groups]` int64, out: addresses.
    """
    mask = (np.int64(1) << np.int64(shift)) - 1
    for i in range(groups):
        coming = rows[min(first + i + ahead, last - 1)]
        place = pages[coming >> shift] + (coming & mask) * stride
        for line in range(len(lines)):
            prefetch(place + lines[line])
        places[i] = pages[rows[first + i] >> shift] + (rows[first + i] & mask) * stride


@jitted
def is_live(x: Any, start: int, d: int, zero: Any) -> bool:
    """Whether any of `d` elements is not zero."""
    for i in range(start, start + d):  # noqa: SIM110
        if x[i] != zero:
            return True
    return False


@jitted
def live_groups(x: Any, groups: int, d: int, zero: Any) -> int:
    """How many groups of `d` elements are non-zero; no branch within a group, for groups are small."""
    count = 0
    for j in range(groups):
        live = False
        for i in range(j * d, (j + 1) * d):
            live |= x[i] != zero
        count += int(live)
    return count


WHOLE, NARROW, SINGLE = 0, 1, 2
"""Kinds of parts: float32, bfloat16, and one float32 for all elements."""

LANES = 8


def _vectors(count: int) -> tuple[ir.Type, ir.Type]:
    """So many bfloat16, and so many int32 that are bits of float32."""
    return ir.VectorType(ir.IntType(16), count), ir.VectorType(ir.IntType(32), count)


def _widener(count: int) -> Any:
    @intrinsic_of
    def widen_some(typing_context, source, target):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            narrow, wide = _vectors(count)
            bits = builder.load(builder.inttoptr(arguments[0], narrow.as_pointer()), align=2)
            bits = builder.shl(builder.zext(bits, wide), ir.Constant(wide, [16] * count))
            builder.store(bits, builder.inttoptr(arguments[1], wide.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return widen_some


def _rounder(count: int) -> Any:
    @intrinsic_of
    def round_some(typing_context, source, target, element, seed, part):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            narrow, wide = _vectors(count)
            lanes = intrinsics.Int32Lanes
            bits = lanes(builder, builder.load(builder.inttoptr(arguments[0], wide.as_pointer()), align=4))
            element, seed, part = (lanes.of_scalar(builder, one, count) for one in arguments[2:])
            chance = rounding.random_bits(element.counted(), seed, part)
            rounded = bind(rounding.rounded_bits, intrinsics)(bits, chance)
            kept = bind(rounding.keep_mark, intrinsics)(rounded, bits)
            half = builder.trunc((kept >> 16).value, narrow)
            builder.store(half, builder.inttoptr(arguments[1], narrow.as_pointer()), align=2)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 5), generate

    return round_some


_widen_8, _widen_1 = _widener(LANES), _widener(1)
_round_8, _round_1 = _rounder(LANES), _rounder(1)


@jitted
def widen(source: Any, target: Any, d: Any) -> None:
    """Make float32 of `d` bfloat16."""
    for _ in range(d // LANES):
        _widen_8(source, target)
        source += 2 * LANES
        target += 4 * LANES
    for e in range(d % LANES):
        _widen_1(source + 2 * e, target + 4 * e)


@jitted
def round_off(source: Any, target: Any, d: Any, element: Any, seed: Any, part: Any) -> None:
    """Make bfloat16 of `d` float32, the first of which has the number `element`."""
    for _ in range(d // LANES):
        _round_8(source, target, element, seed, part)
        source += 4 * LANES
        target += 2 * LANES
        element += LANES
    for e in range(d % LANES):
        _round_1(source + 4 * e, target + 2 * e, element + e, seed, part)


@jitted
def _spread(source: Any, target: Any, d: Any, zero: Any) -> None:
    """Write the float32 at `source` `d` times."""
    number, elements = array_at(source, 1, zero)[0], array_at(target, d, zero)
    for e in range(d):
        elements[e] = number


def copiers(kinds: Sequence[int], carries_u: bool) -> dict[str, Any]:
    """What `narrow_step` calls by these names, for parts of some kinds.

    gather_narrow(places, groups, offsets, to, between, d, zero)
        Copies the parts of the `groups` rows at `places` to arrays of float32 that begin `between` bytes apart, the
        first at `to`. `offsets` says where a part begins in a row, `d` how many elements it has; `zero` is a float32.
    scatter_narrow(places, rows, first, groups, offsets, source, between, d, seed)
        Copies them back from the arrays at `source`. The row at `places[i]` has the number `rows[first + i]`, on which
        the rounding depends, as on `seed`.

    Args:
        kinds: That of the weights, of u if it is carried, and of each state.
        carries_u: Whether u is; for the rounding it is part 0, and the states are 1, 2, ….
    """
    gather = ["def gather_narrow(places, groups, offsets, to, between, d, zero):", "    for i in range(groups):"]
    scatter = [
        "def scatter_narrow(places, rows, first, groups, offsets, source, between, d, seed):",
        "    for i in range(groups):",
        "        element = rows[first + i] * d",
    ]
    for p, kind in enumerate(kinds):
        row, array = f"places[i] + offsets[{p}]", f"i * d * 4 + {p} * between"
        into = {WHOLE: "copy({}, d * 4)", NARROW: "widen({}, d)", SINGLE: "spread({}, d, zero)"}[kind]
        back = {
            WHOLE: "copy({}, d * 4)",
            NARROW: f"round_off({{}}, d, element, seed, {p - carries_u})",
            SINGLE: "copy({}, 4)",
        }[kind]
        gather.append(f"        {into.format(f'{row}, to + {array}')}")
        scatter.append(f"        {back.format(f'source + {array}, {row}')}")
    names = {"copy": copy, "widen": widen, "round_off": round_off, "spread": _spread}
    texts = {"gather_narrow": gather, "scatter_narrow": scatter}
    return {name: jit.source("\n".join([*lines, ""]), names) for name, lines in texts.items()}


_LANES = 64
_memory_of_sums = on_stack(_LANES * 8)


def _are_finite(values: Any) -> bool:
    zero = values.dtype.type(0)
    sums = array_at(_memory_of_sums(), _LANES, zero)  # of 0 · x, not 0 where x is not finite; side by side, to be quick
    for e in range(_LANES):
        sums[e] = zero
    whole = len(values) // _LANES * _LANES
    for start in range(0, whole, _LANES):
        some = array_at(np.int64(values.ctypes.data) + start * values.itemsize, _LANES, zero)
        for e in range(_LANES):
            sums[e] += some[e] * zero
    for i in range(whole, len(values)):
        sums[0] += values[i] * zero
    are_zero = True
    for e in range(_LANES):
        are_zero &= sums[e] == zero
    return are_zero


finite_kernel = kernel(_are_finite, "the check for finite numbers")


def are_finite(values: Tensor) -> bool:
    """Whether no element of a float32 or float64 CPU tensor is infinite or NaN."""
    return bool(finite_kernel(array_of(values.contiguous()).reshape(-1)))


def mean_squares_of_rows(gradient: Tensor) -> Tensor:
    """The mean of g² over its row for each element of `gradient`, `[n, d]`, shaped as it; of any device."""
    if gradient.device.type != "cpu" or gradient.dtype not in NUMPY_DTYPES:
        return mean_square(gradient, "rows")
    values = gradient.contiguous()
    out = torch.empty_like(values)
    _mean_squares(array_of(values), array_of(out))
    return out


def _mean_squares_of(values: Any, out: Any) -> None:
    n, d = values.shape
    whole = d // 4 * 4
    for i in range(n):
        a, b, c, total = 0.0, 0.0, 0.0, 0.0  # four sums at a time: one would wait for itself
        for e in range(0, whole, 4):
            a += values[i, e] * values[i, e]
            b += values[i, e + 1] * values[i, e + 1]
            c += values[i, e + 2] * values[i, e + 2]
            total += values[i, e + 3] * values[i, e + 3]
        for e in range(whole, d):
            total += values[i, e] * values[i, e]
        mean = ((a + b) + (c + total)) / d
        for e in range(d):
            out[i, e] = mean


_mean_squares = kernel(_mean_squares_of, "the mean squares of rows")
