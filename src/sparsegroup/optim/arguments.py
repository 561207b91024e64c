"""The arguments that all optimizers share: their defaults, their ranges, and torch's own that are refused by name."""

import math
from collections.abc import Callable, Collection, Mapping
from numbers import Real
from typing import Any, TypedDict

import torch
from torch import Tensor

from sparsegroup.groups import GroupSpec
from sparsegroup.kernels.gpu import runtime
from sparsegroup.penalties import Norm, NormName, Penalty, PenaltyName


class Options(TypedDict, total=False):
    """Keyword arguments of every optimizer, after the base optimizer's own. See `GroupOptimizer`."""

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


DEFAULTS: Mapping[str, Any] = {
    "l1": 0.0,
    "l21": 0.0,
    "l2": 0.0,
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
"""Values of refused arguments that ask for nothing; of those not named here None, False and 0."""


def known_options(
    options: Mapping[str, Any], known: Collection[str], optimizer: str, where: str = ""
) -> dict[str, Any]:
    """Those of `options` that are `known`, after refusing what is not supported. `where` ends the messages.

    Raises:
        ValueError: A known argument of torch at another value than its default.
        TypeError: An unknown argument.
    """
    for name, value in options.items():
        if name in REFUSED:
            refuse(name, value, f"{optimizer}{where}")
        elif name not in known:
            raise TypeError(f"{optimizer} got an unexpected argument {name!r}{where}")
    return {name: value for name, value in options.items() if name in known}


def refuse(name: str, value: Any, where: str) -> None:
    """Raise ValueError unless `value` leaves the unsupported argument `name` at its default."""
    if value not in _HARMLESS.get(name, (None, False, 0)):
        raise ValueError(f"{name}={value!r} is not supported by {where}: {REFUSED[name]}")


def _at_least_0(value: float) -> bool:
    return 0 <= value < math.inf


_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "lr": (_at_least_0, "finite and >= 0"),
    "eps": (_at_least_0, ">= 0"),
    "beta": (_at_least_0, ">= 0"),
    "momentum": (_at_least_0, ">= 0"),
    "weight_decay": (_at_least_0, ">= 0"),
    "lr_decay": (_at_least_0, ">= 0"),
    "initial_accumulator_value": (_at_least_0, ">= 0"),
    "l1": (_at_least_0, ">= 0"),
    "l21": (_at_least_0, ">= 0"),
    "l2": (_at_least_0, ">= 0"),
}


def _are_betas(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and all(isinstance(beta, Real) and 0 <= float(beta) < 1 for beta in value)
    )


def check_hyperparameters(group: Mapping[str, Any], where: str) -> None:
    """Raise ValueError or TypeError, naming the argument, its value and `where`, if one is out of range."""
    for name, (valid, expected) in _RANGES.items():
        if name not in group:
            continue
        value = group[name]
        if isinstance(value, Tensor):
            if name != "lr":
                raise TypeError(f"{name} must be a number, got a tensor ({where})")
            if value.numel() != 1 or value.is_complex():
                raise ValueError(f"lr must be one real number, got {value!r} ({where})")
            if group["capturable"]:
                continue  # reading it would wait for the device
        elif isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} must be a number, got {value!r} ({where})")
        if not valid(float(value)):
            raise ValueError(f"{name} must be {expected}, got {float(value):g} ({where})")
    if "betas" in group and not _are_betas(group["betas"]):
        raise ValueError(f"betas must be two numbers in [0, 1), got {group['betas']!r} ({where})")
    check_threshold(group, where)
    _check_execution(group, where)
    if group.get("nesterov") and not group["momentum"]:
        raise ValueError(f"nesterov=True needs momentum > 0 ({where})")


def check_threshold(group: Mapping[str, Any], where: str) -> None:
    """Raise ValueError or TypeError unless there are such a norm and such a penalty."""
    for name, kind in (("norm", Norm), ("penalty", Penalty)):
        try:
            kind.of(group[name])
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error} ({where})") from error


def plain_threshold(group: Mapping[str, Any]) -> dict[str, Any]:
    """`group` with norm and penalty as files can hold them: a name, or a mapping of the name and the parameters."""
    return {**group, "norm": Norm.of(group["norm"]).plain, "penalty": Penalty.of(group["penalty"]).plain}


def read_threshold(group: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The inverse of `plain_threshold`; older states have `mcp_gamma` beside the penalty."""
    content = dict(group)
    gamma = content.pop("mcp_gamma", None)
    if gamma is not None and content.get("penalty") == "mcp":
        content["penalty"] = {"name": "mcp", "gamma": gamma}
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

    Raises:
        RuntimeError: `fused=True` on a GPU without the kernels.
        ValueError: `capturable` elsewhere than on a GPU.
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
