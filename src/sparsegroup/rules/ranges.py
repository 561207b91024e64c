"""The values that the hyperparameters of rules, and the parameters of penalties, may have."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol


class ValidValues(Protocol):
    """A set of values; its `str` says in words, after "must be", which they are."""

    def check(self, what: str, value: object, where: str) -> None:
        """Raise ValueError or TypeError unless `value` is one of them; `what` begins the message, `where` ends it."""
        ...


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` up to `high`, which is not among them.

    Attributes:
        low: The lower end.
        high: The upper end.
        includes_low: Whether `low` is allowed.
        words: In messages, instead of the interval.
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
        """Raise TypeError unless `value` is a number, ValueError unless it is in the range; see `ValidValues`."""
        place = f" ({where})" if where else ""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{what} must be a number, got {value!r}{place}")
        if isinstance(value, int) and abs(value) >> 63:  # more than kernels take as an integer
            raise ValueError(f"{what} must be {self}, and below 2⁶³, got an int of {value.bit_length()} bits{place}")
        if float(value) not in self:
            raise ValueError(f"{what} must be {self}, got {float(value):g}{place}")


@dataclass(frozen=True)
class Described:
    """Values that are no single numbers.

    Attributes:
        words: Which they are, as in "two numbers in [0, 1)".
        holds: Whether a value, of any type, is one of them.
    """

    words: str
    holds: Callable[[Any], bool]

    def __str__(self) -> str:
        return self.words

    def check(self, what: str, value: object, where: str = "") -> None:
        """Raise ValueError unless `value` is one of them; see `ValidValues`."""
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
