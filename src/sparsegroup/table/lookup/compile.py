"""The lookup as an operator that `torch.compile` and the transforms of `torch.func` take without looking inside."""

import itertools
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from sparsegroup.optim.table_parameter import StoredParameter
from sparsegroup.table.lookup.autograd import for_autograd
from sparsegroup.tensors import is_transformed

EMBEDDINGS: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Number → `HashEmbedding`, whose module imports this one."""

_numbers = itertools.count()  # `next` gives each thread a different number

_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.6 has none

_ANCHOR = torch.empty(0, dtype=torch.float32, device="cpu", requires_grad=True)
"""What the operator's result depends on, so that its backward is called: a graph cannot hold a table's parameter."""


def register(embedding: object) -> int:
    """A number under which the operator finds the `HashEmbedding`, as long as that lives."""
    number = next(_numbers)
    EMBEDDINGS[number] = embedding
    return number


def vectors_by_operator(number: int, keys: Tensor) -> Tensor:
    """The vectors of int64 `keys`, `[*keys.shape, dim]`: by an operator whose backward gives the table its gradient.

    To transforms of `torch.func` they are constants; to a `backward()` outside of these they are not.
    """
    if torch.compiler.is_compiling():
        is_saved = _is_exporting()
    elif not (is_saved := not is_transformed()) and type(EMBEDDINGS[number].weight) is not StoredParameter:
        raise RuntimeError(
            "torch.func cannot transform the weight of a HashEmbedding, whose rows are not one tensor: leave it out of "
            "the parameters that functional_call is given, as in {name: p for name, p in model.named_parameters() if "
            "p is not model.table.weight}. To the transform the rows are constants; their gradient comes by backward()"
        )
    if is_saved:
        raise RuntimeError(
            "a HashEmbedding grows, so it cannot be part of a graph that torch.export or torch.jit.trace saves; "
            "sparsegroup.serving.export(model, folder, example_inputs) saves the model with the rows it has by now, as "
            "a torch.export program or as ONNX"
        )
    vectors: Tensor = look_up(keys, _ANCHOR, number, torch.is_grad_enabled())[0]
    return vectors


@torch.library.custom_op("sparsegroup::look_up", mutates_args=())
def look_up(keys: Tensor, anchor: Tensor, number: int, wants_gradient: bool) -> tuple[Tensor, Tensor]:
    """The vectors `[*keys.shape, dim]`, and a tensor that carries what backward must know of the lookup."""
    embedding = EMBEDDINGS[number]
    with torch.set_grad_enabled(wants_gradient):
        vectors, info = embedding.table.look_up(keys, embedding.is_trained)
    ticket = torch.empty(1, dtype=torch.float32, device="cpu")
    storage: Any = ticket.untyped_storage()
    storage.sparsegroup_info = info
    return vectors.view(*keys.shape, embedding.dim).to(embedding.table.weight_dtype), ticket


@look_up.register_fake
def _(keys: Tensor, anchor: Tensor, number: int, wants_gradient: bool) -> tuple[Tensor, Tensor]:
    table = EMBEDDINGS[number].table
    vectors = keys.new_empty(*keys.shape, table.dim, dtype=table.weight_dtype, device=table.device)
    return vectors, torch.empty(1, dtype=torch.float32, device="cpu")


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
    return torch.empty(0, dtype=torch.float32, device="cpu")


@add_gradient.register_fake
def _(gradient: Tensor, ticket: Tensor, number: int) -> Tensor:
    return torch.empty(0, dtype=torch.float32, device="cpu")


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.number = inputs[2]


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    (ticket,) = ctx.saved_tensors
    return None, add_gradient(gradient.reshape(-1, gradient.shape[-1]), ticket, ctx.number), None, None


look_up.register_autograd(_backward, setup_context=_keep)
