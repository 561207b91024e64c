"""Tensors in messages, and functions that torch.compile does not trace."""

import sys
from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def _is_imported() -> bool:
    return "torch._dynamo" in sys.modules


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """`torch.compiler.disable`, which would import torch.compile immediately."""
    disabled: Callable[P, R] = torch._disable_dynamo(function)  # type: ignore[attr-defined]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return disabled(*args, **kwargs) if _is_imported() else function(*args, **kwargs)

    return call


def is_transformed() -> bool:
    """Whether this is inside a transform of `torch.func`: `vmap`, `grad`, `jvp`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_traced() -> bool:
    """Whether a graph is traced, by torch.compile, torch.export or torch.jit.trace, or `torch.func` transforms it."""
    return torch.compiler.is_compiling() or bool(torch._C._get_tracing_state()) or is_transformed()


def plain(method: Any) -> Any:
    """A bound method of torch without the wrapper that keeps torch.compile out, which would import it."""
    decorated = getattr(method, "__func__", method)
    if _is_imported() or getattr(decorated, "__globals__", {}).get("__name__") != "torch._compile":
        return method
    return MethodType(decorated.__wrapped__, method.__self__)


def shape_of(value: Any) -> str:
    """Dtype and shape of a tensor for a message, as in "float32 [2, 3]"; the type's name of anything else."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
