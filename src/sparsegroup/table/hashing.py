"""Mixing of 64-bit keys, for the index and for the rows' starts."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import jitted, kernel


@jitted
def mix(key: Any) -> Any:
    """A bijection of 64-bit numbers in which every bit depends on every bit (the finalizer of MurmurHash3).

    Args:
        key: uint64.
    """
    key = (key ^ (key >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    key = (key ^ (key >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return key ^ (key >> np.uint64(33))


def mixed(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """`mix` of each key, `[n]`."""
    out = np.empty(len(keys), np.uint64)
    _mix_kernel(keys, out)
    return out


def _mix_all(keys: Any, out: Any) -> None:
    for i in range(len(keys)):
        out[i] = mix(np.uint64(keys[i]))


_mix_kernel = kernel(_mix_all, "the table's keys (mixing)")
