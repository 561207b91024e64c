"""Rows of a table gathered into blocks and scattered back, for parts of any dtype."""

import platform
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from torch import Tensor

from sparsegroup.groups import grouping, mean_square
from sparsegroup.kernels import rounding
from sparsegroup.kernels.cpu import intrinsics, jit
from sparsegroup.kernels.cpu.intrinsics import Int32Lanes
from sparsegroup.kernels.cpu.jit import array_at, copy, inline, instruction, jitted, kernel, pointer, prefetch
from sparsegroup.kernels.step import NUMPY_DTYPES, array_of
from sparsegroup.rules import bind


@jitted
def find_rows(rows: Any, first: int, last: int, where: Any, places: Any) -> None:
    """Write the addresses of some rows to `places`, and prefetch their memory.

    `first` and `last`, one past the last, are places in `rows`; if `rows` is empty, row i is the ith. `where` are
    `block.step`'s pages, shift, stride and cache lines.
    """
    pages, shift, stride, cache_lines = where
    mask = (np.int64(1) << np.int64(shift)) - 1
    for i in range(first, last):
        row = rows[i] if len(rows) else i
        place = pages[row >> shift] + (row & mask) * stride
        places[i - first] = place
        for line in range(len(cache_lines)):
            prefetch(place + cache_lines[line])


@jitted
def _live_groups(x: Any, groups: int, d: int, zero: Any) -> int:
    count = 0
    for j in range(groups):
        live = False
        for i in range(j * d, (j + 1) * d):
            live |= x[i] != zero
        count += int(live)
    return count


@jitted
def live_groups(x: Any, groups: int, d: int, zero: Any) -> Any:
    """How many groups of `d` elements are non-zero; no branch within a group, because groups are small."""
    return _live_groups(x, groups, 8, zero) if d == 8 else _live_groups(x, groups, d, zero)  # 8: known to the compiler


WHOLE, BFLOAT16, SCALAR, BFLOAT16_WEIGHTS, FLOAT16_WEIGHTS = range(5)
"""Kinds of parts: the dtype of the arithmetic; bfloat16, rounded stochastically; one float32 for all elements; and
weights in bfloat16 or float16, rounded to the nearest."""

_HALVES, _BITS = ir.VectorType(ir.IntType(16), 8), ir.VectorType(ir.IntType(32), 8)
"""Eight bfloat16, and the bits of eight float32."""


@instruction(types.void, types.int64, types.int64)
def _widen_8(builder: Any, source: Any, target: Any) -> None:
    halves = builder.load(pointer(builder, source, _HALVES), align=2)
    bits = builder.shl(builder.zext(halves, _BITS), ir.Constant(_BITS, [16] * 8))
    builder.store(bits, pointer(builder, target, _BITS), align=4)


@instruction(types.void, *(types.int64,) * 5)
def _round_8(builder: Any, source: Any, target: Any, element: Any, seed: Any, part: Any) -> None:
    bits = Int32Lanes(builder, builder.load(pointer(builder, source, _BITS), align=4))
    element, seed, part = (Int32Lanes.of_scalar(builder, number) for number in (element, seed, part))
    chance = rounding.random_bits(element.counted(), seed, part)
    rounded = bind(rounding.rounded_bits, intrinsics)(bits, chance)
    kept = bind(rounding.not_to_plus_zero, intrinsics)(rounded, bits)
    halves = builder.trunc((kept >> 16).value, _HALVES)
    builder.store(halves, pointer(builder, target, _HALVES), align=2)


@instruction(types.void, types.int64, types.int64)
def _narrow_8(builder: Any, source: Any, target: Any) -> None:
    bits = Int32Lanes(builder, builder.load(pointer(builder, source, _BITS), align=4))
    halves = builder.trunc((bind(rounding.nearest_bits, intrinsics)(bits) >> 16).value, _HALVES)
    builder.store(halves, pointer(builder, target, _HALVES), align=2)


