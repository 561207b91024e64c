"""`GroupAdaHessian`: the one member of the family that needs second derivatives."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sparsegroup.optim.arguments import Options
from sparsegroup.optim.optimizer import GroupOptimizer
from sparsegroup.optim.step import GroupStep, Plan
from sparsegroup.optim.table_parameter import StoredParameter
from sparsegroup.rules import ADAHESSIAN

_LINEAR = (
    "the loss is linear in these parameters, and their Hessian is zero: take an optimizer without second derivatives, "
    "such as GroupAdam"
)


def hessian_diagonals(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor], generator: torch.Generator | None
) -> list[Tensor]:
    """One Rademacher sample v ⊙ H v of the diagonal per parameter, shaped as the gradient, or as its distinct rows.

    RuntimeError if no gradient has a graph, or none depends on a parameter: the loss is linear in them. A single one
    that does not has diagonal 0.
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
    """Where an error ends it, the generator is where it was: what failed has drawn nothing."""
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
    bits = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int64, device=like.device)
    return (2 * bits - 1).to(like.dtype)


def _like(product: Tensor | None, gradient: Tensor, vector: Tensor) -> Tensor:
    """H v in the layout of `vector`: the rows of a sparse gradient, from any layout of autograd."""
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
    """Mean of |D| over blocks (AdaHessian, "spatial averaging"), shaped as `diagonal`, of all or of some rows.

    A block is this many consecutive elements, by the number of dimensions, or for -1 nothing (0-d, 1-d), each row (2-d)
    or all but the first two dimensions. ValueError if it does not divide the row (1-d: the tensor).
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


class GroupAdaHessian(GroupOptimizer):
    """AdaHessian with sparse group lasso. With all λ = 0 it is AdaHessian as published (Yao et al., AAAI 2021).

    Call `loss.backward(create_graph=True)` before `step()`, or in its closure. `step()` leaves detached gradients
    behind, so that the graph is freed. Sparse gradients are taken, lazily (torch has no second derivative of
    `nn.EmbeddingBag`, only of `nn.Embedding`). Not for use under `GradScaler`, whose
    scale would enter the Hessian: use bfloat16 autocast.

    Args:
        params: See `GroupOptimizer`.
        lr: Learning rate α ≥ 0; 0.15 as published.
        betas: (β1, β2) in [0, 1), the decay of the gradient and of the squared Hessian diagonal.
        eps: ε ≥ 0.
        weight_decay: Added to the gradient as `weight_decay * x` (the published code decouples it); not with sparse
            gradients.
        spatial_average_block_size: Over how many consecutive elements of a row |D| is averaged, for 1-d, 2-d, 3-d
            and 4-d parameters (the last also for more). -1: no averaging (1-d), the whole row (2-d), the kernel (3-d
            and more). As published.
        generator: Draws the Rademacher vectors, on the parameters' device; torch's default generator if None. It
            is not part of `state_dict()`.
        **options: The regularizer's arguments, see `GroupOptimizer`.

    Raises:
        ValueError: A block size that is not -1 or positive (in `step()`: that does not divide a row).

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdaHessian
        >>> x = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
        >>> optimizer = GroupAdaHessian([x], lr=1.0)
        >>> loss = (torch.tensor([1.0, 100.0]) * x**2 / 2).sum()  # its Hessian is diagonal, and so known exactly
        >>> (x.grad,) = torch.autograd.grad(loss, [x], create_graph=True)  # as backward(), which warns of the graph
        >>> optimizer.step()  # a Newton step, however ill-conditioned
        >>> x.detach().round(decimals=3).tolist()
        [0.0, -0.0]
    """

    rule = ADAHESSIAN
    _step_supports_amp_scaling = True  # makes GradScaler hand its scale over, so that `step` can refuse it

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.15,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-4,
        weight_decay: float = 0.0,
        *,
        spatial_average_block_size: Sequence[int] = (-1, -1, -1, -1),
        generator: torch.Generator | None = None,
        **options: Unpack[Options],
    ) -> None:
        self.generator = generator
        blocks = spatial_average_block_size
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, spatial_average_block_size=blocks, **options
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "generator": self.generator}

    def _check_ready(self) -> None:
        super()._check_ready()
        if hasattr(self, "grad_scale"):
            for left_behind in {"grad_scale", "found_inf"} & vars(self).keys():  # by a scaler that sees step() raise
                delattr(self, left_behind)
            raise RuntimeError(
                "GroupAdaHessian cannot run under GradScaler: its scale would enter the Hessian; use bfloat16 autocast"
            )

    def _completed(self, planned: list[tuple[GroupStep, list[Plan]]]) -> list[tuple[GroupStep, list[Plan]]]:
        """The plans with diagonals of the Hessian; if these cannot be computed, no random number has been drawn."""
        groups = [group for group in self.param_groups for p in group["params"] if p.grad is not None]
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not parameters:
            return planned
        with draws_undone_on_error(self.generator, parameters):
            with torch.enable_grad():
                diagonals = hessian_diagonals(parameters, [p.grad for p in parameters], self.generator)
            averaged = iter(
                block_average(diagonal.detach(), group["spatial_average_block_size"], parameter.ndim)
                for group, parameter, diagonal in zip(groups, parameters, diagonals, strict=True)
            )
            completed = [(step, [plan.with_second_input(next(averaged)) for plan in plans]) for step, plans in planned]
        for parameter in parameters:
            parameter.grad = parameter.grad.detach()
        return completed
