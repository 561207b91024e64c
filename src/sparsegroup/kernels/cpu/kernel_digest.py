"""What a kernel is made of, as a digest: its own code and all that it calls, so that no other edit compiles it anew."""

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import ir
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

_PLAIN = (int, float, str, bytes, type(None), type(Ellipsis), np.generic, np.dtype, ir.Type)
_PACKAGE = __name__.split(".")[0]


def kernel_digest(function: Callable[..., Any]) -> str:
    """A digest of what `function` compiles to, as far as sources decide: another one for any other code or constant.

    It covers the function, the functions, intrinsics and constants behind its globals, and theirs; what is none of
    these counts with all sources of this package.
    """
    digest = hashlib.sha256(f"numba {numba.__version__} llvmlite {llvmlite.__version__}\n".encode())
    for part in _parts(function, set()):
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()


def _parts(value: Any, seen: set[int]) -> Iterator[str]:
    """What is to be known of a constant, function or container; a function that came before is named by its number."""
    if isinstance(value, Dispatcher):
        yield repr(sorted(value.targetoptions.items()))
        value = value.py_func
    elif isinstance(value, _Intrinsic):
        value = value._defn
    if isinstance(value, FunctionType):
        if id(value) not in seen:
            seen.add(id(value))
            yield f"function {value.__name__} {value.__defaults__!r}"
            for cell in value.__closure__ or ():
                yield from _parts(cell.cell_contents, seen)
            yield from _code_parts(value.__code__, value.__globals__, seen)
    elif isinstance(value, tuple | list | frozenset):
        for item in sorted(value, key=repr) if isinstance(value, frozenset) else value:
            yield from _parts(item, seen)
    elif isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!s}"
    elif isinstance(value, ModuleType) and value.__name__.split(".")[0] != _PACKAGE:
        yield f"module {value.__name__}"
    elif isinstance(value, ModuleType) and value.__file__ is not None:
        yield hashlib.sha256(Path(value.__file__).read_bytes()).hexdigest()
    elif isinstance(value, type) or (callable(value) and type(value).__module__ == "builtins"):
        yield f"{value.__module__}.{value.__qualname__}"
    else:
        yield f"{type(value).__qualname__} {_package_digest()}"


def _code_parts(code: CodeType, names: dict[str, Any], seen: set[int]) -> Iterator[str]:
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


@cache
def _package_digest() -> str:
    """A digest of every source that a kernel can be made of."""
    package = Path(__file__).parents[2]
    rooms = ("kernels", "kernels/cpu", "table", "rules", "penalties")
    files = [package / "prox.py", *(file for room in rooms for file in sorted((package / room).glob("*.py")))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()
