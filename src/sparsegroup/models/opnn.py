"""OPNN, the outer product-based neural network (Qu et al., ICDM 2016), as §4.1 uses it on iPinYou."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from sparsegroup.models.layers import Network, hidden_layers


class OPNN(Network):
    """Embeddings and outer products of them through fully connected layers to one logit.

    The product layer and the first hidden layer are h₁ = ReLU(W_z z + W_p p + b): z holds the embeddings, p the outer
    products, by default the one of the superposition f_Σ = Σ_i f_i with itself, as published, else the products of all
    pairs i < j.

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension; the paper's is 10.
        numbers: Number of numeric features; they join z.
        hidden: Sizes of the hidden layers.
        dropout: After each hidden layer.
        pairwise: Outer products of all pairs of fields, fields (fields - 1) / 2 × dim² inputs.
        outputs: Number of logits of a row, which share the hidden layers.
    """

    default_dim = 10
    pairs: Tensor

    def __init__(
        self,
        fields: int,
        dim: int = default_dim,
        numbers: int = 0,
        hidden: Sequence[int] = (512, 256, 128),
        dropout: float = 0.5,
        pairwise: bool = False,
        outputs: int = 1,
    ) -> None:
        super().__init__(fields, dim, numbers)
        self.pairwise = pairwise
        products = (fields * (fields - 1) // 2 if pairwise else 1) * dim * dim
        width = fields * dim + numbers + products
        self.hidden = hidden_layers(width, hidden, dropout)
        self.output = nn.Linear(hidden[-1] if hidden else width, outputs)
        pairs = list(combinations(range(fields), 2))  # torch.triu_indices takes seconds on the meta device
        self.register_buffer("pairs", torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2), persistent=False)

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]`, or `[batch, outputs]`, of embeddings `[batch, fields, dim]`, numbers `[batch, numbers]`."""
        z = self.flatten(embeddings, numbers)
        if self.pairwise:
            left, right = embeddings[:, self.pairs[:, 0]], embeddings[:, self.pairs[:, 1]]
        else:
            left = right = embeddings.sum(dim=1, keepdim=True)
        p = (left.unsqueeze(3) * right.unsqueeze(2)).flatten(1)
        return self.logits(self.hidden(torch.cat([z, p], dim=1)))
