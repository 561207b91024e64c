"""The groups of a parameter by the λ21 that each survives: what a size target is computed from."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

KEY_BYTES = 8
"""Bytes of a live row in a served model in addition to its vector: its key."""


@dataclass(frozen=True)
class GroupCensus:
    """Census of the groups of one parameter, or of a sample of the groups."""

    critical: npt.NDArray[np.float64]  # `[n]` float64, the smallest λ21 at which each group is zero
    weight: float  # how many groups each of these represents
    live: float  # groups that are not zero at present; an estimate where it is a sample
    seen: float  # groups ever seen, of which a rate is a share; also an estimate then
    live_bytes: int  # what a live group takes in a compact model: its weights, and 8 bytes for the key of a table's row
