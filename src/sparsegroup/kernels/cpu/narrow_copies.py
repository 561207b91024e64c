"""Rows with less than a float32 for each element of u or the state, on their way to the arrays that `block` steps.

Parts are of float32, of bfloat16, or one float32 for all elements. On the way back, bfloat16 is rounded stochastically,
by `sparsegroup.kernels.rounding` as on every backend.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types

from sparsegroup.kernels import rounding, update_mark
from sparsegroup.kernels.cpu import int32_lanes, jit
from sparsegroup.kernels.cpu.jit import array_at, copy, intrinsic_of, jitted
from sparsegroup.rules import bind

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
