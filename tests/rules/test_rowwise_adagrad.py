"""Row-wise Adagrad: one accumulator per group, of the mean of g²; see `test_reference` for the closed form."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from over import over
from sparsegroup import GroupAdagrad, GroupRowWiseAdagrad, HashEmbedding
from sparsegroup.rules import ROWWISE_ADAGRAD, Rule

Float64s = npt.NDArray[np.float64]


def plainly(
    x: Float64s, gradients: Float64s, lr_decay: float = 0.0, initial_accumulator_value: float = 0.0, eps: float = 1e-10
) -> Float64s:
    """As FBGEMM and TorchRec write it down: x ← x - α_t g / (√sum + ε), sum ← sum + ‖g‖² / d."""
    x, total = x.copy(), np.full((len(x), 1), initial_accumulator_value)
    for t, g in enumerate(gradients):
        total += (g * g).sum(axis=1, keepdims=True) / g.shape[1]
        x -= 0.1 / (1 + t * lr_decay) * g / (np.sqrt(total) + eps)
    return x


@over("options", [{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.3, "eps": 1e-3}])
@over("sparse", [False, True])
@over("fused", [None, False])
def test_without_lambdas_it_is_what_others_call_row_wise_adagrad(
    options: dict[str, float], sparse: bool, fused: bool | None
) -> None:
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=(6, 5)), rng.normal(size=(20, 6, 5))
    x = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = GroupRowWiseAdagrad([x], lr=0.1, fused=fused, **options)
    for g in gradients:
        x.grad = torch.from_numpy(g).to_sparse(1) if sparse else torch.from_numpy(g)
        optimizer.step()
    np.testing.assert_allclose(x.detach().numpy(), plainly(start, gradients, **options), rtol=1e-12)


@over(
    ("groups", "shape"),
    [
        ("columns", (4, 3)),
        ("all", (4, 3)),
        ("channels", (3, 2, 2)),
        (1, (2, 3, 2)),
        (torch.tensor([0, 1, 0, 5]), (4, 3)),
    ],
)
def test_any_groups_have_one_accumulator_each(groups: Any, shape: tuple[int, ...]) -> None:
    """The mean of g² over each group, whichever way it lies, and whoever steps it."""
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    totals = []
    for fused in (None, False):
        x = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        optimizer = GroupRowWiseAdagrad([x], lr=1.0, l21=0.01, groups=groups, fused=fused)
        x.grad = gradient.clone()
        optimizer.step()
        totals.append(optimizer.state[x]["group_sum"])
    if isinstance(groups, torch.Tensor):
        numbers = groups[:, None].expand(shape)
    else:
        others = {"columns": (0,), "channels": (1, 2), "all": (0, 1), 1: (0, 2)}[groups]
        numbers = torch.arange(len(gradient.flatten())).view(shape).amin(others, keepdim=True).expand(shape)
    for number in numbers.unique():
        mask = numbers == number
        expected = gradient[mask].square().mean()
        for total in totals:
            torch.testing.assert_close(total[mask], expected.expand(int(mask.sum())), rtol=1e-12, atol=0)


def test_groups_of_one_element_make_it_adagrad() -> None:
    gradients = torch.randn(10, 7, generator=torch.Generator().manual_seed(0))
    found = []
    for cls in (GroupAdagrad, GroupRowWiseAdagrad):
        x = torch.nn.Parameter(torch.ones(7))
        optimizer = cls([x], lr=0.1, l1=0.01)
        for g in gradients:
            x.grad = g.clone()
            optimizer.step()
        found.append(x.detach())
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)


@over(("dim", "state_dtype", "row_bytes"), [(8, None, 68), (8, torch.bfloat16, 52), (300, None, 2404)])
def test_a_table_keeps_one_number_a_row(dim: int, state_dtype: torch.dtype | None, row_bytes: int) -> None:
    table, plain = HashEmbedding(dim, std=0.1), torch.nn.Embedding(50, dim, sparse=True)
    keys = torch.arange(50)
    with torch.no_grad():
        plain.weight.copy_(table.initial(keys))
    optimizers = [
        GroupRowWiseAdagrad(weight, lr=0.1, l21=2.4, **options)
        for weight, options in (
            (table.parameters(), {"state_dtype": state_dtype}),
            (plain.parameters(), {"fused": False}),
        )
    ]
    table(keys)
    draw = torch.Generator().manual_seed(0)
    for _ in range(8):
        some = torch.randint(50, (30,), generator=draw)  # repeated keys are added up first
        gradient = torch.randn(30, dim, generator=draw)
        for module, optimizer in zip((table, plain), optimizers, strict=True):
            optimizer.zero_grad()
            module(some).backward(gradient)
            optimizer.step()
    assert table.table.rows.row_bytes == row_bytes
    assert table.memory().parts["group_sum"] == 4 * table.num_rows
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if state_dtype is None else {"rtol": 0.02, "atol": 5e-3}
    torch.testing.assert_close(table.lookup(keys), plain.weight.detach(), **tolerance)
    entry = optimizers[0].state_dict()["state"][0]
    torch.testing.assert_close(
        entry["group_sum"][entry["keys"].argsort()], optimizers[1].state[plain.weight]["group_sum"]
    )
    assert 15 < table.num_live < 35


@over(
    ("arguments", "message"),
    [
        ({"state": {"group_sum": 0.0}, "mean_square": False}, "needs mean_square=True"),
        ({"state": {"group_sum": 0.0, "other": 0.0}}, "must come after that of elements"),
        ({"second_order": True}, "both second_order and mean_square"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    like = ROWWISE_ADAGRAD
    fields = {"state": like.state, "hyperparameters": like.hyperparameters, "mean_square": True, **arguments}
    with pytest.raises(ValueError, match=message):
        Rule("mine", like.scalars, like.update, **fields)
