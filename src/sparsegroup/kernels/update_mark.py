"""The mark of a group that was never updated: its dual residual u is +0 throughout, the value that it starts with.

An update leaves another number, or -0: so the two are told apart where the base optimizer keeps no state (SGD), too.
`mark_updated` makes the mark, `keep_mark` keeps it through a rounding, each array library has a function to read it.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.rules.rule import xp

tl: Any = None  # bound: triton.language


def mark_updated(u: Any, minus_zero: Any) -> Any:
    """u after an update: 0 becomes -0. Element-wise, bound like a rule's `update`."""
    return xp.where(u == minus_zero, minus_zero, u)


def keep_mark(rounded: Any, bits: Any) -> Any:
    """`rounded`, int32 bits of a float that had `bits` before it was rounded: what was not +0 does not become it."""
    return xp.where((rounded == 0) & (bits != 0), -2147483648, rounded)


def was_updated(u: Tensor) -> Tensor:
    """Where elements of u are not marked, for tensors."""
    return (u != 0) | torch.signbit(u)


def array_was_updated(u: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """`was_updated` for NumPy's arrays."""
    return np.asarray((u != 0) | np.signbit(u))


def scalar_was_updated(u: Any, zero: Any, one: Any) -> Any:
    """`was_updated` for one number, as Numba compiles it."""
    return u != zero or math.copysign(one, u) < zero


def tile_was_updated(u: Any) -> Any:
    """`was_updated` for a tile of float32, as Triton compiles it."""
    return u.to(tl.int32, bitcast=True) != 0
