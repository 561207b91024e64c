"""The Hugging Face Trainer: torch_compile=True, resuming, clipped gradients of tables."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from client_cases import KEYS, TableModel, clicks
from sparsegroup import GroupAdam

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return len(clicks()[0])

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        keys, labels = clicks()
        return {"keys": keys[number], "labels": labels[number]}


class ClickModel(TableModel):
    def forward(self, keys: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(keys)
        if labels is None:
            return {"logits": logits}
        return {"loss": 100 * torch.nn.functional.binary_cross_entropy_with_logits(logits, labels), "logits": logits}


class Norms(transformers.TrainerCallback):
    """Notes the norms of the gradients that the optimizer steps with."""

    def __init__(self) -> None:
        self.noted: list[float] = []

    def on_pre_optimizer_step(self, *_: Any, model: Any = None, **others: Any) -> None:
        self.noted.append(model.gradient_norm().item())


def trained(folder: Path, resume: bool = False, **options: Any) -> tuple[ClickModel, list[float], list[float]]:
    """The model, the norms that the Trainer logs, and the norms of the optimizer's steps."""
    model, norms = ClickModel(), Norms()
    optimizer = GroupAdam(model.parameters(), lr=0.05, l21=1e-4)
    options = {"num_train_epochs": 1, "save_strategy": "no"} | options
    arguments = transformers.TrainingArguments(str(folder), logging_steps=1, report_to=[], use_cpu=True, **options)
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)  # a resumed run's epochs are more
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Rows(), optimizers=(optimizer, constant), callbacks=[norms]
    )
    trainer.train(resume_from_checkpoint=resume)
    return model, [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry], norms.noted


def test_torch_compile_trains_the_rows_of_eager_training(tmp_path: Path) -> None:
    eager, *_ = trained(tmp_path)
    compiled, *_ = trained(tmp_path, torch_compile=True, torch_compile_backend="aot_eager")
    torch.testing.assert_close(compiled.rows(), eager.rows())


def test_a_run_that_is_resumed_ends_at_the_same_rows(tmp_path: Path) -> None:
    whole, *_ = trained(tmp_path / "whole", num_train_epochs=2)
    trained(tmp_path / "half", num_train_epochs=2, save_strategy="epoch", max_steps=12)
    resumed, *_ = trained(tmp_path / "half", resume=True, num_train_epochs=2)
    assert torch.equal(resumed.rows(), whole.rows())
    assert resumed.table.num_seen == whole.table.num_seen


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.0}, {"gradient_accumulation_steps": 2}], ids=str)
def test_the_trainer_clips_tables_and_logs_the_norm_before(options: dict[str, Any], tmp_path: Path) -> None:
    model, logged, stepped = trained(tmp_path, **options)
    assert (model.rows() != model.table.initial(KEYS)).any()
    assert len(logged) == len(stepped) == len(Rows()) // 8 // options.get("gradient_accumulation_steps", 1)
    assert min(logged) > 1
    expected = logged if options.get("max_grad_norm") == 0 else [1.0] * len(logged)
    assert stepped == pytest.approx(expected, rel=1e-5)
