"""The shapes of the group threshold: lasso, MCP and hard threshold."""

from typing import Any

from sparsegroup.penalties.penalty import Penalty, parameter
from sparsegroup.rules.hyperparameter import above
from sparsegroup.rules.rule import xp


class Lasso(Penalty):
    """The group lasso: k = max(1 - τ / ‖s‖, 0). It minimises P(r) = τ r, and shrinks large groups too."""

    name = "lasso"

    @staticmethod
    def shrinkage(norm: Any, tau: Any, zero: Any, one: Any) -> Any:
        """q = min(τ / ‖s‖, 1)."""
        return xp.where(norm > tau, tau / norm, one + zero * norm)


class MCP(Penalty):
    """Group MCP: k = min(γ/(γ-1) max(1 - τ / ‖s‖, 0), 1), continuous, and 1 from ‖s‖ = γ τ on.

    With c = σ + 2 λ2 it minimises P(r) = τ r - c r²/(2γ) up to r = γτ/c, the constant γτ²/(2c) from there.

    Attributes:
        gamma: γ > 1. The lasso for γ → ∞, the hard threshold for γ → 1.
    """

    name = "mcp"
    gamma: float = parameter(3.0, above(1))

    def scalars(self) -> tuple[float, ...]:
        """γ/(γ-1)."""
        return (self.gamma / (self.gamma - 1),)

    @staticmethod
    def shrinkage(norm: Any, tau: Any, zero: Any, one: Any, ratio: Any) -> Any:
        """q = max((γ/(γ-1) τ - 1/(γ-1) ‖s‖) / ‖s‖, 0) above τ; `ratio` is γ/(γ-1)."""
        q = xp.where(norm > tau, (ratio * tau - (ratio - one) * norm) / norm, one + zero * norm)
        return xp.where(q < zero, zero, q)


class Hard(Penalty):
    """The hard threshold: k = 1 where ‖s‖ > τ, else 0. With c = σ + 2 λ2 it minimises P(r) = τ²/(2c) for r > 0."""

    name = "hard"

    @staticmethod
    def shrinkage(norm: Any, tau: Any, zero: Any, one: Any) -> Any:
        """q = 0 where ‖s‖ > τ, else 1."""
        return xp.where(norm > tau, zero, one + zero * norm)
