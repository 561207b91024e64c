"""What the groups of a step share, whatever carries it out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparsegroup.penalties import Lasso, Norm, Penalty, PracticalNorm


@dataclass(frozen=True)
class Regularizer:
    """λ1, λ21, λ2 ≥ 0 and the shape of the group threshold.

    Attributes:
        l1: λ1.
        l21: λ21.
        l2: λ2.
        norm: What the threshold compares.
        penalty: The threshold's shape.
    """

    l1: float = 0.0
    l21: float = 0.0
    l2: float = 0.0
    norm: Norm = field(default_factory=PracticalNorm)
    penalty: Penalty = field(default_factory=Lasso)

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> "Regularizer":
        """The regularizer of a param group, whose norm and penalty may be names."""
        return cls(group["l1"], group["l21"], group["l2"], Norm.of(group["norm"]), Penalty.of(group["penalty"]))

    @property
    def active(self) -> bool:
        """Whether any λ is positive."""
        return self.l1 > 0 or self.l2 > 0 or self.l21 > 0

    @property
    def tau(self) -> float:
        """λ21, scaled to the norm: times √d, the threshold of a group of d elements."""
        return self.l21 * self.norm.tau_scale

    @property
    def keep(self) -> float:
        """1 where an element with σ + 2 λ2 = 0 stays in proportion to its group, 0 where λ1 makes it 0."""
        return 1.0 if self.l1 == 0 else 0.0


@dataclass(frozen=True)
class StepConstants:
    """What the groups of a launch share.

    Attributes:
        regularizer: λ1, λ21, λ2, norm and penalty.
        initial: The rule's states before the first gradient, in their order.
        sigma_0: From `rule.host_sigma_0`, for a rule that has it.
        frozen: Whether the learning rate is 0: then only the states advance.
    """

    regularizer: Regularizer
    initial: tuple[float, ...]
    sigma_0: float | None
    frozen: bool
