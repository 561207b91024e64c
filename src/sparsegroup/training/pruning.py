"""Magnitude pruning of an embedding table (§4.2), the baseline: keep the rows with the largest norm."""

import torch
from torch import Tensor


@torch.no_grad()
def prune_rows(weight: Tensor, keep: int) -> None:
    """Set all but the `keep` rows of largest Euclidean norm to zero, in place. Ties fall to the lower row.

    Args:
        weight: `[rows, dim]`.
        keep: Number of rows to keep.

    Raises:
        ValueError: `keep` is negative or larger than the number of rows.
    """
    if not 0 <= keep <= len(weight):
        raise ValueError(f"keep must be in [0, {len(weight)}], got {keep}")
    order = torch.argsort(torch.linalg.vector_norm(weight, dim=1), descending=True, stable=True)
    weight[order[keep:]] = 0
