"""AdaHessian (Yao et al., AAAI 2021): Adam with the squared diagonal of the Hessian in place of g² (Table 1)."""

from typing import Any

from sparsegroup.rules.adam import scalars
from sparsegroup.rules.rule import Rule, xp


def update(
    g: Any,
    hessian: Any,
    exp_avg: Any,
    exp_avg_sq: Any,
    beta1: Any,
    one_minus_beta1: Any,
    beta2: Any,
    one_minus_beta2: Any,
    correction1: Any,
    correction2: Any,
    eps: Any,
    inverse_lr: Any,
) -> tuple[Any, ...]:
    """m_t as Adam, V̂_t = β2 V̂_{t-1} + (1 - β2) D_t² with D_t the Hessian's (averaged) diagonal."""
    exp_avg = beta1 * exp_avg + one_minus_beta1 * g
    exp_avg_sq = beta2 * exp_avg_sq + one_minus_beta2 * hessian * hessian
    sigma = (xp.sqrt(exp_avg_sq * correction2) + eps) * inverse_lr
    return exp_avg * correction1, sigma, exp_avg, exp_avg_sq


ADAHESSIAN = Rule("adahessian", scalars, update, state={"exp_avg": 0.0, "exp_avg_sq": 0.0}, second_order=True)
