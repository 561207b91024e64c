"""An embedding table and a network over it: the whole click model."""

from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn

from sparsegroup.models import DCN, MLP, OPNN
from sparsegroup.table import HashEmbedding

ModelName = Literal["mlp", "opnn", "dcn"]
NETWORKS: Mapping[ModelName, type[MLP] | type[OPNN] | type[DCN]] = {"mlp": MLP, "opnn": OPNN, "dcn": DCN}

INITIAL_STD = 0.01


class ClickModel(nn.Module):
    """Feature ids → embeddings → network → logit.

    A feature has no row before training has seen it: in evaluation its vector is zero.

    Args:
        name: "mlp", "opnn" or "dcn".
        fields: Number of categorical fields of the log.
        dim: Embedding dimension; by default the paper's for this model.
        seed: Of the embeddings' start.
        numbers: Number of numeric fields.
    """

    def __init__(self, name: ModelName, fields: int, dim: int | None = None, seed: int = 0, numbers: int = 0) -> None:
        super().__init__()
        network = NETWORKS[name]
        dim = network.default_dim if dim is None else dim
        self.embedding = HashEmbedding(dim, std=INITIAL_STD, seed=seed)
        self.network = network(fields, dim, numbers)

    def forward(self, keys: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]` of keys `[batch, fields]` int64 and numbers `[batch, numbers]`, if there are any."""
        has_numbers = numbers is not None and numbers.shape[1] > 0
        logits: Tensor = self.network(self.embedding(keys), numbers if has_numbers else None)
        return logits
