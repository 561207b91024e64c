"""xDeepFM (Lian et al., KDD 2018): a compressed interaction network, a linear part and deep layers."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsegroup.models.fm import WideNetwork
from sparsegroup.models.layers import hidden_layers, joined


class CompressedInteractions(nn.Module):
    """X^l_h = Σ_{i,j} W^l_{h,ij} (X^{l-1}_i ∘ X^0_j) (eq. 6 of xDeepFM), each summed over its elements (eq. 7).

    ∘ is the product element by element. No activation follows a layer; `layers` are their numbers of vectors.
    """

    def __init__(self, fields: int, layers: Sequence[int]) -> None:
        super().__init__()
        sizes = [fields, *layers]
        self.weights = nn.ParameterList()
        for before, size in zip(sizes, layers, strict=False):
            bound = 1 / math.sqrt(before * fields) if fields else 0.0
            self.weights.append(nn.Parameter(torch.empty(size, before * fields).uniform_(-bound, bound)))

    def forward(self, factors: Tensor) -> Tensor:
        """Sums of all layers' vectors, `[batch, Σ layers]`, of factors `[batch, fields, k]`."""
        last, sums = factors, [factors.new_zeros(factors.shape[0], 0)]
        for weight in self.weights:
            pairs = (last.unsqueeze(2) * factors.unsqueeze(1)).flatten(1, 2)
            last = weight @ pairs
            sums.append(last.sum(2))
        return torch.cat(sums, dim=1)


class XDeepFM(WideNetwork):
    """The linear part, a compressed interaction network and deep layers, joined in one logit (eq. 9 of xDeepFM).

    An embedding is (w_i, v_i), see `WideAndFactors`: w_i goes into the linear part, v_i into the other two.

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension, 1 + k.
        numbers: Number of numeric features; they join the linear part and the deep layers.
        hidden: Sizes of the deep layers.
        cin: How many vectors each layer of the interaction network has.
        dropout: After each deep layer.

    Raises:
        ValueError: `dim` < 2.
    """

    default_dim = 9

    def __init__(
        self,
        fields: int,
        dim: int = default_dim,
        numbers: int = 0,
        hidden: Sequence[int] = (64, 64),
        cin: Sequence[int] = (16, 16),
        dropout: float = 0.0,
    ) -> None:
        super().__init__(fields, dim, numbers)
        self.cin = CompressedInteractions(fields, cin)
        width = fields * (dim - 1) + numbers
        self.deep = hidden_layers(width, hidden, dropout)
        self.output = nn.Linear(sum(cin) + (hidden[-1] if hidden else width), 1, bias=False)

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]` of embeddings `[batch, fields, dim]` and numbers `[batch, numbers]`."""
        wide, factors = self.wide(embeddings, numbers)
        deep = self.deep(joined(factors, numbers))
        logits: Tensor = wide + self.output(torch.cat([self.cin(factors), deep], dim=1)).squeeze(1)
        return logits
