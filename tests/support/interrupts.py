"""Signals whose handler raises, at each point of an action at which Python may call a handler."""

import mmap
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import sparsegroup

PACKAGE = str(Path(sparsegroup.__file__).parent)
BY_LINE = tuple(f"{PACKAGE}/{part}" for part in ("table/", "checkpoint/", "signals.py", "kernels/cpu/threads.py"))
"""Files in which a signal arrives at every line, not only at every call and every return from a kernel."""


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def interrupt(action: Callable[[], object], moment: int, within: str = PACKAGE) -> int:
    """Run an action with a signal at its n-th moment, if it has as many; gives how many have come.

    A moment is a place in the code when it is reached first: a call within the package, the return of a kernel or
    another compiled function, and, in `BY_LINE`, a line; all in files whose path begins with `within`.
    """
    places: set[object] = set()

    def reach(frame: FrameType, place: object) -> None:
        if (frame.f_code, place) not in places and frame.f_code.co_name != "<genexpr>":  # closed by Python: ignored
            places.add((frame.f_code, place))
            if len(places) == moment:
                signal.raise_signal(signal.SIGALRM)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(within):
            return None
        if event == "call" or frame.f_code.co_filename.startswith(BY_LINE):
            reach(frame, (event, frame.f_lineno))
        return trace

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "c_return" and frame.f_code.co_filename.startswith(within):
            reach(frame, frame.f_lasti)

    before, tracing, profiling = signal.signal(signal.SIGALRM, stop), sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        action()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(tracing)
        sys.setprofile(profiling)
        signal.signal(signal.SIGALRM, before)
        torch.set_grad_enabled(True)  # torch's own `no_grad` may be cut off, too
    return len(places)


MEMORY: tuple[tuple[Any, str], ...] = (
    *((np, name) for name in ("empty", "zeros", "ones", "full", "arange", "concatenate")),
    (torch, "empty"),
    (mmap, "mmap"),
)
"""What finds memory for arrays and tensors, as the package calls it."""


@contextmanager
def without_memory(at: int) -> Iterator[list[str]]:
    """Let the n-th call of `MEMORY` by a table or a checkpoint fail; gives the names that were called."""
    calls: list[str] = []
    real = [(owner, name, getattr(owner, name)) for owner, name in MEMORY]

    def failing(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: Any, **options: Any) -> object:
            if sys._getframe(1).f_code.co_filename.startswith(BY_LINE[:2]):
                calls.append(name)
                if len(calls) == at:
                    raise MemoryError(name)
            return function(*arguments, **options)

        return call

    for owner, name, function in real:
        setattr(owner, name, failing(name, function))
    try:
        yield calls
    finally:
        for owner, name, function in real:
            setattr(owner, name, function)
