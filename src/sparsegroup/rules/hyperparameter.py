"""Hyperparameters of a rule: names, defaults, and their valid values."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from numbers import Real
from typing import Any, Final


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low`, if `includes_low`, up to `high`, excluded; `words` may replace them in messages."""

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
        """Raise TypeError or ValueError, from `what` to `where`, unless `value` is a number in the range."""
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
        """Raise ValueError, from `what` to `where`, unless `value` is valid."""
        if not self.holds(value):
            raise ValueError(f"{what} must be {self.words}, got {value!r}{f' ({where})' if where else ''}")


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


REQUIRED: Final = Parameter.empty
"""The default of a hyperparameter that must be given."""


@dataclass(frozen=True)
class Hyperparameter:
    """An argument of a rule, a number or of any other type.

    Args:
        name: An argument of the optimizer's constructor, a key of its param groups, and what `Rule.scalars` reads.
        default: Its default, or `REQUIRED`.
        valid: Its valid values.

    Raises:
        ValueError, TypeError: The default is not valid.

    Examples:
        >>> from sparsegroup.rules import Hyperparameter, from_to
        >>> Hyperparameter("alpha", 0.99, from_to(0, 1)).check(5, "param group 0")
        Traceback (most recent call last):
        ValueError: alpha must be in [0, 1), got 5 (param group 0)
    """

    name: str
    default: Any
    valid: Range | Described

    def __post_init__(self) -> None:
        if self.default is not REQUIRED:
            self.check(self.default, "its default")

    def check(self, value: object, where: str) -> None:
        """Raise ValueError or TypeError, with the name, the value and `where`, unless `value` is valid."""
        self.valid.check(self.name, value, where)


def learning_rate(default: Any = REQUIRED) -> Hyperparameter:
    """The learning rate "lr", which every rule has; a number or a tensor of one element."""
    return Hyperparameter("lr", default, Range(0, words="finite and >= 0"))


WEIGHT_DECAY = Hyperparameter("weight_decay", 0.0, at_least(0))
"""Added to the gradient as `weight_decay * x`. Every rule has it."""
