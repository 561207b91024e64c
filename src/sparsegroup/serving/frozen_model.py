"""A trained model as it is served: the live rows at the precision of an export, and the network."""

from copy import deepcopy

from torch import nn

from sparsegroup.serving.embeddings import Embeddings
from sparsegroup.serving.frozen_table import FrozenTable
from sparsegroup.training.lookup_model import LookupModel


class FrozenModel(LookupModel):
    """Keys → logits, as training computes them, over vectors that don't change; in evaluation mode.

    Args:
        embeddings: The live rows.
        network: A network of `sparsegroup.models`, of which this takes a copy.
    """

    embedding: FrozenTable

    def __init__(self, embeddings: Embeddings, network: nn.Module) -> None:
        super().__init__(FrozenTable(embeddings.keys, embeddings.vectors, embeddings.fallback), deepcopy(network))
        self.requires_grad_(False)
        self.eval()

    @property
    def rows(self) -> FrozenTable:
        """What can be read of its rows."""
        return self.embedding

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector as the lookup gives it, float32."""
        return self.embedding.dim * 4
