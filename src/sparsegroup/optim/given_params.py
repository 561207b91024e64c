"""What an optimizer is given to train, where somebody has given something else than parameters."""

from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn


def check_given(params: Any, optimizer: str, where: str = "") -> None:
    """Raise TypeError, with what to give instead, for a module, a method, one tensor, or one param group by itself.

    Args:
        params: As of a torch optimizer, or the "params" of a param group.
        optimizer: Its name, for messages.
        where: Ends them.
    """
    if isinstance(params, nn.Module) and not isinstance(params, nn.ParameterList):
        raise TypeError(
            f"{optimizer} takes parameters, got a module, {type(params).__name__}: give its .parameters(){where}"
        )
    if isinstance(params, FunctionType | MethodType):
        name = params.__name__
        raise TypeError(f"{optimizer} takes parameters, got the function {name!r}: call it, {name}(){where}")
    if where:
        return
    if isinstance(params, Tensor):
        raise TypeError(f"{optimizer} takes an iterable of parameters: give [parameter], not one tensor by itself")
    if isinstance(params, Mapping):
        raise TypeError(f"{optimizer} takes a list of param groups: give [group], not one dict by itself")
