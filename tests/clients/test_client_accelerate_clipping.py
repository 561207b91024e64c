"""Accelerate clips the gradients of tables, by norm and by value."""

import math

import pytest
import torch

from client_cases import TableModel, clicks
from sparsegroup import GroupAdam

accelerate = pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(("clip", "norm_type"), [("clip_grad_norm_", 2.0), ("clip_grad_value_", math.inf)])
def test_the_accelerator_clips_tables(clip, norm_type):
    accelerator = accelerate.Accelerator(cpu=True)
    model = TableModel()
    model, optimizer = accelerator.prepare(model, GroupAdam(model.parameters(), lr=0.05, l21=1e-4))
    for _ in range(3):
        optimizer.zero_grad()
        accelerator.backward(model.loss(*clicks()))
        before = norm(model, norm_type)
        given = getattr(accelerator, clip)(model.parameters(), 0.25)
        assert given is None or math.isclose(given, before, rel_tol=1e-6)
        assert before > 1
        assert math.isclose(norm(model, norm_type), 0.25, rel_tol=1e-5)
        optimizer.step()


def norm(model: TableModel, norm_type: float) -> float:
    parts = [model.table.weight.grad.coalesce().values(), model.out.weight.grad, model.out.bias.grad]
    return torch.linalg.vector_norm(torch.cat([part.flatten() for part in parts]), norm_type).item()
