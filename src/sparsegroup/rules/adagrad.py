"""Adagrad (Duchi et al., JMLR 2011), as `torch.optim.Adagrad` (Table 1, Algorithm 3)."""

from typing import Any

from sparsegroup.rules.hyperparameter import WEIGHT_DECAY, Hyperparameter, at_least, learning_rate
from sparsegroup.rules.rule import Rule, xp


def scalars(t: int, lr: float, lr_decay: float, eps: float) -> tuple[float, ...]:
    return eps, (1 + (t - 1) * lr_decay) / lr


def update(g: Any, sum: Any, eps: Any, inverse_lr: Any) -> tuple[Any, ...]:
    """m_t = g_t, σ_t = (√(a₀ + Σ g²) + ε) / α."""
    sum = sum + g * g
    return g, (xp.sqrt(sum) + eps) * inverse_lr, sum


ADAGRAD = Rule(
    "adagrad",
    scalars,
    update,
    state={"sum": "initial_accumulator_value"},
    hyperparameters=(
        learning_rate(1e-2),
        Hyperparameter("lr_decay", 0.0, at_least(0)),
        WEIGHT_DECAY,
        Hyperparameter("initial_accumulator_value", 0.0, at_least(0)),
        Hyperparameter("eps", 1e-10, at_least(0)),
    ),
)
"""Adagrad: m = g, σ = (√(a₀ + Σ g²) + ε) / α, as in Algorithm 3. State `sum`: a₀ + Σ g²."""
