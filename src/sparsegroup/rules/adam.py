"""Adam (Kingma and Ba, ICLR 2015) and AMSGrad (Reddi et al., ICLR 2018), as `torch.optim.Adam` (Table 1, Algorithm 2).

Table 1 prints one recursion for V_t; AMSGrad's running maximum is stored separately here, as in torch and its paper.
"""

from typing import Any

from sparsegroup.rules.hyperparameter import WEIGHT_DECAY, Hyperparameter, at_least, from_to, learning_rate, pair
from sparsegroup.rules.rule import Rule, xp


def scalars(t: int, lr: float, betas: tuple[float, float], eps: float) -> tuple[float, ...]:
    beta1, beta2 = betas
    return beta1, 1 - beta1, beta2, 1 - beta2, 1 / (1 - beta1**t), 1 / (1 - beta2**t), eps, 1 / lr


def update(
    g: Any, exp_avg: Any, exp_avg_sq: Any, beta1: Any, one_minus_beta1: Any, beta2: Any, one_minus_beta2: Any,
    correction1: Any, correction2: Any, eps: Any, inverse_lr: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """m_t = m̂_t / (1 - β1^t), σ_t = (√(V̂_t / (1 - β2^t)) + ε) / α; ε is constant, as in torch."""
    exp_avg = beta1 * exp_avg + one_minus_beta1 * g
    exp_avg_sq = beta2 * exp_avg_sq + one_minus_beta2 * g * g
    sigma = (xp.sqrt(exp_avg_sq * correction2) + eps) * inverse_lr
    return exp_avg * correction1, sigma, exp_avg, exp_avg_sq


def update_amsgrad(
    g: Any, exp_avg: Any, exp_avg_sq: Any, max_exp_avg_sq: Any, beta1: Any, one_minus_beta1: Any,
    beta2: Any, one_minus_beta2: Any, correction1: Any, correction2: Any, eps: Any, inverse_lr: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """As Adam, with max_{s ≤ t} V̂_s in place of V̂_t."""
    exp_avg = beta1 * exp_avg + one_minus_beta1 * g
    exp_avg_sq = beta2 * exp_avg_sq + one_minus_beta2 * g * g
    max_exp_avg_sq = xp.maximum(max_exp_avg_sq, exp_avg_sq)
    sigma = (xp.sqrt(max_exp_avg_sq * correction2) + eps) * inverse_lr
    return exp_avg * correction1, sigma, exp_avg, exp_avg_sq, max_exp_avg_sq


ADAM = Rule(
    "adam",
    scalars,
    update,
    state={"exp_avg": 0.0, "exp_avg_sq": 0.0},
    hyperparameters=(
        learning_rate(1e-3),
        Hyperparameter("betas", (0.9, 0.999), pair(from_to(0, 1))),
        Hyperparameter("eps", 1e-8, at_least(0)),
        WEIGHT_DECAY,
    ),
)
"""Adam: m and σ = (√V + ε) / α of bias-corrected moments, as in Algorithm 2, with ε constant. State: both moments."""

AMSGRAD = Rule(
    "amsgrad",
    scalars,
    update_amsgrad,
    state={"exp_avg": 0.0, "exp_avg_sq": 0.0, "max_exp_avg_sq": 0.0},
    hyperparameters=ADAM.hyperparameters,
)
"""AMSGrad: `ADAM`, with the running maximum of the second moment in σ. State: both moments and the maximum."""
