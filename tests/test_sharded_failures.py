"""A rank that dies, hangs or does something else: the others do not wait for it for ever, and say what happened."""

import multiprocessing
import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.distributed import ExchangeError

SECONDS = 3


def die() -> None:
    os._exit(3)


def hang() -> None:
    time.sleep(3 * SECONDS)


def in_a_step(table: HashEmbedding, misbehave: Callable[[], None]) -> None:
    """The other rank is gone when gradients are exchanged."""
    vectors = table(torch.arange(10))
    if dist.get_rank():
        misbehave()
    vectors.sum().backward()


def in_a_lookup(table: HashEmbedding, misbehave: Callable[[], None]) -> None:
    if dist.get_rank():
        misbehave()
    table(torch.arange(10))


def ahead(table: HashEmbedding, misbehave: Callable[[], None]) -> None:
    """While keys are exchanged by another thread."""
    table(torch.arange(10))
    if dist.get_rank():
        misbehave()
    table.prefetch(torch.arange(5))
    table(torch.arange(5))


def run(rank: int, folder: Path, training: Callable[..., None], misbehave: Callable[[], None], pipe: Any) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=SECONDS))
    table = HashEmbedding(4, process_group=dist.group.WORLD)
    optimizer = GroupAdam(table.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.arange(20)).sum().backward()
        optimizer.step()
    begun = time.perf_counter()
    try:
        training(table, misbehave)
    except ExchangeError as error:
        pipe.send((time.perf_counter() - begun, str(error)))
    os._exit(0)


def told(folder: Path, training: Callable[..., None], misbehave: Callable[[], None]) -> tuple[float, str]:
    """After how many seconds the first rank ended, and what it said."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    ranks = [
        context.Process(target=run, args=(rank, folder, training, misbehave, theirs), daemon=True) for rank in (0, 1)
    ]
    for process in ranks:
        process.start()
    try:
        assert ours.poll(100), "the first rank waits for ever"
        seconds, message = ours.recv()
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return seconds, message


@pytest.mark.parametrize("misbehave", [die, hang])
@pytest.mark.parametrize(
    ("training", "doing"),
    [
        (in_a_step, r"sends \d+ gradients and awaits \d+"),
        (in_a_lookup, r"sends 2 numbers of keys and awaits 2"),
        (ahead, r"sends 2 numbers of keys and awaits 2"),
    ],
)
def test_a_rank_that_does_not_come(training: Any, doing: str, misbehave: Any, tmp_path: Path) -> None:
    seconds, message = told(tmp_path, training, misbehave)
    assert seconds < 3 * SECONDS
    assert re.match(f"HashEmbedding: rank 0 of 2 {doing}, and the ranks do not come together: ", message), message
