"""A small model with a table, and clicks to train it on, for the tests of clients."""

import torch
from torch import Tensor, nn

from sparsegroup import HashEmbedding


class TableModel(nn.Module):
    """Three keys → a logit."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = HashEmbedding(4, std=0.5)
        self.out = nn.Linear(4, 1)

    def forward(self, keys: Tensor) -> Tensor:
        return self.out(self.table(keys).sum(1)).squeeze(1)

    def loss(self, keys: Tensor, labels: Tensor) -> Tensor:
        """A hundred times the log loss, so that there is something to clip."""
        return 100 * nn.functional.binary_cross_entropy_with_logits(self(keys), labels)


def clicks(rows: int = 96) -> tuple[Tensor, Tensor]:
    """Keys `[rows, 3]` and labels `[rows]`."""
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, 40, (rows, 3), generator=draw), (torch.rand(rows, generator=draw) < 0.5).float()
