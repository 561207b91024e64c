"""Whether a network takes the arguments that settings give it."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import nn

_BUILT_IN = ("fields", "dim", "numbers")


def check_network_options(network: type[nn.Module], given: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Whether `network` has arguments of these names, of the types of `options`; it is not made.

    Args:
        network: A class of `sparsegroup.models`.
        given: `hidden` and `dropout`, where they are given.
        options: Its other arguments.

    Raises:
        ValueError: It has no such argument, or one of another type.
    """
    arguments = {name: one for name, one in signature(network).parameters.items() if name not in _BUILT_IN}
    if unknown := [name for name in given if name not in arguments]:
        raise ValueError(f"{network.__name__} has no hidden layers: leave {unknown[0]} out")
    known = [name for name in arguments if name not in ("hidden", "dropout")]
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{network.__name__} has no option {name!r}; it has {', '.join(known) or 'none'}")
        try:
            TypeAdapter(arguments[name].annotation).validate_python(value)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise ValueError(f"options.{name}: {message[0].lower()}{message[1:]}, got {value!r}") from error
