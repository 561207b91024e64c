"""The step in eager PyTorch: any device, any grouping, no compiler."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from sparsegroup import prox
from sparsegroup.groups import Grouping
from sparsegroup.kernels.regularizer import Regularizer
from sparsegroup.kernels.update_mark import mark_updated, was_updated
from sparsegroup.rules import Rule


@dataclass(frozen=True)
class Block:
    """A parameter, or some rows of one, on its way through a step; all tensors shaped alike, in the compute dtype.

    Attributes:
        x: The weights.
        u: Dual residual; None for a parameter that carries none.
        state: In the order of `rule.state`.
    """

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
    """One step: base optimizer and closed form.

    Args:
        rule: The base optimizer.
        block: Before the step; not changed.
        gradients: The gradient, and the diagonal of the Hessian for a second-order rule.
        scalars: From `rule.host_scalars`.
        initial: What `block.state` is before the first gradient.
        sigma_0: From `rule.host_sigma_0`, for a rule that has it.
        regularizer: λ1, λ21, λ2, norm and penalty.
        groups: The groups of `block.x`.
        dtype: In which the parameter is stored.

    Returns:
        The block after the step, its `x` in `dtype`.
    """
    x, u = block.x, block.u
    m, sigma, *state = rule.update(*gradients, *block.state, *scalars)
    if u is None:
        return Block(base_step(x, m, sigma), None, state)
    charged = u if sigma_0 is None else with_start(u, x, sigma_0, groups)
    stored, u_after = regularized_step(x, charged, m, sigma, regularizer, groups, dtype)
    touched = ever_touched(gradients[0], u, block.state, initial, groups)
    return Block(torch.where(touched, stored, x.to(dtype)), torch.where(touched, u_after, u), state)


def ever_touched(g: Tensor, u: Tensor, state: Sequence[Tensor], initial: Sequence[float], groups: Grouping) -> Tensor:
    """Whether a group has ever had a non-zero gradient, told from what that leaves behind (broadcasts to `g`)."""
    touched = (g != 0) | was_updated(u)
    for before, untouched in zip(state, initial, strict=True):
        # As the state is stored: a default such as 0.1 has another float32 value.
        touched |= before != torch.tensor(untouched, dtype=before.dtype)
    return groups.any(touched)


def with_start(u: Tensor, x: Tensor, sigma_0: float, groups: Grouping) -> Tensor:
    """u with u₀ = σ₀ x₁ in the groups that were never updated."""
    return torch.where(groups.any(was_updated(u)), u, sigma_0 * x)


def regularized_step(
    x: Tensor, u: Tensor, m: Tensor, sigma: Tensor, regularizer: Regularizer, groups: Grouping, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The closed form of `sparsegroup.prox` on a tensor of groups.

    Args:
        x: Parameter, in the compute dtype (float32 or float64), as are `u`, `m` and `sigma` of the same shape.
        u: Dual residual.
        m: First-moment term m_t.
        sigma: σ_t = √V_t / α_t.
        regularizer: λ1, λ21, λ2, norm and penalty.
        groups: The groups of `x`.
        dtype: In which the parameter is stored.

    Returns:
        x̂ in `dtype`, and u⁺ in the compute dtype.
    """
    zero, one = _constants(x.dtype, x.device)
    two_l2 = 2 * regularizer.l2
    z = u + m - sigma * x
    s = prox.soft_threshold(z, regularizer.l1, zero)
    r = prox.clip(z, regularizer.l1)
    c = sigma + two_l2
    q = zero
    if regularizer.l21 > 0:
        norm = groups.norm(regularizer.norm.weigh(s, c, zero))
        tau = groups.sqrt_size * regularizer.tau
        tau = tau.to(x.dtype) if isinstance(tau, Tensor) else torch.full((), tau, dtype=x.dtype, device=x.device)
        q = regularizer.penalty.shrinkage(norm, tau, zero, one, *regularizer.penalty.scalars())
    keep = one if regularizer.keep else zero
    y = prox.closed_form(x, s, q, c, keep, zero, one)
    exact = prox.solution(x, u, m, r, s, q, y, two_l2, c, zero)
    stored = exact.to(dtype)
    rounding = zero if dtype == x.dtype else sigma * (stored.to(x.dtype) - exact)
    return stored, mark_updated(prox.next_residual(r, s, q, y, two_l2, rounding), -zero)


def base_step(x: Tensor, m: Tensor, sigma: Tensor) -> Tensor:
    """x⁺ = x - m / σ: the base optimizer, for a parameter that carries no u."""
    zero, _ = _constants(x.dtype, x.device)
    stepped: Tensor = prox.base_step(x, m, sigma, zero)
    return stepped


def _constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return _new_constants(dtype, device)  # the graph's own
    return _kept_constants(dtype, device)


def _new_constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.zeros((), dtype=dtype, device=device), torch.ones((), dtype=dtype, device=device)


_kept_constants = lru_cache(maxsize=32)(_new_constants)
