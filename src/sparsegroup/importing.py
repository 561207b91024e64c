"""Importing the package: without searches for garbage, and with constructors that document themselves."""

import gc
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


def document_constructors(public: Mapping[str, Any]) -> None:
    """Give undocumented `__init__`s of the classes in `__all__`, in a package's `globals()`, the class docstrings."""
    for value in (public[name] for name in public["__all__"]):
        init = vars(value).get("__init__") if isinstance(value, type) else None
        own = isinstance(init, FunctionType) and init.__qualname__ == f"{value.__qualname__}.__init__"
        if own and not init.__doc__ and value.__doc__:
            init.__doc__ = cleandoc(value.__doc__).partition("\n\nExamples:")[0]
