"""Kernels that a command is going to call, compiled in other processes while it reads its log and looks up keys."""

import atexit
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from sparsegroup.kernels.cpu import step
from sparsegroup.kernels.cpu.jit import Kernel
from sparsegroup.kernels.cpu.rows import SCALAR, WHOLE
from sparsegroup.kernels.cpu.threads import get_num_threads
from sparsegroup.rules import Rule, is_of_group

Job = tuple[Kernel, Callable[[], object]]
"""A kernel, and what compiles it."""


def compile_ahead(jobs: Iterable[Job]) -> None:
    """Let other processes compile kernels that this one will call, those last that it will call first.

    As many as there are threads besides this one, forked; they end with this process. This one waits for a kernel
    that another is compiling, and finds it on disk then. Nothing happens where all are on disk already, where a
    process cannot be forked safely (not on Linux, or other threads of Python are running), on a rank of torchrun,
    or where the system refuses another process.
    """
    if sys.platform != "linux" or threading.active_count() > 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        return
    missing = [job for job in jobs if not job[0].is_on_disk]
    count = min(get_num_threads() - 1, len(missing))
    for number in range(count):
        try:
            with warnings.catch_warnings(action="ignore"):  # torch's and Polars' threads, which sleep and hold no lock
                process = os.fork()
        except OSError:  # no more processes: this one compiles
            return
        if not process:
            _compile(missing[number::count])
        atexit.register(_end, process)


def jobs_of(rule: Rule) -> list[Job]:
    """What the training of a table by a rule calls after its first lookup."""
    of_state = tuple(SCALAR if is_of_group(name) else WHOLE for name in rule.state)
    in_table, dense, dtype = (WHOLE, WHOLE, *of_state), (WHOLE,) * (1 + len(rule.state)), np.dtype(np.float32)
    return [
        (step.step_kernel(rule, in_table, False), partial(step.is_ready, rule, in_table, False, dtype)),
        (step.sweep_kernel(rule, in_table), partial(step.compile_sweep, rule, in_table, dtype)),
        (step.step_kernel(rule, dense, False), partial(step.is_ready, rule, dense, False, dtype)),
    ]


def _compile(jobs: Sequence[Job]) -> None:
    """In a forked process: compile, and end."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the terminal sends it to both
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # a reader of the command's output must not wait for this process
            os.dup2(nothing, stream)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        logging.disable()
        for _, job in jobs:
            job()
    finally:
        os._exit(0)


def _end(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
