"""An optimizer's state without what lies in stores, which a checkpoint keeps in files of their own."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from sparsegroup.optim.adapters import adapter_of
from sparsegroup.optim.arguments import plain_threshold
from sparsegroup.optim.group_step import GroupStep
from sparsegroup.optim.stored import Claim, RowStore, store_of


def state_without_rows(optimizer: Optimizer) -> dict[str, Any]:
    """Param groups and state as `state_dict` has them; of a parameter in a store, only the step.

    A parameter in a store whose state is another optimizer's by now has no entry.
    """
    content = Optimizer.state_dict(optimizer)
    parameters = _parameters_of(optimizer)
    state = {}
    for number, entry in content["state"].items():
        parameter = parameters[number] if type(number) is int else None  # torch carries along what is of no parameter
        kept = entry if parameter is None else adapter_of(parameter).exported_without_rows(parameter, entry)
        if kept is not None:
            state[number] = kept
    return {"param_groups": [plain_threshold(group) for group in content["param_groups"]], "state": state}


def load_state_without_rows(
    optimizer: Optimizer, content: Mapping[str, Any], claims: Mapping[RowStore, Claim]
) -> set[RowStore]:
    """Load what `state_without_rows` gave.

    Args:
        optimizer: One of the same kind.
        content: Param groups and state.
        claims: Store → the claim by which it will hold this optimizer's state.

    Returns:
        The stores whose state is this optimizer's.

    Raises:
        ValueError: State of another optimizer or shape; nothing is changed.
    """
    parameters, state = _parameters_of(optimizer), content["state"]
    if strange := [key for key in state if type(key) is not int or not 0 <= key < len(parameters)]:
        raise ValueError(f"there is state of parameter {strange[0]!r}; the optimizer has {len(parameters)}")
    stores = {number: store for number in state if (store := store_of(parameters[number])) is not None}
    dense = {number: entry for number, entry in state.items() if number not in stores}
    optimizer.load_state_dict({"param_groups": content["param_groups"], "state": dense})
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    loaded = dict(optimizer.state)
    optimizer.state.clear()
    for number in state:  # in this order, so that a resumed run writes what one writes that was not cut off
        parameter = parameters[number]
        if number in stores:
            entry = optimizer.state[parameter] = {"step": state[number]["step"].clone()}
            step = GroupStep(optimizer.rule, groups[parameter])  # type: ignore[attr-defined]
            step.prepare_in_rows(parameter, entry, claims[stores[number]])
        elif parameter in loaded:
            optimizer.state[parameter] = loaded[parameter]
    return set(stores.values())


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters, in the order of their numbers in a state dict."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
