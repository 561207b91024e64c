"""Changes that a signal's handler must not cut in two.

Python calls the handler of a signal in the main thread, at a call or at a jump back, and the handler may raise: that of
Ctrl-C does. So memory is changed by one kernel or by one statement of assignments if that is possible, derived counts
are marked as unknown before what they count changes, and longer changes run inside of `signals_deferred`.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

_SIGNALS = tuple(signal.valid_signals())


class _Deferral:
    """The handler of all signals while signals are deferred; afterwards it calls the handlers that it has replaced."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._arrived: list[tuple[int, FrameType | None]] = []
        self._is_active, self._process = True, os.getpid()

    def begin(self) -> None:
        """Replace the handlers that are written in Python; others do not run between two instructions."""
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_active:
            self._arrived.append((number, frame))
        else:
            self._handlers[number](number, frame)

    def end(self) -> None:
        """Put the handlers back, and call those whose signals have arrived: all of them, also if one raises.

        A forked process calls none, because the signals were the parent's.
        """
        self._is_active = False
        arrived = self._arrived if os.getpid() == self._process else []
        with ExitStack() as stack:
            for number, frame in reversed(arrived):
                stack.callback(self._handlers[number], number, frame)
            for number, handler in self._handlers.items():
                stack.callback(signal.signal, number, handler)


_depth = 0  # of the main thread


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Let handlers of signals wait until the block has ended; then they run, and may raise.

    In other threads than the main thread nothing is done, because handlers do not run there. It takes a tenth of a
    millisecond: it is not for what happens in each step.
    """
    global _depth
    if threading.current_thread() is not threading.main_thread() or _depth:
        yield
        return
    deferral = _Deferral()
    try:
        deferral.begin()
        _depth = 1
        yield
    finally:
        _depth = 0
        deferral.end()
