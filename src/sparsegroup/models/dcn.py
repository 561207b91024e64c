"""DCN, the deep & cross network (Wang et al., ADKDD 2017), as §4.1 uses it on Criteo."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsegroup.kernels.cross import cross_vectors
from sparsegroup.models.layers import Network, hidden_layers


class CrossLayers(nn.Module):
    """x_{l+1} = x_0 (x_l · w_l) + b_l + x_l (eq. 3 of DCN)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width) if width else 0.0
        self.weight = nn.Parameter(torch.empty(layers, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(layers, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's x `[batch, width]` of x_0, of the same shape."""
        return cross_vectors(x, self.weight, self.bias) if len(self.weight) else x


class DCN(Network):
    """Cross layers and deep layers side by side over the same input, joined in one logit.

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension; the paper's is 8.
        numbers: Number of numeric features.
        hidden: Sizes of the deep layers.
        cross_layers: Number of cross layers.
        dropout: After each deep layer.
        outputs: Number of logits of a row, which share all layers but the last.
    """

    default_dim = 8

    def __init__(
        self,
        fields: int,
        dim: int = default_dim,
        numbers: int = 0,
        hidden: Sequence[int] = (64, 64),
        cross_layers: int = 2,
        dropout: float = 0.0,
        outputs: int = 1,
    ) -> None:
        super().__init__(fields, dim, numbers)
        width = fields * dim + numbers
        self.cross = CrossLayers(width, cross_layers)
        self.deep = hidden_layers(width, hidden, dropout)
        self.output = nn.Linear(width + (hidden[-1] if hidden else width), outputs)

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]`, or `[batch, outputs]`, of embeddings `[batch, fields, dim]`, numbers `[batch, numbers]`."""
        x = self.flatten(embeddings, numbers)
        return self.logits(torch.cat([self.cross(x), self.deep(x)], dim=1))
