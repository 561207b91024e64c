"""Tables on the first ranks of a world: their groups, batches, losses and rows."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sparsegroup import HashEmbedding

STEPS = 10
ROWS = 30


def first_ranks(count: int) -> Any:
    """The group of the first so many ranks; None on one process, or on another rank."""
    if not dist.is_initialized():
        return None
    if not _GROUPS:  # all ranks have to make all of them
        _GROUPS.extend(dist.new_group(list(range(one))) for one in range(1, dist.get_world_size() + 1))
    return _GROUPS[count - 1] if dist.get_rank() < count else None


_GROUPS: list[Any] = []


def batches(steps: int = STEPS, rows: int = ROWS, seed: int = 0) -> list[Tensor]:
    """Keys `[rows, 3]` of each step's global batch, some often and some once; the last batch is shorter."""
    draw = torch.Generator().manual_seed(seed)
    made = []
    for step in range(steps):
        size = rows if step < steps - 1 else rows // 2 + 1
        often = torch.randint(0, 25, (size, 2), generator=draw)
        once = torch.arange(size)[:, None] + 1000 * (step + 1)
        made.append(torch.cat([often, once], 1) * 0x9E3779B97F4A7C1)
    return made


def loss_of(vectors: Tensor, keys: Tensor, step: int) -> Tensor:
    """A sum over samples with a diagonal Hessian, of which AdaHessian's estimate is exact whatever is drawn."""
    places = torch.arange(vectors.shape[-1])
    wave = torch.sin(1.7 * places + 0.9 * step + (keys % 1009)[..., None].to(vectors.dtype))
    return ((0.5 + 0.25 * wave.roll(1, -1)) * vectors * vectors / 2 + wave * vectors).sum()


def evenly(keys: Tensor, ranks: int) -> Sequence[Tensor]:
    return [keys[rank * len(keys) // ranks : (rank + 1) * len(keys) // ranks] for rank in range(ranks)]


def average_fallback(table: HashEmbedding) -> None:
    """What `DistributedDataParallel` does with the gradient of the fallback vectors."""
    if table.fallback is not None and table.across is not None:
        shards = table.across.shards
        assert table.fallback.grad is not None
        dist.all_reduce(table.fallback.grad, group=shards.group)
        table.fallback.grad /= shards.ranks if shards.reduction == "mean" else 1


def rows_of(table: HashEmbedding) -> dict[int, Tensor]:
    """Key → its row: the state, u and the vector, in the order of their names; of this rank's part."""
    parts = table.table.snapshot().arrays()
    keys = parts.pop("keys")
    rows = [np.concatenate([parts[name][at] for name in sorted(parts)]) for at in range(len(keys))]
    return {int(key): torch.from_numpy(row) for key, row in zip(keys, rows, strict=True)}
