"""Compiled kernels on disk, and what goes on where one is not there yet."""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
        found = self._found(sig, target_context)
        if found is None and hasattr(_here, "compilation"):
            _here.compilation.begin()
            if coming.is_there(self.identity):
                found = self._found(sig, target_context)
        return found

    def _found(self, sig: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]

    @property
    def identity(self) -> str:
        """Its file, which no other kernel has."""
        return str(self._cache_file._index_path)

    @property
    def is_missing(self) -> bool:
        """Whether it is not on disk for any arguments."""
        return not os.path.exists(self.identity)

    @property
    def can_be_written(self) -> bool:
        """Whether what is compiled can be put on disk."""
        try:
            self._impl.locator.ensure_cache_path()
        except OSError:
            return False
        return True


class _Coming:
    """Kernels that another process is compiling.

    Attributes:
        process: Its number, or 0 if there is none.
    """

    def __init__(self) -> None:
        self.process = 0
        self._numbers: dict[str, int] = {}
        self._reports = -1
        self._done = set[int]()

    def expect(self, identities: Sequence[str], reports: int, process: int) -> None:
        """Wait for kernels from now on.

        Args:
            identities: Theirs.
            reports: Where the number of each, one byte, can be read once it is on disk; ends with the process.
            process: Who compiles them.
        """
        self.process, self._reports = process, reports
        self._numbers, self._done = {identity: number for number, identity in enumerate(identities)}, set()

    def is_there(self, identity: str) -> bool:
        """Whether another process has put a kernel on disk; waits as long as it may do so."""
        number = self._numbers.get(identity)
        if number is None:
            return False
        while self.process and number not in self._done:
            if found := os.read(self._reports, len(self._numbers)):
                self._done.update(found)
            if not found or len(self._done) == len(self._numbers):
                self._end()
        return number in self._done

    def _end(self) -> None:
        os.close(self._reports)
        with suppress(ChildProcessError):
            os.waitpid(self.process, 0)
        self.process = 0

    def forget(self) -> None:
        """A process that is forked meanwhile compiles for itself."""
        if self.process:
            os.close(self._reports)
        self.__init__()  # type: ignore[misc]


coming = _Coming()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=coming.forget)


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
        if self._timer is None:
            return
        self._timer.cancel()
        if self._said:
            _logger.info("compiled %s in %.1f s", self._name, time.perf_counter() - self._started)


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
