"""SGD with the paper's step size α / √t, and with heavy-ball or Nesterov momentum (Table 1).

Momentum is that of `torch.optim.SGD(momentum=γ)` (Sutskever et al., ICML 2013).
"""

from typing import Any

from sparsegroup.rules.hyperparameter import FLAG, Hyperparameter, at_least, learning_rate
from sparsegroup.rules.rule import Rule


def scalars_sgd(t: int, lr: float) -> tuple[float, ...]:
    return (t**0.5 / lr,)


def update_sgd(g: Any, inverse_lr: Any) -> tuple[Any, ...]:
    """m_t = g_t, σ_t = √t / α."""
    return g, g - g + inverse_lr


SGD = Rule("sgd", scalars_sgd, update_sgd, state={}, hyperparameters=(learning_rate(1e-3),))
"""SGD with the paper's step size α / √t: m = g, σ = √t / α. No state."""


def scalars(lr: float, momentum: float, nesterov: bool) -> tuple[float, ...]:
    of_gradient, of_buffer = (1.0, momentum) if nesterov else (0.0, 1.0)
    return momentum, of_gradient, of_buffer, 1 / lr


def update(
    g: Any, momentum_buffer: Any, momentum: Any, of_gradient: Any, of_buffer: Any, inverse_lr: Any
) -> tuple[Any, ...]:
    """b_t = γ b_{t-1} + g_t, m_t = b_t (Nesterov: g_t + γ b_t), σ_t = 1 / α."""
    momentum_buffer = momentum * momentum_buffer + g
    m = of_gradient * g + of_buffer * momentum_buffer
    return m, g - g + inverse_lr, momentum_buffer


def conflict(momentum: float, nesterov: bool) -> str | None:
    """Without momentum there is nothing to look ahead by."""
    return "nesterov=True needs momentum > 0" if nesterov and not momentum else None


MOMENTUM = Rule(
    "momentum",
    scalars,
    update,
    state={"momentum_buffer": 0.0},
    hyperparameters=(
        learning_rate(1e-3),
        Hyperparameter("momentum", 0.9, at_least(0)),
        Hyperparameter("nesterov", False, FLAG),
    ),
    conflict=conflict,
)
"""SGD with momentum: m is γ m + g, or g + γ m after it with Nesterov; σ = 1 / α. State: `momentum_buffer`."""
