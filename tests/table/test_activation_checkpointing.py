"""`torch.utils.checkpoint` over lookups: the recomputation sees what the forward saw, and counts nothing again."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from distributed_cases import Ranks
from optimizer_cases import assert_identical
from over import over
from sharded_cases import first_ranks
from sparsegroup import GroupAdam, HashEmbedding, MinCount, UnusedFor

FIELDS, ROWS, STEPS = 3, 24, 5

POLICIES: dict[str, dict[str, Any]] = {
    "every key": {},
    "admission and fallback": {"admission": MinCount(2), "fallback": True, "field_bits": 2},
    "eviction by use": {"eviction": UnusedFor(steps=2, live=True, every=1)},
    "a limit of bytes": {"max_bytes": 3_000_000, "admission": MinCount(2, sketch_bytes=4096)},
}


def plainly(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return function(*arguments)


def again(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return checkpoint(function, *arguments, use_reentrant=False)


def again_by_its_own_backward(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    return checkpoint(function, *arguments, use_reentrant=True)


RUNS = (again, again_by_its_own_backward)


class Network(nn.Module):
    """A lookup and a layer for each field, one after the other: what the last field brings changes the table, too."""

    def __init__(self, run: Callable[..., Tensor], **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run = run
        self.table = HashEmbedding(4, std=0.5, **options)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(FIELDS))
        self.last = nn.Linear(4, 1)

    def field(self, number: int, keys: Tensor, so_far: Tensor) -> Tensor:
        return so_far + torch.tanh(self.layers[number](self.table(keys) + so_far))

    def first_two(self, keys: Tensor, so_far: Tensor) -> Tensor:
        """One checkpoint within another."""
        so_far = self.run(self.field, 0, keys[:, 0], so_far)
        return self.field(1, keys[:, 1], so_far)

    def forward(self, keys: Tensor) -> Tensor:
        start = torch.zeros(len(keys), 4, requires_grad=True)  # without it, use_reentrant=True computes no gradient
        so_far = self.run(self.first_two, keys, start)
        return self.last(self.run(self.field, 2, keys[:, 2], so_far)).squeeze(1)


def batches(overlapping: bool) -> list[Tensor]:
    """Keys `[ROWS, FIELDS]` of each step: some come often, some twice, some once; of separate fields, or not."""
    draw, found = np.random.default_rng(0), []
    for step in range(STEPS):
        often = draw.integers(0, 12, (ROWS, FIELDS))
        rare = 100 + 30 * step + draw.integers(0, 60, (ROWS, FIELDS))
        keys = np.where(draw.random((ROWS, FIELDS)) < 0.5, often, rare)
        found.append(torch.from_numpy(keys if overlapping else keys + (np.arange(FIELDS) << 62)))
    return found


def train(
    run: Callable[..., Tensor], *, steps: int = STEPS, overlapping: bool = False, ahead: bool = False, **options: Any
) -> list[Any]:
    """What is there after each step."""
    network = Network(run, **options)
    table, parameters = network.table, list(network.parameters())
    optimizer = GroupAdam([{"params": [table.weight], "l21": 0.2}, {"params": parameters[1:]}], lr=0.1)
    after: list[Any] = []
    for keys, following in pairwise([*batches(overlapping)[:steps], None]):
        optimizer.zero_grad()
        loss = network(keys).square().mean() + network(keys.flip(0)[:5]).mean()
        if ahead and following is not None:
            table.prefetch(following[:, 0])
        loss.backward()
        optimizer.step()
        counts = table.num_rows, table.num_live, table.num_seen, table.num_evicted, table.num_refused
        after.append((loss.detach(), counts, network.state_dict()))
    return [*after, optimizer.state_dict()["state"]]


@over("policy", POLICIES)
def test_training_is_the_same_in_every_bit(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegroup.table.lookup.lookup.GRAIN", 1)
    monkeypatch.setattr("sparsegroup.kernels.cpu.threads.get_num_threads", lambda: 2)
    for run, options in ((RUNS[1], {}), (again, {"overlapping": True}), (again, {"ahead": True})):
        plain, other = (train(one, **options, **POLICIES[policy]) for one in (plainly, run))
        assert_identical(other, plain)


@over("run", RUNS)
def test_a_recomputation_that_cannot_see_what_the_forward_saw_raises(run: Callable[..., Tensor]) -> None:
    table, x = HashEmbedding(2, std=1.0, admission=MinCount(2)), torch.ones(2, requires_grad=True)
    optimizer, keys = GroupAdam(table.parameters()), torch.arange(5)

    def function(keys: Tensor, x: Tensor) -> Tensor:
        return (table(keys) * x).exp()

    loss = run(function, keys, x).sum()
    other = run(function, keys, x).sum()  # which admits them
    with pytest.raises(RuntimeError, match="several times since the last step with different results"):
        (loss + other).backward()
    table(keys).sum().backward()
    loss = run(function, keys, x).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="not known any more"):
        loss.backward()


@over("run", RUNS)
def test_micro_batches_may_share_one_buffer_of_keys(run: Callable[..., Tensor]) -> None:
    def gradients(run: Callable[..., Tensor]) -> Tensor:
        table, x = HashEmbedding(2, std=1.0, fallback=True), torch.ones(2, requires_grad=True)
        keys = torch.empty(8, dtype=torch.int64)
        for first in (0, 100):
            keys.copy_(torch.arange(first, first + 8))
            run(lambda keys, x: (table(keys) * x).exp(), keys, x).sum().backward()
        return x.grad

    assert torch.equal(gradients(run), gradients(plainly))


def test_lookups_without_a_step_are_forgotten_from_the_oldest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegroup.table.lookup.autograd._MOST_REMEMBERED", 20)
    table, x = HashEmbedding(2, std=1.0, fallback=True), torch.ones(2, requires_grad=True)
    losses = [again(lambda keys: (table(keys) * x).exp(), torch.arange(8) + 8 * t).sum() for t in range(4)]
    for loss in losses[:1:-1]:
        loss.backward()
    with pytest.raises(RuntimeError, match="not known any more"):
        losses[1].backward()


def on_ranks() -> None:
    """Trainings of a table on all ranks, with checkpoints and without."""
    options = {"process_group": dist.group.WORLD, "admission": MinCount(2), "fallback": True}
    first_ranks(1)
    plain, *others = (train(run, steps=3, ahead=True, **options) for run in (plainly, *RUNS))
    for other in others:
        assert_identical(other, plain)


def test_training_on_several_ranks_is_the_same(four_ranks: Ranks) -> None:
    four_ranks.call(on_ranks)
