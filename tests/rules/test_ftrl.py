"""With λ21 = 0, GroupFTRL is TensorFlow's `Ftrl`: the values that TensorFlow's own tests publish."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from over import over
from sparsegroup import GroupFTRL

# Options, steps, and (x_1, g, expected x) of two variables; learning rate 3 and initial accumulator 0.1 throughout.
# From tensorflow/python/keras/optimizer_v2/ftrl_test.py; computed in float32.
PUBLISHED: Mapping[str, tuple[Mapping[str, Any], int, list[tuple[list[float], ...]]]] = {
    "from zero": (
        {},
        3,
        [([0, 0], [0.1, 0.2], [-2.60260963, -4.29698515]), ([0, 0], [0.01, 0.02], [-0.28432083, -0.56694895])],
    ),
    "from elsewhere": (
        {},
        3,
        [([1, 2], [0.1, 0.2], [-2.55607247, -3.98729396]), ([4, 3], [0.01, 0.02], [-0.28232238, -0.56096673])],
    ),
    "l1": (
        {"l1": 0.001},
        10,
        [([1, 2], [0.1, 0.2], [-7.66718769, -10.91273689]), ([4, 3], [0.01, 0.02], [-0.93460727, -1.86147261])],
    ),
    "l1 and l2": (
        {"l1": 0.001, "l2": 2.0},
        10,
        [([1, 2], [0.1, 0.2], [-0.24059935, -0.46829352]), ([4, 3], [0.01, 0.02], [-0.02406147, -0.04830509])],
    ),
}


@over("dtype", [torch.float32, torch.float64])
@over("case", PUBLISHED)
def test_tensorflows_published_values(case: str, dtype: torch.dtype) -> None:
    options, steps, variables = PUBLISHED[case]
    parameters = [torch.nn.Parameter(torch.tensor(x, dtype=dtype)) for x, _, _ in variables]
    optimizer = GroupFTRL(parameters, lr=3.0, initial_accumulator_value=0.1, **options)
    for _ in range(steps):
        for parameter, (_, g, _) in zip(parameters, variables, strict=True):
            parameter.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    for parameter, (_, _, expected) in zip(parameters, variables, strict=True):
        torch.testing.assert_close(parameter.detach(), torch.tensor(expected, dtype=dtype), rtol=1e-6, atol=0)


def test_a_row_first_seen_late_forgets_its_start_as_one_seen_at_once() -> None:
    """TensorFlow charges (√(a₀ + g²) - √a₀) / α of x_1, with the α of that step, whatever it was before."""

    def first_sight(rates: list[float]) -> float:
        """Row 1 after its only step, at the last of `rates`; row 0 takes the steps before."""
        table = torch.nn.Parameter(torch.full((2, 1), 0.01, dtype=torch.float64))
        optimizer = GroupFTRL([table], lr=1.0)
        for step, lr in enumerate(rates, start=1):
            optimizer.param_groups[0]["lr"] = lr
            row, g = int(step == len(rates)), torch.tensor([[0.1]], dtype=torch.float64)
            table.grad = torch.sparse_coo_tensor([[row]], g, (2, 1), check_invariants=True)
            optimizer.step()
        return table[1].item()

    at_once = first_sight([1.0])
    assert first_sight([1.0, 1.0, 1.0]) == pytest.approx(at_once, rel=1e-12)
    assert first_sight([0.001, 0.1, 1.0]) == pytest.approx(at_once, rel=1e-12)
