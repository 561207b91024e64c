"""The one way from a batch's keys to logits, whatever looks the keys up: a table in training, an export in serving."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from sparsegroup.bags import pool_ragged
from sparsegroup.data.batches import Bags

Network = Callable[[Tensor, Tensor | None], Tensor]
"""From embeddings `[batch, fields, dim]` and numbers `[batch, numbers]` or None to logits `[batch]`."""

Pooling = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""From a list's place, its values' vectors, their offsets and the single fields' embeddings to one vector per row."""


class LookupModel(nn.Module):
    """Keys → vectors → network → logits.

    Args:
        embedding: From int64 keys of any shape to vectors `[*shape, dim]`: a `HashEmbedding`, or an export's
            `FrozenTable`.
        network: A network of `sparsegroup.models`, or another that takes and gives the same.
    """

    network: nn.Module

    def __init__(self, embedding: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.network = network

    def forward(self, keys: Tensor, numbers: Tensor | None = None, bags: Sequence[Bags] = ()) -> Tensor:
        """Logits `[batch]` of keys `[batch, fields]` int64, numbers `[batch, numbers]`, if there are any, and bags."""
        return logits_of(self.network, self.embedding(keys_to_look_up(keys, bags)), keys, numbers, bags)


def keys_to_look_up(keys: Tensor, bags: Sequence[Bags]) -> Tensor:
    """All keys of a batch: `keys` itself where there are no bags, else those of the bags behind them, 1-d."""
    return torch.cat([keys.flatten(), *(bag.keys for bag in bags)]) if bags else keys


def frozen_vectors(embedding: nn.Module, keys: Tensor) -> Tensor:
    """Vectors of keys that are not trained; their gradients nobody uses, but a compiled network stays the same one."""
    with torch.no_grad():
        vectors: Tensor = embedding(keys)
    return vectors.requires_grad_()


def logits_of(network: Network, vectors: Tensor, keys: Tensor, numbers: Tensor | None, bags: Sequence[Bags]) -> Tensor:
    """Logits `[batch]` of a batch whose keys have been looked up.

    Args:
        network: As `LookupModel`.
        vectors: The vectors of `keys_to_look_up(keys, bags)`, `[*shape, dim]`.
        keys: `[batch, fields]` int64, of the fields of one value.
        numbers: `[batch, numbers]`; None or of no columns where there are none. They go where the vectors are.
        bags: The keys of each field of several values.
    """
    return network(*inputs_of(network, vectors, keys, numbers, bags))


def inputs_of(
    network: Network, vectors: Tensor, keys: Tensor, numbers: Tensor | None, bags: Sequence[Bags]
) -> tuple[Tensor, Tensor | None]:
    """What `logits_of` gives the network."""
    given = None if numbers is None or numbers.shape[1] == 0 else numbers.to(vectors.device)
    return by_field(vectors, keys, bags, pooling_of(network)), given


def pooling_of(network: Network) -> Pooling:
    """What makes one vector of a list for a network: its own `pooling`, as `WithPooling` has one, or the mean."""
    pooling: Pooling = getattr(network, "pooling", mean_of_list)
    return pooling


def mean_of_list(place: int, values: Tensor, offsets: Tensor, fields: Tensor) -> Tensor:
    """The mean of each row's values, zero where there are none; the arguments are those of `ListPooling`."""
    return pool_ragged(values, offsets, fields.shape[0])


def by_field(vectors: Tensor, keys: Tensor, bags: Sequence[Bags], pooling: Pooling = mean_of_list) -> Tensor:
    """Embeddings `[batch, fields, dim]` of the vectors of `keys_to_look_up`, those of a bag made one by `pooling`.

    The fields of one value come first.
    """
    if not bags:
        return vectors
    rows, end = keys.shape[0], keys.numel()
    single = vectors.narrow(0, 0, end).view(rows, keys.shape[1], vectors.shape[1])
    fields = [single]
    for place, bag in enumerate(bags):
        begin, end = end, end + bag.keys.shape[0]
        fields.append(pooling(place, vectors.narrow(0, begin, end - begin), bag.offsets, single).unsqueeze(1))
    return torch.cat(fields, dim=1)
