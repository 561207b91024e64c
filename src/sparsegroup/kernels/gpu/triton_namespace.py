"""The array functions that rules and prox take from `xp`, in Triton; source as in `sparsegroup.kernels.gpu.tile`."""

from typing import Any

tl: Any = None  # bound: triton.language


def sqrt(x: Any) -> Any:
    return tl.sqrt_rn(x)


def where(condition: Any, a: Any, b: Any) -> Any:
    return tl.where(condition, a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger one, NaN if either is, as torch and NumPy have it."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
