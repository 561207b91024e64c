"""TorchRec's DLRM over an unsharded `EmbeddingBagCollection`, with tables for its bags and sparse group lasso.

python examples/clients/torchrec_model.py
"""

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM

from sparsegroup import GroupAdam, HashEmbedding, TargetRate, convert, param_groups

FIELDS, VALUES, STEPS = ("user", "item", "tags"), 20_000, 300


def clicks(rows: int, seed: int) -> tuple[Tensor, KeyedJaggedTensor, Tensor]:
    """Numbers, up to three values of each field, of which the first two hundred matter, and labels."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 4, (len(FIELDS) * rows,), generator=draw)
    values = (VALUES * torch.rand(int(lengths.sum()), generator=draw) ** 4).long()
    features = KeyedJaggedTensor(keys=list(FIELDS), values=values, lengths=lengths)
    effects = torch.randn(VALUES, generator=torch.Generator().manual_seed(0)) * (torch.arange(VALUES) < 200)
    bags = torch.arange(len(lengths)).repeat_interleave(lengths)
    logits = torch.zeros(len(lengths)).index_add(0, bags, effects[values]).view(len(FIELDS), rows).sum(0)
    numbers = torch.randn(rows, 4, generator=draw)
    labels = torch.rand(rows, generator=draw) < torch.sigmoid(logits + numbers[:, 0] / 2)
    return numbers, features, labels.float()


def main() -> None:
    torch.manual_seed(0)
    bags = [EmbeddingBagConfig(name=f, embedding_dim=8, num_embeddings=VALUES, feature_names=[f]) for f in FIELDS]
    model = DLRM(EmbeddingBagCollection(tables=bags), 4, dense_arch_layer_sizes=[16, 8], over_arch_layer_sizes=[16, 1])

    model = convert(model, rows="none")
    optimizer = GroupAdam(param_groups(model), lr=1e-2)
    target = TargetRate(optimizer, 0.1, steps=STEPS)  # a tenth of the features is to stay

    for step in range(STEPS):
        numbers, features, labels = clicks(512, seed=step)
        optimizer.zero_grad()
        logits = model(numbers, features).squeeze(1)
        torch.nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        optimizer.step()
        target.step()

    tables = [module for module in model.modules() if isinstance(module, HashEmbedding)]
    live, seen = sum(table.num_live for table in tables), sum(table.num_seen for table in tables)
    numbers, features, labels = clicks(10_000, seed=STEPS)
    with torch.no_grad():
        auc = roc_auc_score(labels, model.eval()(numbers, features).squeeze(1))
    print(f"AUC {auc:.4f}, feature rate {live / seen:.3f} ({live:,} of {seen:,})")


if __name__ == "__main__":
    main()
