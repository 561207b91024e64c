"""Sums, means and maxima over bags of vectors: one vector for a field of several values."""

from typing import Literal

import torch
from torch import Tensor, nn

BagMode = Literal["sum", "mean", "max"]


def pool(vectors: Tensor, mode: BagMode = "mean") -> Tensor:
    """Return the sum, mean or maximum `[bags, dim]` of each bag of `vectors` `[bags, size, dim]`; zeros for size 0."""
    if mode == "max" and vectors.shape[1]:
        return vectors.max(1).values
    sums = vectors.sum(1)
    return sums / max(vectors.shape[1], 1) if mode == "mean" else sums


def pool_ragged(vectors: Tensor, offsets: Tensor, bags: int, mode: BagMode = "mean") -> Tensor:
    """Return the sum, mean or maximum of each bag, of any sizes; vectors are added up in their order.

    The gradient of a maximum goes to the first of equal elements, and has no derivative, as in `nn.EmbeddingBag`.

    The shapes of its operators depend only on `bags` and the number of vectors, so that `torch.export` and ONNX take it
    for batches of any size.

    Args:
        vectors: `[n, dim]`, in the order of the bags.
        offsets: `[bags + 1]` int64: bag i is `vectors[offsets[i] : offsets[i + 1]]`; from 0 to n.
        bags: The number of bags.
        mode: "sum", "mean" or "max".

    Returns:
        `[bags, dim]`; zeros for an empty bag.

    Examples:
        >>> import torch
        >>> pool_ragged(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 2, 2, 3]), 3)
        tensor([[2.],
                [0.],
                [5.]])
    """
    if mode == "max":
        places = torch.arange(vectors.shape[0], dtype=offsets.dtype, device=vectors.device)
        ends = offsets.to(vectors.device)
        return nn.functional.embedding_bag(places, vectors, ends, mode="max", include_last_offset=True)
    bag = bag_of_each(offsets, bags, vectors)
    sums = vectors.new_zeros(bags, vectors.shape[1]).index_add(0, bag, vectors)
    return sums if mode == "sum" else means_of(sums, offsets)


def means_of(sums: Tensor, offsets: Tensor) -> Tensor:
    """The means `[bags, dim]` of bags whose sums are `sums` `[bags, dim]`; `offsets` are `pool_ragged`'s."""
    bags = sums.shape[0]
    counts = offsets.narrow(0, 1, bags) - offsets.narrow(0, 0, bags)
    return sums / counts.clamp(min=1).unsqueeze(1).to(sums.device)


def without_padding(
    keys: Tensor, offsets: Tensor, weights: Tensor | None, padding: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the keys `[n]`, the `offsets` (see `pool_ragged`) and the weights `[n]` without the key `padding`."""
    kept = keys != padding
    before = nn.functional.pad(kept.cumsum(0), (1, 0)).to(offsets.device)
    weights = None if weights is None else weights[kept.to(weights.device)]
    return keys[kept], before.index_select(0, offsets), weights


def bag_of_each(offsets: Tensor, bags: int, vectors: Tensor) -> Tensor:
    """Which bag each vector is in, `[n]` int64 on the vectors' device; the arguments are `pool_ragged`'s.

    Examples:
        >>> import torch
        >>> bag_of_each(torch.tensor([0, 2, 2, 3]), 3, torch.zeros(3, 1))
        tensor([0, 0, 2])
    """
    # `narrow`, as a slice's size would be a condition on the program that torch.export makes.
    end, count = offsets.narrow(0, 1, bags), vectors.shape[0]
    ends = offsets.new_zeros(count + 1).index_add(0, end, torch.ones_like(end))
    return ends.cumsum(0).narrow(0, 0, count).to(vectors.device)  # the bags that end before it
