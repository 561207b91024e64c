"""AdaHessian (Yao et al., AAAI 2021): Adam with the squared diagonal of the Hessian in place of g² (Table 1)."""

from typing import Any

from sparsegroup.rules.adam import scalars
from sparsegroup.rules.hyperparameter import (
    WEIGHT_DECAY,
    Described,
    Hyperparameter,
    at_least,
    from_to,
    learning_rate,
    pair,
)
from sparsegroup.rules.rule import Rule, xp


def update(
    g: Any, hessian: Any, exp_avg: Any, exp_avg_sq: Any, beta1: Any, one_minus_beta1: Any,
    beta2: Any, one_minus_beta2: Any, correction1: Any, correction2: Any, eps: Any, inverse_lr: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """m_t as Adam, V̂_t = β2 V̂_{t-1} + (1 - β2) D_t² with D_t the Hessian's (averaged) diagonal."""
    exp_avg = beta1 * exp_avg + one_minus_beta1 * g
    exp_avg_sq = beta2 * exp_avg_sq + one_minus_beta2 * hessian * hessian
    sigma = (xp.sqrt(exp_avg_sq * correction2) + eps) * inverse_lr
    return exp_avg * correction1, sigma, exp_avg, exp_avg_sq


def are_block_sizes(value: Any) -> bool:
    """Whether these are block sizes of 1-d, 2-d, 3-d and 4-d parameters."""
    if not isinstance(value, tuple | list) or len(value) != 4:
        return False
    return all(isinstance(size, int) and (size == -1 or size > 0) for size in value)


ADAHESSIAN = Rule(
    "adahessian",
    scalars,
    update,
    state={"exp_avg": 0.0, "exp_avg_sq": 0.0},
    hyperparameters=(
        learning_rate(0.15),
        Hyperparameter("betas", (0.9, 0.999), pair(from_to(0, 1))),
        Hyperparameter("eps", 1e-4, at_least(0)),
        WEIGHT_DECAY,
        Hyperparameter(
            "spatial_average_block_size",
            (-1, -1, -1, -1),
            Described("four ints, each -1 or positive", are_block_sizes),
        ),
    ),
    second_order=True,
)
"""AdaHessian: `ADAM`, with the square of the averaged diagonal of the Hessian for g² in the second moment."""
