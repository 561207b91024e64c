"""DCN, the deep & cross network (Wang et al., ADKDD 2017), as §4.1 uses it on Criteo."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsegroup.kernels.cpu.tape import Tape
from sparsegroup.models.layers import Network, by_row, hidden_layers, record_hidden


class CrossLayers(nn.Module):
    """x_{l+1} = x_0 (x_l · w_l) + b_l + x_l (eq. 3 of DCN).

    Every x_l is a_l x_0 + (b_0 + … + b_{l-1}) with one number a_l per sample. So x_0 is needed only in products with
    each w_l, and with the weights of the next layer.
    """

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width) if width else 0.0
        self.weight = nn.Parameter(torch.empty(layers, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(layers, width))

    def forward(self, products: Tensor, weight: Tensor) -> Tensor:
        """The last layer's x · each of `weight` `[outputs, width]`, `[batch, outputs]`.

        `products` `[batch, layers + outputs]`: x_0 · each w_l, and x_0 · the weights.
        """
        layers = len(self.weight)
        of_x_0, with_weight = products[:, :layers].unbind(1), products[:, layers:]
        bias = self.bias.cumsum(0)
        of_bias = (bias[:-1] * self.weight[1:]).sum(1)
        scale = torch.ones(())
        for layer, product in enumerate(of_x_0):
            x_dot_w = scale * product if layer == 0 else scale * product + of_bias[layer - 1]
            scale = scale + x_dot_w
        if not layers:
            return with_weight
        # A product of two vectors has other bits than one of a matrix of one row.
        of_last = bias[-1] @ weight[0] if len(weight) == 1 else weight @ bias[-1]
        return scale.unsqueeze(1) * with_weight + of_last


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
        width, crosses = x.shape[1], len(self.cross.weight) + self.output.out_features
        of_cross, of_deep = self.output.weight[:, :width], self.output.weight[:, width:]
        first = self.deep[0] if len(self.deep) else None
        assert first is None or isinstance(first, nn.Linear)
        # One product of x: with the cross layers, what the output takes of them, and the first deep layer.
        weights = [self.cross.weight, of_cross, of_deep if first is None else first.weight]
        products = x @ torch.cat(weights).t()
        deep = products[:, crosses:]
        if first is not None:
            deep = self.deep[1:](deep + first.bias) @ of_deep.t()
        return by_row(self.cross(products[:, :crosses], of_cross) + deep + self.output.bias)

    def record(self, tape: Tape) -> None:
        """The same on a tape of compiled instructions."""
        x = tape.input
        crossed = tape.cross_vectors(x, self.cross.weight, self.cross.bias) if len(self.cross.weight) else x
        tape.logits([crossed, record_hidden(tape, x, self.deep)], self.output.weight, self.output.bias)
