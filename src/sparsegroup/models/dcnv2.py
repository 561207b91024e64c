"""DCN-V2, the improved deep & cross network (Wang et al., WWW 2021)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsegroup.models.layers import Network, hidden_layers


class MatrixCross(nn.Module):
    """x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l (eq. 1 of DCN-V2); with a rank, W_l = U_l V_lᵀ (eq. 2)."""

    def __init__(self, width: int, layers: int, rank: int | None = None) -> None:
        super().__init__()
        if rank is not None and rank < 1:
            raise ValueError(f"rank must be >= 1, got {rank}")
        self.down = nn.ModuleList()  # V, then U or W, with b
        if rank is not None:
            self.down.extend(nn.Linear(width, rank, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(rank or width, width) for _ in range(layers))
        for linear in self.up:
            assert isinstance(linear, nn.Linear)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The last layer's x `[batch, width]` of x_0, of the same shape."""
        first = x
        for layer, up in enumerate(self.up):
            x = first * up(self.down[layer](x) if len(self.down) else x) + x
        return x


class DCNv2(Network):
    """Cross layers with a matrix each, and deep layers, parallel or stacked, joined in one logit.

    Args:
        fields: Number of categorical fields.
        dim: Embedding dimension.
        numbers: Number of numeric features.
        hidden: Sizes of the deep layers.
        cross_layers: Number of cross layers.
        rank: Rank of the cross layers' matrices; None for full ones.
        stacked: Whether the deep layers take what the cross layers give (fig. 1a), or x_0 in parallel (fig. 1b).
        dropout: After each deep layer.
        outputs: Number of logits of a row, which share all layers but the last.

    Raises:
        ValueError: `rank` < 1.
    """

    default_dim = 8

    def __init__(
        self,
        fields: int,
        dim: int = default_dim,
        numbers: int = 0,
        hidden: Sequence[int] = (64, 64),
        cross_layers: int = 2,
        rank: int | None = None,
        stacked: bool = False,
        dropout: float = 0.0,
        outputs: int = 1,
    ) -> None:
        super().__init__(fields, dim, numbers)
        self.stacked = stacked
        width = fields * dim + numbers
        self.cross = MatrixCross(width, cross_layers, rank)
        self.deep = hidden_layers(width, hidden, dropout)
        deep = hidden[-1] if hidden else width
        self.output = nn.Linear(deep if stacked else width + deep, outputs)

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]`, or `[batch, outputs]`, of embeddings `[batch, fields, dim]`, numbers `[batch, numbers]`."""
        x = self.flatten(embeddings, numbers)
        crossed = self.cross(x)
        last = self.deep(crossed) if self.stacked else torch.cat([crossed, self.deep(x)], dim=1)
        return self.logits(last)
