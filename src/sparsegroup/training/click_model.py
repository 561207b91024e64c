"""An embedding table and a network over it: the whole click model."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from sparsegroup.models import DCN, MLP, OPNN

ModelName = Literal["mlp", "opnn", "dcn"]
NETWORKS: Mapping[ModelName, type[MLP] | type[OPNN] | type[DCN]] = {"mlp": MLP, "opnn": OPNN, "dcn": DCN}

INITIAL_STD = 0.01


class ClickModel(nn.Module):
    """Feature ids → embeddings → network → logit.

    Row 0 of the table is the unknown feature: always zero.

    Args:
        name: "mlp", "opnn" or "dcn".
        features: Number of features; the table has one row more.
        fields: Number of fields of a row of the log.
        dim: Embedding dimension; by default the paper's for this model.
    """

    def __init__(self, name: ModelName, features: int, fields: int, dim: int | None = None) -> None:
        super().__init__()
        network = NETWORKS[name]
        dim = network.default_dim if dim is None else dim
        self.embedding = nn.Embedding(features + 1, dim, padding_idx=0, sparse=True)
        with torch.no_grad():
            self.embedding.weight[1:].normal_(0, INITIAL_STD)
        self.network = network(fields, dim)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits `[batch]` of ids `[batch, fields]` int64."""
        logits: Tensor = self.network(self.embedding(ids))
        return logits
