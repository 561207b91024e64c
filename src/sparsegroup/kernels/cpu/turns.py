"""Work that threads share: whoever is awake takes the next piece, and nobody waits for a thread that has not come.

A kernel that shares its work calls `take` for each piece, between `enter` and `leave`. The first thread takes pieces
from the front, the others from the back: so each finds in its cache what it has worked on in the phase before, or the
kernel before. Work may have several phases: `wait` holds until the pieces of one, each reported by `done`, are done.

What a kernel needs memory for it asks for before it enters: after that nothing may fail, for the others wait until it
leaves. Some thread may come when all is long done: how much there is to do must lie in memory of the job's own.

Waking a thread takes as long as a tenth of a lookup, and a thread that Python wakes needs the interpreter, which the
caller of a kernel gives up only when the kernel begins. So a helper may stay in a kernel that it has left, looking at a
bell that is rung by whoever calls the next one: from within the kernel, when the interpreter is free.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import fetch_and_add, jitted, kernel, load_now, relax

# Places in the int64 array of a job, each in a cache line of its own.
_LINE = 8
_ENTERED, _LEFT, _RESULT, _TAKEN, _FRONT, _BACK, _DONE = range(0, 7 * _LINE, _LINE)
_BELL, _RUNG = _RESULT + 1, _RESULT + 2  # its address, or 0; how often it had been rung before
_PHASE = 4 * _LINE
_PHASES = 4
_WORDS = _TAKEN + _PHASES * _PHASE

_PATIENCE = 2000
"""How often `_settle` looks, some tens of microseconds in all: the others are in the middle of their last piece."""


_STAY = 4000
"""How often a helper looks at the bell, some tens of microseconds in all."""


def new() -> npt.NDArray[np.int64]:
    """The state of a job that nobody has begun."""
    return np.zeros(_WORDS, np.int64)


def new_with_helpers(bell: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The state of a job that nobody has begun, for its caller, who rings `bell` [1], and for helpers that stay.

    Helpers that do not stay get it as its caller does; the bell is then rung more than once.
    """
    state = np.zeros(_WORDS + 1, np.int64)  # the word more tells a helper
    state[_BELL], state[_RUNG] = bell.ctypes.data, bell[0]
    return state[:_WORDS], state


@jitted
def _at(turns: Any, place: Any) -> Any:
    return np.int64(turns.ctypes.data) + 8 * place


@jitted
def enter(turns: Any) -> Any:
    """Begin to take pieces; gives the number of threads that have come before."""
    if turns[_BELL] != 0 and len(turns) == _WORDS:
        fetch_and_add(turns[_BELL], np.int64(1))
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
    """End; `result` is added to the others'. A helper that is to stay does, until the next job begins."""
    fetch_and_add(_at(turns, _RESULT), np.int64(result))
    fetch_and_add(_at(turns, _LEFT), np.int64(1))
    if len(turns) > _WORDS:
        looks = 0
        while looks < _STAY and load_now(turns[_BELL]) <= turns[_RUNG] + 1:
            relax()
            looks += 1


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


def was_shared(turns: npt.NDArray[np.int64]) -> bool:
    """Whether a second thread has taken pieces."""
    return bool(turns[_BACK:_WORDS:_PHASE].any())


def has_paid(turns: npt.NDArray[np.int64], bell: npt.NDArray[np.int64]) -> bool:
    """Whether a helper that stayed leaves for the next job, and not for none, or for one that began without it."""
    return bool(bell[0] == turns[_RUNG] + 2)


def result(turns: npt.NDArray[np.int64]) -> int:
    """The sum of what those who left have given."""
    return int(turns[_RESULT])
