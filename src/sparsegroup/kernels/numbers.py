"""What a step's kernels are told that depends on the step."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor


@cache
def as_stored(value: float, dtype: torch.dtype) -> float:
    """`value`, rounded to `dtype`."""
    return float(torch.tensor(value, dtype=dtype))


@dataclass(frozen=True)
class StepScalars:
    """What depends on the step.

    Attributes:
        scalars: From the rule, on the host, or as 0-d tensors on the device.
        start: σ₀ (0 for a rule without), and 0 where the learning rate is 0, else 1; as `scalars`.
        seed: The seed of stochastic rounding: int32, or a 0-d int32 tensor.
    """

    scalars: tuple[Any, ...]
    start: tuple[Any, Any]
    seed: int | Tensor

    @classmethod
    def of_row(cls, row: Tensor, seed: Tensor) -> "StepScalars":
        """The numbers from scalars, σ₀ and whether x moves, in one tensor on the device."""
        *scalars, sigma_0, moves = row.unbind(0)
        return cls(tuple(scalars), (sigma_0, moves), seed)

    @property
    def on_device(self) -> bool:
        """Whether they are tensors."""
        return isinstance(self.seed, Tensor)
