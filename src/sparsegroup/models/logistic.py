"""LR, logistic regression: one weight per feature."""

import torch
from torch import Tensor, nn

from sparsegroup.models.layers import Network, check_inputs


class LR(Network):
    """b + Σ_i w_i + Σ_j a_j x_j over the features i of a row and its numbers x.

    A feature's weight w_i is its embedding, of dimension 1, so that the sparse group lasso is the lasso here.

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension: 1.
        numbers: Number of numeric features.

    Raises:
        ValueError: Another dimension.
    """

    default_dim = 1
    weight: Tensor | None

    def __init__(self, fields: int, dim: int = default_dim, numbers: int = 0) -> None:
        super().__init__(fields, dim, numbers)
        if dim != 1:
            raise ValueError(f"LR has one weight per feature: dim must be 1, got {dim}")
        self.register_parameter("weight", nn.Parameter(torch.zeros(numbers)) if numbers else None)
        self.bias = nn.Parameter(torch.zeros(1))

    @property
    def logit_bias(self) -> nn.Parameter:
        """See `Network.logit_bias`."""
        return self.bias

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]` of embeddings `[batch, fields, 1]` and numbers `[batch, numbers]`."""
        check_inputs(embeddings, numbers, self.fields, self.dim, self.numbers)
        logits: Tensor = embeddings.sum((1, 2)) + self.bias
        return logits if numbers is None or self.weight is None else logits + (numbers * self.weight).sum(1)
