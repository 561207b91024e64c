"""DeepCTR-Torch's DeepFM, trained by its own `fit`, with tables for its embeddings and sparse group lasso.

python examples/clients/deepctr_torch_model.py
"""

import numpy as np
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import DeepFM

from sparsegroup import GroupAdam, HashEmbedding, TargetRate, convert, param_groups, to_embeddings

FIELDS, VALUES = ("user", "item", "shop", "city"), 10_000


def clicks(rows: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Four fields whose first hundred values matter, the others being noise, and a number."""
    draw = np.random.default_rng(seed)
    x = {field: np.minimum(draw.zipf(1.3, rows), VALUES) - 1 for field in FIELDS}
    x["price"] = draw.normal(size=rows)
    effects = np.random.default_rng(0).normal(size=(len(FIELDS), VALUES)) * (np.arange(VALUES) < 100)
    logits = sum(effects[at, x[field]] for at, field in enumerate(FIELDS)) + 0.5 * x["price"]
    return x, (draw.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)


def main() -> None:
    columns = [SparseFeat(field, VALUES, embedding_dim=8) for field in FIELDS] + [DenseFeat("price")]
    model = DeepFM(columns, columns, l2_reg_embedding=0, l2_reg_linear=0)

    model = convert(model, rows="none")
    optimizer = GroupAdam(param_groups(model), lr=1e-3)
    target = TargetRate(optimizer, 0.1, steps=3 * 118)  # a tenth of the features is to stay after 3 epochs of 118 steps
    optimizer.register_step_post_hook(lambda *_: target.step())
    model.compile(optimizer, "binary_crossentropy", metrics=["auc"])

    x, y = clicks(30_000, seed=1)
    model.fit(x, y, batch_size=256, epochs=3, verbose=0)
    tables = [module for module in model.modules() if isinstance(module, HashEmbedding)]
    live, seen = sum(table.num_live for table in tables), sum(table.num_seen for table in tables)
    x, y = clicks(10_000, seed=2)
    print(f"AUC {model.evaluate(x, y)['auc']:.4f}, feature rate {live / seen:.3f} ({live:,} of {seen:,})")

    to_embeddings(model)  # plain nn.Embedding modules again
    print(f"AUC {model.evaluate(x, y)['auc']:.4f} without tables")


if __name__ == "__main__":
    main()
