"""Accelerate: the example, and its saved states."""

from pathlib import Path

import pytest
import torch
from torch import nn

from client_example import run_example
from sparsegroup import GroupAdam, HashEmbedding

accelerate = pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_example() -> None:
    auc, rate, _ = run_example("accelerate_loop")
    assert auc > 0.74
    assert rate <= 0.101


def train(accelerator, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for _ in range(5):
        optimizer.zero_grad()
        accelerator.backward(model(torch.randint(0, 50, (8,), generator=draw)).square().sum())
        optimizer.step()


def test_a_saved_state_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    tables = []
    for loads in (False, True):
        accelerator = accelerate.Accelerator(cpu=True)
        table = HashEmbedding(4, std=1.0)
        model, optimizer = accelerator.prepare(table, GroupAdam(table.parameters(), l21=1e-2))
        if loads:
            accelerator.load_state(tmp_path / "half")
        else:
            train(accelerator, model, optimizer, seed=1)
            accelerator.save_state(tmp_path / "half", safe_serialization=False)
        train(accelerator, model, optimizer, seed=2)
        tables.append(table)
    whole, resumed = tables
    assert torch.equal(resumed.lookup(torch.arange(50)), whole.lookup(torch.arange(50)))
    assert resumed.num_seen == whole.num_seen
