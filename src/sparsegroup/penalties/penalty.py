"""A penalty: how much of a group is shrunk, as a function of its norm."""

from collections.abc import Callable
from typing import Any, ClassVar

from sparsegroup.penalties.part import NamedChoice


class Penalty(NamedChoice, kind="penalty"):
    """The shape of the group threshold: a group of norm ‖s‖ is multiplied by k = 1 - q.

    A subclass sets `name` and `shrinkage`; it is a frozen dataclass whose fields, declared by `parameter`, are the
    penalty's parameters. See "How to add a penalty".

    Attributes:
        name: Lower-case name: `penalty="…"` is the penalty at its default parameters.
        shrinkage: A static method `shrinkage(norm, tau, zero, one, *scalars) -> q`, element-wise over groups, with
            τ = √d λ21 > 0 and q in [0, 1], which must be 1 where ‖s‖ ≤ τ. Like the `update` of a rule it takes its
            array functions from the global `xp`, has no numeric literals, and lets a NaN through.

    Examples:
        >>> from sparsegroup.penalties import MCP, Penalty
        >>> Penalty.of("mcp"), MCP(gamma=2.5).plain
        (MCP(gamma=3.0), {'name': 'mcp', 'gamma': 2.5})
    """

    shrinkage: ClassVar[Callable[..., Any]]

    def scalars(self) -> tuple[float, ...]:
        """The arguments of `shrinkage` that follow from the parameters, computed on the host in float64."""
        return ()
