"""Several numbers by one instruction, where LLVM finds none itself: it cannot know that addresses lie apart."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from sparsegroup.kernels.cpu.jit import array_at, intrinsic_of, jitted


@intrinsic_of
def match_4(typing_context, address, key):  # type: ignore[no-untyped-def]
    """The second number of the pair whose first is `key`, of the four pairs of int64 at `address`, a cache line.

    0 where there is none; where several match, the bitwise or of their second numbers.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        number, place = ir.IntType(64), ir.IntType(32)
        line, four = ir.VectorType(number, 8), ir.VectorType(number, 4)

        def chosen(vector: Any, places: list[int]) -> Any:
            mask = ir.Constant(ir.VectorType(place, 4), places)
            return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)

        pairs = builder.load(builder.inttoptr(arguments[0], line.as_pointer()), align=8)
        wanted = chosen(builder.insert_element(ir.Constant(four, ir.Undefined), arguments[1], place(0)), [0, 0, 0, 0])
        matches = builder.icmp_signed("==", chosen(pairs, [0, 2, 4, 6]), wanted)
        seconds = builder.select(matches, chosen(pairs, [1, 3, 5, 7]), ir.Constant(four, [0, 0, 0, 0]))
        combine = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(number, [four]), "llvm.vector.reduce.or.v4i64"
        )
        return builder.call(combine, [seconds])

    return types.int64(types.int64, types.int64), generate


@intrinsic_of
def _add_8(typing_context, source, target, like):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind = ir.VectorType(arguments[2].type, 8).as_pointer()
        source, target = (builder.inttoptr(address, kind) for address in arguments[:2])
        total = builder.fadd(builder.load(target, align=4), builder.load(source, align=4))
        builder.store(total, target, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, like), generate


@jitted
def add(source: Any, target: Any, count: Any, size: Any, like: Any) -> None:
    """Add `count` floats of `size` bytes and the type of `like` at `source` to those at `target`; both are int64."""
    at = np.int64(0)
    for _ in range(count >> 3):
        _add_8(source + at, target + at, like)
        at += 8 * size
    ours, theirs = array_at(target + at, count & 7, like), array_at(source + at, count & 7, like)
    for e in range(count & 7):
        ours[e] += theirs[e]
