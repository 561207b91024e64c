"""A LightningModule with a table, trained to a tenth of its features; checkpoints, clipping and torch.compile as ever.

python examples/clients/lightning_module.py
"""

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import BinaryAUROC

from sparsegroup import GroupAdam, HashEmbedding, TargetRate, field_keys, param_groups

FIELDS, VALUES = 4, 10_000


def clicks(rows: int, seed: int) -> TensorDataset:
    """Keys of four fields, of which a hundred values each matter and the others are noise, and labels."""
    draw = torch.Generator().manual_seed(seed)
    values = (VALUES ** torch.rand(rows, FIELDS, generator=draw)).long()
    effects = torch.randn(FIELDS, VALUES, generator=torch.Generator().manual_seed(0))
    effects[:, 100:] = 0
    logits = effects[torch.arange(FIELDS), values].sum(1)
    return TensorDataset(field_keys(values), (torch.rand(rows, generator=draw) < logits.sigmoid()).float())


class ClickModel(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = HashEmbedding(8)
        self.network = nn.Sequential(
            nn.Flatten(), nn.Linear(8 * FIELDS, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
        )
        self.auc = BinaryAUROC()

    def forward(self, keys: Tensor) -> Tensor:
        logits: Tensor = self.network(self.embedding(keys))
        return logits

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        return functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        self.auc.update(self(batch[0]), batch[1].long())
        self.log("auc", self.auc)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.optimizer = GroupAdam(param_groups(self), lr=1e-3)
        self.target = TargetRate(self.optimizer, 0.1, steps=int(self.trainer.estimated_stepping_batches))
        return self.optimizer

    def on_train_batch_end(self, *_: object) -> None:
        self.target.step()


def main() -> None:
    lightning.seed_everything(0)
    model = ClickModel()
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", gradient_clip_val=1.0, logger=False)
    trainer.fit(model, DataLoader(clicks(40_000, 1), 256), DataLoader(clicks(10_000, 2), 1024))
    table = model.embedding
    found = trainer.callback_metrics["auc"]
    print(f"AUC {found:.4f}, feature rate {table.feature_rate:.3f} ({table.num_live:,} of {table.num_seen:,})")


if __name__ == "__main__":
    main()
