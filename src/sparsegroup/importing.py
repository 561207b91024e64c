"""Import of the package: lazy modules, a clean end by Ctrl-C, and constructors with documented arguments."""

import gc
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import cleandoc
from types import FunctionType
from typing import Any


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


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """End the process on Ctrl-C without an exception, because an import may turn the exception into another error.

    For a command that has not begun its work. A handler other than Python's default remains.
    """
    is_pythons = threading.current_thread() is threading.main_thread()
    is_pythons = is_pythons and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_pythons:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_pythons:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def document_constructors(public: Mapping[str, Any]) -> None:
    """Give undocumented `__init__`s of the classes in `__all__`, in a package's `globals()`, the class docstrings."""
    for value in (public[name] for name in public["__all__"]):
        init = vars(value).get("__init__") if isinstance(value, type) else None
        own = isinstance(init, FunctionType) and init.__qualname__ == f"{value.__qualname__}.__init__"
        if own and not init.__doc__ and value.__doc__:
            init.__doc__ = cleandoc(value.__doc__).partition("\n\nExamples:")[0]
