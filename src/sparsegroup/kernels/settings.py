"""What the groups of a step share, whatever carries it out."""

from dataclasses import dataclass

from sparsegroup import prox


@dataclass(frozen=True)
class Regularizer:
    """λ1, λ21, λ2 ≥ 0 and the shape of the group threshold, as the optimizers' arguments of the same names."""

    l1: float = 0.0
    l21: float = 0.0
    l2: float = 0.0
    norm: prox.Norm = "s"
    penalty: prox.Penalty = "lasso"
    mcp_gamma: float = 3.0

    @property
    def active(self) -> bool:
        """Whether any λ is positive."""
        return self.l1 > 0 or self.l21 > 0 or self.l2 > 0

    @property
    def tau(self) -> float:
        """λ21, scaled to the norm: times √d, the threshold of a group of d elements."""
        return self.l21 * prox.TAU_SCALE[self.norm]

    @property
    def mcp_ratio(self) -> float:
        """γ/(γ-1)."""
        return self.mcp_gamma / (self.mcp_gamma - 1)

    @property
    def keep(self) -> float:
        """1 where an element with σ + 2 λ2 = 0 stays in proportion to its group, 0 where λ1 makes it 0."""
        return 1.0 if self.l1 == 0 else 0.0


@dataclass(frozen=True)
class Settings:
    """What the groups of a launch share.

    Attributes:
        regularizer: λ1, λ21, λ2, norm and penalty.
        initial: Of the rule's states, in their order.
        sigma_0: From `rule.host_sigma_0`, for a rule that has it.
        frozen: The learning rate is 0: only the states advance.
    """

    regularizer: Regularizer
    initial: tuple[float, ...]
    sigma_0: float | None
    frozen: bool
