"""torch's own optimizers cannot train parameters whose rows lie in a store: they say so at their first step."""

from collections.abc import Mapping
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

_COUNTERPARTS: Mapping[str, str] = {
    "Adam": "GroupAdam",
    "AdamW": "GroupAdam, with l2 in place of decoupled weight decay",
    "SparseAdam": "GroupAdam",
    "SGD": "GroupMomentum",
    "Adagrad": "GroupAdagrad",
}
"""An optimizer of torch → what trains tables as it trains tensors."""

_checked: "WeakKeyDictionary[Optimizer, int]" = WeakKeyDictionary()
"""Optimizer → how many param groups it had when it was looked at."""


@cache
def keep_from_torch_optimizers(kind: type[Tensor]) -> None:
    """Let the first step of an optimizer of torch.optim raise TypeError where it has parameters of a kind.

    Without, some would speak of sparse gradients, and others run out of memory. Optimizers that wrap others are left
    alone.
    """

    def check(optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        if torch.compiler.is_compiling() or _checked.get(optimizer) == len(optimizer.param_groups):
            return
        if (name := _torch_name(type(optimizer))) is not None:
            for number, group in enumerate(optimizer.param_groups):
                if any(isinstance(parameter, kind) for parameter in group["params"]):
                    raise TypeError(
                        f"torch.optim.{name} cannot train a HashEmbedding (param group {number}): give the table's "
                        f"parameters to {_COUNTERPARTS.get(name, 'GroupAdam')}. The other parameters can stay with "
                        f"{name}"
                    )
        _checked[optimizer] = len(optimizer.param_groups)

    register_optimizer_step_pre_hook(check)


def _torch_name(kind: type[Optimizer]) -> str | None:
    """Which optimizer of torch it is, or is derived from; None for another."""
    for base in kind.__mro__:
        if base is not Optimizer and base.__module__.startswith("torch.optim."):
            return base.__name__
    return None
