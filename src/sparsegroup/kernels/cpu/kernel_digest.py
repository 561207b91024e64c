"""What a kernel is made of, as a digest: its own code and all that it calls, so that no other edit compiles it anew."""

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
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
_VERSIONED = ("llvmlite", "math", "numba", "numpy")
"""Modules whose functions compile to what the versions of Numba and llvmlite say."""


def kernel_digest(function: Callable[..., Any]) -> str:
    """A digest of what `function` compiles to, as far as sources decide: another one for any other code or constant.

    It covers the function, the functions, intrinsics and constants behind its globals, and theirs; of other modules,
    the whole file.
    """
    versions = f"numba {numba.__version__} llvmlite {llvmlite.__version__} numpy {np.__version__}\n"
    digest = hashlib.sha256(versions.encode())
    for part in _parts(function, {}):
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()


def _parts(value: Any, seen: dict[int, int]) -> Iterator[str]:
    """What is to be known of a constant, function or container; a function that came before is named by its number."""
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
            yield f"function {value.__name__} {value.__defaults__!r}"
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
        return os.urandom(16).hex()  # what nobody can compare is another one each time
