"""AMSGrad (Reddi et al., ICLR 2018), as `torch.optim.Adam(amsgrad=True)` (Table 1).

Table 1 prints one recursion for V_t; the running maximum is kept apart here, as in torch and in the AMSGrad paper.
"""

from typing import Any

from sparsegroup.rules.adam import ADAM, scalars
from sparsegroup.rules.rule import Rule, xp


def update(
    g: Any, exp_avg: Any, exp_avg_sq: Any, max_exp_avg_sq: Any, beta1: Any, one_minus_beta1: Any,
    beta2: Any, one_minus_beta2: Any, correction1: Any, correction2: Any, eps: Any, inverse_lr: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """As Adam, with max_{s ≤ t} V̂_s in place of V̂_t."""
    exp_avg = beta1 * exp_avg + one_minus_beta1 * g
    exp_avg_sq = beta2 * exp_avg_sq + one_minus_beta2 * g * g
    max_exp_avg_sq = xp.maximum(max_exp_avg_sq, exp_avg_sq)
    sigma = (xp.sqrt(max_exp_avg_sq * correction2) + eps) * inverse_lr
    return exp_avg * correction1, sigma, exp_avg, exp_avg_sq, max_exp_avg_sq


AMSGRAD = Rule(
    "amsgrad",
    scalars,
    update,
    state={"exp_avg": 0.0, "exp_avg_sq": 0.0, "max_exp_avg_sq": 0.0},
    hyperparameters=ADAM.hyperparameters,
)
"""AMSGrad: `ADAM`, with the running maximum of the second moment in σ. State: both moments and the maximum."""
