"""The closed form of the sparse group lasso (Theorem 1, Algorithm 1), in its dual-residual form.

With m_t, σ_t from the base optimizer, c = σ + 2 λ2, and u the dual residual that a group carries:

    z  = u + m - σ x
    s  = -sign(z) max(|z| - λ1, 0)                       eq:s_t
    k  = shrink(‖weigh(s)‖₂)                             per group, τ = √d λ21
    x⁺ = k s / c                                         eq:ada-group-lasso
    u⁺ = z + σ x̂                                         x̂: x⁺ as stored

All functions are element-wise, take their array functions from the global `xp` and hold no numeric literals, as
the rules do: `sparsegroup.rules.bind` makes the same source serve torch, NumPy and Triton. `zero` and `one` are
0 and 1 in the compute dtype.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from sparsegroup.rules.rule import xp

Norm = Literal["s", "s_tilde", "metric"]
Penalty = Literal["lasso", "mcp", "hard"]


def base_step(x: Any, m: Any, sigma: Any, zero: Any) -> Any:
    """x⁺ = x - m / σ, the base optimizer (Theorem 2); an element with σ = 0 stays."""
    return x - xp.where(sigma > zero, m / sigma, zero)


def residual(x: Any, u: Any, m: Any, sigma: Any) -> Any:
    """z_t = u + m - σ x, which equals Algorithm 1's z_{t-1} + m_t - (σ_t - σ_{t-1}) x_t."""
    return u + m - sigma * x


def soft_threshold(z: Any, l1: Any, zero: Any) -> Any:
    """S = -sign(z) max(|z| - λ1, 0) (eq:s_t)."""
    return xp.where(z > l1, l1 - z, xp.where(z < -l1, -l1 - z, zero))


def weigh_s(s: Any, c: Any, zero: Any) -> Any:
    """‖s‖: the practical Algorithm 1."""
    return s


def weigh_s_tilde(s: Any, c: Any, zero: Any) -> Any:
    """‖s̃‖ / 2 with s̃ = (σ/2 + λ2)⁻¹ s, as eq:st_2 is printed; an element with c = 0 counts 0."""
    return xp.where(c > zero, s / c, zero)


def weigh_metric(s: Any, c: Any, zero: Any) -> Any:
    """‖(σ/2 + λ2)^(-1/2) s‖ / √2, which makes x⁺ the minimizer of eq:ada-sgl; an element with c = 0 counts 0."""
    return xp.where(c > zero, s / xp.sqrt(c), zero)


def shrink_lasso(norm: Any, tau: Any, mcp_ratio: Any, zero: Any, one: Any) -> Any:
    """K = max(1 - τ / ‖s‖, 0), and 0 where ‖s‖ = 0; τ > 0."""
    return xp.where(norm > tau, (norm - tau) / norm, zero)


def shrink_mcp(norm: Any, tau: Any, mcp_ratio: Any, zero: Any, one: Any) -> Any:
    """K = min(γ/(γ-1) max(1 - τ / ‖s‖, 0), 1): group MCP (Breheny and Huang, 2009); `mcp_ratio` is γ/(γ-1)."""
    k = xp.where(norm > tau, mcp_ratio * (norm - tau) / norm, zero)
    return xp.where(k < one, k, one)


def shrink_hard(norm: Any, tau: Any, mcp_ratio: Any, zero: Any, one: Any) -> Any:
    """K = 1 where ‖s‖ > τ, else 0."""
    return xp.where(norm > tau, one, zero)


def solution(x: Any, s: Any, k: Any, c: Any, keep: Any, zero: Any) -> Any:
    """x⁺ = k s / c. Where c = 0, k x if λ1 = 0 (`keep` = 1), else 0 (`keep` = 0)."""
    return xp.where(c > zero, k * s / c, keep * k * x)


def next_residual(z: Any, sigma: Any, x: Any) -> Any:
    """u⁺ = z + σ x̂ with x̂ the parameter *as stored*, so that its rounding is fed back."""
    return z + sigma * x


WEIGH: Mapping[Norm, Callable[..., Any]] = {"s": weigh_s, "s_tilde": weigh_s_tilde, "metric": weigh_metric}
SHRINK: Mapping[Penalty, Callable[..., Any]] = {"lasso": shrink_lasso, "mcp": shrink_mcp, "hard": shrink_hard}

TAU_SCALE: Mapping[Norm, float] = {"s": 1.0, "s_tilde": 0.5, "metric": math.sqrt(0.5)}
"""`weigh` leaves out a constant factor of the norm; τ is divided by the same factor."""
