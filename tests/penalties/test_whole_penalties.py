"""A penalty on a whole dense weight touches every row; weight decay is warned of."""

import pytest
import torch
from torch import nn

from over import over
from sparsegroup import GroupAdam

ROWS = 500
BATCH = torch.tensor([0, 3, 3, 400])


def new_embedding() -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(ROWS, 4)


def test_why_rows_that_no_batch_holds_become_zero_by_it_and_not_by_l2():
    def rows_left(penalty: float, l2: float) -> int:
        module = new_embedding()
        optimizer = GroupAdam([module.weight], l21=1e-3, l2=l2)
        loss = (module(BATCH) * torch.linspace(1, 2, 4)[:, None]).sum() + penalty * module.weight.square().sum()
        loss.backward()
        optimizer.step()
        return int((module.weight != 0).any(1).sum())

    assert rows_left(penalty=0.0, l2=1e-5) == ROWS
    assert rows_left(penalty=1e-12, l2=0.0) == len(BATCH.unique())


def test_weight_decay_beside_l21_is_warned_of_where_the_optimizer_is_made():
    with pytest.warns(RuntimeWarning, match=r"weight_decay=0.5 .*l21=0.001 .*\(param group 0\)\. Give l2") as caught:
        GroupAdam(new_embedding().parameters(), l21=1e-3, weight_decay=0.5)
    assert caught[0].filename == __file__


@over(
    ("module", "options"),
    [
        (new_embedding(), {"weight_decay": 0.5}),
        (new_embedding(), {"l21": 1e-3}),
        (new_embedding(), {"l21": 1e-3, "weight_decay": 0.5, "groups": "columns"}),
        (nn.Linear(4, 8), {"l21": 1e-3, "weight_decay": 0.5}),  # its rows are in every batch
    ],
)
def test_there_is_no_warning_where_no_row_vanishes_by_it(module, options):
    GroupAdam(module.parameters(), **options)
