"""Hugging Face's Trainer trains a model with a table, with its default settings and with others."""

import pytest
import torch
from torch.utils.data import Dataset

from client_cases import TableModel, clicks
from sparsegroup import GroupAdam

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")


class Rows(Dataset):
    def __len__(self):
        return len(clicks()[0])

    def __getitem__(self, number):
        keys, labels = clicks()
        return {"keys": keys[number], "labels": labels[number]}


class ClickModel(TableModel):
    def forward(self, keys, labels=None):
        logits = super().forward(keys)
        if labels is None:
            return {"logits": logits}
        return {"loss": 100 * torch.nn.functional.binary_cross_entropy_with_logits(logits, labels), "logits": logits}


class Norms(transformers.TrainerCallback):
    """Notes the norms of what the optimizer steps with."""

    def __init__(self):
        self.noted = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **others):
        gradient = model.table.weight.grad.coalesce().values()
        parts = [gradient, model.out.weight.grad, model.out.bias.grad]
        self.noted.append(torch.linalg.vector_norm(torch.cat([part.flatten() for part in parts])).item())


def trained(tmp_path, **options):
    """The model, the norms that the Trainer logs, and those that the optimizer steps with."""
    model, norms = ClickModel(), Norms()
    optimizer = GroupAdam(model.parameters(), lr=0.05, l21=1e-4)
    arguments = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=1, save_strategy="no", logging_steps=1, report_to=[], use_cpu=True, **options
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Rows(), optimizers=(optimizer, None), callbacks=[norms]
    )
    trainer.train()
    return model, [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry], norms.noted


@pytest.mark.parametrize("options", [{}, {"max_grad_norm": 0.0}, {"gradient_accumulation_steps": 2}], ids=str)
def test_the_trainer_clips_tables_and_logs_the_norm_before(tmp_path, options):
    model, logged, stepped = trained(tmp_path, **options)
    assert (model.table.lookup(torch.arange(40)) != model.table.initial(torch.arange(40))).any()
    assert len(logged) == len(stepped) == len(Rows()) // 8 // options.get("gradient_accumulation_steps", 1)
    assert min(logged) > 1
    expected = logged if options.get("max_grad_norm") == 0 else [1.0] * len(logged)
    assert stepped == pytest.approx(expected, rel=1e-5)
