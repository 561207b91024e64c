"""An embedding table and a network over it: the whole click model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsegroup.data.batches import Bags
from sparsegroup.data.keys import FIELD_BITS
from sparsegroup.models import DCN, MLP, OPNN
from sparsegroup.names import ModelName
from sparsegroup.table import HashEmbedding

NETWORKS: Mapping[ModelName, type[MLP] | type[OPNN] | type[DCN]] = {"mlp": MLP, "opnn": OPNN, "dcn": DCN}

INITIAL_STD = 0.01


class ClickModel(nn.Module):
    """Keys → embeddings → network → logit.

    A feature has no row before training has seen it: in evaluation its vector is zero.

    Args:
        name: "mlp", "opnn" or "dcn".
        fields: Number of categorical fields of the log, those of several values included.
        dim: Embedding dimension; by default the paper's for this model.
        seed: The seed of the embeddings' start.
        numbers: Number of numeric fields.
        hidden: Sizes of the hidden layers; by default the paper's.
        dropout: After each hidden layer; by default the network's.
    """

    def __init__(
        self,
        name: ModelName,
        fields: int,
        dim: int | None = None,
        seed: int = 0,
        numbers: int = 0,
        *,
        hidden: Sequence[int] | None = None,
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        network = NETWORKS[name]
        dim = network.default_dim if dim is None else dim
        self.embedding = HashEmbedding(dim, std=INITIAL_STD, seed=seed, field_bits=FIELD_BITS)
        options: dict[str, Any] = {"hidden": hidden, "dropout": dropout}
        given = {option: value for option, value in options.items() if value is not None}
        self.network = network(fields, dim, numbers, **given)

    def forward(self, keys: Tensor, numbers: Tensor | None = None, bags: Sequence[Bags] = ()) -> Tensor:
        """Logits `[batch]` of keys `[batch, fields]` int64, numbers `[batch, numbers]`, if there are any, and bags."""
        has_numbers = numbers is not None and numbers.shape[1] > 0
        vectors = self.embedding(keys_to_look_up(keys, bags))
        logits: Tensor = self.network(by_field(vectors, keys, bags), numbers if has_numbers else None)
        return logits


def keys_to_look_up(keys: Tensor, bags: Sequence[Bags]) -> Tensor:
    """All keys of a batch: `keys` itself where there are no bags, else those of the bags behind them, 1-d."""
    return torch.cat([keys.flatten(), *(bag.keys for bag in bags)]) if bags else keys


def by_field(vectors: Tensor, keys: Tensor, bags: Sequence[Bags]) -> Tensor:
    """Embeddings `[batch, fields, dim]` of the vectors of `keys_to_look_up`: a bag's is the mean of its vectors.

    An empty bag's is zero. The fields of one value come first.
    """
    if not bags:
        return vectors
    rows, dim = len(keys), vectors.shape[-1]
    fields, position = [vectors[: keys.numel()].view(rows, keys.shape[1], dim)], keys.numel()
    for bag in bags:
        values = vectors[position : position + len(bag.keys)]
        position += len(bag.keys)
        sizes = bag.offsets.diff()
        of_row = torch.repeat_interleave(torch.arange(rows), sizes).to(values.device)
        sums = values.new_zeros(rows, dim).index_add(0, of_row, values)
        fields.append((sums / sizes.clamp(min=1).unsqueeze(1).to(values.device)).unsqueeze(1))
    return torch.cat(fields, dim=1)
