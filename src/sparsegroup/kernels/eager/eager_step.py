"""The step in eager PyTorch: any device, any grouping, no compiler. The oracle of the other backends."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegroup import prox
from sparsegroup.groups import Grouping
from sparsegroup.kernels.regularizer import Regularizer
from sparsegroup.kernels.update_mark import mark_updated, was_updated
from sparsegroup.rules import Rule


@dataclass(frozen=True)
class Block:
    """A parameter or some of its rows: weights, u (None if not carried), `rule.state`. All in the compute dtype."""

    x: Tensor
    u: Tensor | None
    state: Sequence[Tensor]


def advance(
    rule: Rule,
    block: Block,
    gradients: Sequence[Tensor],
    scalars: Sequence[float],
    initial: Sequence[float],
    sigma_0: float | None,
    regularizer: Regularizer,
    groups: Grouping,
    dtype: torch.dtype,
) -> Block:
    """The block after one step, its `x` in `dtype`, in which the parameter is stored.

    `gradients` has the Hessian's diagonal too for a second-order rule; `scalars`, `initial` and `sigma_0` are the
    rule's, `initial` as the state is stored.
    """
    x, u = block.x, block.u
    m, sigma, *state = rule.update(*gradients, *block.state, *scalars)
    if u is None:  # the base optimizer
        return Block(prox.base_step(x, m, sigma, x.new_zeros(())), None, state)
    charged = u
    if sigma_0 is not None:  # u₀ = σ₀ x₁
        charged = torch.where(groups.any(was_updated(u)), u, sigma_0 * x)
    stored, u_after = regularized_step(x, charged, m, sigma, regularizer, groups, dtype)
    touched = ever_touched(gradients[0], u, block.state, initial, groups)
    return Block(torch.where(touched, stored, x.to(dtype)), torch.where(touched, u_after, u), state)


def ever_touched(g: Tensor, u: Tensor, state: Sequence[Tensor], initial: Sequence[float], groups: Grouping) -> Tensor:
    """Whether a group has ever had a non-zero gradient, by what that changes; broadcasts to `g`."""
    touched = (g != 0) | was_updated(u)
    for before, untouched in zip(state, initial, strict=True):
        # As the state is stored: a default such as 0.1 has another float32 value.
        touched |= before != torch.tensor(untouched, dtype=before.dtype)
    return groups.any(touched)


def regularized_step(
    x: Tensor, u: Tensor, m: Tensor, sigma: Tensor, regularizer: Regularizer, groups: Grouping, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x̂ in `dtype` and u⁺ in the compute dtype: the closed form of `sparsegroup.prox`, with z = u + m - σ x."""
    zero, one = x.new_zeros(()), x.new_ones(())
    two_l2 = 2 * regularizer.l2
    z = u + m - sigma * x
    s = prox.soft_threshold(z, regularizer.l1, zero)
    r = prox.clip(z, regularizer.l1)
    c = sigma + two_l2
    q = zero
    if regularizer.l21 > 0:
        norm = groups.norm(regularizer.norm.weigh(s, c, zero))
        tau = groups.sqrt_size * regularizer.tau
        tau = tau.to(x.dtype) if isinstance(tau, Tensor) else x.new_full((), tau)
        q = regularizer.penalty.shrinkage(norm, tau, zero, one, *regularizer.penalty.scalars())
    keep = one if regularizer.keep else zero
    y = prox.closed_form(x, s, q, c, keep, zero, one)
    exact = prox.solution(x, u, m, r, s, q, y, two_l2, c, zero)
    stored = exact.to(dtype)
    rounding = zero if dtype == x.dtype else sigma * (stored.to(x.dtype) - exact)
    return stored, mark_updated(prox.next_residual(r, s, q, y, two_l2, rounding), -zero)
