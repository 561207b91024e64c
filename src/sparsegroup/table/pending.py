"""Work on a table that has been promised: whoever takes the table's lock finds it done, or does it."""

import os
import threading
from collections.abc import Callable
from types import TracebackType
from weakref import WeakSet

from torch.utils.data import get_worker_info


class Pending:
    """At most one job, done by whoever enters first. To be entered behind its lock: `with pending.lock, pending:`.

    The lock itself stays a plain one, which no signal can come between. A thread that is to do the job ahead of the
    others only has to enter and leave. No process begins in the middle of what another thread does behind the lock, or
    with a job pending.

    Attributes:
        lock: The table's.
        job: The job.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.job: Callable[[], None] | None = None
        self._process = os.getpid()
        with _forking:
            _all.add(self)

    def __enter__(self) -> None:
        job, self.job = self.job, None
        if job is not None:
            job()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def promise(self, job: Callable[[], None]) -> None:
        """Have `job` done by whoever enters next; one that was promised before is done now."""
        with self.lock, self:
            self.job = job

    def check_process(self, what: str) -> None:
        """Raise RuntimeError in a process that is not the table's."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"a forked process cannot {what}: its copy of the table would part from the parent's unnoticed. "
                "Look keys up in the main process, or in its threads"
            )

    def check_inserts(self) -> None:
        """Raise RuntimeError where keys that a lookup inserts would be lost: in a forked process, or in a worker."""
        if (worker := get_worker_info()) is not None:
            raise RuntimeError(
                f"worker {worker.id} of a DataLoader cannot insert keys: its table is a copy, and what it inserts "
                "never reaches the main process. Have the workers give the keys, and look them up in the main process; "
                "or look up in evaluation mode, table.eval(), which inserts nothing"
            )
        self.check_process("insert keys")

    def keep(self) -> None:
        """Do what is promised."""
        with self.lock, self:
            pass


_all: "WeakSet[Pending]" = WeakSet()
_held: list[Pending] = []
_forking = threading.RLock()
"""Held by the thread that forks, and by one that makes a table: the fork would not know of that."""


def _hold_all() -> None:
    _forking.acquire()
    for pending in list(_all):
        pending.lock.acquire()
        _held.append(pending)
        with pending:
            pass


def _release_all() -> None:
    while _held:
        _held.pop().lock.release()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_all)
