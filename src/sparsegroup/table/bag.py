"""`HashEmbeddingBag`: the table followed by sums or means over bags of keys."""

from typing import Any

import torch
from torch import Tensor

from sparsegroup.bags import BagMode, pool, pool_ragged
from sparsegroup.table.embedding_arguments import told_arguments
from sparsegroup.table.hash_embedding import HashEmbedding
from sparsegroup.table.key_array import check_keys


class HashEmbeddingBag(HashEmbedding):
    """`HashEmbedding` followed by the sum or mean over bags of keys: `nn.EmbeddingBag` without a vocabulary.

    Args:
        dim: Length of a vector.
        mode: "mean" (default, as in torch) or "sum".
        include_last_offset: `offsets` has one entry more, the number of keys.
        **arguments: See `HashEmbedding`.

    Raises:
        ValueError, TypeError: An argument out of range.
    """

    @told_arguments
    def __init__(
        self,
        dim: int,
        *,
        mode: BagMode = "mean",
        include_last_offset: bool = False,
        **arguments: Any,
    ) -> None:
        super().__init__(dim, **arguments)
        if mode not in ("mean", "sum"):
            raise ValueError(f"mode must be 'mean' or 'sum', got {mode!r}")
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(self, keys: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """The bags' vectors.

        Args:
            keys: int64 `[bags, keys per bag]`, or `[n]` with `offsets`.
            offsets: int64 `[bags]`, where each bag begins, ascending from 0; only with 1-d keys.
            per_sample_weights: Shaped as `keys`; only with mode "sum".

        Returns:
            `[bags, dim]`; zeros for an empty bag.

        Raises:
            TypeError, ValueError, RuntimeError, MemoryError: As `HashEmbedding`, and for offsets and weights that do
                not fit; nothing is inserted.
        """
        check_keys(keys)
        if per_sample_weights is not None:
            if self.mode != "sum":
                raise ValueError(f"per_sample_weights need mode='sum', this bag has mode={self.mode!r}")
            if per_sample_weights.shape != keys.shape:
                raise ValueError(
                    f"per_sample_weights must have the shape of the keys, {list(keys.shape)}, "
                    f"got {list(per_sample_weights.shape)}"
                )
        if keys.ndim == 2:
            if offsets is not None:
                raise ValueError("offsets are for 1-d keys; each row of 2-d keys is a bag")
            ends = None
        elif keys.ndim == 1:
            ends = self._bag_ends(len(keys), None if offsets is None else offsets.cpu())
        else:
            raise ValueError(f"keys must be 1-d with offsets, or 2-d, got shape {list(keys.shape)}")
        rows = super().forward(keys.reshape(-1))
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.reshape(-1, 1).to(rows)
        if ends is None:
            return pool(rows.view(*keys.shape, self.dim), self.mode)
        return pool_ragged(rows, ends, len(ends) - 1, self.mode)

    def _bag_ends(self, count: int, offsets: Tensor | None) -> Tensor:
        """Where the bags begin and, last, end: `[bags + 1]`."""
        if offsets is None:
            raise ValueError("1-d keys need offsets")
        if offsets.dtype != torch.int64 or offsets.ndim != 1:
            raise TypeError(f"offsets must be 1-d int64, got {offsets.dtype} of shape {list(offsets.shape)}")
        ends = offsets if self.include_last_offset else torch.cat([offsets, offsets.new_tensor([count])])
        sizes = ends.diff()
        if len(ends) and (int(ends[0]) != 0 or int(ends[-1]) != count or bool((sizes < 0).any())):
            raise ValueError(
                f"offsets must ascend from 0 to at most {count}, the number of keys, got {offsets.tolist()}"
            )
        if not len(ends) or (count and not len(sizes)):
            raise ValueError(f"{count} keys need at least one bag")
        return ends
