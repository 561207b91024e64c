"""SGD with the paper's step size α / √t (Table 1)."""

from typing import Any

from sparsegroup.rules.hyperparameter import learning_rate
from sparsegroup.rules.rule import Rule


def scalars(t: int, lr: float) -> tuple[float, ...]:
    return (t**0.5 / lr,)


def update(g: Any, inverse_lr: Any) -> tuple[Any, ...]:
    """m_t = g_t, σ_t = √t / α."""
    return g, g - g + inverse_lr


SGD = Rule("sgd", scalars, update, state={}, hyperparameters=(learning_rate(1e-3),))
"""SGD with the paper's step size α / √t: m = g, σ = √t / α. No state."""
