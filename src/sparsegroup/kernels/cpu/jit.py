"""Numba: functions compiled on first use, kept on disk, and never stale.

Numba's own cache knows a compiled function by its file and line. A kernel here is one source bound to many rules, and
what it calls lies in other files: so each carries a digest of all of that in its name.
"""

import hashlib
import inspect
import logging
import os
import pickle
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import ir
from numba import _dynfunc, cfunc, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.runtime.nrt import rtsys
from numba.core.sigutils import normalize_signature
from numba.core.typed_passes import NativeLowering
from numba.extending import intrinsic

from sparsegroup.importing import uncollected
from sparsegroup.kernels.cpu import numba_namespace
from sparsegroup.rules import bind

_PLAIN = (int, float, str, bytes, type(None), type(Ellipsis), np.generic, np.dtype, ir.Type, types.Type)
_VERSIONED = ("llvmlite", "math", "numba", "numpy")
"""Modules whose functions compile to what the versions of Numba and llvmlite say."""


def kernel_digest(function: Callable[..., Any]) -> str:
    """A digest of what `function` compiles to: its code, and all functions, intrinsics and constants that it uses.

    So an edit compiles only the kernels that use what was edited. Of modules that it uses the whole file counts.
    """
    versions = f"numba {numba.__version__} llvmlite {llvmlite.__version__} numpy {np.__version__}\n"
    digest = hashlib.sha256(versions.encode())
    for part in _parts(function, {}):
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()


def _parts(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """What identifies a constant, function or container; a function that came before is named by its number."""
    if isinstance(value, Dispatcher):
        yield repr(sorted(value.targetoptions.items()))
        value = value.py_func
    elif isinstance(value, _Intrinsic):
        value = value._defn
    if isinstance(value, FunctionType):
        if id(value) in seen:
            yield f"function {seen[id(value)]}"
        else:
            seen[id(value)] = len(seen)
            # On disk a kernel knows its functions by their modules, and cannot be loaded once one has moved.
            yield f"function {value.__module__}.{value.__name__} {value.__defaults__!r}"
            for cell in value.__closure__ or ():
                yield from _parts(cell.cell_contents, seen)
            yield from _code_parts(value.__code__, value.__globals__, seen)
    elif isinstance(value, tuple | list | frozenset):
        for item in sorted(value, key=repr) if isinstance(value, frozenset) else value:
            yield from _parts(item, seen)
    elif isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!s}"
    elif isinstance(value, ModuleType):
        file = getattr(value, "__file__", None)
        if file is None or value.__name__.split(".")[0] in _VERSIONED:
            yield value.__name__
        else:
            yield hashlib.sha256(Path(file).read_bytes()).hexdigest()
    elif isinstance(value, type) or (callable(value) and type(value).__module__ == "builtins"):
        yield f"{value.__module__}.{value.__qualname__}"
    else:
        yield f"{type(value).__qualname__} {_state_digest(value)}"


def _code_parts(code: CodeType, names: dict[str, Any], seen: dict[int, int]) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_cellvars}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_parts(constant, names, seen)
        elif constant is not code.co_consts[0] or not isinstance(constant, str):  # which is its docstring
            yield from _parts(constant, seen)
    for name in code.co_names:
        if name in names:
            yield name
            yield from _parts(names[name], seen)


def _state_digest(value: Any) -> str:
    try:
        return hashlib.sha256(pickle.dumps(value, protocol=4)).hexdigest()
    except (pickle.PicklingError, TypeError, AttributeError):
        return os.urandom(16).hex()  # a value that cannot be compared is another one each time


_logger = logging.getLogger(__name__)

NOTICE_AFTER = 0.7
"""Seconds after which a compilation says so."""

LONGEST_WAIT = 30.0
"""Seconds to wait for another process that compiles the same kernel, and may be stopped."""

ERRORS = (OSError, EOFError, UnpicklingError)
"""What a cache raises that cannot be written or read."""

_not_kept: set[str] = set()


def say_not_kept(error: Exception) -> None:
    """Warn, once, that compiled kernels are kept only for this process."""
    if not _not_kept:
        _logger.warning(
            "compiled kernels cannot be kept on disk (%s), so each process compiles them; $NUMBA_CACHE_DIR can name a "
            "folder for them",
            str(error).splitlines()[0],
        )
    _not_kept.add(str(error))


