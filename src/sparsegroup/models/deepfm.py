"""DeepFM (Guo et al., IJCAI 2017): a factorization machine and deep layers over the same factors."""

from collections.abc import Sequence

from torch import Tensor, nn

from sparsegroup.models.fm import WideNetwork, pair_products
from sparsegroup.models.layers import hidden_layers, joined


class DeepFM(WideNetwork):
    """y_FM + y_DNN (eq. 1 of DeepFM): the logit of an FM plus that of deep layers over its factors and the numbers.

    An embedding is (w_i, v_i), see `WideAndFactors`: w_i goes into y_FM alone, v_i into both.

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension, 1 + k for k factors.
        numbers: Number of numeric features; they join the linear part and the deep layers.
        hidden: Sizes of the deep layers.
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
        dropout: float = 0.0,
    ) -> None:
        super().__init__(fields, dim, numbers)
        width = fields * (dim - 1) + numbers
        self.deep = hidden_layers(width, hidden, dropout)
        self.output = nn.Linear(hidden[-1] if hidden else width, 1, bias=False)

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]` of embeddings `[batch, fields, dim]` and numbers `[batch, numbers]`."""
        wide, factors = self.wide(embeddings, numbers)
        deep = self.output(self.deep(joined(factors, numbers)))
        logits: Tensor = wide + pair_products(factors) + deep.squeeze(1)
        return logits
