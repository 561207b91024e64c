"""The group lasso (Yuan and Lin, 2006), the paper's penalty."""

from typing import Any

from sparsegroup.penalties.penalty import Penalty
from sparsegroup.rules.rule import xp


class Lasso(Penalty):
    """The group lasso: k = max(1 - τ / ‖s‖, 0). It minimises P(r) = τ r, and shrinks large groups too."""

    name = "lasso"

    @staticmethod
    def shrinkage(norm: Any, tau: Any, zero: Any, one: Any) -> Any:
        """q = min(τ / ‖s‖, 1)."""
        return xp.where(norm > tau, tau / norm, one + zero * norm)
