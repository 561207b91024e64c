"""What stands in for a `HashEmbeddingBag` where vectors don't change."""

import torch
from torch import Tensor

from sparsegroup.bags import BagMode, pool, pool_ragged
from sparsegroup.serving.frozen_table import FrozenTable
from sparsegroup.serving.quantize import QuantizedVectors


class FrozenBag(FrozenTable):
    """Sums or means over bags of keys, in operators that torch.export and ONNX know. It checks no offsets.

    Args:
        keys, vectors, fallback, dtype: See `FrozenTable`.
        mode, include_last_offset: See `HashEmbeddingBag`.
    """

    def __init__(
        self,
        keys: Tensor,
        vectors: QuantizedVectors,
        fallback: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        mode: BagMode,
        include_last_offset: bool,
    ) -> None:
        super().__init__(keys, vectors, fallback, dtype)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(self, keys: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """The bags' vectors `[bags, dim]`, zeros for an empty bag; the arguments are those of `HashEmbeddingBag`."""
        rows = super().forward(keys.reshape(-1))
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.reshape(-1, 1).to(rows.dtype)
        if offsets is None:
            return pool(rows.view(*keys.shape, self.dim), self.mode)
        ends = offsets
        if not self.include_last_offset:
            ends = torch.cat([offsets, torch.full((1,), keys.shape[0], dtype=offsets.dtype, device=offsets.device)])
        return pool_ragged(rows, ends, ends.shape[0] - 1, self.mode)
