"""A frozen model with the inputs and the output of a server: tensors by name, and a probability."""

import json
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sparsegroup.data.batches import Bags, Batch
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving.embeddings import Embeddings
from sparsegroup.serving.frozen_model import FrozenModel
from sparsegroup.serving.frozen_table import FrozenTable
from sparsegroup.serving.program import trace
from sparsegroup.table import FieldTables


class ServingModel(nn.Module):
    """Raw keys → probability, in operators that torch.export and ONNX know.

    Args:
        embeddings: See `FrozenModel`.
        network: A network of `sparsegroup.models`, of which this takes a copy.
        columns: What it expects.

    Attributes:
        inputs: Names of what `forward` takes, in order: `keys`, `numbers` if there are any, `<field>.keys` and
            `<field>.offsets` of lists.
    """

    def __init__(
        self, embeddings: Embeddings | FrozenTable | FieldTables, network: nn.Module, columns: LogSchema
    ) -> None:
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

    def trace(self) -> ExportedProgram:
        """This as a program for batches of any size."""
        # Strict, as the networks compare shapes by len(), which the other way of tracing takes for a number.
        return trace(self, self._example(), dynamic_shapes=self._dynamic_shapes(), strict=True)

    def metadata(self) -> dict[str, str]:
        """What it takes, for the `metadata_props` of an ONNX file."""
        columns = self.columns
        return {
            "fields": json.dumps(columns.fields, ensure_ascii=False),
            "lists": json.dumps(columns.lists, ensure_ascii=False),
            "numbers": json.dumps(columns.numbers, ensure_ascii=False),
            "hash": columns.hash,
        }

    def _example(self) -> tuple[Tensor, ...]:
        """Inputs of three rows; in a list, a bag of two keys, an empty one and one of one key."""
        columns = self.columns
        keys = torch.zeros(3, len(columns.fields) - len(columns.lists), dtype=torch.int64)
        numbers = (torch.zeros(3, len(columns.numbers)),) if columns.numbers else ()
        bags = []
        for _ in columns.lists:  # each with tensors of its own: one that is given twice would be taken for one input
            bags += [torch.zeros(3, dtype=torch.int64), torch.tensor([0, 2, 2, 3])]
        return (keys, *numbers, *bags)

    def _dynamic_shapes(self) -> dict[str, Any]:
        """Which sizes of the inputs are open: the batch's, and how many keys the lists have."""
        columns, batch = self.columns, Dim("batch", min=0)
        numbers = ({0: batch},) if columns.numbers else ()
        bags = [({0: Dim(f"values_{place}", min=0)}, {0: batch + 1}) for place in range(len(columns.lists))]
        others = (*numbers, *(shape for pair in bags for shape in pair))
        return {"keys": {0: batch}, **({"others": others} if others else {})}
