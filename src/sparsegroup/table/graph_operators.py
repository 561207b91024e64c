"""The operators of `graph_lookup`, in a file of their own that is imported when a graph needs them."""

from typing import Any

import torch
from torch import Tensor

from sparsegroup.table.differentiable_lookup import for_autograd
from sparsegroup.table.graph_lookup import EMBEDDINGS


@torch.library.custom_op("sparsegroup::look_up", mutates_args=())
def look_up(keys: Tensor, anchor: Tensor, number: int, wants_gradient: bool) -> tuple[Tensor, Tensor]:
    """The vectors `[*keys.shape, dim]`, and a tensor that carries what backward must know of the lookup."""
    embedding = EMBEDDINGS[number]
    with torch.set_grad_enabled(wants_gradient):
        result = embedding.table.look_up(keys, embedding.is_trained)
    ticket = torch.empty(1)
    storage: Any = ticket.untyped_storage()
    storage.sparsegroup_info = result.info
    return result.vectors.view(*keys.shape, embedding.dim), ticket


@look_up.register_fake
def _(keys: Tensor, anchor: Tensor, number: int, wants_gradient: bool) -> tuple[Tensor, Tensor]:
    table = EMBEDDINGS[number].table
    vectors = keys.new_empty(*keys.shape, table.dim, dtype=table.weight_dtype, device=table.device)
    return vectors, torch.empty(1)


@look_up.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], keys: Tensor, anchor: Tensor, number: int, wants_gradient: bool
) -> tuple[tuple[Tensor, Tensor], tuple[int, None]]:
    """All keys of a batch in one lookup."""
    assert in_dims[0] is not None
    return look_up(keys.movedim(in_dims[0], 0), anchor, number, wants_gradient), (0, None)


@torch.library.custom_op("sparsegroup::add_gradient", mutates_args=())
def add_gradient(gradient: Tensor, ticket: Tensor, number: int) -> Tensor:
    """Give the table the gradient of a lookup's vectors, as outside of a graph; the result is the anchor's gradient."""
    storage: Any = ticket.untyped_storage()
    with torch.enable_grad():
        vectors = for_autograd(EMBEDDINGS[number].weight, storage.sparsegroup_info, gradient.detach())
    if vectors.requires_grad:
        torch.autograd.backward(vectors, gradient)
    return torch.empty(0)


@add_gradient.register_fake
def _(gradient: Tensor, ticket: Tensor, number: int) -> Tensor:
    return torch.empty(0)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.number = inputs[2]


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    (ticket,) = ctx.saved_tensors
    return None, add_gradient(gradient.reshape(-1, gradient.shape[-1]), ticket, ctx.number), None, None


look_up.register_autograd(_backward, setup_context=_keep)
