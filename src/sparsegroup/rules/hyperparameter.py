"""A hyperparameter as a rule declares it: constructors, checks, settings and docs follow."""

from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Final

from sparsegroup.rules.ranges import Described, Range, at_least

REQUIRED: Final = Parameter.empty
"""Stands for the default of a hyperparameter that has none."""


@dataclass(frozen=True)
class Hyperparameter:
    """An argument of a rule, a number or of any other type.

    Args:
        name: An argument of the optimizer's constructor, a key of its param groups, and what `Rule.scalars` reads.
        default: Its default, or `REQUIRED`.
        valid: Its valid values.
        keyword_only: Whether the constructor takes it only by name.

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
    keyword_only: bool = False

    def __post_init__(self) -> None:
        if self.default is not REQUIRED:
            self.check(self.default, "its default")

    def check(self, value: object, where: str) -> None:
        """Raise ValueError or TypeError, with the name, the value and `where`, unless `value` is valid."""
        self.valid.check(self.name, value, where)

    @property
    def argument(self) -> Parameter:
        """The argument of a constructor."""
        kind = Parameter.KEYWORD_ONLY if self.keyword_only else Parameter.POSITIONAL_OR_KEYWORD
        return Parameter(self.name, kind, default=self.default)


def learning_rate(default: Any = REQUIRED) -> Hyperparameter:
    """The learning rate "lr", which every rule has; a number or a tensor of one element."""
    return Hyperparameter("lr", default, Range(0, words="finite and >= 0"))


WEIGHT_DECAY = Hyperparameter("weight_decay", 0.0, at_least(0))
"""Added to the gradient as `weight_decay * x`. Every rule has it, keyword-only unless the rule declares it."""
