"""Loading an optimizer's state dict: checked before anything is changed; torch.optim's own state is understood."""

from collections.abc import Callable, Mapping
from typing import Any

from sparsegroup.optim.arguments import EXECUTION, REFUSED, read_threshold, refuse
from sparsegroup.optim.loaded_state import uncast
from sparsegroup.optim.shard_adapter import stepper_of
from sparsegroup.rules import Rule


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
        kept = read_threshold(kept, where)
        groups[index] = {**own, **kept}  # kept: also what schedulers leave there
        check({**groups[index], "params": own["params"]}, where)
        for saved_id, parameter in zip(saved["params"], own["params"], strict=True):
            if saved_id in state:
                entry = {name: value for name, value in state[saved_id].items() if value is not None}
                state[saved_id] = uncast(stepper_of(parameter).adapted(parameter, entry, rule, where))
    return {**state_dict, "param_groups": groups, "state": state}
