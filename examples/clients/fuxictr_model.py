"""FuxiCTR's DCNv2 over a user, an item and the items clicked before, trained by its own `fit`, and sparse.

python examples/clients/fuxictr_model.py
"""

import os
import tempfile

import numpy as np
import torch
from fuxictr.features import FeatureMap
from model_zoo.LongCTR.DCNv2 import DCNv2

from sparsegroup import GroupAdam, HashEmbedding, convert, param_groups

USERS, ITEMS, LENGTH, DIM = 5_000, 10_000, 5, 8


def clicks(batches: int, rows: int, seed: int) -> list[tuple]:
    """Clicks that the first hundred users and items decide on. Item 0 pads the items before; the last is the target."""
    draw = np.random.default_rng(seed)
    effects = np.random.default_rng(0).normal(size=(2, ITEMS)) * (np.arange(ITEMS) < 100)
    made = []
    for _ in range(batches):
        user = np.minimum(draw.zipf(1.3, rows), USERS)
        items = np.minimum(draw.zipf(1.3, (rows, LENGTH + 1)), ITEMS - 1)
        items[:, :LENGTH] *= draw.random((rows, LENGTH)) < 0.7
        logits = effects[0, user] + 2 * effects[1, items[:, -1]] + effects[1, items[:, :-1]].mean(1)
        click = draw.random(rows) < 1 / (1 + np.exp(-logits))
        features = {"user": torch.from_numpy(user), "click": torch.from_numpy(click)}
        made.append((features, {"item": torch.from_numpy(items.ravel())}, torch.from_numpy(items[:, :-1] > 0)))
    return made


def main() -> None:
    torch.manual_seed(0)
    feature_map = FeatureMap("clicks", data_dir="")
    feature_map.features["user"] = {"source": "user", "type": "categorical", "vocab_size": USERS + 1}
    feature_map.features["item"] = {"source": "item", "type": "categorical", "vocab_size": ITEMS, "padding_idx": 0}
    feature_map.labels, feature_map.default_emb_dim = ["click"], DIM
    with tempfile.TemporaryDirectory() as folder:
        settings = {"optimizer": "adam", "loss": "binary_crossentropy", "metrics": ["AUC"], "verbose": 0}
        model = DCNv2(feature_map, embedding_dim=DIM, parallel_dnn_hidden_units=[64, 32], model_root=folder, **settings)
        os.makedirs(model.model_dir)

        convert(model, rows="none")
        model.optimizer = GroupAdam(param_groups(model, l21=0.01), lr=3e-3)

        model.fit(clicks(120, 256, seed=1), epochs=3, validation_data=clicks(20, 256, seed=2))

    tables = [module for module in model.modules() if isinstance(module, HashEmbedding)]
    live, seen = sum(table.num_live for table in tables), sum(table.num_seen for table in tables)
    auc = model.evaluate(clicks(40, 256, seed=3))["AUC"]
    print(f"AUC {auc:.4f}, feature rate {live / seen:.3f} ({live:,} of {seen:,})")


if __name__ == "__main__":
    main()
