"""A command that `torchrun` has started on several ranks."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from sparsegroup.cli.app import UsageError
from sparsegroup.cli.output import speak_as
from sparsegroup.training.ranks import RankGroup


@dataclass(frozen=True)
class Launch:
    """How a command was started.

    Attributes:
        ranks: Who carry it out.
        process_group: All of them; None for one by itself.
        job: A random id of torchrun's job, the same after a restart; None without torchrun.
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
    is_alone, by_torchrun = os.environ.get("WORLD_SIZE", "1") == "1", "TORCHELASTIC_RUN_ID" in os.environ
    if "RANK" not in os.environ or (is_alone and not by_torchrun):
        yield Launch(RankGroup())
        return
    rank, restarts = os.environ["RANK"], os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if rank != "0":
        speak_as(int(rank) if rank.isdecimal() else -1)
    group = None
    try:
        wait = timedelta(minutes=minutes)
        store, number, count = next(dist.rendezvous("env://", timeout=wait))  # type: ignore[attr-defined]
        # torchrun's own id is "none" unless one is given, but each job has a store, which outlasts restarts.
        job = store.compare_set("sparsegroup-job", "", uuid.uuid4().hex).decode()
        if not is_alone:
            # After a restart torchrun's store still has the addresses of the processes that there were before.
            store = dist.PrefixStore(f"sparsegroup-{restarts}-of-{count}", store)  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=number, world_size=count, timeout=wait)
            group = dist.group.WORLD
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"the ranks that torchrun has started do not come together: {error}") from error
    yield Launch(RankGroup(group), group, job, restarts != "0")
    if group is not None:
        dist.destroy_process_group()
