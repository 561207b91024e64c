"""What DeepCTR-Torch's own penalty on whole embeddings does to Group Adam.

A DeepFM of DeepCTR-Torch is trained for one epoch on a synthetic log, 60,000 rows of 6 fields with 5,000 values each
whose frequencies fall as 1/rank, of which the last 10,000 rows are tested on; with `l2_reg_embedding` and
`l2_reg_linear` as they come (1e-5), as small as 1e-12, and 0. Counted are the features that the training rows hold,
and how many of their embeddings are not zero.

    pip install deepctr-torch && python benchmarks/dense_penalty.py > benchmarks/results/dense_penalty.json
"""

import json
import sys
from contextlib import redirect_stdout

import numpy as np
import torch
from deepctr_torch.inputs import SparseFeat
from deepctr_torch.models import DeepFM
from sklearn.metrics import roc_auc_score
from torch import nn

from sparsegroup import GroupAdam, param_groups

ROWS, TESTED, FIELDS, VALUES, BATCH = 60_000, 10_000, 6, 5_000, 256
LR = 0.01


def synthetic() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Values `[rows]` of each field, and labels: half of the values have a say, which is Gaussian."""
    draw = np.random.default_rng(0)
    shares = 1 / np.arange(1, VALUES + 1)
    values = draw.choice(VALUES, (ROWS, FIELDS), p=shares / shares.sum())
    effects = draw.normal(size=(FIELDS, VALUES)) * (draw.random((FIELDS, VALUES)) < 0.5)
    logits = effects[np.arange(FIELDS), values].sum(1) - 1
    return {f"f{i}": values[:, i] for i in range(FIELDS)}, (draw.random(ROWS) < 1 / (1 + np.exp(-logits))).astype(float)


def trained(penalty: float, l21: float) -> dict[str, object]:
    """Trains a model; gives what is left of it."""
    log, labels = synthetic()
    columns = [SparseFeat(name, VALUES, embedding_dim=8) for name in log]
    torch.manual_seed(0)
    model = DeepFM(columns, columns, l2_reg_embedding=penalty, l2_reg_linear=penalty, device="cpu", seed=0)
    embeddings = {name: model.embedding_dict[name] for name in log}
    model.compile(GroupAdam(param_groups(model, l21=l21), lr=LR), "binary_crossentropy")
    train = {name: values[:-TESTED] for name, values in log.items()}
    model.fit(train, labels[:-TESTED], batch_size=BATCH, epochs=1, verbose=0)
    held = live = 0
    for name, module in embeddings.items():
        seen = torch.from_numpy(np.unique(train[name]))
        held += len(seen)
        live += count_live(module, seen)
    scores = model.predict({name: values[-TESTED:] for name, values in log.items()}, 4096)
    return {
        "penalty": penalty,
        "l21": l21,
        "features": held,
        "live": live,
        "auc": round(float(roc_auc_score(labels[-TESTED:], scores)), 4),
    }


def count_live(module: nn.Embedding, rows: torch.Tensor) -> int:
    return int((module.weight.detach()[rows] != 0).any(1).sum())


if __name__ == "__main__":
    results: list[dict[str, object]] = []
    for l21 in map(float, sys.argv[1:] or (0.0, 0.1, 1.0, 3.0, 10.0)):
        for penalty in (1e-5, 1e-12, 0.0):
            with redirect_stdout(sys.stderr):  # the model prints
                results.append(trained(penalty, l21))
            print(results[-1], file=sys.stderr)
    print(json.dumps(results, indent=1))