class KernelCache(FunctionCache):
    """Numba's cache on disk; loading from it needs no compiler, whose imports take half a second."""

    @property
    def path(self) -> Path:
        """The file that exists if the kernel has been compiled, for some types of arguments."""
        return Path(self._cache_file._index_path)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What is on disk for a signature, or None: then it will be compiled, here and in no other process."""
        rtsys.initialize(target_context)
        found = self._loaded(sig, target_context)
        if found is None and hasattr(_here, "compilation"):
            _here.compilation.begin()
            self._impl.locator.ensure_cache_path()
            _here.compilation.lock(self.path.with_suffix(".lock"))
            found = self._loaded(sig, target_context)
        return found

    def _loaded(self, sig: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


_here = threading.local()
_seconds = 0.0


def seconds_compiling() -> float:
    """Seconds that this process has spent on compiling kernels, which are then on disk for all later ones."""
    return _seconds


class _Compilation:
    """The wait while Numba looks for a kernel on disk and, unless it finds it, compiles it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._notice: threading.Timer | None = None
        self._lock: Any = None

    def begin(self) -> None:
        """It is not on disk."""
        if self._notice is None:
            self._started, self._said = time.perf_counter(), False
            self._notice = threading.Timer(NOTICE_AFTER, self._say)
            self._notice.daemon = True
            self._notice.start()

    def lock(self, path: Path) -> None:
        """Wait while another process compiles it, so that it is found on disk then, and let others wait."""
        from filelock import FileLock, Timeout  # a tenth of a second

        lock = FileLock(path)
        with suppress(Timeout, OSError, NotImplementedError):  # then both compile
            lock.acquire(timeout=LONGEST_WAIT)
            self._lock = lock

    def _say(self) -> None:
        self._said = True
        _logger.warning("compiling %s for this machine, once …", self._name)

    def end(self) -> None:
        """It is there, or failed."""
        global _seconds
        if self._lock is not None:
            self._lock.release()
        if self._notice is not None:
            self._notice.cancel()
            seconds = time.perf_counter() - self._started
            _seconds += seconds
            if self._said:
                _logger.info("compiled %s in %.1f s", self._name, seconds)


@contextmanager
def compiling(name: str, is_kept: bool = True) -> Iterator[None]:
    """Around the loading of a kernel from disk, if it may be kept there, or its compilation, which is reported."""
    compilation = _here.compilation = _Compilation(name)
    try:
        if not is_kept:
            compilation.begin()
        with uncollected():  # compiling makes many objects and no garbage, so none is sought: a fifth of the time
            yield
    finally:
        compilation.end()
        del _here.compilation


COMPILER = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
"""Division by zero gives inf or NaN, as in torch; other threads run while a kernel does."""

_njit: Any = njit
_intrinsic: Any = intrinsic


class _PartLibrary(JITCodeLibrary):
    """LLVM's code of a function that kernels inline: it is optimized, and becomes machine code, only as their part."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)  # type: ignore[no-untyped-call]
class _PartLowering(NativeLowering):
    """Numba's lowering, into a `_PartLibrary`."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        library: Any = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)  # type: ignore[no-untyped-call]
        state.library = library
        state.flags = state.flags.copy()
        state.flags.no_compile = True
        super().run_pass(state)  # type: ignore[no-untyped-call]
        lowered = state.cr
        made = lowered.fndesc
        # What Python would call has the address 0, as before: there is no wrapper for calls from Python.
        record = _dynfunc.make_function(made.lookup_module(), made.qualname, "", 0, lowered.env, (library,))
        state.targetctx.insert_user_function(record, made, [library])
        state.cr = type(lowered)(made, lowered.call_helper, record, lowered.env)
        return True


class _PartCompiler(Compiler):
    """Numba's compiler with `_PartLowering`.

    Measured on 2 cores of an AMD EPYC: the 22 kernels of the command `train` take 12.8 s of a core to compile, with
    Numba's compiler 15.0, and with `inline="always"` some 20. Eight steps and sweeps of Adagrad and Adam take 17.4 s,
    with Numba's compiler 25.6, which makes machine code of each function for itself and again in its callers.
    """

    def define_pipelines(self) -> list[Any]:
        pipelines: list[Any] = super().define_pipelines()  # type: ignore[no-untyped-call]
        for pipeline in pipelines:
            pipeline.passes = [
                (_PartLowering if step is NativeLowering else step, name) for step, name in pipeline.passes
            ]
            pipeline.finalize()
        return pipelines


def jitted(function: Callable[..., Any]) -> Any:
    """`function` for use inside kernels, inlined: a call would cost more than most of these functions do.

    Not for calls from Python: what these need is not compiled.
    """
    return _njit(forceinline=True, no_cpython_wrapper=True, pipeline_class=_PartCompiler, **COMPILER)(function)


