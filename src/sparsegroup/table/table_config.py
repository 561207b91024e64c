"""The settings of a table."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sparsegroup.table.admission import AdmissionPolicy
from sparsegroup.table.eviction import EvictionPolicy
from sparsegroup.table.row_start import Init


@dataclass(frozen=True)
class TableConfig:
    """See `HashEmbedding`."""

    dim: int
    std: float
    init: Init
    seed: int
    max_rows: int
    field_bits: int
    skips_nonfinite: bool
    huge_pages: bool
    dtype: np.dtype[Any]
    """Of vectors on the host."""
    weight_dtype: torch.dtype
    device: torch.device
    admission: AdmissionPolicy
    eviction: EvictionPolicy
    on_device: bool
    """Whether the rows are in a GPU's memory (or in that of Triton's interpreter)."""
