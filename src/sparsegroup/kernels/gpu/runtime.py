"""Whether and where the Triton kernels can run. This module needs no Triton."""

import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

WIDEST_GROUP = 4096
"""Elements: a group is one tile of a kernel, which takes the longer to compile the wider it is."""

WEIGHT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What the kernels take as weights."""

_rehearsing = False


@cache
def has_triton() -> bool:
    """Whether Triton is installed; it comes with torch for CUDA on Linux."""
    return importlib.util.find_spec("triton") is not None


def serves(device: torch.device) -> bool:
    """Whether the kernels run for tensors on `device`; a warning says, once, if Triton or a newer GPU is wanting."""
    if device.type == "cuda":
        return (has_triton() or _told_that_triton_is_missing()) and _is_recent(device)
    return _rehearsing and device.type == "cpu"


@cache
def _is_recent(device: torch.device) -> bool:
    """Whether Triton compiles for a GPU, bfloat16 included."""
    if torch.version.hip is not None or not torch.cuda.is_available():
        return True
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        warnings.warn(
            f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}, the kernels "
            "want 8.0: steps are PyTorch's own operations one after the other, several times slower",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    return True


@cache
def _told_that_triton_is_missing() -> bool:
    warnings.warn(
        "Triton is not installed: on the GPU, steps are PyTorch's own operations one after the other, several times "
        "slower than one kernel. Install it with: pip install triton",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` on `device`. From the host to a GPU it goes through pinned memory, so that the host does not wait."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@contextmanager
def rehearsal() -> Iterator[None]:
    """While it lasts, the CPU counts as a GPU: Triton's interpreter runs the kernels, slowly. For tests."""
    global _rehearsing
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("set TRITON_INTERPRET=1 before Triton is imported")
    before, _rehearsing = _rehearsing, True
    try:
        yield
    finally:
        _rehearsing = before
