"""Whether the optimizers that somebody gives have what is to be trained."""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from sparsegroup.optim.table_parameter import store_of


def check_stepped(modules: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise where the rows of a table would never be trained; warn of other parameters that would not.

    Frozen parameters (`requires_grad_(False)`) need no optimizer.

    Args:
        modules: Name → what is to be trained, as the caller knows it.
        optimizers: All that step.

    Raises:
        ValueError: None of them has the rows of a table.
    """
    stepped = {
        id(parameter) for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]
    }
    left_out = {
        id(parameter): (f"{module}.{name}", parameter)
        for module, of in modules.items()
        for name, parameter in of.named_parameters()
        if parameter.requires_grad and id(parameter) not in stepped
    }
    if rows := [name for name, parameter in left_out.values() if store_of(parameter) is not None]:
        raise ValueError(
            f"no optimizer has {_listed(rows)}, so that it would never be trained: give its module's parameters() to "
            "one, as in GroupAdam([*table.parameters(), *model.parameters()]), or freeze it by requires_grad_(False)"
        )
    if left_out:
        names = _listed([name for name, _ in left_out.values()])
        warnings.warn(
            f"no optimizer has {names}: these stay as they are. Give them to one, or freeze them by "
            "requires_grad_(False)",
            UserWarning,
            stacklevel=3,
        )


def _listed(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
