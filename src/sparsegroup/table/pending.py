"""A table's lock, and at most one background job. Taking the lock runs the job first if it has not run yet."""

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from weakref import WeakSet

from torch.utils.data import get_worker_info


class TableLock(nullcontext[None]):
    """To be taken by `with lock.held, lock:`, the first of which is a plain lock, which no signal can interrupt.

    No process is forked while another thread holds the lock, or with a job waiting.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = threading.RLock()
        self._job: Callable[[], None] | None = None
        self._process = os.getpid()
        with _forking:
            _all.add(self)

    def __enter__(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job()

    def schedule(self, job: Callable[[], None]) -> None:
        """Have `job`, which must not raise, run by the thread that takes the lock next; an earlier one runs now."""
        with self.held, self:
            self._job = job

    def run_scheduled(self) -> None:
        """Run the job if no thread has run it yet, else wait for it."""
        with self.held, self:
            pass

    def check_process(self, what: str) -> None:
        """Raise RuntimeError in a process other than the table's."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"a forked process cannot {what}: its copy of the table would part from the parent's unnoticed. "
                "Look keys up in the main process, or in its threads"
            )

    def check_inserts(self) -> None:
        """Raise RuntimeError in a process whose insertions would be lost: a forked one, or a DataLoader's worker."""
        if (worker := get_worker_info()) is not None:
            raise RuntimeError(
                f"worker {worker.id} of a DataLoader cannot insert keys: its table is a copy, and what it inserts "
                "never reaches the main process. Have the workers give the keys, and look them up in the main process; "
                "or look up in evaluation mode, table.eval(), which inserts nothing"
            )
        self.check_process("insert keys")


_all: "WeakSet[TableLock]" = WeakSet()
_taken: list[TableLock] = []
_forking = threading.RLock()
"""Held by the thread that forks, and by one that makes a table: the fork would not know of that."""


def _take_all() -> None:
    _forking.acquire()
    for lock in list(_all):
        lock.held.acquire()
        _taken.append(lock)
        with lock:
            pass


def _release_all() -> None:
    while _taken:
        _taken.pop().held.release()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_release_all, after_in_child=_release_all)