def with_globals(function: Callable[..., Any], bindings: Mapping[str, Any]) -> Any:
    """`function` for use inside kernels, with some of its globals replaced."""
    return jitted(_rebound(function, bindings))


def _rebound(function: Callable[..., Any], bindings: Mapping[str, Any]) -> FunctionType:
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, {**function.__globals__, **bindings}, function.__name__)


def inline(function: Callable[..., Any]) -> Any:
    """`function` for use inside kernels, with Numba's scalars behind its global `xp`."""
    return jitted(bind(function, numba_namespace))


def source(text: str, names: Mapping[str, Any]) -> Any:
    """The function that `text` defines, for use inside kernels: for what depends on a rule's number of arguments."""
    scope = dict(names)
    exec(text, scope)
    return jitted(scope[text.split("(")[0].removeprefix("def ").strip()])


def kernel(function: Callable[..., Any], name: str, bindings: Mapping[str, Any] | None = None) -> "Kernel":
    """`function` compiled for calls from Python, with some of its globals replaced; `name` is for messages."""
    return Kernel(function, name, bindings or {})


def address_of(function: Callable[..., Any], signature: Any, bindings: Mapping[str, Any], name: str) -> int:
    """The address of `function`, compiled, for `call` inside kernels that are compiled without knowing it.

    It takes numbers, as Numba's `signature` lists them, and returns nothing; `name` is for messages.
    """
    bound = _bound_for_cache(function, bindings)
    signature = normalize_signature(signature)  # type: ignore[no-untyped-call]
    compiled: Any = CFunc(bound, signature, locals={}, options={"error_model": "numpy"})
    try:
        compiled._cache = KernelCache(bound)  # type: ignore[no-untyped-call]
        with compiling(name):
            compiled.compile()
    except (RuntimeError, *ERRORS) as error:
        say_not_kept(error)
        with compiling(name, is_kept=False):
            compiled = cfunc((signature[1](*signature[0])), error_model="numpy")(bound)
    _KEPT.append(compiled)
    address: int = compiled.address
    return address


_KEPT: list[Any] = []
"""Functions that kernels know the addresses of."""


def _bound_for_cache(function: Callable[..., Any], bindings: Mapping[str, Any]) -> FunctionType:
    """`function` with other globals, under a name that is another one for other sources."""
    bound = _rebound(function, bindings)
    bound.__qualname__ = f"{function.__name__}_{kernel_digest(bound)[:16]}"
    bound.__module__ = function.__module__
    return bound


class Kernel:
    """A compiled function that says so if its first call takes a while; see `kernel`."""

    def __init__(self, function: Callable[..., Any], name: str, bindings: Mapping[str, Any]) -> None:
        self.name = name
        self._function, self._bindings = function, bindings
        self._known = 0

    @cached_property
    def compiled(self) -> Any:
        """Numba's dispatcher, made on first access: its digest takes a thousandth of a second."""
        bound = _bound_for_cache(self._function, self._bindings)
        compiled = _njit(**COMPILER)(bound)
        try:
            compiled._cache = KernelCache(bound)  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # no folder to keep it in
            say_not_kept(error)
        return compiled

    @property
    def was_called(self) -> bool:
        """Return whether the kernel has been called, so that it is compiled."""
        return self._known > 0

    @property
    def is_on_disk(self) -> bool:
        """Whether it has been compiled, and kept, for some types of arguments."""
        cache = self.compiled._cache
        return isinstance(cache, KernelCache) and cache.path.exists()

    def __call__(self, *arguments: Any) -> Any:
        known = len(self.compiled.overloads)
        try:
            if self._known == known and known:
                return self.compiled(*arguments)
            with compiling(self.name, is_kept=isinstance(self.compiled._cache, KernelCache)):
                result = self.compiled(*arguments)
        except ERRORS as error:  # before the call: what is compiled raises none of them
            say_not_kept(error)
            if len(self.compiled.overloads) == known:  # it was not compiled, either
                self.compiled = _njit(**COMPILER)(self.compiled.py_func)
            result = self.compiled(*arguments)
        self._known = len(self.compiled.overloads)
        return result


