"""Numba: functions compiled on first use, kept on disk, and never stale.

Numba's own cache knows a compiled function by its file and line. A kernel here is one source bound to many rules, and
what it calls lies in other files: so each carries a digest of all of that in its name.
"""

import hashlib
import logging
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from pickle import UnpicklingError
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from sparsegroup.kernels.cpu import numba_namespace
from sparsegroup.rules import bind

_logger = logging.getLogger(__name__)

COMPILER: dict[str, Any] = {"error_model": "numpy", "nogil": True}
"""Division by zero gives inf or NaN, as in torch; other threads run while a kernel does."""

NOTICE_AFTER = 0.7
"""Seconds after which a compilation says so: loading a compiled kernel takes less."""


def jitted(function: Callable[..., Any]) -> Any:
    """`function` for use inside kernels, inlined: a call would cost more than most of these functions do."""
    return njit(forceinline=True, **COMPILER)(function)


def with_globals(function: Callable[..., Any], bindings: Mapping[str, Any]) -> Any:
    """`function` for use inside kernels, with some of its globals replaced."""
    assert isinstance(function, FunctionType)
    return jitted(FunctionType(function.__code__, {**function.__globals__, **bindings}, function.__name__))


def inline(function: Callable[..., Any]) -> Any:
    """`function` for use inside kernels, with Numba's scalars behind its global `xp`."""
    return jitted(bind(function, numba_namespace))


def source(text: str, names: Mapping[str, Any]) -> Any:
    """The function that `text` defines, for use inside kernels: for what depends on a rule's number of arguments."""
    scope = dict(names)
    exec(text, scope)
    return jitted(scope[text.split("(")[0].removeprefix("def ").strip()])


def kernel(
    function: Callable[..., Any], name: str, bindings: Mapping[str, Any] | None = None, digest: str = ""
) -> "Kernel":
    """`function` compiled for calls from Python, with some of its globals replaced.

    Args:
        function: The source, from a module of this package.
        name: What it is called in messages.
        bindings: Global name → what it stands for.
        digest: A digest of whatever the bindings hold that is not part of this package.
    """
    bound = _bound_for_cache(function, bindings or {}, digest)
    try:
        compiled = njit(cache=True, **COMPILER)(bound)
    except RuntimeError as error:  # no folder to keep it in
        _say_not_kept(error)
        compiled = njit(**COMPILER)(bound)
    return Kernel(compiled, name)


def address_of(
    function: Callable[..., Any], signature: Any, bindings: Mapping[str, Any], digest: str, name: str
) -> int:
    """The address of `function`, compiled, for `call` inside kernels that are compiled without knowing it.

    Args:
        function: The source, from a module of this package.
        signature: Numba's: numbers in, nothing out.
        bindings: Global name → what it stands for.
        digest: A digest of whatever the bindings hold that is not part of this package.
        name: What it is called in messages.
    """
    bound = _bound_for_cache(function, bindings, digest)
    with _noticed(name):
        try:
            compiled = cfunc(signature, cache=True, error_model="numpy")(bound)
        except (RuntimeError, *_OF_THE_CACHE) as error:
            _say_not_kept(error)
            compiled = cfunc(signature, error_model="numpy")(bound)
    _KEPT.append(compiled)
    assert compiled.address is not None
    return compiled.address


_OF_THE_CACHE = (OSError, EOFError, UnpicklingError)
"""What a cache raises that cannot be written or read."""

_not_kept: set[str] = set()


def _say_not_kept(error: Exception) -> None:
    """Warn, once, that compiled kernels are kept for this process alone."""
    if not _not_kept:
        _logger.warning(
            "compiled kernels cannot be kept on disk (%s), so each process compiles them; $NUMBA_CACHE_DIR can name a "
            "folder for them",
            str(error).splitlines()[0],
        )
    _not_kept.add(str(error))


_KEPT: list[Any] = []
"""Functions that kernels know the addresses of."""


def _bound_for_cache(function: Callable[..., Any], bindings: Mapping[str, Any], digest: str) -> FunctionType:
    """`function` with other globals, under a name that is another one for other sources."""
    assert isinstance(function, FunctionType)
    bound = FunctionType(function.__code__, {**function.__globals__, **bindings}, function.__name__)
    content = f"{_package_digest()} {digest} {sorted(bindings)}".encode()
    bound.__qualname__ = f"{function.__name__}_{hashlib.sha256(content).hexdigest()[:16]}"
    bound.__module__ = function.__module__
    return bound


class Kernel:
    """A compiled function that says so where its first call takes a while.

    Attributes:
        name: What it is called in messages.
        compiled: Numba's dispatcher.
    """

    def __init__(self, compiled: Any, name: str) -> None:
        self.compiled = compiled
        self.name = name
        self._known = 0

    @property
    def is_ready(self) -> bool:
        """Whether it has been called."""
        return self._known > 0

    def __call__(self, *arguments: Any) -> Any:
        known = len(self.compiled.overloads)
        try:
            if self._known == known and known:
                return self.compiled(*arguments)
            with _noticed(self.name):
                result = self.compiled(*arguments)
        except _OF_THE_CACHE as error:  # before the call: what is compiled raises none of them
            _say_not_kept(error)
            if len(self.compiled.overloads) == known:  # it was not compiled, either
                self.compiled = njit(**COMPILER)(self.compiled.py_func)
            result = self.compiled(*arguments)
        self._known = len(self.compiled.overloads)
        return result


