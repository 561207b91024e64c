"""Tables in the host's memory whose weights are bfloat16 or float16."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from family import FAMILY
from over import over
from sparsegroup import GroupAdagrad, GroupAdam, HashEmbedding, HashEmbeddingBag, TargetRate
from sparsegroup.bags import pool_ragged
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.serving import export, load_export
from table_cases import random_keys, take_step

NARROW = over("dtype", [torch.bfloat16, torch.float16])
KEYS = random_keys(60)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def trained(dtype: torch.dtype, steps: int = 4, **options: Any) -> tuple[HashEmbedding, Any]:
    table = HashEmbedding(5, std=0.1, dtype=dtype, **options)
    optimizer = GroupAdam(table.parameters(), lr=0.05, l1=0.01, l21=0.05)
    for step in range(steps):
        step_of(table, optimizer, step)
    return table, optimizer


def step_of(table: HashEmbedding, optimizer: Any, number: int) -> None:
    keys = KEYS[torch.randperm(len(KEYS), generator=torch.Generator().manual_seed(number))[:40]]
    slope = torch.randn(40, table.dim, generator=torch.Generator().manual_seed(number))
    take_step(optimizer, (table(keys) * slope.to(table.weight.dtype)).sum())


@NARROW
@over(
    ("rule", "lambdas", "dims"),
    [
        ("adam", {"l1": 0.0, "l21": 0.0}, (1, 3, 8)),
        ("adam", {"l1": 0.01, "l21": 0.0, "l2": 0.01}, (3, 8, 300)),
        ("adagrad", {"l1": 0.01, "l21": 0.05}, (1,)),
        ("sgd", {"l1": 0.01, "l21": 0.0}, (4,)),
    ],
)
def test_weights_are_those_of_the_eager_oracle_on_bits(
    rule: str, lambdas: dict[str, float], dims: tuple[int, ...], dtype: torch.dtype
) -> None:
    """By a sparse `nn.Embedding` of the dtype, which eager PyTorch steps; groups of one element have exact norms."""
    for dim in dims:
        table = HashEmbedding(dim, std=0.1, dtype=dtype)
        plain = nn.Embedding(len(KEYS), dim, dtype=dtype, sparse=True)
        plain.weight.data.copy_(table.initial(KEYS))
        optimizers = [FAMILY[rule].build(one.weight, **lambdas) for one in (table, plain)]
        draw = torch.Generator().manual_seed(dim)
        for _ in range(5):
            some = torch.randperm(len(KEYS), generator=draw)[:30]
            slope = torch.randn(30, dim, generator=draw).to(dtype)
            slope[0] = 0
            for vectors, optimizer in zip((table(KEYS[some]), plain(some)), optimizers, strict=True):
                take_step(optimizer, (vectors * slope).sum())
        touched = table.contains(KEYS)
        assert torch.equal(table.lookup(KEYS[touched]), plain.weight.detach()[touched])
        rows = table.table.find(KEYS[touched].numpy())
        state = optimizers[1].state[plain.weight]
        for part in table.table.state_names:
            found = torch.from_numpy(table.table.rows.read(part, rows))
            torch.testing.assert_close(found, state[part][touched].float(), rtol=1e-4, atol=1e-5)
        assert table.num_live == int(table.lookup(KEYS).any(1).sum())


@NARROW
def test_groups_become_zero_as_in_the_eager_oracle(dtype: torch.dtype) -> None:
    table, plain = HashEmbedding(8, std=0.1, dtype=dtype), nn.Embedding(len(KEYS), 8, dtype=dtype, sparse=True)
    plain.weight.data.copy_(table.initial(KEYS))
    optimizers = [GroupAdagrad(one.parameters(), groups="rows", lr=0.1, l21=0.1) for one in (table, plain)]
    slope = torch.randn(len(KEYS), 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    for _ in range(4):
        for vectors, optimizer in zip((table(KEYS), plain(torch.arange(len(KEYS)))), optimizers, strict=True):
            take_step(optimizer, (vectors * slope).sum())
        torch.testing.assert_close(table.lookup(KEYS), plain.weight.detach())
    median = float(np.median(optimizers[0].census(0, 0, (1,))[0].critical))
    for optimizer in optimizers:
        optimizer.param_groups[0]["l21"] = 1.0001 * median
        optimizer.sweep()
    assert 0 < table.num_live < len(KEYS)
    assert torch.equal(table.lookup(KEYS).any(1), plain.weight.any(1))
    torch.testing.assert_close(table.lookup(KEYS), plain.weight.detach())


@NARROW
def test_small_updates_are_not_lost_to_rounding(dtype: torch.dtype) -> None:
    """2,000 steps of a hundredth of what the dtype resolves."""
    table = HashEmbedding(1, std=0.0, dtype=dtype)
    table.assign(torch.tensor([1]), torch.ones(1, 1))
    size = torch.finfo(dtype).eps / 100
    optimizer = FAMILY["momentum"].build(table.weight, lr=size, l1=0.0, l21=0.0, momentum=0.0)
    for _ in range(2_000):
        take_step(optimizer, table(torch.tensor([1])).sum())
    assert abs(float(table.lookup(torch.tensor([1]))) - (1 - 2_000 * size)) < torch.finfo(dtype).eps


@NARROW
@over("fallback", [False, True])
def test_vectors_and_gradients_have_the_dtype_and_sums_are_of_float32(dtype: torch.dtype, fallback: bool) -> None:
    table = HashEmbedding(3, std=0.5, dtype=dtype, fallback=fallback)
    keys, ends = KEYS[:40].repeat(3), torch.tensor([0, 0, 70, 120])
    vectors = table(keys)
    assert vectors.dtype == dtype
    assert torch.equal(vectors, table.initial(keys))
    vectors.sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad.dtype == dtype
    assert torch.equal(table.weight.grad.coalesce().values().unique(), torch.tensor([3.0], dtype=dtype))
    for mode in ("sum", "mean", "max"):
        bag = HashEmbeddingBag(3, std=0.5, dtype=dtype, mode=mode, fallback=fallback)
        for training in (True, False):
            found = bag.train(training)(keys, ends[:-1])
            wanted = pool_ragged(vectors.float(), ends, 3, mode).to(dtype)
            torch.testing.assert_close(found, wanted)
    twice = pool_ragged(2 * vectors.float(), ends, 3, "sum").to(dtype)
    weighted = HashEmbeddingBag(3, std=0.5, dtype=dtype, mode="sum")(keys, ends[:-1], torch.full((120,), 2.0))
    torch.testing.assert_close(weighted, twice)


def test_gradients_of_micro_batches_in_bfloat16_add_up() -> None:
    """In float16, torch cannot add sparse gradients on the CPU."""
    table, other = (HashEmbedding(5, dtype=torch.bfloat16) for _ in range(2))
    for keys in (KEYS[:40], KEYS[20:]):
        table(keys).sum().backward()
    (other(KEYS[:20]).sum() + 2 * other(KEYS[20:40]).sum() + other(KEYS[40:]).sum()).backward()
    for some in (table, other):
        GroupAdam(some.parameters()).step()
    assert torch.equal(table.lookup(KEYS), other.lookup(KEYS))


@NARROW
def test_weights_take_half_of_the_memory(dtype: torch.dtype) -> None:
    wide, narrow = (HashEmbedding(16, dtype=one, max_bytes=4_000_000) for one in (torch.float32, dtype))
    for table in (wide, narrow):
        for first in range(0, 100_000, 10_000):
            table(torch.arange(first, first + 10_000))
        assert table.memory().total <= 4_000_000
    assert narrow.num_rows > wide.num_rows
    assert narrow.memory().parts["weight"] == 2 * 16 * narrow.num_rows


@NARROW
def test_copies_state_dicts_and_checkpoints_go_on_with_the_same_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    table, optimizer = trained(dtype)
    assert table.state_dict()["weight"].dtype == dtype
    save_checkpoint(tmp_path / str(dtype), table, [optimizer])
    others = [trained(dtype, 0) for _ in range(2)]
    load_checkpoint(tmp_path / str(dtype), others[0][0], [others[0][1]])
    others[1][0].load_state_dict(table.state_dict())
    others[1][1].load_state_dict(optimizer.state_dict())
    others.append(copy.deepcopy((table, optimizer)))
    for one in ((table, optimizer), *others):
        for step in range(10, 13):
            step_of(*one, step)
    for other, _ in others:
        assert torch.equal(bits(other.lookup(KEYS)), bits(table.lookup(KEYS)))
        assert all(torch.equal(one, table.state_dict()[name]) for name, one in other.state_dict().items())


@NARROW
def test_an_export_gives_the_same_vectors(dtype: torch.dtype, tmp_path: Path) -> None:
    table, _ = trained(dtype)
    folder = tmp_path / str(dtype)
    export(table.eval(), folder, (KEYS[:8],), formats=[])
    loaded = load_export(folder, HashEmbedding(5, dtype=dtype))
    assert torch.equal(loaded(KEYS), table(KEYS))


@NARROW
def test_a_size_can_be_asked_for(dtype: torch.dtype) -> None:
    table = HashEmbedding(4, std=0.1, dtype=dtype)
    optimizer = GroupAdagrad(table.parameters(), lr=0.1)
    target = TargetRate(optimizer, 0.5, steps=40)
    slope = torch.randn(len(KEYS), 4, generator=torch.Generator().manual_seed(2)).to(dtype)
    for _ in range(40):
        take_step(optimizer, (table(KEYS) * slope).sum())
        target.step()
    assert table.feature_rate == pytest.approx(0.5, abs=0.1)
