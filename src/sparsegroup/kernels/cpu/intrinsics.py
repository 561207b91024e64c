"""What Numba lacks, as LLVM: vectors of int32, rounding of vectors, scratch memory on the stack and the heap.

Numba computes with integers of 64 bits, of which vector instructions multiply few. A function that is called with
`Int32Lanes`, while code is generated, leaves the instructions of its operators behind: so sources that are shared with
torch and Triton become vector code.

Scratch memory is addresses for `jit.array_at`. NumPy's arrays would do, but compiling `np.empty` takes a tenth of a
second, and loading what was compiled with it half a second of Numba's imports.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from sparsegroup.kernels.cpu.jit import array_at, called, instruction, jitted, pointer, repeated

_BYTE, _INT, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def on_stack(size: int) -> Any:
    """For use inside kernels, by themselves, not in what they call: () → the address of `size` bytes at a cache line.

    They are the kernel's until it returns, and hold anything at first.
    """

    @instruction(types.int64)
    def scratch(builder: Any) -> Any:
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(_BYTE, size))
            memory.align = 64
        return builder.ptrtoint(memory, _WORD)

    return scratch


@instruction(types.int64, types.int64)
def allocate(builder: Any, size: Any) -> Any:
    """The address of `size` (int64) bytes from the system, to be given back by `release`; 0 if it has no more."""
    return builder.ptrtoint(called(builder, "malloc", _BYTE.as_pointer(), size), _WORD)


@instruction(types.void, types.int64)
def release(builder: Any, address: Any) -> None:
    """Give back what `allocate` gave, or 0."""
    called(builder, "free", ir.VoidType(), pointer(builder, address, _BYTE))


@instruction(types.int64, types.int64, types.int64)
def match_4(builder: Any, address: Any, key: Any) -> Any:
    """The second number of the pair whose first is `key`, of the four pairs of int64 at `address`, a cache line.

    0 if there is none; if several match, the bitwise or of their second numbers.
    """

    def chosen(places: list[int]) -> Any:
        mask = ir.Constant(ir.VectorType(_INT, 4), places)
        return builder.shuffle_vector(pairs, ir.Constant(pairs.type, ir.Undefined), mask)

    pairs = builder.load(pointer(builder, address, ir.VectorType(_WORD, 8)), align=8)
    matches = builder.icmp_signed("==", chosen([0, 2, 4, 6]), repeated(builder, key, 4))
    seconds = builder.select(matches, chosen([1, 3, 5, 7]), ir.Constant(ir.VectorType(_WORD, 4), [0] * 4))
    return called(builder, "llvm.vector.reduce.or.v4i64", _WORD, seconds)


@instruction(types.void, types.int64, types.int64, None)
def _add_8(builder: Any, source: Any, target: Any, like: Any) -> None:
    source, target = (pointer(builder, address, ir.VectorType(like.type, 8)) for address in (source, target))
    total = builder.fadd(builder.load(target, align=4), builder.load(source, align=4))
    builder.store(total, target, align=4)


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


@instruction(types.int64, types.float64)
def _bits_of(builder: Any, number: Any) -> Any:
    return builder.bitcast(number, _WORD)


@instruction(types.float64, types.int64)
def _from_bits(builder: Any, bits: Any) -> Any:
    return builder.bitcast(bits, ir.DoubleType())


_BITS_OF_ROOT_HALF = 0x3FE6A09E667F3BCD


@jitted
def log(x: Any) -> Any:
    """Return ln x of a normal float64 x > 0, to 1e-15.

    x = z 2^k with z in [√½, √2), and ln z = 2 artanh s with s = (z - 1) / (z + 1), by its series to s¹⁹.

    The bits of a row's start must not depend on the machine, and C libraries differ in the last bits: of 8 million
    float64 starts, 5 million differ from those by glibc's `log`, `sin` and `cos`. LLVM makes vector instructions of
    this function and of `sin_cos`, not of calls to a library: on an AMD EPYC, an element of a start takes 2.2 ns, with
    glibc's functions 12.7.
    """
    bits = _bits_of(x)
    k = (bits - _BITS_OF_ROOT_HALF) >> 52
    z = _from_bits(bits - (k << 52))
    s = (z - 1.0) / (z + 1.0)
    w = s * s
    series = 1 / 13 + w * (1 / 15 + w * (1 / 17 + w * (1 / 19)))
    series = 1.0 + w * (1 / 3 + w * (1 / 5 + w * (1 / 7 + w * (1 / 9 + w * (1 / 11 + w * series)))))
    return k * 0.6931471805599453 + 2.0 * s * series


@jitted
def sin_cos(turns: Any) -> Any:
    """Return sin and cos of 2π `turns`, float64 in [0, 1], to 1e-15: series within an eighth of a turn; see `log`."""
    quarter = np.int64(4.0 * turns + 0.5)
    x = (4.0 * turns - quarter) * 1.5707963267948966
    w = x * x
    sine = 1 / 362880 - w * (1 / 39916800 - w * (1 / 6227020800 - w * (1 / 1307674368000)))
    sine = x * (1.0 - w * (1 / 6 - w * (1 / 120 - w * (1 / 5040 - w * sine))))
    cosine = 1 / 40320 - w * (1 / 3628800 - w * (1 / 479001600 - w * (1 / 87178291200 - w * (1 / 20922789888000))))
    cosine = 1.0 - w * (1 / 2 - w * (1 / 24 - w * (1 / 720 - w * cosine)))
    odd = np.float64(quarter & 1)
    sign = np.float64(1 - (quarter & 2))
    return sign * (sine + odd * (cosine - sine)), sign * (cosine - odd * (sine + cosine))


_EIGHT = ir.VectorType(_INT, 8)


def _operator(instruction: str, *before: str) -> Callable[[Any, Any], Any]:
    def apply(self: "Int32Lanes", other: Any) -> "Int32Lanes":
        emit = getattr(self.builder, instruction)
        return Int32Lanes(self.builder, emit(*before, self.value, self.vector(other)))

    return apply


class Int32Lanes:
    """Eight int32, or eight conditions, in code that is being generated by `builder`."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    @classmethod
    def of_scalar(cls, builder: Any, number: Any) -> "Int32Lanes":
        """Eight times the lower 32 bits of the int64 `number`."""
        return cls(builder, repeated(builder, builder.trunc(number, _INT), 8))

    def counted(self) -> "Int32Lanes":
        """With 0, 1, 2, … added."""
        return Int32Lanes(self.builder, self.builder.add(self.value, ir.Constant(_EIGHT, list(range(8)))))

    def vector(self, other: Any) -> Any:
        """The eight of `other`, or eight times the integer that it is."""
        return other.value if isinstance(other, Int32Lanes) else ir.Constant(_EIGHT, [int(other)] * 8)

    __add__ = __radd__ = _operator("add")
    __mul__ = _operator("mul")
    __and__ = _operator("and_")
    __or__ = _operator("or_")
    __xor__ = _operator("xor")
    __rshift__ = _operator("ashr")
    __eq__ = _operator("icmp_signed", "==")
    __ne__ = _operator("icmp_signed", "!=")
    __hash__ = None  # type: ignore[assignment]


def where(condition: Int32Lanes, a: Any, b: Any) -> Int32Lanes:
    """The function of that name that sources take from `xp`."""
    lanes = a if isinstance(a, Int32Lanes) else b
    return Int32Lanes(lanes.builder, lanes.builder.select(condition.value, lanes.vector(a), lanes.vector(b)))
