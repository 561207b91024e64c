"""The closed form without a gradient, in eager PyTorch: which λ21 a group outlives, and what a changed λ makes of it.

With m = 0 and σ as the rule would give it for a gradient of zero at this step, its state left as it is:

    z = u - σ x,  s and x⁺ as in `sparsegroup.prox`

A group lives where ‖weigh(s)‖ > √d λ21 (scaled to the norm), whatever the penalty: so

    ‖weigh(s)‖ / √d

is its survival λ21, which tells groups that will stay from those that will go without stepping any of them. A group
that never had a non-zero gradient is left alone by every step; its survival λ21 is infinite.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsegroup import prox
from sparsegroup.groups import Grouping
from sparsegroup.kernels.eager.eager_step import Block, ever_touched, regularized_step
from sparsegroup.kernels.regularizer import Regularizer
from sparsegroup.rules import Rule


def survival_l21(
    rule: Rule,
    block: Block,
    scalars: Sequence[float],
    initial: Sequence[float],
    regularizer: Regularizer,
    groups: Grouping,
) -> Tensor:
    """The largest λ21 at which each group is zero, by λ1, λ2 and the norm of `regularizer`; broadcasts to `block.x`."""
    x, u, zero = block.x, _u(block), block.x.new_zeros(())
    sigma = _sigma(rule, block, scalars)
    s = prox.soft_threshold(u - sigma * x, regularizer.l1, zero)
    weighed = regularizer.norm.weigh(s, sigma + 2 * regularizer.l2, zero)
    norm = groups.norm(weighed) / (groups.sqrt_size * regularizer.norm.tau_scale)
    touched = ever_touched(zero.expand_as(u), u, block.state, initial, groups)
    return torch.where(touched, norm, torch.full_like(norm, torch.inf))


def swept(
    rule: Rule,
    block: Block,
    scalars: Sequence[float],
    initial: Sequence[float],
    regularizer: Regularizer,
    groups: Grouping,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """x̂ in `dtype` and u⁺ of the closed form without a gradient, and which groups ever had one; the others stay."""
    x, u = block.x, _u(block)
    m = torch.zeros_like(x)
    stored, u_after = regularized_step(x, u, m, _sigma(rule, block, scalars), regularizer, groups, dtype)
    touched = ever_touched(m, u, block.state, initial, groups)
    return torch.where(touched, stored, x.to(dtype)), torch.where(touched, u_after, u), touched


def _u(block: Block) -> Tensor:
    return torch.zeros_like(block.x) if block.u is None else block.u


def _sigma(rule: Rule, block: Block, scalars: Sequence[float]) -> Tensor:
    """σ of a step whose gradient is zero, shaped as x."""
    zero = torch.zeros_like(block.x)
    gradients = [zero, zero] if rule.has_second_input else [zero]
    _, sigma, *_ = rule.update(*gradients, *block.state, *scalars)
    of_all: Tensor = zero + sigma
    return of_all
