"""Changes that the handler of a signal must not interrupt halfway.

Python calls the handler of a signal in the main thread, at a call or at a backward jump. The handler may raise, as the
handler of Ctrl-C does. So, if possible, one kernel or one assignment statement changes the memory. A derived count is
marked as unknown before the counted rows change. Longer changes run inside `signals_deferred`.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

_SIGNALS = tuple(signal.valid_signals())


class _DeferredHandlers:
    """Replacement of all signal handlers that records the signals and calls the replaced handlers afterwards."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._arrived: list[tuple[int, FrameType | None]] = []
        self._is_active, self._process = True, os.getpid()

    def begin(self) -> None:
        """Replace the handlers that are written in Python. Other handlers cannot raise."""
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_active and os.getpid() == self._process:
            self._arrived.append((number, frame))
        else:
            self._handlers[number](number, frame)

    def end(self) -> None:
        """Restore the handlers, and call the handlers of all signals that have arrived, even if a handler raises.

        A forked process calls no handler, because the signals were sent to the parent.
        """
        self._is_active = False
        arrived = self._arrived if os.getpid() == self._process else []
        with ExitStack() as stack:
            for number, frame in reversed(arrived):
                stack.callback(self._handlers[number], number, frame)
            for number, handler in self._handlers.items():
                stack.callback(signal.signal, number, handler)


_deferring_process = 0  # the ID of the process whose main thread defers signals; a child of another thread does not


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Delay the handlers of signals until the block has ended. The handlers then run and may raise.

    Only the main thread runs handlers, so the function does nothing in other threads. Entering the block takes a tenth
    of a millisecond, which is too long for every training step.
    """
    global _deferring_process
    if threading.current_thread() is not threading.main_thread() or _deferring_process == os.getpid():
        yield
        return
    handlers = _DeferredHandlers()
    try:
        handlers.begin()
        _deferring_process = os.getpid()
        yield
    finally:
        _deferring_process = 0
        handlers.end()
