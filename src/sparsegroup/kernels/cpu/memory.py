"""Scratch memory of a kernel, as addresses for `jit.array_at`.

NumPy's arrays would do, but compiling `np.empty` takes a tenth of a second, and loading what was compiled with it half
a second of Numba's imports.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from sparsegroup.kernels.cpu.jit import intrinsic_of

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
