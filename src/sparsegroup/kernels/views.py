"""NumPy's view of tensors, which torch may go on resizing, and its names of their dtypes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NUMPY_DTYPES: Mapping[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
"""The dtypes that the compiled step computes with."""
TORCH_DTYPES = {theirs: ours for ours, theirs in NUMPY_DTYPES.items()}


class _Memory:
    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: Tensor, typestr: str) -> None:
        self.tensor = tensor  # to be kept as long as the view
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "typestr": typestr,
            "version": 3,
        }


def array_of(tensor: Tensor) -> npt.NDArray[Any]:
    """The memory of a contiguous CPU tensor as an array.

    Unlike with `tensor.numpy()`, torch may resize the tensor afterwards, as `zero_()` on a sparse gradient that it
    belongs to does; the view must not be used any more then.
    """
    kind = "f" if tensor.is_floating_point() else "i"
    return np.asarray(_Memory(tensor, f"{'<' if np.little_endian else '>'}{kind}{tensor.element_size()}"))
