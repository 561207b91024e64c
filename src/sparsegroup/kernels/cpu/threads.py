"""Threads that help with a kernel, as many as torch is set to use."""

import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.kernels.cpu.jit import Kernel, fetch_and_add, jitted, kernel, load_now, relax

Int64s = npt.NDArray[np.int64]


# Places in the int64 array of a job, each in a cache line of its own.
_LINE = 8
_ENTERED, _LEFT, RESULT, _TAKEN, _FRONT, _BACK, _DONE = range(0, 7 * _LINE, _LINE)
_BELL, _RUNG = RESULT + 1, RESULT + 2  # its address, or 0; how often it had been rung before
_PHASE = 4 * _LINE
_PHASES = 4
_WORDS = _TAKEN + _PHASES * _PHASE

_PATIENCE = 2000
"""How often `_settle` looks, some tens of microseconds in all: the others are in the middle of their last piece."""


_STAY = 4000
"""How often a helper looks at the bell, some tens of microseconds in all."""


def new() -> npt.NDArray[np.int64]:
    """The state of a job that no thread has started."""
    return np.zeros(_WORDS, np.int64)


def new_with_helpers(bell: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The state of a job that no thread has started, for its caller, who rings `bell` [1], and for helpers that stay.

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
    """Until this many pieces are done: not long, as all have been taken."""
    while load_now(_at(turns, _DONE + _PHASE * phase)) < pieces:
        relax()


@jitted
def leave(turns: Any, result: Any) -> None:
    """End; `result` is added to the others'. A helper that is to stay does, until the next job begins."""
    fetch_and_add(_at(turns, RESULT), np.int64(result))
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


class Habit:
    """Something that is done as long as it pays; when it has not, there is a pause, twice as long each time."""

    _LONGEST = 63

    def __init__(self) -> None:
        self._pause = self._left = 0

    def is_worth_it(self) -> bool:
        """Whether to do it this time."""
        self._left -= 1
        return self._left < 0

    def note(self, paid: bool) -> None:
        """It has been done."""
        self._pause = 0 if paid else min(2 * self._pause + 1, self._LONGEST)
        self._left = self._pause


_Job = Callable[[], object]

_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

_number: int | None = None


def set_num_threads(number: int | None) -> None:
    """How many threads share a step or a lookup; None, the default, is as many as torch is set to use.

    Where torch's own operations are small, as between the lookups of a click model, its threads are better left at one:
    they spin for a while after each, and take the core from the threads that would help here.

    Args:
        number: ≥ 1, or None.

    Raises:
        ValueError: Another number.
    """
    global _number
    if number is not None and number < 1:
        raise ValueError(f"number of threads must be >= 1 or None, got {number}")
    _number = number


def get_num_threads() -> int:
    """How many threads share a step or a lookup."""
    return _number or torch.get_num_threads()


def share(kernel: Kernel, *arguments: Any, alone: bool = False) -> int:
    """Call `kernel(turns, *arguments)` in this thread, and in others as they come free.

    Args:
        kernel: Takes pieces of its work in turns, see `sparsegroup.kernels.cpu.threads`.
        *arguments: The kernel's.
        alone: The work is too little to wake a thread for.

    Returns:
        The sum of what its calls have given.
    """
    helpers = 0 if alone or not kernel.is_ready else get_num_threads() - 1
    habits = _team().habits_of(kernel.name) if helpers else None
    if habits is None or not habits.calling.is_worth_it():
        state = new()
        kernel(state, *arguments)
        return int(state[RESULT])
    state = _call_for(helpers, kernel, arguments, habits.staying)
    kernel(state, *arguments)
    while not is_settled(state):
        time.sleep(0)
    habits.calling.note(was_shared(state))
    return int(state[RESULT])


def submit(job: _Job) -> None:
    """Let one of the helping threads call `job`, which must not raise; there must be more than one thread."""
    team = _team_of(get_num_threads() - 1)
    team.jobs.put(job)
    team.bell[0] += 1  # a ring that is lost to another's costs some tens of microseconds


def in_turns(job: Callable[[int], object], count: int) -> None:
    """Call `job(0)` to `job(count - 1)` in this thread, and in others as they come free; ends when all are done.

    torch has in each of the threads as many of its own as in this one.

    Raises:
        Exception: That of the first of them that has failed.
    """
    numbers, ended, failures = itertools.count(), list[int](), dict[int, Exception]()
    all_ended, torch_threads = threading.Event(), torch.get_num_threads()

    def help() -> None:
        if torch.get_num_threads() != torch_threads:
            torch.set_num_threads(torch_threads)
        take()

    def take() -> None:
        while (number := next(numbers)) < count:
            try:
                job(number)
            except Exception as error:
                failures[number] = error
            ended.append(number)
            if len(ended) == count:
                all_ended.set()

    for _ in range(min(get_num_threads(), count) - 1):
        submit(help)
    take()
    all_ended.wait()
    if failures:
        raise failures[min(failures)]


def _team_of(helpers: int) -> "_Team":
    team = _team()
    while len(team.threads) < helpers:
        thread = threading.Thread(target=_serve, args=(team.jobs,), name="sparsegroup", daemon=True)
        thread.start()
        team.threads.append(thread)
    return team


def _call_for(helpers: int, kernel: Kernel, arguments: tuple[Any, ...], staying: Habit) -> Int64s:
    """Have as many threads as possible help with a kernel; gives the state for its arguments."""
    team = _team_of(helpers)
    job: _Job
    state, helping = new_with_helpers(team.bell)
    if helpers < _CORES and staying.is_worth_it():
        job = partial(_help_and_stay, kernel, helping, arguments, team.bell, staying)
    else:
        job = partial(kernel, helping[: len(state)], *arguments)
    for _ in range(helpers - team.jobs.qsize()):  # jobs still waiting: nobody has a core to spare
        team.jobs.put(job)
    return state


def _help_and_stay(kernel: Kernel, state: Int64s, arguments: tuple[Any, ...], bell: Int64s, staying: Habit) -> None:
    kernel(state, *arguments)
    staying.note(has_paid(state, bell))


def _serve(jobs: "SimpleQueue[_Job]") -> None:
    while True:
        with suppress(MemoryError):  # which comes before it takes a piece: the others do its work
            jobs.get()()


class _Habits(NamedTuple):
    """What pays where a kernel is called.

    Attributes:
        calling: Others are called to help. It pays where they come while there is work: where a core is free.
        staying: Helpers stay awake after it. It pays where another kernel comes soon, and finds them so.
    """

    calling: Habit
    staying: Habit


class _Team:
    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.bell: Int64s = np.zeros(1, np.int64)
        self._habits: dict[str, _Habits] = {}

    def habits_of(self, kernel: str) -> _Habits:
        return self._habits.setdefault(kernel, _Habits(Habit(), Habit()))


@cache
def _team() -> _Team:
    return _Team()


if hasattr(os, "register_at_fork"):  # a forked process has the team, but none of its threads
    os.register_at_fork(after_in_child=_team.cache_clear)
