"""Properties of every exception of the packages."""

import ast
import pickle
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsegroup.data import Batch
from sparsegroup.errors import UserError
from sparsegroup.server.rows import BadValue

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "src", ROOT / "paper" / "src")
MADE_OF_OTHERS: Mapping[str, Callable[[Any], Exception]] = {
    "BadRowsError": lambda kind: kind([BadValue(3, "price", "not a number")]),
    "MissingNumberError": lambda kind: kind(Batch(*[torch.zeros(2, 1)] * 4), 1, 0, 0),
}
"""Exceptions that are made of other arguments than a message and names of parameters."""


def exceptions() -> list[tuple[str, str]]:
    """Module and name of each public exception."""
    return [
        (".".join(file.relative_to(source).with_suffix("").parts), node.name)
        for source in SOURCES
        for file in sorted(source.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_")
    ]


@pytest.mark.parametrize(("module", "name"), exceptions())
def test_an_exception_survives_the_way_to_another_process(module: str, name: str) -> None:
    kind = getattr(import_module(module), name)
    arguments = ("`out` exists", "out") if issubclass(kind, UserError) else ("it is full",)
    error = MADE_OF_OTHERS.get(name, lambda kind: kind(*arguments))(kind)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.args) == (type(error), str(error), error.args)
    assert vars(again).keys() == vars(error).keys()
    assert getattr(again, "parameters", None) == getattr(error, "parameters", None)
