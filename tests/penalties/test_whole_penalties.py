"""A penalty on a whole dense weight touches every row; weight decay is warned of."""

import pytest
import torch
from torch import Tensor, nn

from over import over
from sparsegroup import GroupAdam

ROWS = 500
BATCH = torch.tensor([0, 3, 3, 400])


def new_embedding(dim: int = 4, dtype: torch.dtype = torch.float32, **options: object) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(ROWS, dim, dtype=dtype, **options)


def loss_of(module: nn.Module, keys: Tensor = BATCH) -> Tensor:
    return (module(keys) * torch.linspace(1, 2, 4)[:, None]).sum()


def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_why_rows_that_no_batch_holds_become_zero_by_it_and_not_by_l2():
    def rows_left(penalty: float, l2: float) -> int:
        module = new_embedding()
        optimizer = GroupAdam([module.weight], l21=1e-3, l2=l2)
        step(optimizer, loss_of(module) + penalty * module.weight.square().sum())
        return int((module.weight != 0).any(1).sum())

    assert rows_left(penalty=0.0, l2=1e-5) == ROWS
    assert rows_left(penalty=1e-12, l2=0.0) == len(BATCH.unique())


def test_weight_decay_beside_l21_is_warned_of_where_the_optimizer_is_made():
    with pytest.warns(RuntimeWarning, match=r"weight_decay=0.5 .*l21=0.001 .*\(param group 0\)\. Give l2") as caught:
        GroupAdam(new_embedding().parameters(), l21=1e-3, weight_decay=0.5)
    assert caught[0].filename == __file__


@over("options", [{"weight_decay": 0.5}, {"l21": 1e-3}, {"l21": 1e-3, "weight_decay": 0.5, "groups": "columns"}])
def test_nothing_is_said_where_no_row_vanishes_by_it(options):
    GroupAdam(new_embedding().parameters(), **options)


def test_nothing_is_said_of_a_layer_whose_rows_are_in_every_batch():
    GroupAdam(nn.Linear(4, 8).parameters(), l21=1e-3, weight_decay=0.5)