_random_bits, _rounded_bits = inline(rounding.random_bits), inline(rounding.rounded_bits)
_nearest_bits, _not_to_plus_zero = inline(rounding.nearest_bits), inline(rounding.not_to_plus_zero)


@jitted
def widen(source: Any, target: Any, d: Any) -> None:
    """Make float32 of `d` bfloat16."""
    for _ in range(d >> 3):
        _widen_8(source, target)
        source += 16
        target += 32
    halves, bits = array_at(source, d & 7, np.uint16(0)), array_at(target, d & 7, np.uint32(0))
    for e in range(d & 7):
        bits[e] = halves[e] << 16


@jitted
def round_off(source: Any, target: Any, d: Any, element: Any, seed: Any, part: Any) -> None:
    """Make bfloat16 of `d` float32, the first of which has the number `element`."""
    for _ in range(d >> 3):
        _round_8(source, target, element, seed, part)
        source += 32
        target += 16
        element += 8
    bits, halves = array_at(source, d & 7, np.int32(0)), array_at(target, d & 7, np.uint16(0))
    for e in range(d & 7):
        rounded = np.int32(_rounded_bits(bits[e], _random_bits(element + e, seed, part)))
        halves[e] = _not_to_plus_zero(rounded, bits[e]) >> 16


@jitted
def _narrow(source: Any, target: Any, d: Any) -> None:
    """Make bfloat16 of `d` float32, to the nearest."""
    for _ in range(d >> 3):
        _narrow_8(source, target)
        source += 32
        target += 16
    bits, halves = array_at(source, d & 7, np.int32(0)), array_at(target, d & 7, np.uint16(0))
    for e in range(d & 7):
        halves[e] = _nearest_bits(bits[e]) >> 16


@cache
def has_float16() -> bool:
    """Return whether the processor converts float16: every 64-bit one from Arm, and x86 since 2013."""
    return platform.machine() in ("aarch64", "arm64") or bool(get_host_cpu_features().get("f16c"))


def _float16_converters(count: int) -> tuple[Any, Any]:
    """Make float32 of `count` float16, and float16 of `count` float32, to the nearest: (source, target) → nothing.

    They do nothing on a processor that would need a library for it.
    """
    halves, numbers = ir.VectorType(ir.HalfType(), count), ir.VectorType(ir.FloatType(), count)

    @instruction(types.void, types.int64, types.int64)
    def widen_some(builder: Any, source: Any, target: Any) -> None:
        if has_float16():
            values = builder.load(pointer(builder, source, halves), align=2)
            builder.store(builder.fpext(values, numbers), pointer(builder, target, numbers), align=4)

    @instruction(types.void, types.int64, types.int64)
    def narrow_some(builder: Any, source: Any, target: Any) -> None:
        if has_float16():
            values = builder.load(pointer(builder, source, numbers), align=4)
            builder.store(builder.fptrunc(values, halves), pointer(builder, target, halves), align=2)

    return widen_some, narrow_some


_widen_float16_8, _narrow_float16_8 = _float16_converters(8)
_widen_float16_1, _narrow_float16_1 = _float16_converters(1)


@jitted
def load_weights(source: Any, target: Any, d: Any, width: Any, kind: Any) -> None:
    """Make numbers of the arithmetic, `width` bytes at `target`, of the `d` weights of a row."""
    if kind == WHOLE:
        copy(source, target, width)
    elif kind == BFLOAT16_WEIGHTS:
        widen(source, target, d)
    else:
        whole = d >> 3 << 3
        for e in range(0, whole, 8):
            _widen_float16_8(source + 2 * e, target + 4 * e)
        for e in range(whole, d):
            _widen_float16_1(source + 2 * e, target + 4 * e)


