"""Accelerate: saved states, gradients of tables clipped by norm and by value."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from client_cases import TableModel, clicks
from sparsegroup import GroupAdam

accelerate = pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")


def prepared() -> tuple[Any, TableModel, Any]:
    accelerator, model = accelerate.Accelerator(cpu=True), TableModel()
    return accelerator, *accelerator.prepare(model, GroupAdam(model.parameters(), lr=0.05, l21=1e-2))


def test_a_saved_state_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    models = []
    for loads in (False, True):
        accelerator, model, optimizer = prepared()
        if loads:
            accelerator.load_state(tmp_path / "half")
        for step in range(5 if loads else 0, 10):
            if step == 5 and not loads:
                accelerator.save_state(tmp_path / "half", safe_serialization=False)
            keys, labels = (part[8 * step : 8 * step + 8] for part in clicks())
            optimizer.zero_grad()
            accelerator.backward(model.loss(keys, labels))
            optimizer.step()
        models.append(model)
    whole, resumed = models
    assert torch.equal(resumed.rows(), whole.rows())
    assert resumed.table.num_seen == whole.table.num_seen


@pytest.mark.parametrize(("clip", "order"), [("clip_grad_norm_", 2.0), ("clip_grad_value_", math.inf)])
def test_the_accelerator_clips_tables(clip: str, order: float) -> None:
    accelerator, model, optimizer = prepared()
    for _ in range(3):
        optimizer.zero_grad()
        accelerator.backward(model.loss(*clicks()))
        before = model.gradient_norm(order).item()
        given = getattr(accelerator, clip)(model.parameters(), 0.25)
        assert given is None or math.isclose(given, before, rel_tol=1e-6)
        assert before > 1
        assert model.gradient_norm(order).item() == pytest.approx(0.25, rel=1e-5)
        optimizer.step()
