"""TorchRec's `DistributedModelParallel` and training pipeline, over an `EmbeddingCollection` whose weights are tables.

torchrun --nproc-per-node 2 examples/clients/torchrec_sharded.py
"""

import os
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torchrec import EmbeddingCollection, EmbeddingConfig, JaggedTensor, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.streamable import Pipelineable

from sparsegroup import GroupAdam, HashEmbedding, TargetRate, param_groups
from sparsegroup.integrations.torchrec import HashEmbeddingCollectionSharder, plan_tables

FIELDS, VALUES, STEPS, ROWS = ("user", "item", "tags"), 20_000, 300, 512


@dataclass
class Batch(Pipelineable):
    """Clicks."""

    features: KeyedJaggedTensor
    labels: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(self.features.to(device, non_blocking), self.labels.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: Any) -> None:
        self.features.record_stream(stream)

    def pin_memory(self) -> "Batch":
        return Batch(self.features.pin_memory(), self.labels.pin_memory())


def clicks(rows: int, seed: int) -> Batch:
    """Raw 64-bit ids, up to three of each field, of which those of two hundred values matter, and labels."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 4, (len(FIELDS) * rows,), generator=draw)
    values = (VALUES * torch.rand(int(lengths.sum()), generator=draw) ** 4).long()
    effects = torch.randn(VALUES, generator=torch.Generator().manual_seed(0)) * (torch.arange(VALUES) < 200)
    bags = torch.arange(len(lengths)).repeat_interleave(lengths)
    logits = torch.zeros(len(lengths)).index_add(0, bags, effects[values]).view(len(FIELDS), rows).sum(0)
    labels = torch.rand(rows, generator=draw) < torch.sigmoid(logits)
    ids = values * 0x9E3779B97F4A7C1  # hashes, say: num_embeddings does not limit them
    return Batch(KeyedJaggedTensor(keys=list(FIELDS), values=ids, lengths=lengths), labels.float())


class Head(nn.Module):
    """Sums over the vectors of each field, and layers: a module of its own, as the pipeline traces what is around."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim * len(FIELDS), 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, found: dict[str, JaggedTensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        sums = [torch.segment_reduce(found[f].values(), "sum", lengths=found[f].lengths()) for f in FIELDS]
        logits = self.layers(torch.cat(sums, 1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits, labels), logits.detach()


class Model(nn.Module):
    """The loss and the logits, as TorchRec's pipelines want them."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        tables = [EmbeddingConfig(name=f, embedding_dim=dim, num_embeddings=VALUES, feature_names=[f]) for f in FIELDS]
        self.embedding, self.head = EmbeddingCollection(tables=tables, device=torch.device("meta")), Head(dim)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.head(self.embedding(batch.features), batch.labels)


def main() -> None:
    if "RANK" not in os.environ:  # without torchrun: a world of one
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)

    plain = Model()
    model = DistributedModelParallel(plain, plan=plan_tables(plain), sharders=[HashEmbeddingCollectionSharder()])
    optimizer = GroupAdam(param_groups(model.module), lr=1e-2)
    target = TargetRate(optimizer, 0.1, steps=STEPS)  # a tenth of the features of all ranks is to stay

    pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))
    batches = (clicks(ROWS // ranks, seed=step * ranks + rank) for step in range(STEPS))
    for _ in range(STEPS):
        pipeline.progress(batches)
        target.step()
    pipeline.detach()

    tables = [module for module in model.modules() if isinstance(module, HashEmbedding)]
    counts = torch.tensor([sum(table.num_live for table in tables), sum(table.num_seen for table in tables)])
    dist.all_reduce(counts)
    live, seen = counts.tolist()
    batch = clicks(10_000, seed=-1)
    with torch.no_grad():
        auc = roc_auc_score(batch.labels, model.eval()(batch)[1])
    if rank == 0:
        print(f"AUC {auc:.4f}, feature rate {live / seen:.3f} ({live:,} of {seen:,})")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
