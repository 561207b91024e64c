"""The norm of a group that the penalty compares with its threshold; s = -sign(z) max(|z| - λ1, 0), c = σ + 2 λ2."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

from sparsegroup.penalties.penalty import NamedChoice
from sparsegroup.rules.rule import xp


class Norm(NamedChoice, kind="norm"):
    """The norm in the group threshold: ‖weigh(s)‖₂, compared with √d λ21 `tau_scale`.

    Attributes:
        name: `norm="…"`.
        weigh: A static method `weigh(s, c, zero)`, element-wise, in the restricted language of a rule's `update`.
        tau_scale: A constant factor that `weigh` leaves out.
    """

    weigh: ClassVar[Callable[..., Any]]
    tau_scale: ClassVar[float] = 1.0


class PracticalNorm(Norm):
    """‖s‖: the practical Algorithm 1."""

    name = "s"

    @staticmethod
    def weigh(s: Any, c: Any, zero: Any) -> Any:
        """s itself."""
        return s


class PrintedNorm(Norm):
    """‖s̃‖ with s̃ = (σ/2 + λ2)⁻¹ s, as eq. 10 is printed."""

    name = "s_tilde"
    tau_scale = 0.5

    @staticmethod
    def weigh(s: Any, c: Any, zero: Any) -> Any:
        """s̃ / 2; an element with c = 0 counts 0."""
        return xp.where(c == zero, zero, s / c)


class MetricNorm(Norm):
    """‖(σ/2 + λ2)^(-1/2) s‖, which makes x⁺ the minimizer of eq. 6."""

    name = "metric"
    tau_scale = math.sqrt(0.5)

    @staticmethod
    def weigh(s: Any, c: Any, zero: Any) -> Any:
        """(σ/2 + λ2)^(-1/2) s / √2; an element with c = 0 counts 0."""
        return xp.where(c == zero, zero, s / xp.sqrt(c))
