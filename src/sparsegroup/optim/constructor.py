"""What a constructor takes: the hyperparameters that its rule declares, and the arguments that all optimizers share."""

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature, signature
from typing import Any

from sparsegroup.optim.arguments import DEFAULTS, known_options
from sparsegroup.rules import Rule

_SHARED = [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in DEFAULTS.items()]


def bound_arguments(
    rule: Rule, optimizer: str, positional: Sequence[Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """All hyperparameters by name: those given, and the defaults of the others. Their values are not checked.

    Args:
        rule: The base optimizer.
        optimizer: Its name, for messages.
        positional: What follows `params`.
        options: What is given by name.

    Raises:
        TypeError: An unknown argument, one given twice, one too many, or none where one is required.
        ValueError: An argument of torch that is not supported, at another value than its default.
    """
    takes = _arguments(rule)
    given = known_options(options, takes.parameters, optimizer)
    try:
        bound = takes.bind(*positional, **given)
    except TypeError as error:
        raise TypeError(f"{optimizer}: {error}") from None
    bound.apply_defaults()
    return {**DEFAULTS, **bound.arguments}


def shown_signature(optimizer: type[Any]) -> Signature:
    """The signature for `help()`, with the arguments that `*hyperparameters` and `**options` of `__init__` hide."""
    own = list(signature(optimizer.__init__).parameters.values())[1:]
    kinds = {parameter.kind for parameter in own}
    named = [one for one in own if one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    hidden = [one for one in _arguments(optimizer.rule).parameters.values() if one.name not in {p.name for p in named}]
    if Parameter.VAR_POSITIONAL not in kinds:
        hidden = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in hidden]
    shown = [*named, *hidden] if Parameter.VAR_KEYWORD in kinds else named
    return Signature(sorted(shown, key=lambda parameter: parameter.kind))


@cache
def _arguments(rule: Rule) -> Signature:
    declared = [one.argument for one in rule.hyperparameters]
    return Signature(sorted([*declared, *_SHARED], key=lambda parameter: parameter.kind))
