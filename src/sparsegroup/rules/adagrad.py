"""Adagrad (Duchi et al., JMLR 2011), as `torch.optim.Adagrad` (Table 1, Algorithm 3), and its row-wise variant.

The variant has one accumulator per group, as FBGEMM's EXACT_ROWWISE_ADAGRAD and `torchrec.optim.RowWiseAdagrad`.
"""

from typing import Any

from sparsegroup.rules.hyperparameter import WEIGHT_DECAY, Hyperparameter, at_least, learning_rate
from sparsegroup.rules.rule import Rule, xp


def scalars(t: int, lr: float, lr_decay: float, eps: float) -> tuple[float, ...]:
    return eps, (1 + (t - 1) * lr_decay) / lr


def update(g: Any, sum: Any, eps: Any, inverse_lr: Any) -> tuple[Any, ...]:
    """m_t = g_t, σ_t = (√(a₀ + Σ g²) + ε) / α."""
    sum = sum + g * g
    return g, (xp.sqrt(sum) + eps) * inverse_lr, sum


def update_rowwise(g: Any, mean_square: Any, group_sum: Any, eps: Any, inverse_lr: Any) -> tuple[Any, ...]:
    """m_t = g_t, σ_t = (√(a₀ + Σ ‖g‖² / d) + ε) / α, with the g of a group of d elements."""
    group_sum = group_sum + mean_square
    return g, (xp.sqrt(group_sum) + eps) * inverse_lr, group_sum


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

ROWWISE_ADAGRAD = Rule(
    "rowwise_adagrad",
    scalars,
    update_rowwise,
    state={"group_sum": "initial_accumulator_value"},
    hyperparameters=ADAGRAD.hyperparameters,
    mean_square=True,
)
"""Row-wise Adagrad: m = g, σ = (√(a₀ + Σ ‖g‖² / d) + ε) / α. State `group_sum`: a₀ + Σ ‖g‖² / d, one per group."""
