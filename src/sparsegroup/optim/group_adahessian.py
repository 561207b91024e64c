"""`GroupAdaHessian`: the one member of the family that needs second derivatives."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sparsegroup.optim.arguments import Options
from sparsegroup.optim.base import GroupOptimizer
from sparsegroup.optim.hutchinson import block_average, draws_undone_on_error, hessian_diagonals
from sparsegroup.optim.plans import ParameterPlan
from sparsegroup.rules import ADAHESSIAN


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
            and 4-d parameters (the last for more, too). -1: no averaging (1-d), the whole row (2-d), the kernel (3-d
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

    generator: torch.Generator | None

    if TYPE_CHECKING:

        def __init__(
            self,
            params: ParamsT,
            lr: float | Tensor = ...,
            betas: tuple[float, float] = ...,
            eps: float = ...,
            weight_decay: float = ...,
            *,
            spatial_average_block_size: Sequence[int] = ...,
            generator: torch.Generator | None = None,
            **options: Unpack[Options],
        ) -> None: ...

    else:

        def __init__(self, params, *hyperparameters, generator=None, **options):
            self.generator = generator
            super().__init__(params, *hyperparameters, **options)

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

    def _completed(self, plans: list[list[ParameterPlan]]) -> list[list[ParameterPlan]]:
        """The plans with diagonals of the Hessian; where these cannot be had, no random number has been drawn."""
        groups = [group for group in self.param_groups for p in group["params"] if p.grad is not None]
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not parameters:
            return plans
        with draws_undone_on_error(self.generator, parameters):
            with torch.enable_grad():
                diagonals = hessian_diagonals(parameters, [p.grad for p in parameters], self.generator)
            averaged = iter(
                block_average(diagonal.detach(), group["spatial_average_block_size"], parameter.ndim)
                for group, parameter, diagonal in zip(groups, parameters, diagonals, strict=True)
            )
            completed = [[plan.with_hessian(next(averaged)) for plan in of_group] for of_group in plans]
        for parameter in parameters:
            parameter.grad = parameter.grad.detach()
        return completed
