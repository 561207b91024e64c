"""The array functions that rules and prox take from `xp`, on Numba scalars."""

import math
from typing import Any

from numba import njit


@njit(inline="always")
def sqrt(x: Any) -> Any:
    return math.sqrt(x)


@njit(inline="always")
def exp(x: Any) -> Any:
    return math.exp(x)


@njit(inline="always")
def where(condition: Any, a: Any, b: Any) -> Any:
    return a if condition else b


@njit(inline="always")
def maximum(a: Any, b: Any) -> Any:
    """The larger one, NaN if either is, as torch and NumPy have it."""
    return a if (a >= b or a != a) else b
