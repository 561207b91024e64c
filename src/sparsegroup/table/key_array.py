"""Keys that a user gives, as the table takes them."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Int64s = npt.NDArray[np.int64]


def check_keys(keys: Tensor) -> None:
    """Raise TypeError unless `keys` is an int64 tensor."""
    if not isinstance(keys, Tensor):
        raise TypeError(f"keys must be an int64 tensor, got {type(keys).__name__}")
    if keys.dtype != torch.int64:
        raise TypeError(f"keys must be int64, got {keys.dtype}")


def key_array(keys: Tensor, *, may_be_on_device: bool) -> Int64s:
    """Keys of any shape as a contiguous array `[n]` on the host.

    Args:
        keys: int64.
        may_be_on_device: Keys on a GPU are waited for and copied.

    Raises:
        TypeError: See `check_keys`.
        ValueError: They are on another device.
    """
    check_keys(keys)
    if keys.device.type != "cpu":
        if not may_be_on_device or keys.device.type != "cuda":
            raise ValueError(f"keys must be on cpu, where the table's index is, got {keys.device}")
        keys = keys.cpu()
    flat: Int64s = keys.numpy().reshape(-1)
    return flat if flat.flags.c_contiguous else np.ascontiguousarray(flat)
