"""What the options of a run's optimizer may not say, and how large its numbers may be."""

from collections.abc import Collection, Mapping
from typing import Any

HIGHEST = 1e30
"""Above it, products with gradients, and with the √d that λ21 counts by, leave float32, which ends at 3.4e38."""

_NOT_OF_A_RUN: Mapping[str, str] = {
    "maximize": "a run lowers its loss",
    "weight_decay": "it cannot be applied to the rows of a table, of which a step changes a few; give l2",
}
"""Arguments of an optimizer that a run cannot have at other values than their defaults."""


def check_further_options(options: Mapping[str, Any], own: Collection[str]) -> None:
    """Raise ValueError for an option that has a setting of its own, is too large, or makes no sense in a run.

    Args:
        options: Name → value.
        own: Arguments that are settings themselves.
    """
    for name, value in options.items():
        if name in own:
            raise ValueError(f"options.{name}: this is a setting of its own: give optimizer.{name}, got {value!r} here")
        if name in _NOT_OF_A_RUN and value and not isinstance(value, str):
            raise ValueError(f"options.{name}={value!r} is not for a run: {_NOT_OF_A_RUN[name]}")
        for one in _flat(value):
            check_magnitude(f"options.{name}", one)


def check_magnitude(name: str, value: Any) -> None:
    """Raise ValueError for a finite number that float32 arithmetic cannot bear; what is no number passes."""
    if isinstance(value, int | float) and HIGHEST < abs(value) < float("inf"):
        shown = f"{value:g}" if isinstance(value, float) else f"a number of {len(str(value))} digits"
        raise ValueError(
            f"{name} must be at most {HIGHEST:g}, got {shown}: beyond, float32, in which a run computes, overflows"
        )


def _flat(value: Any) -> list[Any]:
    return [one for part in value for one in _flat(part)] if isinstance(value, list | tuple) else [value]
