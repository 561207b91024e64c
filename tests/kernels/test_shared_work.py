"""Pieces of work are done once each, whoever takes them, and a phase begins when the one before has ended."""

import ctypes
import sys
import threading

import numpy as np
import pytest
import torch

from over import over
from sparsegroup.kernels.cpu import jit, threads
from sparsegroup.kernels.cpu.threads import in_turns, set_num_threads
from table_cases import threads as threads_of_torch

PIECES = 500


def _count(state, pieces, marks, early):
    thread = threads.enter(state)
    result = 0
    k = threads.take(state, 0, thread, pieces)
    while k >= 0:
        marks[0, k] += 1
        result += 1
        threads.done(state, 0)
        k = threads.take(state, 0, thread, pieces)
    threads.wait(state, 0, pieces)
    k = threads.take(state, 1, thread, pieces)
    while k >= 0:
        marks[1, k] += 1
        early[k] = marks[0].min() == 0
        k = threads.take(state, 1, thread, pieces)
    threads.leave(state, result)


count = jit.kernel(_count, "a test")


@pytest.fixture
def several_threads():
    with threads_of_torch(4):
        yield


def share(pieces: int, alone: bool = False) -> tuple[int, np.ndarray, np.ndarray]:
    marks, early = np.zeros((2, max(pieces, 1)), np.int64), np.zeros(pieces, np.bool_)
    return threads.share(count, pieces, marks, early, alone=alone), marks[:, :pieces], early


@over("alone", [False, True])
def test_each_piece_is_done_once_and_no_phase_begins_early(several_threads, alone):
    for _ in range(20):
        result, marks, early = share(PIECES, alone)
        assert result == PIECES
        assert (marks == 1).all()
        assert not early.any()
    assert share(0)[0] == 0


def test_one_who_comes_late_does_nothing_and_one_at_work_is_waited_for():
    state, marks, early = threads.new(), np.zeros((2, 8), np.int64), np.zeros(8, np.bool_)
    assert threads.is_settled(state)
    for _ in range(2):
        count(state, 8, marks, early)
        assert threads.is_settled(state)
    assert not threads.was_shared(state), "the second found nothing left"
    assert state[threads.RESULT] == 8
    assert (marks == 1).all()
    state = threads.new()
    state[0] += 1  # as if another had entered and taken nothing so far
    count(state, 8, np.zeros((2, 8), np.int64), early)
    assert not threads.is_settled(state)
    assert threads.was_shared(state)


def test_the_number_of_threads_is_torchs_unless_it_is_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "_number", None)  # whatever a command has set in this process
    assert threads.get_num_threads() == torch.get_num_threads()
    set_num_threads(3)
    try:
        assert threads.get_num_threads() == 3
        assert share(PIECES)[0] == PIECES
    finally:
        set_num_threads(None)
    assert threads.get_num_threads() == torch.get_num_threads()
    with pytest.raises(ValueError, match="must be >= 1 or None, got 0"):
        set_num_threads(0)


@over("number", [1, 3])
def test_jobs_in_turns_are_done_once_each_and_the_first_failure_is_raised(number: int) -> None:
    done, lock = [], threading.Lock()

    def job(number: int) -> None:
        with lock:
            done.append(number)
        if number in (3, 5):
            raise ValueError(f"job {number}")

    set_num_threads(number)
    try:
        with pytest.raises(ValueError, match="job 3"):
            in_turns(job, 7)
    finally:
        set_num_threads(None)
    assert sorted(done) == list(range(7))


def threads_of_openmp() -> int:
    """How many threads the operations of the calling one share."""
    with open("/proc/self/maps") as maps:
        library = next(line.split()[-1] for line in maps if "libgomp" in line and "torch" in line)  # others have theirs
    return int(ctypes.CDLL(library).omp_get_max_threads())


@pytest.mark.skipif(sys.platform != "linux", reason="OpenMP's library is found by the process's maps")
def test_torch_has_as_many_threads_in_a_helper_as_in_its_caller() -> None:
    """OpenMP's number is a thread's own, and one that is new has as many as the machine has cores."""
    meeting, found, count = threading.Barrier(5), [0] * 5, 5

    def job(number: int) -> None:
        meeting.wait(30)  # each has a thread of its own
        found[number] = threads_of_openmp()

    set_num_threads(count)
    try:
        with threads_of_torch(3):
            in_turns(job, count)
    finally:
        set_num_threads(None)
    assert found == [3] * count
