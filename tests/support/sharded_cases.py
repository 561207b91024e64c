"""Trainings of a table on the first ranks of a world, and the same on one process without any."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sparsegroup import GroupOptimizer, HashEmbedding, TargetRate

DIM = 4
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


def mostly_last(keys: Tensor, ranks: int) -> Sequence[Tensor]:
    return [*(keys[rank : rank + 1] for rank in range(ranks - 1)), keys[ranks - 1 :]]


def all_to_the_last(keys: Tensor, ranks: int) -> Sequence[Tensor]:
    return [*([keys[:0]] * (ranks - 1)), keys]


@dataclass
class Case:
    """A training.

    Attributes:
        optimizer: Makes the optimizer of a table's parameters.
        table: Arguments of the table.
        cut: Cuts a global batch into the parts of so many ranks.
        ahead: Look each batch up ahead of its time.
        rate: The live share that a target asks for.
        rows: Of a batch.
    """

    optimizer: Callable[[Any], GroupOptimizer]
    table: dict[str, Any] = field(default_factory=dict)
    cut: Callable[[Tensor, int], Sequence[Tensor]] = evenly
    ahead: bool = False
    rate: float | None = None
    rows: int = ROWS
    steps: int = STEPS


def average_fallback(table: HashEmbedding) -> None:
    """What `DistributedDataParallel` does with the gradient of the fallback vectors."""
    if table.fallback is not None and table.across is not None:
        shards = table.across.shards
        assert table.fallback.grad is not None
        dist.all_reduce(table.fallback.grad, group=shards.group)
        table.fallback.grad /= shards.ranks if shards.reduction == "mean" else 1


def trained(case: Case, ranks: int) -> tuple[HashEmbedding, GroupOptimizer] | None:
    """The table after the steps, on each of so many ranks; None on others. 0: on one process."""
    group = first_ranks(ranks) if ranks else None
    if ranks and group is None:
        return None
    options = {**case.table, "process_group": group}
    if not ranks:
        options = {name: value for name, value in options.items() if name not in ("process_group", "reduction")}
    table = HashEmbedding(DIM, std=0.5, **options)
    optimizer = case.optimizer(table.parameters())
    stream = [case.cut(keys, max(ranks, 1)) for keys in batches(case.steps, case.rows)]
    target = None if case.rate is None else TargetRate(optimizer, case.rate, steps=case.steps, interval=2)
    rank = dist.get_rank(group) if ranks else 0
    mean = case.table.get("reduction", "mean") == "mean"
    for step, parts in enumerate(stream):
        keys = parts[rank]
        optimizer.zero_grad()
        vectors = table(keys)
        if case.ahead and step + 1 < len(stream) and not (target is not None and target.is_due):
            table.prefetch(stream[step + 1][rank])
        share = (len(parts) if mean else 1) / sum(map(len, parts))
        (loss_of(vectors, keys, step) * share).backward(create_graph=optimizer.rule.second_order)
        average_fallback(table)
        optimizer.step()
        if target is not None:
            target.step()
    return table, optimizer


def rows_of(table: HashEmbedding) -> dict[int, Tensor]:
    """Key → its row: the state, u and the vector, in the order of their names; of this rank's part."""
    parts = table.table.snapshot().arrays()
    keys = parts.pop("keys")
    rows = [np.concatenate([parts[name][at] for name in sorted(parts)]) for at in range(len(keys))]
    return {int(key): torch.from_numpy(row) for key, row in zip(keys, rows, strict=True)}


def content(case: Case, ranks: int) -> dict[str, Any] | None:
    """Key → its row with u and the state, and counts; of this rank's part."""
    found = trained(case, ranks)
    if found is None:
        return None
    table, optimizer = found
    return {
        "rows": rows_of(table),
        "counts": (table.num_rows, table.num_live, table.num_seen),
        "step": [float(state["step"]) for state in optimizer.state.values()],
        "fallback": None if table.fallback is None else table.fallback.detach().clone(),
        "l21": [group["l21"] for group in optimizer.param_groups],
    }


def together(parts: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """The content of all ranks as one; what they share is the same on each."""
    there = [part for part in parts if part is not None]
    rows: dict[int, Tensor] = {}
    for part in there:
        assert not rows.keys() & part["rows"].keys()
        rows |= part["rows"]
    for part in there[1:]:
        assert part["step"] == there[0]["step"]
        assert part["l21"] == there[0]["l21"]
        assert part["fallback"] is None or torch.equal(part["fallback"], there[0]["fallback"])
    counts = tuple(map(sum, zip(*(part["counts"] for part in there), strict=True)))
    return {**there[0], "rows": rows, "counts": counts}


def assert_same(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float = 2e-6) -> None:
    """Whether two trainings have ended in the same, to rounding."""
    assert ours["rows"].keys() == theirs["rows"].keys()
    for key, row in ours["rows"].items():
        torch.testing.assert_close(row, theirs["rows"][key], rtol=tolerance, atol=tolerance)
    assert ours["counts"] == theirs["counts"]
    assert ours["step"] == theirs["step"]
    torch.testing.assert_close(ours["l21"], theirs["l21"], rtol=1e-4, atol=1e-7)
    if ours["fallback"] is not None:
        torch.testing.assert_close(ours["fallback"], theirs["fallback"], rtol=tolerance, atol=tolerance)
