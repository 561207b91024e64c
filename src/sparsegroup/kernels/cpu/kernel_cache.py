"""Compiled kernels on disk, and the notice while one is compiled."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any

from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys

from sparsegroup.garbage import uncollected

_logger = logging.getLogger(__name__)

NOTICE_AFTER = 0.7
"""Seconds after which a compilation says so."""

ERRORS = (OSError, EOFError, UnpicklingError)
"""What a cache raises that cannot be written or read."""

_not_kept: set[str] = set()


def say_not_kept(error: Exception) -> None:
    """Warn, once, that compiled kernels are kept for this process alone."""
    if not _not_kept:
        _logger.warning(
            "compiled kernels cannot be kept on disk (%s), so each process compiles them; $NUMBA_CACHE_DIR can name a "
            "folder for them",
            str(error).splitlines()[0],
        )
    _not_kept.add(str(error))


class KernelCache(FunctionCache):
    """Numba's cache on disk. What it holds is loaded without what Numba needs for compiling, half a second's imports.

    Args:
        py_func: The function, under a name that is another one for other sources.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What is on disk for a signature, or None: then it will be compiled."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        if found is None and hasattr(_here, "compilation"):
            _here.compilation.begin()
        return found


class _Compilation:
    """What goes on while Numba looks for a kernel on disk and, unless it finds it, compiles it.

    Args:
        name: What the kernel is called in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        """It is not on disk."""
        if self._timer is not None:
            return
        self._started, self._said = time.perf_counter(), False
        self._timer = threading.Timer(NOTICE_AFTER, self._say)
        self._timer.daemon = True
        self._timer.start()

    def _say(self) -> None:
        self._said = True
        _logger.warning("compiling %s for this machine, once …", self._name)

    def end(self) -> None:
        """It is there, or failed."""
        global _seconds
        if self._timer is None:
            return
        self._timer.cancel()
        seconds = time.perf_counter() - self._started
        _seconds += seconds
        if self._said:
            _logger.info("compiled %s in %.1f s", self._name, seconds)


_seconds = 0.0


def seconds_compiling() -> float:
    """Seconds that this process has spent on compiling kernels, which are then on disk for all later ones."""
    return _seconds


_here = threading.local()


@contextmanager
def compiling(name: str, is_kept: bool = True) -> Iterator[None]:
    """Around what loads a kernel, or compiles it: says so if it compiles for long.

    Args:
        name: What the kernel is called in messages.
        is_kept: Whether it may be on disk.
    """
    compilation = _Compilation(name)
    _here.compilation = compilation
    try:
        if not is_kept:
            compilation.begin()
        with uncollected():  # compiling makes many objects and no garbage, so none is sought: a fifth of the time
            yield
    finally:
        compilation.end()
        del _here.compilation
