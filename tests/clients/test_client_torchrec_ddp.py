"""A sharded table beside TorchRec's unsharded modules under `DistributedDataParallel` trains as one process does."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from distributed_cases import Ranks
from sparsegroup import GroupAdam, HashEmbeddingBag, param_groups
from sparsegroup.integrations import data_parallel

pytest.importorskip("torchrec")

from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

from torchrec_cases import STEPS, Batch, batch, own_batch

pytestmark = pytest.mark.filterwarnings("ignore")


class BothKinds(nn.Module):
    """TorchRec's bags for one feature of few values, a table for two of many."""

    def __init__(self, process_group: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        few = EmbeddingBagConfig(name="users", embedding_dim=4, num_embeddings=7, feature_names=["user"])
        self.few = EmbeddingBagCollection(tables=[few])
        fields = {"item": 0, "seen": 1}
        self.many = HashEmbeddingBag(4, mode="sum", std=0.5, features=fields, field_bits=8, process_group=process_group)
        self.head = nn.Linear(12, 1)

    def forward(self, features: Any) -> Tensor:
        few, many = self.few(features).values(), self.many(features)
        return self.head(torch.cat([few, many.flatten(1)], 1)).squeeze(1)


def learn(model: nn.Module, batches: list[Batch]) -> None:
    optimizer = GroupAdam(param_groups(model, l21=0.01), lr=0.05)
    for one in batches:
        first, last = one.features.offset_per_key()[:2]
        one.features.values()[first:last].remainder_(7)  # TorchRec's bags take ids below 7
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(one.features), one.labels).backward()
        optimizer.step()


def content(model: BothKinds) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """What all ranks have, and this rank's rows."""
    rows = model.many.table.look_up(model.many.keys, insert=False).vectors
    own = dict(zip(model.many.keys.tolist(), rows.clone(), strict=True))
    return model.few.embedding_bags["users"].weight.detach(), model.head.weight.detach(), own


def in_parallel() -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    model = BothKinds(dist.group.WORLD)
    learn(data_parallel(model), [own_batch(step) for step in range(STEPS)])
    return content(model)


def test_ranks_train_both_kinds_as_one_process(ranks: Ranks) -> None:
    parts = ranks.call(in_parallel)
    model = BothKinds()
    learn(model, [batch(step) for step in range(STEPS)])
    few, head, rows = content(model)
    together = {key: row for *_, own in parts for key, row in own.items()}
    assert together.keys() == rows.keys()
    assert sum(len(own) for *_, own in parts) == len(rows)
    for key, row in together.items():
        torch.testing.assert_close(row, rows[key], rtol=1e-5, atol=1e-6)
    for its_few, its_head, _ in parts:
        torch.testing.assert_close(its_few, few, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(its_head, head, rtol=1e-5, atol=1e-6)
