"""FTRL-Proximal (McMahan et al., KDD 2013), as TensorFlow's `Ftrl`: the start x₁ is not charged to z."""

import math
from typing import Any

from sparsegroup.rules.hyperparameter import WEIGHT_DECAY, Hyperparameter, at_least, learning_rate
from sparsegroup.rules.rule import Rule, xp


def scalars(lr: float, beta: float) -> tuple[float, ...]:
    return beta, 1 / lr


def update(g: Any, sum: Any, beta: Any, inverse_lr: Any) -> tuple[Any, ...]:
    """m_t = g_t, σ_t = (√(a₀ + Σ g²) + β) / α."""
    sum = sum + g * g
    return g, (xp.sqrt(sum) + beta) * inverse_lr, sum


def sigma_0(lr: float, beta: float, initial_accumulator_value: float) -> float:
    """σ₀ = (√a₀ + β) / α, so that u₀ = σ₀ x₁."""
    return (math.sqrt(initial_accumulator_value) + beta) * (1 / lr)  # rounded as in `update`: the two must cancel


FTRL = Rule(
    "ftrl",
    scalars,
    update,
    state={"sum": "initial_accumulator_value"},
    hyperparameters=(
        learning_rate(),
        Hyperparameter("beta", 0.0, at_least(0)),
        Hyperparameter("initial_accumulator_value", 0.1, at_least(0)),
        WEIGHT_DECAY,
    ),
    sigma_0=sigma_0,
)
"""FTRL-Proximal: m = g, σ = (√(a₀ + Σ g²) + β) / α, and u begins at σ₀ x₁. State `sum`: a₀ + Σ g²."""
