"""The lookup as an operator that `torch.compile` and the transforms of `torch.func` take without looking inside."""

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from sparsegroup.optim.stored import StoredParameter

if TYPE_CHECKING:
    from sparsegroup.table.hash_embedding import HashEmbedding

_EMBEDDINGS: "WeakValueDictionary[int, HashEmbedding]" = WeakValueDictionary()

_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.6 has none

_ANCHOR = torch.empty(0, requires_grad=True)
"""What the operator's result depends on, so that its backward is called: a graph cannot hold a table's parameter."""


def register(embedding: "HashEmbedding") -> int:
    """A number under which the operator finds `embedding`, as long as that lives."""
    number = max(_EMBEDDINGS, default=-1) + 1
    _EMBEDDINGS[number] = embedding
    return number


def embedding_of(number: int) -> "HashEmbedding":
    """The embedding of a number."""
    return _EMBEDDINGS[number]


def is_transformed() -> bool:
    """Whether this is inside a transform of `torch.func`: `vmap`, `grad`, `jvp`."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_recomputation() -> bool:
    """Whether this is inside a backward pass, where activation checkpointing computes a forward again."""
    return bool(torch._C._current_graph_task_id() != -1)


def wants_operator() -> bool:
    """Whether a lookup has to be one operator.

    So it is while torch.compile, torch.export or torch.jit.trace trace a graph, and inside a transform of `torch.func`.
    """
    return torch.compiler.is_compiling() or bool(torch._C._get_tracing_state()) or is_transformed()


def vectors_by_operator(number: int, keys: Tensor) -> Tensor:
    """The vectors of `keys`: by one operator, in whose backward the table gets its gradient.

    To transforms of `torch.func` they are constants; to a `backward()` outside of these they are not.

    Args:
        number: What `register` gave for the embedding.
        keys: int64 of any shape.

    Returns:
        `[*keys.shape, dim]`.

    Raises:
        RuntimeError: The graph is to be saved, without the table, or the table's weight is transformed.
    """
    if torch.compiler.is_compiling():
        saved = _is_exporting()
    elif not (saved := not is_transformed()):
        _check_is_constant(_EMBEDDINGS[number])
    if saved:
        raise RuntimeError(
            "a HashEmbedding grows, so it cannot be part of a graph that torch.export or torch.jit.trace saves; "
            "sparsegroup.serving.export(model, folder, example_inputs) saves the model with the rows it has by now, as "
            "a torch.export program or as ONNX"
        )
    from sparsegroup.table.graph_operators import look_up  # its registration takes the thirtieth of a second

    vectors: Tensor = look_up(keys, _ANCHOR, number, torch.is_grad_enabled())[0]
    return vectors


def _check_is_constant(embedding: "HashEmbedding") -> None:
    if type(embedding.weight) is not StoredParameter:
        raise RuntimeError(
            "torch.func cannot transform the weight of a HashEmbedding, whose rows are not one tensor: leave it out of "
            "the parameters that functional_call is given, as in {name: p for name, p in model.named_parameters() if "
            "p is not model.table.weight}. To the transform the rows are constants; their gradient comes by backward()"
        )
