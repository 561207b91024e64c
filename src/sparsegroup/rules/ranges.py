"""What the numbers may be that rules and penalties are declared with."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` up to `high`, which is not among them.

    Attributes:
        low: The lower end.
        high: The upper end.
        includes_low: Whether `low` is allowed.
    """

    low: float
    high: float = math.inf
    includes_low: bool = True

    def __contains__(self, value: float) -> bool:
        return (self.low <= value if self.includes_low else self.low < value) and value < self.high

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"in {'[' if self.includes_low else '('}{self.low:g}, {self.high:g})"
        return f"{'>=' if self.includes_low else '>'} {self.low:g}"


def at_least(low: float) -> Range:
    """Finite numbers ≥ `low`."""
    return Range(low)


def above(low: float) -> Range:
    """Finite numbers > `low`."""
    return Range(low, includes_low=False)


def from_to(low: float, high: float) -> Range:
    """Numbers in [`low`, `high`)."""
    return Range(low, high)
