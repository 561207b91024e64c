"""A trained model as a server has it: the live rows and the network, without the means to train them."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from sparsegroup.data.batches import Batch
from sparsegroup.serving.embeddings import Embeddings
from sparsegroup.serving.frozen_table import FrozenTable
from sparsegroup.training.input_columns import Columns


class ServingModel(nn.Module):
    """Raw keys → probability, in operators that torch.export and ONNX know.

    It gives what the `ClickModel` gives whose table holds these embeddings: zeros for a key that is not there, the
    mean of the vectors for a field of several values.

    Args:
        embeddings: The live rows.
        network: A network of `sparsegroup.models`, of which this takes a copy.
        columns: What it expects.

    Attributes:
        inputs: Names of what `forward` takes, in order.
    """

    def __init__(self, embeddings: Embeddings, network: nn.Module, columns: Columns) -> None:
        super().__init__()
        self.columns = columns
        self.lookup = FrozenTable(embeddings.keys, embeddings.vectors)
        self.network = deepcopy(network)
        self.inputs = input_names(columns)
        self.requires_grad_(False)
        self.eval()

    def forward(self, keys: Tensor, *others: Tensor) -> Tensor:
        """Probabilities `[batch]` float32.

        Args:
            keys: `[batch, fields]` int64, of the fields of one value, in their order.
            *others: Numbers `[batch, numbers]` float32, if there are any; then, for each field of several values,
                its keys `[m]` int64, those of the first row first, and offsets `[batch + 1]` int64: row i has
                keys[offsets[i] : offsets[i + 1]].
        """
        numbers = others[0] if self.columns.numbers else None
        bags = others[1:] if self.columns.numbers else others
        every = torch.cat([keys.flatten(), *bags[0::2]]) if bags else keys.flatten()
        vectors = self.lookup(every)
        single = keys.numel()
        fields = vectors[:single].unflatten(0, (keys.shape[0], keys.shape[1]))
        if bags:
            means = _means(keys.shape[0], vectors[single:], bags[0::2], bags[1::2])
            fields = torch.cat([fields, *means], dim=1)
        logits: Tensor = self.network(fields, numbers)
        return logits.sigmoid()

    def arguments(self, batch: Batch) -> tuple[Tensor, ...]:
        """What `forward` takes of a batch of a log."""
        numbers = (batch.numbers,) if self.columns.numbers else ()
        bags = [tensor for bag in batch.bags for tensor in (bag.keys, bag.offsets)]
        return (batch.keys, *numbers, *bags)


def _means(rows: int, vectors: Tensor, keys: Sequence[Tensor], offsets: Sequence[Tensor]) -> list[Tensor]:
    """The mean of each bag, `[rows, 1, dim]` for each field; `vectors` are those of the first field's keys first.

    Sums are differences of running ones, in double precision: the bags' sizes then bound no shape.
    """
    running = torch.cat([vectors.new_zeros(1, vectors.shape[1]), vectors]).to(torch.float64).cumsum(0)
    means, begin = [], 0
    for part, bounds in zip(keys, offsets, strict=True):
        first, last = bounds.narrow(0, 0, rows), bounds.narrow(0, 1, rows)
        sums = running.index_select(0, last + begin) - running.index_select(0, first + begin)
        sizes = (last - first).clamp(min=1).unsqueeze(1)
        means.append((sums / sizes).to(torch.float32).unsqueeze(1))
        begin = begin + part.shape[0]
    return means


def input_names(columns: Columns) -> tuple[str, ...]:
    """Names of a model's inputs: `keys`, `numbers` if there are any, `<field>.keys` and `<field>.offsets` of lists."""
    numbers = ["numbers"] if columns.numbers else []
    return ("keys", *numbers, *(f"{name}.{part}" for name in columns.lists for part in ("keys", "offsets")))
