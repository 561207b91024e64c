"""`help(Class.__init__)` shows what the class's docstring says of its arguments."""

from collections.abc import Mapping
from inspect import cleandoc
from types import FunctionType
from typing import Any


def document_constructors(public: Mapping[str, Any]) -> None:
    """Give each class in a package's `__all__` whose `__init__` has no docstring its own, without the examples.

    Args:
        public: The package's `globals()`.
    """
    for value in (public[name] for name in public["__all__"]):
        init = vars(value).get("__init__") if isinstance(value, type) else None
        own = isinstance(init, FunctionType) and init.__qualname__ == f"{value.__qualname__}.__init__"
        if own and not init.__doc__ and value.__doc__:
            init.__doc__ = cleandoc(value.__doc__).partition("\n\nExamples:")[0]
