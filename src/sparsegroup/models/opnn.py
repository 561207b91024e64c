"""OPNN, the outer product-based neural network (Qu et al., ICDM 2016), as §4.1 uses it on iPinYou."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from sparsegroup.models.layers import flatten_inputs, hidden_layers


class OPNN(nn.Module):
    """Embeddings and outer products of them through fully connected layers to one logit.

    The product layer and the first hidden layer are h₁ = ReLU(W_z z + W_p p + b): z holds the embeddings, p the outer
    products, by default that of the superposition f_Σ = Σ_i f_i with itself, as published, else those of all
    pairs i < j.

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension; the paper's is 10.
        numbers: Number of numeric features; they join z.
        hidden: Sizes of the hidden layers.
        dropout: After each hidden layer.
        pairwise: Outer products of all pairs of fields, fields (fields - 1) / 2 × dim² inputs.
    """

    default_dim = 10

    def __init__(
        self,
        fields: int,
        dim: int = default_dim,
        numbers: int = 0,
        hidden: Sequence[int] = (512, 256, 128),
        dropout: float = 0.5,
        pairwise: bool = False,
    ) -> None:
        super().__init__()
        self.first: Tensor
        self.second: Tensor
        self.fields, self.dim, self.numbers, self.pairwise = fields, dim, numbers, pairwise
        products = (fields * (fields - 1) // 2 if pairwise else 1) * dim * dim
        width = fields * dim + numbers + products
        self.hidden = hidden_layers(width, hidden, dropout)
        self.output = nn.Linear(hidden[-1] if hidden else width, 1)
        pairs = list(combinations(range(fields), 2))  # torch.triu_indices takes seconds on the meta device
        for name, place in (("first", 0), ("second", 1)):
            indices = torch.tensor([pair[place] for pair in pairs], dtype=torch.int64)
            self.register_buffer(name, indices, persistent=False)

    @property
    def logit_bias(self) -> nn.Parameter:
        """What is added to every logit, `[1]`; training may start it at the log's base rate."""
        return self.output.bias

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]` of embeddings `[batch, fields, dim]` and numbers `[batch, numbers]`."""
        z = flatten_inputs(embeddings, numbers, self.fields, self.dim, self.numbers)
        if self.pairwise:
            left, right = embeddings[:, self.first], embeddings[:, self.second]
        else:
            left = right = embeddings.sum(dim=1, keepdim=True)
        p = (left.unsqueeze(3) * right.unsqueeze(2)).flatten(1)
        logits: Tensor = self.output(self.hidden(torch.cat([z, p], dim=1))).squeeze(1)
        return logits
