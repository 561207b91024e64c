"""Rounding to bfloat16, and the zeros that tell updated groups from others, as sources that all backends share.

Rounding is to the nearest or stochastic: up or down by chance, so that what is lost is 0 on average. It is element-wise
int32 arithmetic that wraps, with `>>` always masked: the same source gives the same bits in eager PyTorch, in Triton
and in the CPU's kernels. The chance is a function of (seed, part, element), so that a run can be repeated.

A dual residual u of +0 throughout a group, the initial value, means that the group was never updated: an update stores
a zero as -0. So the two can be distinguished even where the rule keeps no state (SGD). `zero_as_updated` is for the
update, `not_to_plus_zero` for the rounding after it, and each array library has its own `was_updated`.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.rules.rule import bind, xp

tl: Any = None  # bound: triton.language


def zero_as_updated(u: Any, minus_zero: Any) -> Any:
    """Return u after an update: 0 becomes -0. Element-wise, bound like a rule's `update`."""
    return xp.where(u == minus_zero, minus_zero, u)


def not_to_plus_zero(rounded: Any, bits: Any) -> Any:
    """Return `rounded`, the int32 bits of a float that had `bits` before; where only rounding made it +0, -0."""
    return xp.where((rounded == 0) & (bits != 0), -2147483648, rounded)


def was_updated(u: Tensor) -> Tensor:
    """Return where an update has written the elements of u: True for all numbers but +0. For tensors."""
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


def random_bits(element: Any, seed: Any, part: Any) -> Any:
    """Random bits for each int32 `element`: the finalizer of MurmurHash3, with other constants, over all three."""
    bits = element * 0x1B873593 + (seed + part) * 0x5BD1E995
    bits = (bits ^ ((bits >> 16) & 0xFFFF)) * 0x45D9F3B
    bits = (bits ^ ((bits >> 15) & 0x1FFFF)) * 0x2C1B3C6D
    return bits ^ ((bits >> 16) & 0xFFFF)


def nearest_bits(bits: Any) -> Any:
    """float32 as int32 `bits`, rounded to the nearest bfloat16, to even where two are; NaN stays a NaN.

    Triton's interpreter cuts off where the hardware rounds; what this gives is a bfloat16 already.
    """
    finite = (bits & 0x7F800000) != 0x7F800000
    quiet = xp.where((bits & 0x7FFFFF) == 0, bits, bits | 0x400000)
    return xp.where(finite, bits + (0x7FFF + ((bits >> 16) & 1)), quiet) & -65536


def rounded_bits(bits: Any, chance: Any) -> Any:
    """float32 as int32 `bits`, rounded stochastically: up with a probability of lower half / 2¹⁶.

    Infinity stays infinite and NaN a NaN.
    """
    finite = (bits & 0x7F800000) != 0x7F800000
    quiet = xp.where((bits & 0x7FFFFF) == 0, bits, bits | 0x400000)
    return xp.where(finite, bits + (chance & 0xFFFF), quiet) & -65536


def to_bfloat16(values: Tensor, elements: Tensor, seed: int | Tensor, part: int) -> Tensor:
    """Return `values`, float32, rounded stochastically; what is not +0 does not become +0.

    `elements` int32, shaped as `values`, tells elements apart, and `part` the parts: u is 0, the states are 1, 2, ….
    """
    if not isinstance(seed, Tensor):
        seed = torch.full((), seed, dtype=torch.int32, device=values.device)
    chance = random_bits(elements, seed, part)
    bits = values.contiguous().view(torch.int32)
    rounded: Tensor = not_to_plus_zero(rounded_bits(bits, chance), bits).view(torch.float32)
    return rounded.to(torch.bfloat16)


_nearest_bits, _not_to_plus_zero = bind(nearest_bits, np), bind(not_to_plus_zero, np)


def narrowed(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The bits of `values`, rounded to the nearest bfloat16; what is not +0 does not become +0."""
    bits = np.ascontiguousarray(values).view(np.int32)
    kept = np.asarray(_not_to_plus_zero(_nearest_bits(bits), bits), np.int32)
    return (kept >> 16).astype(np.uint16)


def widened(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The numbers of which `bits` are the bits as bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
