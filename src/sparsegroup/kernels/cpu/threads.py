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

from sparsegroup.kernels.cpu import turns
from sparsegroup.kernels.cpu.habit import Habit
from sparsegroup.kernels.cpu.jit import Kernel

_Job = Callable[[], object]
Int64s = npt.NDArray[np.int64]

_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

_number: int | None = None


def set_num_threads(number: int | None) -> None:
    """How many threads share a step or a lookup; None, the default, is as many as torch is set to use.

    Where torch's own operations are small, as between the lookups of a click model, its threads are better left at one:
    they go on spinning for a while after each, and take the core from those that would help here.

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
        kernel: Takes pieces of its work in turns, see `sparsegroup.kernels.cpu.turns`.
        *arguments: The kernel's.
        alone: The work is too little to wake a thread for.

    Returns:
        The sum of what its calls have given.
    """
    helpers = 0 if alone or not kernel.is_ready else get_num_threads() - 1
    habits = _team().habits_of(kernel.name) if helpers else None
    if habits is None or not habits.calling.is_worth_it():
        state = turns.new()
        kernel(state, *arguments)
        return turns.result(state)
    state = _call_for(helpers, kernel, arguments, habits.staying)
    kernel(state, *arguments)
    while not turns.is_settled(state):
        time.sleep(0)
    habits.calling.note(turns.was_shared(state))
    return turns.result(state)


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
    """Have as many threads help with a kernel as can be had; gives the state that it is to be called with."""
    team = _team_of(helpers)
    job: _Job
    state, helping = turns.new_with_helpers(team.bell)
    if helpers < _CORES and staying.is_worth_it():
        job = partial(_help_and_stay, kernel, helping, arguments, team.bell, staying)
    else:
        job = partial(kernel, helping[: len(state)], *arguments)
    for _ in range(helpers - team.jobs.qsize()):  # jobs still waiting: nobody has a core to spare
        team.jobs.put(job)
    return state


def _help_and_stay(kernel: Kernel, state: Int64s, arguments: tuple[Any, ...], bell: Int64s, staying: Habit) -> None:
    kernel(state, *arguments)
    staying.note(turns.has_paid(state, bell))


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
