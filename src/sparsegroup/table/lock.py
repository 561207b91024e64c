"""A lock that its holder can hand to another thread, for work that is begun here and ended there."""

import os
import threading
from types import TracebackType
from weakref import WeakSet


class Lock:
    """Reentrant. In a forked process nobody holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._depth = 0
        _locks.add(self)

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if self._owner != thread:
            self._lock.acquire()
            self._owner = thread
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
            self._lock.release()

    def hand_over(self) -> None:
        """Leave it, which the calling thread has entered once, locked for the thread that will `take_over`."""
        self._owner = 0

    def take_over(self) -> None:
        """Hold what another thread has handed over."""
        self._owner = threading.get_ident()


_locks: "WeakSet[Lock]" = WeakSet()
_held: list[Lock] = []


def _hold_all() -> None:
    for lock in list(_locks):
        lock.__enter__()
        _held.append(lock)


def _release_all() -> None:
    while _held:
        _held.pop().__exit__(None, None, None)


if hasattr(os, "register_at_fork"):  # so that no process begins in the middle of another thread's work
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_all)
