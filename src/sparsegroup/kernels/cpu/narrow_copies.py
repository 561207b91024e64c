"""Rows whose u and state are bfloat16, on their way to the arrays of float32 that `block` steps, and back.

What is stored is rounded stochastically, by `sparsegroup.kernels.rounding` as on every backend.
"""

from typing import Any

from llvmlite import ir
from numba import types

from sparsegroup.kernels import rounding, update_mark
from sparsegroup.kernels.cpu import int32_lanes
from sparsegroup.kernels.cpu.jit import copy, intrinsic_of, jitted
from sparsegroup.rules import bind

PARTS: int = 0  # bound: weights, u, and the rule's state
CARRIES_U: bool = True  # bound

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
            lanes = int32_lanes.Int32Lanes
            bits = lanes(builder, builder.load(builder.inttoptr(arguments[0], wide.as_pointer()), align=4))
            element, seed, part = (lanes.of_scalar(builder, one, count) for one in arguments[2:])
            chance = rounding.random_bits(element.counted(), seed, part)
            rounded = bind(rounding.rounded_bits, int32_lanes)(bits, chance)
            kept = bind(update_mark.keep_mark, int32_lanes)(rounded, bits)
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


def gather_narrow(places: Any, groups: int, offsets: Any, to: Any, between: int, d: int) -> None:
    """Copy the parts of the rows at `places` to arrays of float32 that begin `between` bytes apart, the first at `to`.

    Args:
        places: `[≥ groups]` int64, addresses of rows.
        groups: How many rows.
        offsets: `[≥ PARTS]` int64, from where a row begins to each of its parts.
        to: Where the first array begins.
        between: Bytes from one array to the next.
        d: Elements of a part.
    """
    for i in range(groups):
        copy(places[i] + offsets[0], to + i * d * 4, d * 4)
        for p in range(1, PARTS):
            widen(places[i] + offsets[p], to + i * d * 4 + p * between, d)


def scatter_narrow(
    places: Any, rows: Any, first: int, groups: int, offsets: Any, source: Any, between: int, d: int, seed: Any
) -> None:
    """Copy the parts back from the arrays at `source`; see `gather_narrow`.

    Args:
        places, groups, offsets, between, d: See `gather_narrow`.
        rows: `[≥ first + groups]` int64: `rows[first + i]` is the number of the row at `places[i]`.
        first: See `rows`.
        source: Where the first array begins.
        seed: What the rounding's chance depends on, beside part and element.
    """
    for i in range(groups):
        copy(source + i * d * 4, places[i] + offsets[0], d * 4)
        for p in range(1, PARTS):
            part = p - 1 if CARRIES_U else p
            round_off(source + i * d * 4 + p * between, places[i] + offsets[p], d, rows[first + i] * d, seed, part)