def instruction(returns: Any, *takes: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make of a function (LLVM's builder, *values) → value one for use inside kernels.

    `returns` and `takes` are Numba's types; None accepts any type.
    """

    def made(emit: Callable[..., Any]) -> Any:
        def typed(typing_context: Any, *kinds: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                value = emit(builder, *values)
                return context.get_dummy_value() if returns is types.void else value

            wanted = (kind or given for kind, given in zip(takes, kinds, strict=True))
            return returns(*wanted), generate

        parameters = list(inspect.signature(emit).parameters.values())
        typed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        typed.__name__ = emit.__name__
        return _intrinsic(typed)

    return made


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """The int64 `address` as LLVM's pointer to `kind`."""
    return builder.inttoptr(address, kind.as_pointer())


def called(builder: Any, name: str, returns: Any, *arguments: Any) -> Any:
    """The result of calling a C function, or one of LLVM's, by its name."""
    kind = ir.FunctionType(returns, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)  # type: ignore[no-untyped-call]


_WORD, _INT = ir.IntType(64), ir.IntType(32)


@instruction(types.void, types.int64)
def prefetch(builder: Any, address: Any) -> None:
    """Ask for the cache line at `address` (int64), to be read and written soon."""
    called(
        builder, "llvm.prefetch.p0", ir.VoidType(), pointer(builder, address, ir.IntType(8)), _INT(0), _INT(3), _INT(1)
    )


@instruction(types.int64, types.int64)
def load(builder: Any, address: Any) -> Any:
    """The int64 at `address` (int64)."""
    return builder.load(pointer(builder, address, _WORD))


@instruction(types.void, types.int64, types.int64)
def store(builder: Any, address: Any, value: Any) -> None:
    """Write the int64 `value` to `address` (int64)."""
    builder.store(value, pointer(builder, address, _WORD))


@instruction(types.int64, types.int64)
def load_now(builder: Any, address: Any) -> Any:
    """The int64 at `address` (int64), which other threads may be changing; what they wrote before is seen after."""
    return builder.load_atomic(pointer(builder, address, _WORD), "acquire", 8)


@instruction(types.int64, types.int64, types.int64)
def fetch_and_add(builder: Any, address: Any, value: Any) -> Any:
    """Add to the int64 at `address` (int64) so that no other thread can come between; gives what it was."""
    return builder.atomic_rmw("add", pointer(builder, address, _WORD), value, "seq_cst")


@instruction(types.void)
def relax(builder: Any) -> None:
    """Leave the core to its other thread for a moment, while waiting for another core (on x86)."""
    if platform.machine() in ("x86_64", "AMD64"):
        called(builder, "llvm.x86.sse2.pause", ir.VoidType())


@instruction(types.int64, types.int64, types.int64)
def call_int(builder: Any, address: Any, argument: Any) -> Any:
    """What the C function at `address`, of one int, gives."""
    function = pointer(builder, address, ir.FunctionType(_INT, [_INT]))
    return builder.sext(builder.call(function, [builder.trunc(argument, _INT)]), _WORD)


@_intrinsic
def call(typing_context, address, arguments):  # type: ignore[no-untyped-def]
    """Call the function at `address` (int64), from `address_of`, with the tuple `arguments`."""

    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        items = cgutils.unpack_tuple(builder, values[1], len(signature.args[1]))  # type: ignore[no-untyped-call]
        kind = ir.FunctionType(ir.VoidType(), [item.type for item in items])
        builder.call(pointer(builder, values[0], kind), items)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate


def _copier(kind: ir.Type) -> Any:
    @instruction(types.void, types.int64, types.int64)
    def copy(builder: Any, source: Any, target: Any) -> None:
        builder.store(builder.load(pointer(builder, source, kind), align=4), pointer(builder, target, kind), align=4)

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


def repeated(builder: Any, value: Any, count: int) -> Any:
    """A vector of `count` times `value`."""
    undefined = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    first = builder.insert_element(undefined, value, _INT(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_INT, count), [0] * count))


@instruction(types.void, types.int64, None)
def fill_8(builder: Any, address: Any, value: Any) -> None:
    """Write the float `value` eight times from `address` (int64) on: LLVM makes eight stores of a loop."""
    vector = repeated(builder, value, 8)
    builder.store(vector, pointer(builder, address, vector.type), align=4)


@_intrinsic
def array_at(typing_context, address, count, like):  # type: ignore[no-untyped-def]
    """`[count]` array of the type of the scalar `like` over the memory at `address` (int64)."""
    array = types.Array(like, 1, "C")

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        from numba.np.arrayobj import make_array, populate_array  # which what is compiled already does without

        result = make_array(array)(context, builder)  # type: ignore[no-untyped-call]
        size = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(like)))
        data = builder.inttoptr(arguments[0], result.data.type)
        populate_array(result, data, [arguments[1]], [size], size, None)  # type: ignore[no-untyped-call]
        return result._getvalue()

    return array(types.int64, types.intp, like), generate