@contextmanager
def _noticed(name: str) -> Iterator[None]:
    started = time.perf_counter()
    shown = threading.Event()

    def show() -> None:
        shown.set()
        _logger.warning("compiling %s for this machine, once …", name)

    timer = threading.Timer(NOTICE_AFTER, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if shown.is_set():
            _logger.info("compiled %s in %.1f s", name, time.perf_counter() - started)


@cache
def _package_digest() -> str:
    """A digest of every source that a kernel can be made of."""
    package = Path(__file__).parents[2]
    rooms = ("kernels", "kernels/cpu", "table", "rules", "penalties")
    files = [package / "prox.py", *(file for room in rooms for file in sorted((package / room).glob("*.py")))]
    digest = hashlib.sha256(version("sparsegroup").encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def code_digest(function: Callable[..., Any]) -> str:
    """A digest of what a function does, wherever it was defined."""
    assert isinstance(function, FunctionType)
    code = function.__code__
    return hashlib.sha256(repr((code.co_code, code.co_consts, code.co_names, code.co_varnames)).encode()).hexdigest()


def _intrinsic(function: Callable[..., Any]) -> Any:
    return intrinsic(function)


@_intrinsic
def prefetch(typing_context, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at `address` (int64), to be read and written soon."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        byte_pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        pointer = builder.inttoptr(arguments[0], byte_pointer)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32]), "llvm.prefetch.p0"
        )
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def load(typing_context, address):  # type: ignore[no-untyped-def]
    """The int64 at `address` (int64)."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), generate


@_intrinsic
def store(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Write the int64 `value` to `address` (int64)."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def load_now(typing_context, address):  # type: ignore[no-untyped-def]
    """The int64 at `address` (int64), which other threads may be changing; what they wrote before is seen after."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.load_atomic(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@_intrinsic
def call(typing_context, address, arguments):  # type: ignore[no-untyped-def]
    """Call the function at `address` (int64), from `address_of`, with the tuple `arguments`."""

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        items = cgutils.unpack_tuple(builder, values[1], len(signature.args[1]))  # type: ignore[no-untyped-call]
        kind = ir.FunctionType(ir.VoidType(), [item.type for item in items])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), items)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


_IS_X86 = platform.machine() in ("x86_64", "AMD64")


@_intrinsic
def relax(typing_context):  # type: ignore[no-untyped-def]
    """Leave the core to its other thread for a moment, while waiting for another core (on x86)."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        if _IS_X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(), generate


@_intrinsic
def fetch_and_add(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Add to the int64 at `address` (int64) what no other thread can come between; gives what it was."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


def _copier(kind: ir.Type) -> Any:
    @_intrinsic
    def copy(typing_context, source, target):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            at, to = (builder.inttoptr(address, kind.as_pointer()) for address in arguments)
            builder.store(builder.load(at, align=4), to, align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return copy


_copy_32, _copy_16 = _copier(ir.VectorType(ir.IntType(64), 4)), _copier(ir.VectorType(ir.IntType(64), 2))
_copy_8, _copy_4 = _copier(ir.IntType(64)), _copier(ir.IntType(32))


@jitted
def copy(source: Any, target: Any, count: Any) -> None:
    """Copy `count` bytes, a multiple of 4, between addresses that are multiples of 4: for the few bytes of a row."""
    at = np.int64(0)
    for _ in range(count >> 5):
        _copy_32(source + at, target + at)
        at += 32
    if count & 16:
        _copy_16(source + at, target + at)
        at += 16
    if count & 8:
        _copy_8(source + at, target + at)
        at += 8
    if count & 4:
        _copy_4(source + at, target + at)


@_intrinsic
def fill_8(typing_context, address, value):  # type: ignore[no-untyped-def]
    """Write the float `value` eight times from `address` (int64) on, at once: LLVM makes eight stores of a loop."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        eight = ir.VectorType(arguments[1].type, 8)
        first = builder.insert_element(ir.Constant(eight, ir.Undefined), arguments[1], ir.IntType(32)(0))
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8)
        vector = builder.shuffle_vector(first, ir.Constant(eight, ir.Undefined), everywhere)
        builder.store(vector, builder.inttoptr(arguments[0], eight.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, value), generate


@_intrinsic
def _pointer(typing_context, address, like):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.int64, like), generate  # type: ignore[no-untyped-call]


@jitted
def array_at(address: Any, count: Any, like: Any) -> Any:
    """`[count]` array of the type of the scalar `like` over the memory at `address` (int64)."""
    return carray(_pointer(address, like), (count,))
