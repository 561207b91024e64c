"""`help()` of a public class's constructor says what its arguments are."""

import inspect
from importlib import import_module
from types import FunctionType

import pytest

ROOMS = ("rules", "penalties", "optim", "table", "checkpoint", "models", "data", "training", "serving", "estimator")


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_constructor_has_the_docstring_of_its_class(room: str) -> None:
    package = import_module(f"sparsegroup.{room}")
    for name in package.__all__:
        value = getattr(package, name)
        init = vars(value).get("__init__") if isinstance(value, type) else None
        if isinstance(init, FunctionType) and init.__qualname__.startswith(name):  # a protocol shares another's
            said, of_class = inspect.getdoc(init), inspect.getdoc(value)
            assert said is not None, name
            assert of_class is not None, name
            assert of_class.startswith(said) or "Args:" in said, f"{name}.__init__ says {said.splitlines()[0]!r}"
            assert ">>>" not in said
