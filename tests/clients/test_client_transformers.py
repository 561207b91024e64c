"""The Hugging Face Trainer: the example, torch_compile=True, resuming."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from client_example import run_example
from sparsegroup import GroupAdam, HashEmbedding, param_groups

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")


class Clicks(Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        self.keys = torch.randint(0, 100, (192, 3), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"keys": self.keys[row], "labels": (self.keys[row, 0] % 2).float()}


class ClickModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = HashEmbedding(4)
        self.head = nn.Linear(12, 1)

    def forward(self, keys: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.table(keys).flatten(1)).squeeze(1)
        return {"loss": functional.binary_cross_entropy_with_logits(logits, labels), "logits": logits}


def trained(folder: Path, resume: bool = False, **options: Any) -> ClickModel:
    model = ClickModel()
    optimizer = GroupAdam(param_groups(model, l21=1e-3))
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=16,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        max_grad_norm=0.0,
        **options,
    )
    trainer = transformers.Trainer(model, arguments, train_dataset=Clicks(), optimizers=(optimizer, schedule))
    trainer.train(resume_from_checkpoint=resume)
    return model


def test_the_example() -> None:
    auc, rate, _ = run_example("transformers_trainer")
    assert auc > 0.74
    assert rate <= 0.101


def test_torch_compile_trains_the_rows_of_eager_training(tmp_path: Path) -> None:
    options = {"num_train_epochs": 1, "save_strategy": "no"}
    eager = trained(tmp_path, **options)
    compiled = trained(tmp_path, torch_compile=True, torch_compile_backend="aot_eager", **options)
    keys = torch.arange(100)
    assert not torch.equal(eager.table.lookup(keys), eager.table.initial(keys))
    torch.testing.assert_close(compiled.table.lookup(keys), eager.table.lookup(keys))


def test_a_run_that_is_resumed_ends_at_the_same_rows(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", num_train_epochs=2, save_strategy="no")
    trained(tmp_path / "half", num_train_epochs=2, save_strategy="epoch", max_steps=12)
    resumed = trained(tmp_path / "half", resume=True, num_train_epochs=2, save_strategy="no")
    keys = torch.arange(100)
    assert torch.equal(resumed.table.lookup(keys), whole.table.lookup(keys))
    assert resumed.table.num_seen == whole.table.num_seen
