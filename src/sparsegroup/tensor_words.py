"""Tensors in messages."""

from typing import Any

from torch import Tensor


def shape_of(value: Any) -> str:
    """Dtype and shape of a tensor for a message, as in "float32 [2, 3]"; the type's name of anything else."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
