"""The diagonal of the Hessian by Hutchinson's estimator, averaged over blocks as AdaHessian was published."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from sparsegroup.optim.stored import StoredParameter

_LINEAR = (
    "the loss is linear in these parameters, and their Hessian is zero: take an optimizer without second derivatives, "
    "such as GroupAdam"
)


def hessian_diagonals(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor], generator: torch.Generator | None
) -> list[Tensor]:
    """One Rademacher sample v ⊙ H v of the diagonal per parameter.

    Args:
        parameters: What the gradients were taken of.
        gradients: From `backward(create_graph=True)`; dense shaped as the parameter, or sparse COO.
        generator: Draws v, on the parameters' device; torch's default one if None.

    Returns:
        Dense tensors shaped as the dense gradient, or `[n, …]` for the n distinct rows of a sparse one in ascending
        order. A gradient that does not depend on any parameter has diagonal 0.

    Raises:
        RuntimeError: No gradient has a graph, or none depends on a parameter: the loss is linear in them.
    """
    # coalesce() keeps the graph, and gives the distinct rows that the step will update.
    gradients = [g.coalesce() if g.layout == torch.sparse_coo else g for g in gradients]
    outputs = [g.values() if g.layout == torch.sparse_coo else g for g in gradients]
    # torch gives the empty sparse gradient of an empty lookup no graph.
    if outputs and not any(output.requires_grad or not output.numel() for output in outputs):
        raise RuntimeError(
            "GroupAdaHessian needs second derivatives: call loss.backward(create_graph=True). If that was done, "
            + _LINEAR
        )
    vectors = [_rademacher(output, generator) for output in outputs]
    linked = [i for i, output in enumerate(outputs) if output.requires_grad]
    rowless = _taken(parameters)
    if not linked and not rowless:
        return [torch.zeros_like(vector) for vector in vectors]
    products = torch.autograd.grad(
        [*(outputs[i] for i in linked), *rowless],
        parameters,
        grad_outputs=[*(vectors[i] for i in linked), *map(torch.zeros_like, rowless)],
        allow_unused=True,
    )
    if all(product is None for product in products) and any(output.numel() for output in outputs):
        raise RuntimeError(f"GroupAdaHessian finds no second derivatives: {_LINEAR}")
    return [
        vector * _like(product, gradient, vector)
        for vector, product, gradient in zip(vectors, products, gradients, strict=True)
    ]


def _taken(parameters: Sequence[Tensor]) -> list[Tensor]:
    """What is kept of gradients without rows; it is not kept any longer."""
    taken: list[Tensor] = []
    for parameter in parameters:
        if isinstance(parameter, StoredParameter):
            taken.extend(parameter.rowless)
            parameter.rowless = ()
    return taken


@contextmanager
def draws_undone_on_error(generator: torch.Generator | None, parameters: Sequence[Tensor]) -> Iterator[None]:
    """Where an error ends it, the generator is where it was: what failed has drawn nothing.

    Args:
        generator: See `hessian_diagonals`.
        parameters: Their devices say which of torch's default generators are drawn from.
    """
    generators = [generator] if generator is not None else _default_generators(parameters)
    states = [one.get_state() for one in generators]
    try:
        yield
    except BaseException:
        for one, state in zip(generators, states, strict=True):
            one.set_state(state)
        raise


def _default_generators(parameters: Sequence[Tensor]) -> list[torch.Generator]:
    devices = {parameter.device for parameter in parameters}
    on_gpus = [torch.cuda.default_generators[device.index] for device in devices if device.type == "cuda"]
    return [torch.default_generator, *on_gpus]


def _rademacher(like: Tensor, generator: torch.Generator | None) -> Tensor:
    bits = torch.randint(0, 2, like.shape, generator=generator, device=like.device)
    return (2 * bits - 1).to(like.dtype)


def _like(product: Tensor | None, gradient: Tensor, vector: Tensor) -> Tensor:
    """H v in the layout of `vector`: the rows of a sparse gradient, whatever layout autograd gave."""
    if product is None:
        return torch.zeros_like(vector)
    if gradient.layout != torch.sparse_coo:
        return product.to_dense()
    rows = gradient.indices()[0]
    if product.layout == torch.sparse_coo:
        product = product.coalesce()
        at = torch.searchsorted(rows, product.indices()[0])
        return torch.zeros_like(vector).index_copy_(0, at, product.values())
    return product[rows]


def block_average(diagonal: Tensor, block_sizes: Sequence[int], parameter_ndim: int) -> Tensor:
    """Mean of |D| over blocks (AdaHessian, "spatial averaging"), shaped as `diagonal`.

    Args:
        diagonal: The diagonal for the whole parameter, or for some of its rows.
        block_sizes: For parameters of 1, 2, 3 and 4 dimensions: so many consecutive elements form a block, or, with
            -1, nothing is averaged (0-d and 1-d), each row (2-d), or all but the first two dimensions (3-d and more).
        parameter_ndim: Dimensions of the parameter.

    Raises:
        ValueError: A block size that does not divide the row (1-d: the tensor).
    """
    diagonal = diagonal.abs()
    size = block_sizes[min(max(parameter_ndim, 1), 4) - 1]
    if size == -1:
        over = {0: (), 1: (), 2: (1,)}.get(parameter_ndim, tuple(range(2, parameter_ndim)))
        return diagonal.mean(dim=over, keepdim=True).expand_as(diagonal) if over else diagonal
    unit = diagonal.shape[1:].numel() if parameter_ndim > 1 else diagonal.numel()
    if unit % size:
        raise ValueError(
            f"spatial_average_block_size {size} does not divide {unit}, the size of a row "
            f"of a {parameter_ndim}-d parameter"
        )
    return diagonal.reshape(-1, size).mean(1, keepdim=True).expand(-1, size).reshape(diagonal.shape)
