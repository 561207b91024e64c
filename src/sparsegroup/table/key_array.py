"""Keys that a user gives, as the table takes them."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Int64s = npt.NDArray[np.int64]


def check_keys(keys: Tensor) -> None:
    """Raise TypeError unless `keys` is an int64 tensor."""
    if not isinstance(keys, Tensor):
        hint = ": give its values(), or pool it in a HashEmbeddingBag" if hasattr(keys, "lengths") else ""
        raise TypeError(f"keys must be an int64 tensor, got {type(keys).__name__}{hint}")
    if keys.dtype != torch.int64:
        raise TypeError(f"keys must be int64, got {keys.dtype}")


def widened(ids: Tensor) -> Tensor:
    """int32 as int64, which tables take; other dtypes as they are, for the table to judge."""
    return ids.to(torch.int64) if ids.dtype == torch.int32 else ids


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
