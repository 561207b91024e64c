"""Kernels compiled by other processes, while this one imports and reads what comes before their first calls.

Threads would not do: Numba compiles one kernel at a time. A forked process has all that is imported already, compiles
what is not on disk, and puts it there; who then needs a kernel waits for it, or compiles it where that has failed.
"""

import atexit
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Never

import torch
from numba.core.registry import cpu_target

from sparsegroup.kernels.cpu.jit import Kernel
from sparsegroup.kernels.cpu.kernel_cache import coming

_NEEDLESS = ("scipy.linalg", "cffi")
"""What Numba imports if it is there, a fifth of a second, for what no kernel calls."""

Call = tuple[Kernel, tuple[Any, ...]]
"""A kernel, and arguments of the types that it will be called with."""


def compile_ahead(calls: Sequence[Call]) -> None:
    """Let other processes compile what is not on disk; where there can be none, it is compiled when it is called.

    Args:
        calls: Those that will come, those whose kernels take longest to compile first.
    """
    missing = {
        cache: (kernel, arguments)
        for kernel, arguments in calls
        if (cache := kernel.cache) is not None and cache.is_missing
    }
    if missing and _may_fork() and all(cache.can_be_written for cache in missing):
        _fork_for([cache.identity for cache in missing], list(missing.values()))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def _may_fork() -> bool:
    """Whether a forked process would find all locks free, and a core.

    Several ranks would each compile the same.
    """
    return (
        _cores() > 1
        and threading.active_count() == 1
        and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        and os.environ.get("WORLD_SIZE", "1") == "1"
    )


def _fork_for(identities: Sequence[str], calls: Sequence[Call]) -> None:
    tasks, reports = os.pipe(), os.pipe()
    os.write(tasks[1], bytes(range(len(calls))))
    os.close(tasks[1])
    try:
        with warnings.catch_warnings():  # of threads: those of BLAS, which look after themselves
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
    except OSError:  # no process, no memory
        process = -1
    if process == 0:
        _work(calls, tasks[0], reports[1])
    os.close(tasks[0])
    os.close(reports[1])
    if process < 0:
        os.close(reports[0])
        return
    atexit.register(_stop, process, os.getpid())
    coming.expect(identities, reports[0], process)


def _stop(process: int, parent: int) -> None:
    if os.getpid() == parent and coming.process == process:  # it has not ended yet
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGTERM)


def _work(calls: Sequence[Call], tasks: int, reports: int) -> Never:
    """Compile what nobody has begun until all is, one process for each core, and report it; what fails is not said."""
    try:
        gc.freeze()
        os.setsid()  # no signal of the terminal's; the parent ends it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # who reads the parent's output does not wait for this process
            os.dup2(nowhere, stream)
        for name in _NEEDLESS:
            sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # not to be found, in this process
        cpu_target.typing_context.refresh()  # a third of a second, once for all
        cpu_target.target_context.refresh()
        with suppress(OSError):
            any(os.fork() == 0 for _ in range(min(_cores(), len(calls)) - 1))  # who is forked forks no more
        while number := os.read(tasks, 1):
            kernel, arguments = calls[number[0]]
            kernel.compile_for(*arguments)
            os.write(reports, number)
        with suppress(ChildProcessError):
            while True:
                os.wait()
    finally:
        os._exit(0)
