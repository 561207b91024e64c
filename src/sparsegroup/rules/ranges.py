"""The valid values of hyperparameters and of the parameters of penalties."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` (excluded unless `includes_low`) up to `high`, which is excluded.

    `words`, if any, replace the interval in messages.
    """

    low: float
    high: float = math.inf
    includes_low: bool = True
    words: str = ""

    def __contains__(self, value: float) -> bool:
        return (self.low <= value if self.includes_low else self.low < value) and value < self.high

    def __str__(self) -> str:
        if self.words:
            return self.words
        if self.high < math.inf:
            return f"in {'[' if self.includes_low else '('}{self.low:g}, {self.high:g})"
        return f"{'>=' if self.includes_low else '>'} {self.low:g}"

    def check(self, what: str, value: object, where: str = "") -> None:
        """Raise TypeError unless `value` is a number, ValueError unless it is in the range.

        The message begins with `what` and ends with `where`.
        """
        place = f" ({where})" if where else ""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{what} must be a number, got {value!r}{place}")
        if isinstance(value, int) and abs(value) >> 63:  # more than kernels take as an integer
            raise ValueError(f"{what} must be {self}, and below 2⁶³, got an int of {value.bit_length()} bits{place}")
        if float(value) not in self:
            raise ValueError(f"{what} must be {self}, got {float(value):g}{place}")


@dataclass(frozen=True)
class Described:
    """Values that are not single numbers: `words` as in "two numbers in [0, 1)"; `holds` whether a value is valid."""

    words: str
    holds: Callable[[Any], bool]

    def __str__(self) -> str:
        return self.words

    def check(self, what: str, value: object, where: str = "") -> None:
        """Raise ValueError unless `value` is valid; the message begins with `what` and ends with `where`."""
        if not self.holds(value):
            raise ValueError(f"{what} must be {self}, got {value!r}{f' ({where})' if where else ''}")


FLAG = Described("True or False", lambda value: isinstance(value, bool))
"""True or False."""


def at_least(low: float) -> Range:
    """Finite numbers ≥ `low`."""
    return Range(low)


def above(low: float) -> Range:
    """Finite numbers > `low`."""
    return Range(low, includes_low=False)


def from_to(low: float, high: float) -> Range:
    """Numbers in [`low`, `high`)."""
    return Range(low, high)


def pair(valid: Range) -> Described:
    """Tuples or lists of two numbers of a range."""

    def is_pair(value: Any) -> bool:
        if not isinstance(value, tuple | list) or len(value) != 2:
            return False
        return all(isinstance(one, Real) and float(one) in valid for one in value)

    return Described(f"two numbers {valid}", is_pair)
