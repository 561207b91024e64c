"""A command that `torchrun` has started on several ranks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from sparsegroup.cli.app import UsageError
from sparsegroup.cli.output import speak_as
from sparsegroup.training.rank_group import RankGroup


@dataclass(frozen=True)
class Launch:
    """How a command was started.

    Attributes:
        ranks: Who carry it out.
        process_group: All of them; None for one by itself.
        job: What torchrun calls them, the same after a restart; None without it.
        is_restarted: Whether torchrun has started them anew because one of them ended.
    """

    ranks: RankGroup
    process_group: dist.ProcessGroup | None = None
    job: str | None = None
    is_restarted: bool = False


@contextmanager
def launched(minutes: float) -> Iterator[Launch]:
    """How this process was started; if by torchrun on several ranks, these come together first.

    Args:
        minutes: How long to wait for another rank.

    Raises:
        UsageError: What torchrun has told is no rank of a world.
    """
    job, restarts = os.environ.get("TORCHELASTIC_RUN_ID"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        yield Launch(RankGroup(), None, job, restarts != "0")
        return
    rank = os.environ["RANK"]
    if rank != "0":
        speak_as(int(rank) if rank.isdecimal() else -1)
    try:
        wait = timedelta(minutes=minutes)
        store, number, count = next(dist.rendezvous("env://", timeout=wait))  # type: ignore[attr-defined]
        # After a restart torchrun's store still has the addresses of the processes that there were before.
        store = dist.PrefixStore(f"sparsegroup-{restarts}-of-{count}", store)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=number, world_size=count, timeout=wait)
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"the ranks that torchrun has started do not come together: {error}") from error
    group = dist.group.WORLD
    assert group is not None
    yield Launch(RankGroup(group), group, job, restarts != "0")
    dist.destroy_process_group()
