"""Row-wise Adagrad, one accumulator per group: FBGEMM's EXACT_ROWWISE_ADAGRAD, `torchrec.optim.RowWiseAdagrad`."""

from typing import Any

from sparsegroup.rules.adagrad import ADAGRAD, scalars
from sparsegroup.rules.rule import Rule, xp


def update(g: Any, mean_square: Any, group_sum: Any, eps: Any, inverse_lr: Any) -> tuple[Any, ...]:
    """m_t = g_t, σ_t = (√(a₀ + Σ ‖g‖² / d) + ε) / α, with the g of a group of d elements."""
    group_sum = group_sum + mean_square
    return g, (xp.sqrt(group_sum) + eps) * inverse_lr, group_sum


ROWWISE_ADAGRAD = Rule(
    "rowwise_adagrad",
    scalars,
    update,
    state={"group_sum": "initial_accumulator_value"},
    hyperparameters=ADAGRAD.hyperparameters,
    mean_square=True,
)
"""Row-wise Adagrad: m = g, σ = (√(a₀ + Σ ‖g‖² / d) + ε) / α. State `group_sum`: a₀ + Σ ‖g‖² / d, one per group."""
