"""Group SCAD (Fan and Li, 2001; Breheny and Huang, 2015): a penalty added from outside the package."""

from typing import Any

from sparsegroup.penalties import Penalty, parameter
from sparsegroup.rules import xp
from sparsegroup.rules.hyperparameter import above


class SCAD(Penalty):
    """Smoothly clipped absolute deviation of a group: the lasso up to ‖s‖ = 2 τ, then less and less, 0 from a τ on.

    With c = σ + 2 λ2 and r = ‖x‖ it minimises P with P'(r) = τ up to r = τ/c, (a τ - c r)/(a - 1) up to a τ/c, then 0.
    """

    name = "scad"
    a: float = parameter(3.7, above(2))

    def scalars(self) -> tuple[float, ...]:
        return 2.0, self.a, 1 / (self.a - 2)

    @staticmethod
    def shrinkage(norm: Any, tau: Any, zero: Any, one: Any, two: Any, a: Any, slope: Any) -> Any:
        """q = τ / ‖s‖ up to 2 τ, (a τ - ‖s‖) / ((a - 2) ‖s‖) up to a τ, then 0."""
        lasso = xp.where(norm > tau, tau / norm, one + zero * norm)
        clipped = xp.where(norm > a * tau, zero, slope * (a * tau - norm) / norm)
        return xp.where(norm > two * tau, clipped, lasso)
