"""Averages of weights over steps that keep the zeros."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sparsegroup.optim.table_parameter import store_of

MultiAverage: TypeAlias = Callable[[Any, Any, Any], None]


def keep_zeros(multi_avg_fn: MultiAverage) -> MultiAverage:
    """Return an averaging function for `torch.optim.swa_utils.AveragedModel` that keeps the zeros of the model.

    The average of a weight that was zero at some steps and not at others is not zero, so a plain average of a sparse
    model is dense. Here a weight is averaged over the updates since it last was zero; where it is zero in the model, so
    it is in the average. Tables are averaged like that by `lerp_`, with this function or without.

    Args:
        multi_avg_fn: As `AveragedModel` takes it: `get_ema_multi_avg_fn(0.999)`, `get_swa_multi_avg_fn()`, or your own,
            which must average tables by `lerp_` or `torch._foreach_lerp_`.

    Returns:
        A function with the same arguments.

    Examples:
        >>> import torch
        >>> from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
        >>> from sparsegroup import keep_zeros
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> average = AveragedModel(model, multi_avg_fn=keep_zeros(get_ema_multi_avg_fn(0.5)))
        >>> for weights in ([4.0, 4.0], [2.0, 0.0], [2.0, 8.0]):
        ...     model.weight.data = torch.tensor([weights])
        ...     average.update_parameters(model)
        >>> average.module.weight.tolist()
        [[2.5, 8.0]]
    """

    @torch.no_grad()
    def average(averaged: Sequence[Tensor], current: Sequence[Tensor], num_averaged: Tensor | int) -> None:
        dense = [(one, now) for one, now in zip(averaged, current, strict=True) if store_of(one) is None]
        before = [one.clone() for one, _ in dense]
        multi_avg_fn(averaged, current, num_averaged)
        for (one, now), earlier in zip(dense, before, strict=True):
            one.copy_(with_zeros_of(now, earlier, one))

    return average


def with_zeros_of(current: Tensor, before: Tensor, averaged: Tensor) -> Tensor:
    """`averaged`, but `current` where that is zero, or where the average was zero `before`. All of one shape."""
    return torch.where((current == 0) | (before == 0), current, averaged)
