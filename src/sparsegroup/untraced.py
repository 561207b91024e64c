"""Functions that torch.compile does not look into, without its import, a second, as long as nobody compiles."""

import sys
from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def _is_imported() -> bool:
    return "torch._dynamo" in sys.modules


def untraced(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which torch.compile calls as it is: `torch.compiler.disable`, which imports torch.compile at once."""
    disabled: Callable[P, R] = torch._disable_dynamo(function)  # type: ignore[attr-defined]

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return disabled(*args, **kwargs) if _is_imported() else function(*args, **kwargs)

    return call


def plain(method: Any) -> Any:
    """A bound method of torch that torch.compile does not look into, without what would import that for its sake."""
    decorated = getattr(method, "__func__", method)
    if _is_imported() or getattr(decorated, "__globals__", {}).get("__name__") != "torch._compile":
        return method
    return MethodType(decorated.__wrapped__, method.__self__)
