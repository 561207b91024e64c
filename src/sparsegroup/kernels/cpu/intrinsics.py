"""What Numba lacks, as LLVM: vectors of int32, rounding of vectors, scratch memory on the stack and the heap.

Numba computes with integers of 64 bits, of which vector instructions multiply few. A function that is called with
`Int32Lanes`, while code is generated, leaves the instructions of its operators behind: so sources that are shared with
torch and Triton become vector code.

Scratch memory is addresses for `jit.array_at`. NumPy's arrays would do, but compiling `np.empty` takes a tenth of a
second, and loading what was compiled with it half a second of Numba's imports.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from sparsegroup.kernels.cpu.jit import array_at, intrinsic_of, jitted

_BYTE, _WORD = ir.IntType(8), ir.IntType(64)


def on_stack(size: int) -> Any:
    """For use inside kernels, by themselves, not in what they call: () → the address of `size` bytes at a cache line.

    They are the kernel's until it returns, and hold anything at first.
    """

    def scratch(typing_context):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            with builder.goto_entry_block():
                memory = builder.alloca(ir.ArrayType(_BYTE, size))
                memory.align = 64
            return builder.ptrtoint(memory, _WORD)

        return types.int64(), generate

    return intrinsic_of(scratch)


@intrinsic_of
def allocate(typing_context, size):  # type: ignore[no-untyped-def]
    """The address of `size` (int64) bytes from the system, to be given back by `release`; 0 if it has no more."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(_BYTE.as_pointer(), [_WORD])
        function = cgutils.get_or_insert_function(builder.module, kind, "malloc")  # type: ignore[no-untyped-call]
        return builder.ptrtoint(builder.call(function, arguments), _WORD)

    return types.int64(types.int64), generate


@intrinsic_of
def release(typing_context, address):  # type: ignore[no-untyped-def]
    """Give back what `allocate` gave, or 0."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _BYTE.as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        function = cgutils.get_or_insert_function(builder.module, kind, "free")  # type: ignore[no-untyped-call]
        builder.call(function, [builder.inttoptr(arguments[0], pointer)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


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


_INT32 = ir.IntType(32)


class Int32Lanes:
    """A vector of int32, or of conditions, in code that is being generated.

    Args:
        builder: llvmlite's.
        value: The vector.
    """

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder = builder
        self.value = value

    @classmethod
    def of_scalar(cls, builder: Any, number: Any, count: int) -> "Int32Lanes":
        """This many times the lower 32 bits of the int64 `number`."""
        kind = ir.VectorType(_INT32, count)
        first = builder.insert_element(ir.Constant(kind, ir.Undefined), builder.trunc(number, _INT32), _INT32(0))
        everywhere = ir.Constant(kind, [0] * count)
        return cls(builder, builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), everywhere))

    def counted(self) -> "Int32Lanes":
        """With 0, 1, 2, … added."""
        return self._made(self.builder.add(self.value, ir.Constant(self.value.type, list(range(self._count)))))

    @property
    def _count(self) -> int:
        count: int = self.value.type.count
        return count

    def _made(self, value: Any) -> "Int32Lanes":
        return Int32Lanes(self.builder, value)

    def _vector(self, other: Any) -> Any:
        if isinstance(other, Int32Lanes):
            return other.value
        return ir.Constant(ir.VectorType(_INT32, self._count), [int(other)] * self._count)

    def __add__(self, other: Any) -> "Int32Lanes":
        return self._made(self.builder.add(self.value, self._vector(other)))

    __radd__ = __add__

    def __mul__(self, other: Any) -> "Int32Lanes":
        return self._made(self.builder.mul(self.value, self._vector(other)))

    def __and__(self, other: Any) -> "Int32Lanes":
        return self._made(self.builder.and_(self.value, self._vector(other)))

    def __or__(self, other: Any) -> "Int32Lanes":
        return self._made(self.builder.or_(self.value, self._vector(other)))

    def __xor__(self, other: Any) -> "Int32Lanes":
        return self._made(self.builder.xor(self.value, self._vector(other)))

    def __rshift__(self, other: Any) -> "Int32Lanes":
        return self._made(self.builder.ashr(self.value, self._vector(other)))

    def __eq__(self, other: object) -> "Int32Lanes":  # type: ignore[override]
        return self._made(self.builder.icmp_signed("==", self.value, self._vector(other)))

    def __ne__(self, other: object) -> "Int32Lanes":  # type: ignore[override]
        return self._made(self.builder.icmp_signed("!=", self.value, self._vector(other)))

    __hash__ = None  # type: ignore[assignment]


def where(condition: Int32Lanes, a: Any, b: Any) -> Int32Lanes:
    """The function of that name that sources take from `xp`."""
    lanes = a if isinstance(a, Int32Lanes) else b
    return Int32Lanes(lanes.builder, lanes.builder.select(condition.value, lanes._vector(a), lanes._vector(b)))
