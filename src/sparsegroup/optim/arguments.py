"""What constructors take: a rule's hyperparameters, the arguments of all optimizers, and torch's that are refused."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature, signature
from types import FunctionType, MethodType
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from sparsegroup.errors import did_you_mean
from sparsegroup.groups import GroupSpec
from sparsegroup.kernels.gpu import runtime
from sparsegroup.penalties import Norm, NormName, Penalty, PenaltyName
from sparsegroup.rules import Hyperparameter, Rule, at_least


class Options(TypedDict, total=False):
    """Keyword arguments of every optimizer, after its rule's. See `GroupOptimizer`."""

    l1: float
    l21: float
    l2: float
    groups: GroupSpec
    norm: NormName | Norm
    penalty: PenaltyName | Penalty
    maximize: bool
    state_dtype: torch.dtype | None
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool


LAMBDAS = tuple(Hyperparameter(name, 0.0, at_least(0)) for name in ("l1", "l21", "l2"))

DEFAULTS: Mapping[str, Any] = {
    **{weight.name: weight.default for weight in LAMBDAS},
    "groups": "rows",
    "norm": "s",
    "penalty": "lasso",
    "maximize": False,
    "state_dtype": None,
    "foreach": None,
    "fused": None,
    "capturable": False,
}

EXECUTION = ("foreach", "fused", "capturable", "differentiable")
"""torch's arguments on how, not what, to compute: of no meaning in a loaded state."""

REFUSED: Mapping[str, str] = {
    "differentiable": "the step runs without autograd",
    "amsgrad": "use GroupAMSGrad",
    "decoupled_weight_decay": "decoupled weight decay is no gradient; use l2, or weight_decay",
    "dampening": "only dampening=0 is supported",
    "hessian_power": "the paper's σ is √V, that is hessian_power=1",
}
"""Arguments of torch.optim and of the published AdaHessian that change the result: accepted at their default only."""

_HARMLESS: Mapping[str, tuple[Any, ...]] = {"hessian_power": (1,)}
"""Values of refused arguments that have no effect; of arguments not named here None, False and 0."""


def check_given(params: Any, optimizer: str, where: str = "") -> None:
    """Raise TypeError, with what to give instead, for a module, a method, one tensor, or one param group by itself."""
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


def known_options(
    options: Mapping[str, Any], known: Collection[str], optimizer: str, where: str = ""
) -> dict[str, Any]:
    """The `known` among `options`, after refusing what is not supported. `where` ends the messages.

    ValueError for an argument of torch at another value than its default, TypeError for an unknown one.
    """
    for name, value in options.items():
        if name in REFUSED:
            refuse(name, value, f"{optimizer}{where}")
        elif name not in known:
            hint = did_you_mean(name, known, most=3) or f"it takes {', '.join(sorted(known))}"
            raise TypeError(f"{optimizer} got an unexpected argument {name!r}{where}; {hint}")
    return {name: value for name, value in options.items() if name in known}


def refuse(name: str, value: Any, where: str) -> None:
    """Raise ValueError unless `value` leaves the unsupported argument `name` at its default."""
    if value not in _HARMLESS.get(name, (None, False, 0)):
        raise ValueError(f"{name}={value!r} is not supported by {where}: {REFUSED[name]}")


def check_hyperparameters(rule: Rule, group: Mapping[str, Any], where: str) -> None:
    """Raise ValueError or TypeError, naming the argument, its value and `where`, if one is not valid."""
    rule.check({**group, "lr": _number(group["lr"], group["capturable"], where)}, where)
    for weight in LAMBDAS:
        weight.check(group[weight.name], where)
    check_threshold(group, where)
    _check_execution(group, where)


def _number(lr: Any, capturable: bool, where: str) -> Any:
    """A learning rate as the host can check it."""
    if not isinstance(lr, Tensor):
        return lr
    if lr.numel() != 1 or lr.is_complex():
        raise ValueError(f"lr must be one real number, got {lr!r} ({where})")
    return 0.0 if capturable else float(lr)  # reading it would wait for the device


def check_threshold(group: Mapping[str, Any], where: str) -> None:
    """Raise ValueError or TypeError unless there are such a norm and such a penalty."""
    for name, kind in (("norm", Norm), ("penalty", Penalty)):
        try:
            kind.of(group[name])
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error} ({where})") from error


def plain_threshold(group: Mapping[str, Any]) -> dict[str, Any]:
    """`group` with norm and penalty, if it has them, as files hold them: a name, or a mapping with parameters."""
    kinds: tuple[tuple[str, type[Norm] | type[Penalty]], ...] = (("norm", Norm), ("penalty", Penalty))
    return {**group, **{name: kind.of(group[name]).plain for name, kind in kinds if name in group}}


def read_threshold(group: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The inverse of `plain_threshold`."""
    content = dict(group)
    if {"norm", "penalty"} <= content.keys():
        check_threshold(content, where)
    for name, kind in (("norm", Norm), ("penalty", Penalty)):
        if isinstance(content.get(name), Mapping):
            content[name] = kind.of(content[name])
    return content


def _check_execution(group: Mapping[str, Any], where: str) -> None:
    for name in ("foreach", "fused"):
        if group[name] not in (None, False, True):
            raise TypeError(f"{name} must be True, False or None, got {group[name]!r} ({where})")
    if group["capturable"] is not None and not isinstance(group["capturable"], bool):
        raise TypeError(f"capturable must be True or False, got {group['capturable']!r} ({where})")
    if group["fused"] and group["foreach"]:
        raise ValueError(f"fused=True and foreach=True exclude each other ({where})")
    if group["state_dtype"] not in (None, torch.float32, torch.bfloat16):
        raise ValueError(
            f"state_dtype must be None, torch.float32 or torch.bfloat16, got {group['state_dtype']!r} ({where})"
        )


def check_device(parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
    """Raise unless what `group` asks of execution can be had for `parameter`; `where` names it.

    RuntimeError for `fused=True` on a GPU without the kernels, ValueError for `capturable` elsewhere than on a GPU.
    """
    if group["fused"] and parameter.device.type == "cuda" and not runtime.serves(parameter.device):
        raise RuntimeError(f"fused=True needs Triton (pip install triton) and a GPU that it compiles for ({where})")
    if not group["capturable"]:
        return
    if parameter.device.type == "cpu" and not runtime.serves(parameter.device):
        raise ValueError(f"capturable=True needs parameters on a GPU, got one on {parameter.device} ({where})")
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.device != parameter.device:
        raise ValueError(
            f"capturable=True needs a learning rate that is a number or on {parameter.device}, got a tensor on "
            f"{lr.device} ({where})"
        )


_SHARED = [Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in DEFAULTS.items()]


def bound_arguments(
    rule: Rule, optimizer: str, positional: Sequence[Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """All hyperparameters by name, given or by default. TypeError for unknown, repeated or missing arguments.

    ValueError for an argument of torch that is not supported; other values are not checked.
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
