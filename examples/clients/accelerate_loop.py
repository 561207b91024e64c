"""A loop with Accelerate around a model with a table: gradient accumulation and clipping by the Accelerator.

python examples/clients/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from sparsegroup import GroupAdam, HashEmbedding, TargetRate, field_keys, param_groups

FIELDS, VALUES, EPOCHS = 4, 10_000, 2


def clicks(rows: int, seed: int) -> TensorDataset:
    """Keys of four fields, of which a hundred values each matter and the others are noise, and labels."""
    draw = torch.Generator().manual_seed(seed)
    values = (VALUES ** torch.rand(rows, FIELDS, generator=draw)).long()
    effects = torch.randn(FIELDS, VALUES, generator=torch.Generator().manual_seed(0))
    effects[:, 100:] = 0
    logits = effects[torch.arange(FIELDS), values].sum(1)
    return TensorDataset(field_keys(values), (torch.rand(rows, generator=draw) < logits.sigmoid()).float())


class ClickModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = HashEmbedding(8)
        self.network = nn.Sequential(
            nn.Flatten(), nn.Linear(8 * FIELDS, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
        )

    def forward(self, keys: Tensor) -> Tensor:
        logits: Tensor = self.network(self.embedding(keys))
        return logits


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = ClickModel()
    optimizer = GroupAdam(param_groups(model), lr=1e-3)
    batches = DataLoader(clicks(40_000, seed=1), 128)
    model, prepared, batches = accelerator.prepare(model, optimizer, batches)
    target = TargetRate(optimizer, 0.1, steps=EPOCHS * len(batches) // 2)  # the optimizer, not what wraps it
    for _ in range(EPOCHS):
        for keys, labels in batches:
            with accelerator.accumulate(model):
                accelerator.backward(functional.binary_cross_entropy_with_logits(model(keys), labels))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                prepared.step()
                if accelerator.sync_gradients:
                    target.step()
                prepared.zero_grad()

    keys, labels = clicks(10_000, seed=2).tensors
    model.eval()
    with torch.no_grad():
        auc = roc_auc_score(labels, model(keys))
    table = accelerator.unwrap_model(model).embedding
    print(f"AUC {auc:.4f}, feature rate {table.feature_rate:.3f} ({table.num_live:,} of {table.num_seen:,})")


if __name__ == "__main__":
    main()
