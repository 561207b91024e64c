"""int32 arithmetic that wraps, of several numbers at once, for sources that are shared with torch and Triton.

Numba computes with integers of 64 bits, of which vector instructions multiply few. A function that is called with
`Int32Lanes`, while code is generated, leaves the instructions of its operators behind.
"""

from typing import Any

from llvmlite import ir

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
        """So many times the lower 32 bits of the int64 `number`."""
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
