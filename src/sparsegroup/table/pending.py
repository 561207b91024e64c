"""Work on a table that has been promised: whoever takes the table's lock finds it done, or does it."""

import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol
from weakref import WeakSet


class Pending:
    """At most one job, done by whoever enters first. To be entered behind the lock: `with lock, pending:`.

    The lock itself stays a plain one, which no signal can come between. A thread that is to do the job ahead of the
    others only has to enter and leave.
    """

    def __init__(self) -> None:
        self.job: Callable[[], None] | None = None

    def __enter__(self) -> None:
        job, self.job = self.job, None
        if job is not None:
            job()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Locked(Protocol):
    lock: threading.RLock
    pending: Pending

    def __hash__(self) -> int: ...


_all: "WeakSet[_Locked]" = WeakSet()
_held: list[_Locked] = []
_forking = threading.RLock()
"""Held by the thread that forks, and by one that makes a table: the fork would not know of that."""


def free_at_fork(table: _Locked) -> None:
    """Let no process begin in the middle of another thread's work on `table`, or with a job of its pending."""
    with _forking:
        _all.add(table)


def _hold_all() -> None:
    _forking.acquire()
    for table in list(_all):
        table.lock.acquire()
        _held.append(table)
        with table.pending:
            pass


def _release_all() -> None:
    while _held:
        _held.pop().lock.release()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_all)
