"""A small model with a table, and clicks to train it on, for the tests of clients."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sparsegroup import GroupAdam, HashEmbedding, convert, param_groups, to_embeddings

KEYS = torch.arange(40)


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

    def rows(self) -> Tensor:
        """The vectors of all keys, `[40, 4]`."""
        return self.table.lookup(KEYS)

    def gradients(self) -> list[Tensor]:
        return [self.table.weight.grad.coalesce().values(), self.out.weight.grad, self.out.bias.grad]

    def gradient_norm(self, order: float = 2.0) -> Tensor:
        return torch.linalg.vector_norm(torch.cat([part.flatten() for part in self.gradients()]), order)


def clicks(rows: int = 96) -> tuple[Tensor, Tensor]:
    """Keys `[rows, 3]` and labels `[rows]`."""
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, 40, (rows, 3), generator=draw), (torch.rand(rows, generator=draw) < 0.5).float()


def assert_trains_as_sparse_embeddings(
    plain: nn.Module, fit: Callable[[nn.Module, torch.optim.Optimizer], Any], lr: float = 1e-2, **options: float
) -> None:
    """A converted copy ends with the model's predictions and weights. With a λ, rows are zero, and not only row 0."""
    model, kinds = convert(copy.deepcopy(plain)), (nn.Embedding, nn.EmbeddingBag)
    for module in plain.modules():
        if isinstance(module, kinds):
            module.sparse = True
    wanted, found = (fit(one, GroupAdam(param_groups(one, **options), lr=lr)) for one in (plain, model))
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(wanted), rtol=1e-4, atol=1e-6)
    to_embeddings(model)
    for (name, weight), expected in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(weight, expected, rtol=1e-3, atol=1e-5), name
    dead = [(module.weight[1:] == 0).all(1).any() for module in model.modules() if isinstance(module, kinds)]
    assert any(dead) == bool(options)
