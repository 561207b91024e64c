"""How the process of `sparsegroup train` begins and ends: torchrun's ranks, and signals."""

import os
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from sparsegroup.cli.app import UsageError
from sparsegroup.cli.output import speak_as
from sparsegroup.training import Callback, Trainer
from sparsegroup.training.ranks import RankGroup


@dataclass(frozen=True)
class Launch:
    """How a command was started.

    Attributes:
        ranks: The ranks that carry it out.
        process_group: All of them; None for a single process.
        job: A random id of torchrun's job, the same after a restart; None without torchrun.
        is_restarted: Whether torchrun has restarted them because one of them ended.
    """

    ranks: RankGroup
    process_group: dist.ProcessGroup | None = None
    job: str | None = None
    is_restarted: bool = False


@contextmanager
def launched(minutes: float) -> Iterator[Launch]:
    """How this process was started; the ranks of torchrun wait for each other, at most so many minutes.

    UsageError: torchrun's environment describes no rank, or a rank is missing.
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


class Interruption(Callback):
    """Stops the training after the current batch on SIGINT or SIGTERM, so that it is saved.

    A second SIGINT, or one while nothing is trained, is a `KeyboardInterrupt`. A SIGTERM after another signal has no
    effect: torchrun sends one to its processes after their SIGINT.

    Attributes:
        signal: The first signal; None before.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._trainer: Trainer | None = None

    def on_begin(self, trainer: Trainer) -> None:
        """See `Callback`."""
        self._trainer = trainer

    def on_end(self, trainer: Trainer) -> None:
        """See `Callback`."""
        self._trainer = None

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals here, except those that the process ignores, as one in a shell's background does."""
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            before = {number: one for number, one in handlers.items() if one not in (signal.SIG_IGN, None)}
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if self.signal is None and self._trainer is not None:
            self.signal = number
            self._trainer.stop()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        elif self.signal is None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
