"""What float32 state and bfloat16 parameters cost: measured against more precise ones on the same fixed gradients."""

import math
from functools import cache

import torch
from torch import Tensor

from family import SIX
from fixed_gradients import relative_error
from over import over

STEPS = 500
SHAPE = (4, 2)


@cache
def gradients() -> Tensor:
    """Noise around means, `[STEPS, *SHAPE]` bfloat16, which all dtypes hold exactly."""
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(SHAPE, generator=generator) * torch.tensor([[0.2], [0.0], [0.05], [0.02]])
    return (mean + torch.randn(STEPS, *SHAPE, generator=generator)).bfloat16()


@cache
def trained(name: str, dtype: torch.dtype, l21: float, steps: int, lowest_rate: float = 1.0) -> Tensor:
    """The parameter after every hundredth step, `[steps / 100, *SHAPE]` float64.

    Args:
        name: Of the optimizer.
        dtype: Of the parameter.
        l21: λ21 beside a smaller λ1 and λ2; 0 for none of the three. Times the member's gain.
        steps: How many.
        lowest_rate: Cosines fall from 1 to this factor of the learning rate every 250 steps.
    """
    member = SIX[name]
    weights = {"l1": l21 * member.gain / 6, "l21": l21 * member.gain, "l2": l21 / 100}
    start = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).bfloat16() / 4
    parameter = torch.nn.Parameter(start.to(dtype))
    optimizer = member.build(parameter, **weights)
    (group,) = optimizer.param_groups
    visited = []
    for t, g in enumerate(gradients()[:steps].to(dtype)):
        parameter.grad = g
        cosine = (1 + math.cos(math.pi * (t % 250) / 249)) / 2
        group["lr"] = member.lr * (lowest_rate + (1 - lowest_rate) * cosine)
        optimizer.step()
        if (t + 1) % 100 == 0:
            visited.append(parameter.detach().to(torch.float64, copy=True))
    return torch.stack(visited)


@over("name", ["sgd", "adagrad", "adam"])
@over(
    ("dtype", "exact", "l21", "steps", "lowest_rate", "error"),
    [
        (torch.float32, torch.float64, 20, STEPS, 1.0, 1e-4),
        (torch.float32, torch.float64, 20, STEPS, 1e-3, 1e-3),  # the rate restarts from a thousandth
        (torch.bfloat16, torch.float32, 20, STEPS, 1.0, 1e-2),
        (torch.bfloat16, torch.float32, 0, 300, 1.0, 1e-2),
    ],
)
def test_a_dtype_stays_with_a_more_exact_one(
    name: str, dtype: torch.dtype, exact: torch.dtype, l21: float, steps: int, lowest_rate: float, error: float
) -> None:
    ours, theirs = (trained(name, one, l21, steps, lowest_rate) for one in (dtype, exact))
    if l21:
        assert {bool(row.any()) for row in theirs.flatten(0, 1)} == {False, True}
    assert relative_error(ours, theirs) < error
