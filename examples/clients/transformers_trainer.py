"""A model with a table in the Hugging Face Trainer, which clips, evaluates, saves and resumes as ever.

python examples/clients/transformers_trainer.py
"""

import tempfile
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainingArguments

from sparsegroup import GroupAdam, HashEmbedding, TargetRate, field_keys, param_groups

FIELDS, VALUES = 4, 10_000


class Clicks(Dataset[dict[str, Tensor]]):
    """Keys of four fields, of which a hundred values each matter and the others are noise, and labels."""

    def __init__(self, rows: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        values = (VALUES ** torch.rand(rows, FIELDS, generator=draw)).long()
        effects = torch.randn(FIELDS, VALUES, generator=torch.Generator().manual_seed(0))
        effects[:, 100:] = 0
        logits = effects[torch.arange(FIELDS), values].sum(1)
        self.keys = field_keys(values)
        self.labels = (torch.rand(rows, generator=draw) < logits.sigmoid()).float()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"keys": self.keys[row], "labels": self.labels[row]}


class ClickModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = HashEmbedding(8)
        self.network = nn.Sequential(
            nn.Flatten(), nn.Linear(8 * FIELDS, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
        )

    def forward(self, keys: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.network(self.embedding(keys))
        return {"loss": functional.binary_cross_entropy_with_logits(logits, labels), "logits": logits}


class Sized(TrainerCallback):
    """Steps a TargetRate once the Trainer knows how many steps there will be."""

    def __init__(self, optimizer: GroupAdam, rate: float) -> None:
        self.optimizer, self.rate = optimizer, rate

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.target = TargetRate(self.optimizer, self.rate, steps=state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.target.step()


def auc(found: EvalPrediction) -> dict[str, float]:
    return {"auc": float(roc_auc_score(found.label_ids, found.predictions))}


def main() -> None:
    torch.manual_seed(0)
    model = ClickModel()
    optimizer = GroupAdam(param_groups(model), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                folder,
                num_train_epochs=2,
                per_device_train_batch_size=256,
                per_device_eval_batch_size=1024,
                report_to="none",
                use_cpu=True,
            ),
            train_dataset=Clicks(40_000, seed=1),
            eval_dataset=Clicks(10_000, seed=2),
            compute_metrics=auc,
            optimizers=(optimizer, schedule),
            callbacks=[Sized(optimizer, 0.1)],
        )
        trainer.train()
        table, found = model.embedding, trainer.evaluate()["eval_auc"]
    print(f"AUC {found:.4f}, feature rate {table.feature_rate:.3f} ({table.num_live:,} of {table.num_seen:,})")


if __name__ == "__main__":
    main()
