"""RMSProp with sparse group lasso: an optimizer added from outside the package."""

from typing import Any

from sparsegroup import GroupOptimizer, Rule
from sparsegroup.rules import Hyperparameter, at_least, from_to, learning_rate, xp


def scalars(lr: float, alpha: float, eps: float) -> tuple[float, ...]:
    return alpha, 1 - alpha, eps, 1 / lr


def update(g: Any, square_avg: Any, alpha: Any, one_minus_alpha: Any, eps: Any, inverse_lr: Any) -> tuple[Any, ...]:
    """m_t = g_t, σ_t = (√V_t + ε) / α with V_t the running mean of g²."""
    square_avg = alpha * square_avg + one_minus_alpha * g * g
    return g, (xp.sqrt(square_avg) + eps) * inverse_lr, square_avg


class GroupRMSprop(GroupOptimizer):
    rule = Rule(
        "rmsprop",
        scalars,
        update,
        state={"square_avg": 0.0},
        hyperparameters=(
            learning_rate(1e-2),
            Hyperparameter("alpha", 0.99, from_to(0, 1)),
            Hyperparameter("eps", 1e-8, at_least(0)),
        ),
    )
