"""What a penalty is to this library: how much of a group is shrunk, as a function of its norm."""

from collections.abc import Callable
from typing import Any, ClassVar

from sparsegroup.penalties.part import ThresholdPart


class Penalty(ThresholdPart, kind="penalty"):
    """The shape of the group threshold: a group of norm ‖s‖ keeps the share k = 1 - q of what it had without λ21.

    A subclass sets `name` and `shrinkage`; it is a frozen dataclass whose fields, declared by `parameter`, are the
    penalty's parameters. See "How to add a penalty".

    Attributes:
        name: Lower-case name: `penalty="…"` is the penalty at its default parameters.
        shrinkage: A static method `shrinkage(norm, tau, zero, one, *scalars) -> q`, element-wise over groups, with
            τ = √d λ21 > 0 and q in [0, 1], which must be 1 where ‖s‖ ≤ τ. As the `update` of a rule it takes its array
            functions from the global `xp`, holds no numeric literals, and lets a NaN through.

    Examples:
        >>> from sparsegroup.penalties import MCP, Penalty
        >>> Penalty.of("mcp"), MCP(gamma=2.5).plain
        (MCP(gamma=3.0), {'name': 'mcp', 'gamma': 2.5})
    """

    shrinkage: ClassVar[Callable[..., Any]]

    def scalars(self) -> tuple[float, ...]:
        """What `shrinkage` is given of the parameters, computed on the host in float64."""
        return ()
