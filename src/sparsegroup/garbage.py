"""When garbage is not sought: importing and compiling make many objects that stay, and each search goes through all."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's search for garbage, a tenth of a second each time once torch is imported."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
