"""A frozen model with the inputs and the output of a server: tensors by name, and a probability."""

import torch
from torch import Tensor, nn

from sparsegroup.data.batches import Bags, Batch
from sparsegroup.serving.embeddings import Embeddings
from sparsegroup.serving.frozen_model import FrozenModel
from sparsegroup.training.input_columns import Columns


class ServingModel(nn.Module):
    """Raw keys → probability, in operators that torch.export and ONNX know.

    Args:
        embeddings: The live rows.
        network: A network of `sparsegroup.models`, of which this takes a copy.
        columns: What it expects.

    Attributes:
        inputs: Names of what `forward` takes, in order: `keys`, `numbers` if there are any, `<field>.keys` and
            `<field>.offsets` of lists.
    """

    def __init__(self, embeddings: Embeddings, network: nn.Module, columns: Columns) -> None:
        super().__init__()
        self.columns = columns
        self.model = FrozenModel(embeddings, network)
        lists = [f"{name}.{part}" for name in columns.lists for part in ("keys", "offsets")]
        self.inputs = ("keys", *(["numbers"] if columns.numbers else []), *lists)
        self.eval()

    def forward(self, keys: Tensor, *others: Tensor) -> Tensor:
        """Probabilities `[batch]` float32.

        Args:
            keys: `[batch, fields]` int64, of the fields of one value, in their order.
            *others: Numbers `[batch, numbers]` float32, if there are any; then, for each field of several values,
                its keys `[m]` int64, those of the first row first, and offsets `[batch + 1]` int64: row i has
                keys[offsets[i] : offsets[i + 1]].
        """
        numbers, parts = (others[0], others[1:]) if self.columns.numbers else (None, others)
        bags = [Bags(*pair) for pair in zip(parts[0::2], parts[1::2], strict=True)]
        logits: Tensor = self.model(keys, numbers, bags)
        return torch.sigmoid(logits)

    def arguments(self, batch: Batch) -> tuple[Tensor, ...]:
        """What `forward` takes of a batch of a log."""
        numbers = (batch.numbers,) if self.columns.numbers else ()
        bags = [tensor for bag in batch.bags for tensor in (bag.keys, bag.offsets)]
        return (batch.keys, *numbers, *bags)
