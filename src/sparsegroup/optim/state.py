"""Loading optimizer state: float32 survives low-precision parameters, torch.optim's own state is understood."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparsegroup.optim.arguments import EXECUTION, REFUSED, refuse
from sparsegroup.optim.stored import Claim, StoredParameter
from sparsegroup.rules import Rule


@dataclass(frozen=True)
class Shielded:
    """A state tensor on its way through torch's loader, which would cast it to the parameter's dtype."""

    tensor: Tensor

    def unshield(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """The tensor as state of `parameter`: on its device, in `dtype`, laid out like it."""
        return torch.empty_like(parameter, dtype=dtype).copy_(self.tensor)


def adapt_state_dict(
    state_dict: Mapping[str, Any],
    param_groups: list[dict[str, Any]],
    rule: Rule,
    optimizer: str,
    check: Callable[[dict[str, Any], str], None],
) -> dict[str, Any]:
    """A copy of `state_dict` that torch's loader can take, checked before anything is changed.

    Hyperparameters that it lacks (a state of torch.optim has no `l21`) are taken from `param_groups`; torch's own
    that have no meaning here are dropped, or refused where they are set.

    Args:
        state_dict: As from `torch.optim.Optimizer.state_dict`.
        param_groups: The optimizer's.
        rule: The optimizer's.
        optimizer: Its name, for messages.
        check: `check(group, where)` raises where a param group with its hyperparameters is not valid.

    Raises:
        ValueError: State of another optimizer or shape, or a hyperparameter that is not supported.
    """
    groups, state = list(state_dict["param_groups"]), dict(state_dict["state"])
    if len(groups) != len(param_groups) or any(
        len(saved["params"]) != len(own["params"]) for saved, own in zip(groups, param_groups, strict=False)
    ):
        return dict(state_dict)  # torch's loader raises, with its own words

    for index, (saved, own) in enumerate(zip(groups, param_groups, strict=True)):
        where = f"{optimizer}, loaded param group {index}"
        for name in (REFUSED.keys() & saved.keys()) - set(EXECUTION):
            own_name = name == "amsgrad" and "max_exp_avg_sq" in rule.state
            without_effect = name == "decoupled_weight_decay" and not saved.get("weight_decay")  # AdamW
            if not own_name and not without_effect:
                refuse(name, saved[name], where)
        kept = {name: value for name, value in saved.items() if name not in REFUSED and name not in EXECUTION}
        groups[index] = {**own, **kept}  # kept: also what schedulers leave there
        check({**groups[index], "params": own["params"]}, where)
        for saved_id, parameter in zip(saved["params"], own["params"], strict=True):
            if saved_id in state:
                state[saved_id] = _adapt_entry(state[saved_id], parameter, rule, where)
    return {**state_dict, "param_groups": groups, "state": state}


def _adapt_entry(entry: Mapping[str, Any], parameter: Tensor, rule: Rule, where: str) -> dict[str, Any]:
    entry = {name: value for name, value in entry.items() if value is not None}
    stored = isinstance(parameter, StoredParameter)
    known: Collection[str] = {"step", "u", *rule.state, *(("keys",) if stored else ())}
    if unknown := entry.keys() - known:
        raise ValueError(f"state {', '.join(map(repr, sorted(unknown)))} is not of the rule {rule.name!r} ({where})")
    required = {*rule.state, *(("step",) if rule.counts_steps else ()), *(("keys",) if stored else ())}
    if entry and (missing := required - entry.keys()):
        raise ValueError(f"state {', '.join(map(repr, sorted(missing)))} of {rule.name!r} is missing ({where})")
    for name, value in entry.items():
        if not isinstance(value, Tensor) and name != "step":
            raise TypeError(f"state {name!r} must be a tensor, got {type(value).__name__} ({where})")
        if stored and name == "keys":
            if value.dtype != torch.int64 or value.ndim != 1 or len(torch.unique(value)) != len(value):
                raise ValueError(
                    f"state 'keys' must be distinct int64 [n], got {value.dtype} {list(value.shape)} ({where})"
                )
            continue
        if stored and name != "step":
            expected = [len(entry["keys"]), parameter.shape[1]]
            if list(value.shape) != expected:
                raise ValueError(f"state {name!r} has shape {list(value.shape)}, expected is {expected} ({where})")
            continue
        if name != "step" and value.shape != parameter.shape:
            raise ValueError(
                f"state {name!r} has shape {list(value.shape)}, the parameter {list(parameter.shape)} ({where})"
            )
    if entry:
        entry.setdefault("step", torch.zeros((), dtype=torch.float32))
    return {
        name: torch.as_tensor(value).clone() if name == "step" else Shielded(value) for name, value in entry.items()
    }


def export_state(parameter: StoredParameter, entry: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's state of a parameter in a store, as tensors."""
    content = parameter.store.export_state(entry["claim"])
    if content is None:
        return {}  # another optimizer's state is there now
    return {"step": entry["step"], **{name: torch.from_numpy(part) for name, part in content.items()}}


def restore_state(
    parameter: StoredParameter, entry: dict[str, Any], initial: Mapping[str, float], state_dtype: torch.dtype | None
) -> None:
    """Bring a loaded `entry` back into the store. An entry that holds its claim is there already (a copied optimizer).

    Args:
        parameter: The parameter.
        entry: Its state; changed.
        initial: The rule's state of a row that no gradient has touched.
        state_dtype: Of the param group.
    """
    if not entry or "claim" in entry:
        return
    tensors = {name: value.tensor for name, value in entry.items() if isinstance(value, Shielded)}
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    claim = parameter.store.restore_state(arrays, initial, state_dtype)
    for name in tensors:
        del entry[name]
    entry["claim"] = claim


def state_without_rows(optimizer: Optimizer) -> dict[str, Any]:
    """Param groups and state as `state_dict` has them, without what lies in stores: of those, only the step.

    A parameter in a store whose state is another optimizer's by now has no entry.
    """
    content = Optimizer.state_dict(optimizer)
    state = dict(content["state"])
    for index, parameter in enumerate(parameters_of(optimizer)):
        if isinstance(parameter, StoredParameter) and index in state:
            entry = state.pop(index)
            if parameter.store.holds(entry["claim"]):
                state[index] = {"step": entry["step"]}
    return {"param_groups": content["param_groups"], "state": state}


def load_state_without_rows(
    optimizer: Optimizer, content: Mapping[str, Any], claims: Mapping[StoredParameter, Claim]
) -> None:
    """Load what `state_without_rows` gave.

    Args:
        optimizer: Of the same kind.
        content: Param groups and state.
        claims: Parameter in a store → what its store holds this optimizer's state by.

    Raises:
        ValueError: State of another optimizer or shape; nothing is changed.
    """
    parameters = parameters_of(optimizer)
    stored = {index for index, parameter in enumerate(parameters) if isinstance(parameter, StoredParameter)}
    state = content["state"]
    if strange := [key for key in state if type(key) is not int or not 0 <= key < len(parameters)]:
        raise ValueError(f"there is state of parameter {strange[0]!r}; the optimizer has {len(parameters)}")
    dense = {index: entry for index, entry in state.items() if index not in stored}
    optimizer.load_state_dict({"param_groups": content["param_groups"], "state": dense})
    for index in stored & state.keys():
        parameter = parameters[index]
        assert isinstance(parameter, StoredParameter)
        optimizer.state[parameter] = {"step": state[index]["step"].clone(), "claim": claims[parameter]}


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters, in the order of their numbers in a state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
