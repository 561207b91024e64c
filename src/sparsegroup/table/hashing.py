"""Mixing of 64-bit keys, for the index and for the rows' starts."""

from typing import Any

import numpy as np

from sparsegroup.kernels.cpu.jit import jitted


@jitted
def mix(key: Any) -> Any:
    """A bijection of 64-bit numbers in which every bit depends on every bit (the finalizer of MurmurHash3).

    Args:
        key: uint64.
    """
    key = (key ^ (key >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    key = (key ^ (key >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return key ^ (key >> np.uint64(33))
