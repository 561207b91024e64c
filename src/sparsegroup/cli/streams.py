"""Standard streams that are closed, full, or no longer read."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import TextIO

_STDOUT = "standard output"


def mend_streams() -> None:
    """Let no letter be a reason to fail, and no file take the place of a stream that is closed."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # the lowest free one is given out next
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextmanager
def to_stdout() -> Iterator[None]:
    """While it lasts, an error of the system is one of stdout, which holds nothing back when it ends."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        error.filename = error.filename or _STDOUT
        raise


def is_unread(error: OSError) -> bool:
    """Whether a reader has seen enough: no error that one would speak of."""
    return error.errno == errno.EPIPE and error.filename in (None, _STDOUT)


def flush_streams() -> OSError | None:
    """Write what stdout and stderr still hold.

    Returns:
        What is wrong with stdout, if anything is. A stream that cannot be written is given up: nothing more is said
        of it, or in it.
    """
    problem = _flushed(sys.stdout)
    _flushed(sys.stderr)
    return None if problem is None else OSError(problem.errno, problem.strerror, _STDOUT)


def _flushed(stream: TextIO | None) -> OSError | None:
    if stream is None or stream.closed:
        return None
    try:
        stream.flush()
    except OSError as error:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        return error
    return None
