"""Work that threads share: whoever is awake takes the next piece, and nobody waits for a thread that has not come.

A kernel that shares its work calls `take` for each piece, between `enter` and `leave`. The first thread takes pieces
from the front, the others from the back: so each finds in its cache what it has worked on in the phase before, or the
kernel before. Work may have several phases: `wait` holds until the pieces of one, each reported by `done`, are done.

What a kernel needs memory for it asks for before it enters: after that nothing may fail, for the others wait until it
leaves. Some thread may come when all is long done: how much there is to do must lie in memory of the job's own.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import fetch_and_add, jitted, kernel, load_now, relax

# Places in the int64 array of a job, each in a cache line of its own.
_LINE = 8
_ENTERED, _LEFT, _RESULT, _TAKEN, _FRONT, _BACK, _DONE = range(0, 7 * _LINE, _LINE)
_PHASE = 4 * _LINE
_PHASES = 4
_WORDS = _TAKEN + _PHASES * _PHASE

_PATIENCE = 2000
"""How often `_settle` looks, some tens of microseconds in all: the others are in the middle of their last piece."""


def new() -> npt.NDArray[np.int64]:
    """The state of a job that nobody has begun."""
    return np.zeros(_WORDS, np.int64)


@jitted
def _at(turns: Any, place: Any) -> Any:
    return np.int64(turns.ctypes.data) + 8 * place


@jitted
def enter(turns: Any) -> Any:
    """Begin to take pieces; gives the number of threads that have come before."""
    return fetch_and_add(_at(turns, _ENTERED), np.int64(1))


@jitted
def take(turns: Any, phase: Any, thread: Any, pieces: Any) -> Any:
    """One of the numbers from 0 to `pieces` - 1 that nobody has taken, or -1. `thread` is what `enter` gave."""
    if fetch_and_add(_at(turns, _TAKEN + _PHASE * phase), np.int64(1)) >= pieces:
        return np.int64(-1)
    if thread == 0:
        return fetch_and_add(_at(turns, _FRONT + _PHASE * phase), np.int64(1))
    return pieces - 1 - fetch_and_add(_at(turns, _BACK + _PHASE * phase), np.int64(1))


@jitted
def done(turns: Any, phase: Any) -> None:
    """A piece is done."""
    fetch_and_add(_at(turns, _DONE + _PHASE * phase), np.int64(1))


@jitted
def wait(turns: Any, phase: Any, pieces: Any) -> None:
    """Until so many pieces are done: not long, as all have been taken."""
    while load_now(_at(turns, _DONE + _PHASE * phase)) < pieces:
        relax()


@jitted
def leave(turns: Any, result: Any) -> None:
    """End; `result` is added to the others'."""
    fetch_and_add(_at(turns, _RESULT), np.int64(result))
    fetch_and_add(_at(turns, _LEFT), np.int64(1))


def _settle(turns: Any) -> bool:
    for _ in range(_PATIENCE):
        if load_now(_at(turns, _LEFT)) == load_now(_at(turns, _ENTERED)):
            return True
        relax()
    return False


_settle_kernel = kernel(_settle, "threads")


def is_settled(turns: npt.NDArray[np.int64]) -> bool:
    """Whether all who entered have left, waiting a little for them. Ask when no pieces are left."""
    return bool(_settle_kernel(turns))


def result(turns: npt.NDArray[np.int64]) -> int:
    """The sum of what those who left have given."""
    return int(turns[_RESULT])
