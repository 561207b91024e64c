"""Ranks of which some die or hang, and what the others say."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distributed_cases import forking
from sparsegroup import GroupAdam, GroupOptimizer, HashEmbedding
from sparsegroup.table import ExchangeError
from sparsegroup.table.sharded.exchange import group_of_tables

WORLD = 3
SECONDS = 3
"""The time-out of their group."""

PATIENCE = 100
"""Seconds in which all must have ended; gloo waits for half an hour."""


@dataclass(frozen=True)
class Training:
    """One of a sharded table, on one rank, in which a rank may do something of its own: `misbehave`."""

    table: HashEmbedding
    optimizer: GroupOptimizer
    folder: Path
    misbehave: Callable[[], None]


Scene = Callable[[Training], Any]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(2 * PATIENCE)


def be_good() -> None: ...


def played(folder: Path, scene: Scene, roles: Mapping[int, Callable[[], None]]) -> dict[int, str]:
    """What the ranks say that raise `ExchangeError`.

    Args:
        folder: An empty one.
        scene: Played by each rank, after two steps.
        roles: How some of them misbehave.
    """
    context = forking()
    pipes = {rank: context.Pipe() for rank in range(WORLD)}
    ranks = {
        rank: context.Process(target=_play, args=(rank, folder, scene, roles.get(rank, be_good), theirs), daemon=True)
        for rank, (_, theirs) in pipes.items()
    }
    said = {}
    for process in ranks.values():
        process.start()
    for _, theirs in pipes.values():
        theirs.close()
    try:
        for rank, (ours, _) in pipes.items():
            if rank not in roles:
                assert ours.poll(PATIENCE), f"rank {rank} waits for ever"
                said[rank] = ours.recv()
    finally:
        for process in ranks.values():
            process.kill()
            process.join()
    return said


def _play(rank: int, folder: Path, scene: Scene, misbehave: Callable[[], None], pipe: Connection) -> None:
    torch.set_num_threads(1)
    at_first = timedelta(seconds=PATIENCE)  # steps compile kernels
    dist.init_process_group("gloo", store=_store(rank, folder), rank=rank, world_size=WORLD, timeout=at_first)
    table = HashEmbedding(4, process_group=dist.group.WORLD)
    own_group = group_of_tables(dist.group.WORLD)
    assert own_group._get_backend(torch.device("cpu")).options._timeout == at_first
    optimizer = GroupAdam(table.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.arange(20)).sum().backward()
        optimizer.step()
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=SECONDS), own_group)
    try:
        pipe.send(f"no error: {scene(Training(table, optimizer, folder, misbehave))}")
    except ExchangeError as error:
        pipe.send(str(error))
    hang()  # until the test is over


def _store(rank: int, folder: Path) -> dist.Store:
    """One that ends with rank 0, as `init_process_group` makes it by default."""
    port = folder / "port"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, WORLD, is_master=True, wait_for_workers=False)
        (folder / "port.new").write_text(str(store.port))
        (folder / "port.new").rename(port)
        return store
    while not port.exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(port.read_text()), WORLD)
