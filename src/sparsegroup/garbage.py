"""Garbage collection is off while importing and compiling, which create many objects that remain."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch off Python's garbage collection, which takes a tenth of a second each time once torch is imported."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
