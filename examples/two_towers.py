"""A two-tower model of one's own: trained on made-up clicks, exported, and scored by onnxruntime alone.

python examples/two_towers.py towers
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag, TargetRate, param_groups
from sparsegroup.serving import export

USERS, ITEMS, TAGS = 1_000, 300, 500


class TwoTowers(nn.Module):
    """A user, an item and the item's tags → a logit: the inner product of what two towers make of them."""

    def __init__(self) -> None:
        super().__init__()
        self.users = HashEmbedding(16, seed=1)
        self.items = HashEmbedding(32, seed=2)
        self.tags = HashEmbeddingBag(8, mode="mean", include_last_offset=True, seed=3)
        self.user_tower = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.item_tower = nn.Sequential(nn.Linear(32 + 8, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, user: Tensor, item: Tensor, tags: Tensor, tag_offsets: Tensor) -> Tensor:
        item_vector = torch.cat([self.items(item), self.tags(tags, tag_offsets)], dim=1)
        return (self.user_tower(self.users(user)) * self.item_tower(item_vector)).sum(1)


def made_up_clicks(rows: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs and labels. A tenth of the users, of the items and of the tags matter; the others are noise."""
    draw = torch.Generator().manual_seed(seed)
    user, item = (torch.randint(0, size, (rows,), generator=draw) for size in (USERS, ITEMS))
    tag_offsets = torch.zeros(rows + 1, dtype=torch.int64)
    tag_offsets[1:] = torch.randint(0, 4, (rows,), generator=draw).cumsum(0)
    tags = torch.randint(0, TAGS, (int(tag_offsets[-1]),), generator=draw)
    row = torch.arange(rows).repeat_interleave(tag_offsets.diff())
    liked = torch.zeros(rows).index_add(0, row, (tags < TAGS // 10).float())
    signal = 2.0 * (user < USERS // 10) + 2.0 * (item < ITEMS // 10) + liked
    labels = (torch.rand(rows, generator=draw) < torch.sigmoid(2 * signal - 2)).float()
    return {"user": user, "item": item, "tags": tags, "tag_offsets": tag_offsets}, labels


def train(model: nn.Module, steps: int) -> float:
    """Train so that a fifth of the features are left; give the mean loss of the last ten steps."""
    optimizer = GroupAdam(param_groups(model), lr=1e-2)
    target = TargetRate(optimizer, 0.2, steps=steps)
    losses = []
    for step in range(steps):
        inputs, labels = made_up_clicks(512, seed=step)
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(**inputs), labels)
        loss.backward()
        optimizer.step()
        target.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10


def score(folder: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Logits by onnxruntime: what a server does, without PyTorch and without this library."""
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return session.run(["logit"], inputs)[0]


def main(folder: Path, steps: int = 150) -> None:
    torch.manual_seed(0)
    model = TwoTowers()
    print(f"loss {train(model, steps):.3f}")
    example, _ = made_up_clicks(64, seed=-1)
    manifest = export(model, folder, kwargs=example, formats=["program", "onnx"], outputs=["logit"], overwrite=True)
    for name, table in manifest.tables.items():
        print(f"{name}: {table.live_rows:,} of {table.features_seen:,} features, dimension {table.dim}")
    inputs, _ = made_up_clicks(1_000, seed=-2)
    inputs["user"][:100] += USERS  # newcomers
    found = score(folder, {name: tensor.numpy() for name, tensor in inputs.items()})
    with torch.no_grad():
        expected = model.eval()(**inputs)
    print(f"largest difference to PyTorch {np.abs(found - expected.numpy()).max():.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