@jitted
def store_weights(source: Any, target: Any, d: Any, width: Any, kind: Any) -> None:
    """Make the `d` weights of a row of numbers of the arithmetic, `width` bytes at `source`, to the nearest."""
    if kind == WHOLE:
        copy(source, target, width)
    elif kind == BFLOAT16_WEIGHTS:
        _narrow(source, target, d)
    else:
        whole = d >> 3 << 3
        for e in range(0, whole, 8):
            _narrow_float16_8(source + 4 * e, target + 2 * e)
        for e in range(whole, d):
            _narrow_float16_1(source + 4 * e, target + 2 * e)


@jitted
def _spread(source: Any, target: Any, d: Any, zero: Any) -> None:
    """Write the float32 at `source` `d` times."""
    number, elements = array_at(source, 1, zero)[0], array_at(target, d, zero)
    for e in range(d):
        elements[e] = number


@jitted
def to_nearest(address: Any, count: Any) -> None:
    """Round `count` float32 to the nearest bfloat16, in place, as `rounding.narrowed` does."""
    bits = array_at(address, count, np.int32(0))
    for i in range(count):
        bits[i] = _not_to_plus_zero(_nearest_bits(bits[i]), bits[i])


def copiers(kinds: Sequence[int], carries_u: bool) -> dict[str, Any]:
    """Name → function: rows of parts of some kinds to arrays, and back.

    gather(places, groups, offsets, to, between, d, size, zero)
        Copies the parts of the `groups` rows at the addresses `places` to arrays that begin `between` bytes apart, the
        first at `to`. Part p begins `offsets[p]` bytes into its row and has `d` elements, of `size` bytes in the array;
        `zero` has their type.
    scatter(places, rows, first, groups, offsets, source, between, d, size, seed)
        Copies them back from the arrays at `source`. The row at `places[i]` has the number `rows[first + i]`, on which
        the rounding depends, as on `seed`. For the rounding u is part 0, and the states are 1, 2, ….
    """
    gather = ["def gather(places, groups, offsets, to, between, d, size, zero):"]
    scatter = ["def scatter(places, rows, first, groups, offsets, source, between, d, size, seed):"]
    # Eight float32 are known to the compiler.
    for case, count, width in (("if d == 8 and size == 4", "8", "32"), ("else", "d", "d * size")):
        for lines in (gather, scatter):
            lines += [f"    {case}:", "        for i in range(groups):"]
        for p, kind in enumerate(kinds):
            row, array = f"places[i] + offsets[{p}]", f"i * {width} + {p} * between"
            element = f"rows[first + i] * {count}"
            into = {
                WHOLE: f"copy({row}, to + {array}, {width})",
                BFLOAT16: f"widen({row}, to + {array}, {count})",
                SCALAR: f"spread({row}, to + {array}, {count}, zero)",
            }
            back = {
                WHOLE: f"copy(source + {array}, {row}, {width})",
                BFLOAT16: f"round_off(source + {array}, {row}, {count}, {element}, seed, {p - carries_u})",
                SCALAR: f"copy(source + {array}, {row}, size)",
            }
            weights = f"{count}, {width}, {kind})"
            gather.append(f"            {into.get(kind, f'load_weights({row}, to + {array}, {weights}')}")
            scatter.append(f"            {back.get(kind, f'store_weights(source + {array}, {row}, {weights}')}")
    names = {"copy": copy, "widen": widen, "round_off": round_off, "spread": _spread}
    names |= {"load_weights": load_weights, "store_weights": store_weights}
    texts = {"gather": gather, "scatter": scatter}
    return {name: jit.source("\n".join([*lines, ""]), names) for name, lines in texts.items()}


def mean_squares_of_rows(gradient: Tensor) -> Tensor:
    """The mean of g² over its row for each element of `gradient`, `[n, d]`, shaped as it; of any device."""
    if gradient.device.type != "cpu" or gradient.dtype not in NUMPY_DTYPES:
        return mean_square(gradient, grouping("rows", gradient.shape, gradient.device))
    values = gradient.resolve_neg().contiguous()
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
