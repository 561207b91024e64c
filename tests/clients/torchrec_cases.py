"""A model with an `EmbeddingCollection`, on one process and as `DistributedModelParallel` shards it."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

pytest.importorskip("torchrec")

from torchrec import EmbeddingCollection, EmbeddingConfig, JaggedTensor, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.streamable import Pipelineable

from sparsegroup import GroupAdam, HashEmbedding, TableEmbedding, param_groups
from sparsegroup.bags import pool_ragged
from sparsegroup.integrations.torchrec import HashEmbeddingCollectionSharder, plan_tables, table_arguments

DIM, STEPS, ROWS = 4, 8, 12
FEATURES = ("item", "seen", "user")
INIT = {"weight_init_min": -0.5, "weight_init_max": 0.5}


def collection(device: str = "meta", **options: Any) -> EmbeddingCollection:
    tables = [
        EmbeddingConfig(
            name="things", embedding_dim=DIM, num_embeddings=20, feature_names=["item", "seen"], **INIT, **options
        ),
        EmbeddingConfig(name="users", embedding_dim=DIM, num_embeddings=50, feature_names=["user"], **INIT, **options),
    ]
    return EmbeddingCollection(tables=tables, device=torch.device(device))


@dataclass
class Batch(Pipelineable):
    """Samples: features and labels, as TorchRec's pipelines take them."""

    features: KeyedJaggedTensor
    labels: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return Batch(self.features.to(device, non_blocking), self.labels.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: Any) -> None:
        self.features.record_stream(stream)

    def pin_memory(self) -> "Batch":
        return self


def batch(step: int, ranks: int = 1, rank: int = 0, dtype: torch.dtype = torch.int64) -> Batch:
    """A rank's part of a global batch with some empty bags, and with keys far beyond `num_embeddings`."""
    draw = torch.Generator().manual_seed(step)
    lengths = torch.randint(0, 4, (len(FEATURES), ROWS), generator=draw)
    many = int(lengths.sum())
    values = torch.randint(0, 30, (many,), generator=draw)
    if dtype == torch.int64:
        values = values * 0x9E3779B97F4A7C1
    labels = torch.rand(ROWS, generator=draw)
    own = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    of_bag = torch.split(values, lengths.flatten().tolist())
    kept = [bag for number, bag in enumerate(of_bag) if own.start <= number % ROWS < own.stop]
    features = KeyedJaggedTensor(
        keys=list(reversed(FEATURES)),  # not in the order of the tables
        values=torch.cat(kept).to(dtype),
        lengths=lengths[:, own].flatten(),
    )
    return Batch(features, labels[own])


class Head(nn.Module):
    """Sums of vectors, and a layer over them. TorchRec's pipelines trace what is around it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(DIM * len(FEATURES), 1)

    def forward(self, found: dict[str, JaggedTensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        sums = [
            pool_ragged(found[name].values(), found[name].offsets().long(), len(labels), "sum") for name in FEATURES
        ]
        logits = self.layer(torch.cat(sums, 1)).squeeze(1)
        losses = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return losses.sum() / max(len(labels), 1), logits.detach()


class Clicks(nn.Module):
    """The collection and its head."""

    def __init__(self, device: str = "meta", **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = collection(device, **options), Head()

    def forward(self, given: Batch) -> tuple[Tensor, Tensor]:
        return self.head(self.embedding(given.features), given.labels)


def on_one(**options: Any) -> Clicks:
    """The model on one process, over tables that begin as the sharded ones."""
    model = tables_alone(**options)
    for name, table in tables_of(model).items():
        model.embedding.embeddings[name] = TableEmbedding(table, 1)
    return model


def tables_alone(**options: Any) -> Clicks:
    """What cannot compute, but has the tables, on one process, where the sharded model has them."""
    model = Clicks()
    for number, config in enumerate(model.embedding.embedding_configs()):
        table = HashEmbedding(DIM, **table_arguments(config, options, number))
        model.embedding.embeddings[config.name] = table
    return model


def on_ranks(model: Clicks | None = None, plan: Any = None, **options: Any) -> DistributedModelParallel:
    """The model on all ranks."""
    model = model or Clicks()
    plan = plan or plan_tables(model, **options)
    sharders: Any = [HashEmbeddingCollectionSharder()]
    return DistributedModelParallel(model, plan=plan, sharders=sharders, device=torch.device("cpu"))


def optimizer_of(model: nn.Module) -> GroupAdam:
    return GroupAdam(param_groups(model, l21=0.02), lr=0.05)


def tables_of(model: nn.Module) -> dict[str, HashEmbedding]:
    there = dict(model.embedding.embeddings.items())
    return {name: one.table if isinstance(one, TableEmbedding) else one for name, one in there.items()}


def rows_of_tables(model: nn.Module) -> dict[tuple[str, int], Tensor]:
    """Table and key → the vector; of this rank's part."""
    found = {}
    for name, table in tables_of(model).items():
        for key in table.keys:
            found[name, int(key)] = table.table.look_up(key.view(1), insert=False)[0][0].clone()
    return found


def content(model: nn.Module) -> dict[str, Any]:
    """Of this rank's part: rows and counts; the layer, which all ranks have."""
    tables = tables_of(model).values()
    return {
        "rows": rows_of_tables(model),
        "counts": (sum(table.num_live for table in tables), sum(table.num_seen for table in tables)),
        "head": model.head.layer.weight.detach().clone(),
    }


def own_batch(step: int, **options: Any) -> Batch:
    return batch(step, dist.get_world_size(), dist.get_rank(), **options)


def assert_same(parts: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    """Whether the ranks' parts make up the whole, to rounding."""
    rows = {key: row for part in parts for key, row in part["rows"].items()}
    assert len(rows) == sum(len(part["rows"]) for part in parts)
    assert rows.keys() == whole["rows"].keys()
    for key, row in rows.items():
        torch.testing.assert_close(row, whole["rows"][key], rtol=1e-5, atol=1e-6)
    assert tuple(map(sum, zip(*(part["counts"] for part in parts), strict=True))) == whole["counts"]
    for part in parts:
        torch.testing.assert_close(part["head"], whole["head"], rtol=1e-5, atol=1e-6)
