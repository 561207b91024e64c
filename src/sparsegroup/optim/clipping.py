"""Clipping gradients: dense, sparse, and those of tables."""

from collections.abc import Iterable

import torch
from torch import Tensor

from sparsegroup.optim.stored_gradient import clamp_, summed


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` for gradients of any kind: dense ones, sparse ones, those of tables.

    The norm is that of all gradients as one vector; lines of a sparse gradient that are of the same row count as their
    sum. If it is larger than `max_norm`, all gradients are multiplied by `max_norm / (norm + 1e-6)`, in place.

    Call it between `backward()` and `step()`, with the parameters of all param groups at once. torch's own function
    does the same where each sparse gradient is a table's; it has no norm for those of `nn.Embedding(sparse=True)`.

    Args:
        parameters: Parameters, or one; those without a gradient are left out.
        max_norm: The largest norm, ≥ 0; `math.inf` for the norm alone.
        norm_type: p > 0 of the p-norm; `math.inf` for the largest absolute value.
        error_if_nonfinite: Raise where the norm is infinite or NaN; else the gradients become zero or NaN by it.
        foreach: As of torch's function, for the norm.

    Returns:
        The norm before clipping, 0-d.

    Raises:
        ValueError: `norm_type` is not positive.
        RuntimeError: See `error_if_nonfinite`; nothing has been changed.

    Examples:
        >>> import torch
        >>> from sparsegroup import HashEmbedding, clip_grad_norm_
        >>> table = HashEmbedding(2)
        >>> (table(torch.tensor([7, -1, 7])) * torch.tensor([3.0, 0.0])).sum().backward()
        >>> round(clip_grad_norm_(table.parameters(), 1.0).item(), 4)  # the row of 7 has (6, 0), that of -1 (3, 0)
        6.7082
        >>> round(table.weight.grad.norm().item(), 4)
        1.0
    """
    if norm_type <= 0:
        raise ValueError(f"norm_type must be > 0, got {norm_type:g}")
    gradients = _gradients(parameters)
    rows = [_normed(gradient) for gradient in gradients]
    norm = torch.nn.utils.get_total_norm(rows, norm_type, error_if_nonfinite, foreach)
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    stored = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
    for device, values in _by_device(stored).items():
        torch._foreach_mul_(values, factor.to(device))
    return norm


@torch.no_grad()
def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """`torch.nn.utils.clip_grad_value_` for gradients of any kind: dense ones, sparse ones, those of tables.

    Lines of a sparse gradient that are of the same row are summed first.

    Args:
        parameters: Parameters, or one; those without a gradient are left out.
        clip_value: The elements are clamped to [-clip_value, clip_value], in place.
        foreach: torch's argument, which makes no difference here.

    Raises:
        ValueError: A negative `clip_value`.
    """
    if clip_value < 0:
        raise ValueError(f"clip_value must be >= 0, got {clip_value:g}")
    dense = []
    for gradient in _gradients(parameters):
        if gradient.is_sparse:
            clamp_(gradient, -clip_value, clip_value)
        else:
            dense.append(gradient)
    for gradients in _by_device(dense).values():
        torch._foreach_clamp_min_(gradients, -clip_value)
        torch._foreach_clamp_max_(gradients, clip_value)


def _normed(gradient: Tensor) -> Tensor:
    """What torch takes the norm of: a table's gradient knows its own."""
    return summed(gradient)._values() if gradient.is_sparse and type(gradient) is Tensor else gradient


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    listed = [parameters] if isinstance(parameters, Tensor) else parameters
    return [parameter.grad for parameter in listed if parameter.grad is not None]


def _by_device(tensors: Iterable[Tensor]) -> dict[torch.device, list[Tensor]]:
    found: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device, []).append(tensor)
    return found
