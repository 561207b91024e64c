"""FM, the factorization machine (Rendle, ICDM 2010), and what DeepFM and xDeepFM take of it."""

import torch
from torch import Tensor, nn

from sparsegroup.models.layers import Network, check_inputs


class WideAndFactors(nn.Module):
    """The linear part b + Σ_i w_i + Σ_j a_j x_j, and the factors v_i apart from the weights w_i.

    An embedding holds both, (w_i, v_i): the first coordinate is the feature's weight, the others its factors. One row
    is one group, so that the sparse group lasso removes a feature's weight and factors together.
    """

    weight: Tensor | None

    def __init__(self, fields: int, dim: int, numbers: int) -> None:
        super().__init__()
        if dim < 2:
            raise ValueError(f"an embedding holds a weight and at least one factor: dim must be >= 2, got {dim}")
        self.fields, self.dim, self.numbers = fields, dim, numbers
        self.register_parameter("weight", nn.Parameter(torch.zeros(numbers)) if numbers else None)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, embeddings: Tensor, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
        """The linear part `[batch]` and factors `[batch, fields, k]` of embeddings `[batch, fields, dim]`."""
        check_inputs(embeddings, numbers, self.fields, self.dim, self.numbers)
        wide = embeddings[:, :, 0].sum(1) + self.bias
        if numbers is not None and self.weight is not None:
            wide = wide + (numbers * self.weight).sum(1)
        return wide, embeddings[:, :, 1:]


class WideNetwork(Network):
    """A network with a `WideAndFactors`, whose bias is that of the logits."""

    def __init__(self, fields: int, dim: int, numbers: int) -> None:
        super().__init__(fields, dim, numbers)
        self.wide = WideAndFactors(fields, dim, numbers)

    @property
    def logit_bias(self) -> nn.Parameter:
        """See `Network.logit_bias`."""
        return self.wide.bias


def pair_products(factors: Tensor) -> Tensor:
    """Σ_{i<j} ⟨v_i, v_j⟩, `[batch]`, of factors `[batch, n, k]`, in n k steps (Rendle, lemma 3.1).

    It is ½ Σ_f ((Σ_i v_if)² - Σ_i v_if²).
    """
    return (factors.sum(1).square() - factors.square().sum(1)).sum(1) / 2


class FM(WideNetwork):
    """b + Σ_i w_i x_i + Σ_{i<j} ⟨v_i, v_j⟩ x_i x_j (eq. 1 of FM), where x_i is 1 for a row's features, or a number.

    An embedding is (w_i, v_i), see `WideAndFactors`.

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension, 1 + k for k factors.
        numbers: Number of numeric features; each also has factors.

    Raises:
        ValueError: `dim` < 2.
    """

    default_dim = 9
    factors: Tensor | None

    def __init__(self, fields: int, dim: int = default_dim, numbers: int = 0) -> None:
        super().__init__(fields, dim, numbers)
        factors = nn.Parameter(torch.empty(numbers, dim - 1).normal_(std=0.01)) if numbers else None
        self.register_parameter("factors", factors)

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]` of embeddings `[batch, fields, dim]` and numbers `[batch, numbers]`."""
        wide, factors = self.wide(embeddings, numbers)
        if numbers is not None and self.factors is not None:
            factors = torch.cat([factors, numbers.unsqueeze(2) * self.factors], dim=1)
        logits: Tensor = wide + pair_products(factors)
        return logits
