"""The hard threshold, for groups."""

from typing import Any

from sparsegroup.penalties.penalty import Penalty
from sparsegroup.rules.rule import xp


class Hard(Penalty):
    """The hard threshold: k = 1 where ‖s‖ > τ, else 0. With c = σ + 2 λ2 it minimises P(r) = τ²/(2c) for r > 0."""

    name = "hard"

    @staticmethod
    def shrinkage(norm: Any, tau: Any, zero: Any, one: Any) -> Any:
        """q = 0 where ‖s‖ > τ, else 1."""
        return xp.where(norm > tau, zero, one + zero * norm)
