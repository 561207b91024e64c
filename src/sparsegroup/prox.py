"""The closed form of the sparse group lasso (Theorem 1, Algorithm 1), as a step from x.

With m_t and σ_t from the base optimizer, c = σ + 2 λ2, and u the dual residual that a group carries:

    z  = u + m - σ x
    s  = -sign(z) max(|z| - λ1, 0)                       eq. 9
    r  = z + s                                           z, clipped to ±λ1
    q  = shrinkage(‖weigh(s)‖₂)                          per group, τ = √d λ21; k = 1 - q (`sparsegroup.penalties`)
    y  = k s / c                                         eq. 8
    x⁺ = x - (u + m - r + q s + 2 λ2 x) / c              = y
    u⁺ = r - q s - 2 λ2 y + σ (x̂ - x⁺)                   = z + σ x̂; x̂: x⁺ as stored

The last two lines are the algorithm's y and z + σ x̂ with the large terms cancelled by hand: σ x is 1/lr times
as large as what remains, and its rounding, kept in u, would return as a jump of x when the learning rate rises again.

All functions are element-wise, take their array functions from the global `xp` and hold no numeric literals, as
the rules do: `sparsegroup.rules.bind` makes the same source serve torch, NumPy and Triton. `zero` and `one` are
0 and 1 in the compute dtype. A NaN goes through (`zero * z` is NaN where z is): it must show, not become a zero.
"""

from typing import Any

from sparsegroup.rules.rule import xp


def base_step(x: Any, m: Any, sigma: Any, zero: Any) -> Any:
    """x⁺ = x - m / σ, the base optimizer (Theorem 2); an element with σ = 0 stays."""
    return x - xp.where(sigma == zero, zero, m / sigma)


def soft_threshold(z: Any, l1: Any, zero: Any) -> Any:
    """s = -sign(z) max(|z| - λ1, 0) (eq. 9)."""
    return xp.where(z > l1, l1 - z, xp.where(z < -l1, -l1 - z, zero * z))


def clip(z: Any, l1: Any) -> Any:
    """r = z clipped to ±λ1: z + s without its rounding."""
    return xp.where(z > l1, l1, xp.where(z < -l1, -l1, z))


def closed_form(x: Any, s: Any, q: Any, c: Any, keep: Any, zero: Any, one: Any) -> Any:
    """y = k s / c (eq. 8). Where c = 0, k x if λ1 = 0 (`keep` = 1), else 0 (`keep` = 0)."""
    k = one - q
    return xp.where(c == zero, keep * k * x, k * s / c)


def solution(x: Any, u: Any, m: Any, r: Any, s: Any, q: Any, y: Any, two_l2: Any, c: Any, zero: Any) -> Any:
    """x⁺ as a step from x, which rounds no term larger than x; y itself where that is 0, or c is."""
    stepped = x - (u + m - r + q * s + two_l2 * x) / c
    return xp.where(c == zero, y, xp.where(y == zero, zero, stepped))


def next_residual(r: Any, s: Any, q: Any, y: Any, two_l2: Any, rounding: Any) -> Any:
    """u⁺; `rounding` is σ (x̂ - x⁺), which feeds back what storing x⁺ in low precision loses, or 0.

    It is stored by way of `sparsegroup.kernels.rounding`.
    """
    return r - q * s - two_l2 * y + rounding
