"""Arguments of all optimizers: defaults, checks, and torch's arguments that are refused."""

import sys
import warnings
from collections.abc import Mapping
from functools import cache
from types import FunctionType, MethodType
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from sparsegroup.errors import did_you_mean
from sparsegroup.groups import GroupSpec
from sparsegroup.kernels.gpu import runtime
from sparsegroup.penalties import Lasso, Norm, NormName, Penalty, PenaltyName, PracticalNorm
from sparsegroup.rules import REQUIRED, Described, Hyperparameter, Rule, at_least


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


_FLAG_OR_NONE = Described("True, False or None", lambda value: value is None or isinstance(value, bool))
_DTYPE = Described(
    "None, torch.float32 or torch.bfloat16", lambda value: value in (None, torch.float32, torch.bfloat16)
)

_CHECKED = (
    *(Hyperparameter(name, 0.0, at_least(0)) for name in ("l1", "l21", "l2")),
    Hyperparameter("state_dtype", None, _DTYPE),
    Hyperparameter("foreach", None, _FLAG_OR_NONE),
    Hyperparameter("fused", None, _FLAG_OR_NONE),
    Hyperparameter("capturable", False, _FLAG_OR_NONE),
)

DEFAULTS: Mapping[str, Any] = {
    **{one.name: one.default for one in _CHECKED},
    "groups": "rows",
    "norm": PracticalNorm(),
    "penalty": Lasso(),
    "maximize": False,
}
"""The arguments of all optimizers in param groups."""

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


@cache
def defaults_of(rule: Rule) -> Mapping[str, Any]:
    """Return the arguments of the rule's optimizers in param groups, with defaults; `REQUIRED` if there is none."""
    return {**{one.name: one.default for one in rule.hyperparameters}, **DEFAULTS}


def complete_arguments(
    rule: Rule, optimizer: str, options: Mapping[str, Any], implied: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all arguments by name, given or default; `norm` and `penalty` as objects.

    TypeError: an argument is unknown or missing. ValueError: a norm or a penalty is unknown, or an argument of torch
    has an unsupported value, which is neither its default nor `implied`. Other values are not checked.
    """
    defaults = defaults_of(rule)
    given = without_refused(options, optimizer, implied)
    for name in given:
        if name not in defaults:
            hint = did_you_mean(name, defaults, most=3) or f"it takes {', '.join(sorted(defaults))}"
            raise TypeError(f"{optimizer} got an unexpected argument {name!r}; {hint}")
    complete = {**defaults, **given}
    for name, value in complete.items():
        if value is REQUIRED:
            raise TypeError(f"{optimizer} is missing the required argument {name!r}")
    return {**complete, **threshold_of(complete, optimizer)}


def without_refused(options: Mapping[str, Any], where: str, implied: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options other than torch's unsupported arguments.

    ValueError, with `where`: an unsupported argument has a value that is neither its default nor `implied`.
    """
    for name, reason in REFUSED.items():
        harmless = (*_HARMLESS.get(name, (None, False, 0)), implied.get(name))
        if name in options and options[name] not in harmless:
            raise ValueError(f"{name}={options[name]!r} is not supported by {where}: {reason}")
    return {name: value for name, value in options.items() if name not in REFUSED}


def supported_entries(group: Mapping[str, Any], where: str, implied: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a param group, perhaps of a torch optimizer, by `without_refused`."""
    if not group.get("weight_decay"):  # then AdamW is Adam
        implied = {**implied, "decoupled_weight_decay": True}
    return without_refused(group, where, implied)


def check_hyperparameters(rule: Rule, group: dict[str, Any], where: str) -> None:
    """Raise ValueError or TypeError, naming the argument, its value and `where`, if a hyperparameter is not valid.

    A name or a mapping that the user has set as `norm` or `penalty` of the group becomes the object.
    """
    group |= threshold_of(group, where)
    rule.check({**group, "lr": _number(group["lr"], group["capturable"], where)}, where)
    for one in _CHECKED:
        one.check(group[one.name], where)
    if group["fused"] and group["foreach"]:
        raise ValueError(f"fused=True and foreach=True exclude each other ({where})")


def _number(lr: Any, capturable: bool, where: str) -> Any:
    """A learning rate as the host can check it."""
    if not isinstance(lr, Tensor):
        return lr
    if lr.numel() != 1 or lr.is_complex():
        raise ValueError(f"lr must be one real number, got {lr!r} ({where})")
    return 0.0 if capturable else float(lr)  # reading it would wait for the device


def threshold_of(group: Mapping[str, Any], where: str) -> dict[str, Norm | Penalty]:
    """Return the objects of `norm` and `penalty`. ValueError or TypeError, with `where`: they cannot be."""
    try:
        return {"norm": Norm.of(group["norm"]), "penalty": Penalty.of(group["penalty"])}
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error} ({where})") from error


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


def warn_caller(message: str) -> None:
    """Issue a RuntimeWarning at the line that called this package or torch."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("sparsegroup", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RuntimeWarning, stacklevel=level)
