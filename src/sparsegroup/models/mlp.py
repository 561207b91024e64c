"""The multi-layer perceptron of §4.1 (Avazu): embeddings of dimension 16, then 64, 32, 16, 1."""

from collections.abc import Sequence

from torch import Tensor, nn

from sparsegroup.models.layers import Network, hidden_layers


class MLP(Network):
    """Embeddings, concatenated, through fully connected layers to one logit.

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension; the paper's is 16.
        numbers: Number of numeric features.
        hidden: Sizes of the hidden layers.
        dropout: After each hidden layer.
        outputs: Number of logits of a row, which share the hidden layers.
    """

    default_dim = 16

    def __init__(
        self,
        fields: int,
        dim: int = default_dim,
        numbers: int = 0,
        hidden: Sequence[int] = (64, 32, 16),
        dropout: float = 0.0,
        outputs: int = 1,
    ) -> None:
        super().__init__(fields, dim, numbers)
        width = fields * dim + numbers
        self.hidden = hidden_layers(width, hidden, dropout)
        self.output = nn.Linear(hidden[-1] if hidden else width, outputs)

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]`, or `[batch, outputs]`, of embeddings `[batch, fields, dim]`, numbers `[batch, numbers]`."""
        x = self.flatten(embeddings, numbers)
        return self.logits(self.hidden(x))
