"""One setting that can be searched: its values, when it has a say, and how Optuna draws it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, Self

Settings = Mapping[str, Any]
"""Dotted key → value."""

_DIGITS = 3
"""Significant digits of what is drawn from a range: as many as anybody wants to copy."""


class Draws(Protocol):
    """What an `optuna.Trial` does for a parameter."""

    def suggest_categorical(self, name: str, choices: list[Any]) -> Any:
        """One of the choices."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool) -> int:
        """A whole number in [low, high]."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        """A number in [low, high]."""


@dataclass(frozen=True)
class Condition:
    """A parameter has a say only where another setting has one of these values.

    Attributes:
        key: The other setting; it stands before the parameter in a space.
        values: Its values.
    """

    key: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key} is {', '.join(self.values)}"


@dataclass(frozen=True, kw_only=True)
class Parameter(ABC):
    """A setting that is searched.

    Attributes:
        key: Its dotted key.
        only: When it has a say; None: always. One key may have several parameters, for cases that exclude each other.
        needs_numbers: Whether it is for logs with numeric columns alone.
        default: Its value in the settings that the search begins with, as it is drawn; None where it has no say there.
    """

    key: str
    only: Condition | None = None
    needs_numbers: bool = False
    default: Any = None

    @property
    def name(self) -> str:
        """What Optuna calls it: its key, behind it the case that it is for."""
        return self.key if self.only is None else f"{self.key} ({'|'.join(self.only.values)})"

    def has_say(self, settings: Settings) -> bool:
        """Whether it counts beside these settings."""
        return self.only is None or settings[self.only.key] in self.only.values

    def as_plain(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return {"kind": type(self).__name__.lower(), "name": self.name, **asdict(self)}

    @abstractmethod
    def beginning_at(self, default: Any) -> Self:
        """This parameter with the value that the search begins with, which is made one of its values."""

    @abstractmethod
    def draw(self, trial: Draws, settings: Settings) -> Any:
        """The setting's value in a trial, beside those that have been drawn before."""

    @abstractmethod
    def drawn(self) -> Any:
        """What a trial has to draw so that the value is `default`."""

    @abstractmethod
    def words(self) -> str:
        """Its values, for people."""


@dataclass(frozen=True, kw_only=True)
class Choice(Parameter):
    """One of some values.

    Attributes:
        values: The values; None is what the setting is where nobody says it.
        times_default: Further ones, as multiples of the default: whole numbers, ≥ 1.
    """

    values: tuple[Any, ...] = ()
    times_default: tuple[float, ...] = ()

    def beginning_at(self, default: Any) -> Self:
        """See `Parameter.beginning_at`."""
        multiples = (max(1, round(factor * default)) for factor in self.times_default)
        values = tuple(dict.fromkeys((*self.values, *multiples)))
        return replace(self, values=values if default in values else (default, *values), default=default)

    def draw(self, trial: Draws, settings: Settings) -> Any:
        """See `Parameter.draw`."""
        texts = [_plain(value) for value in self.values]
        return self.values[texts.index(trial.suggest_categorical(self.name, texts))]

    def drawn(self) -> Any:
        """See `Parameter.drawn`."""
        return _plain(self.default)

    def words(self) -> str:
        """See `Parameter.words`."""
        return ", ".join(shown_value(value) for value in self.values)


@dataclass(frozen=True, kw_only=True)
class Span(Parameter):
    """A number between two.

    Attributes:
        low, high: Both may be drawn.
        log: Whether its logarithm is uniform, and not it itself.
        whole: Whether it is a whole number.
        times: Key of a setting, before it in a space, that it is a multiple of.
    """

    low: float
    high: float
    log: bool = True
    whole: bool = False
    times: str | None = None

    def beginning_at(self, default: Any) -> Self:
        """See `Parameter.beginning_at`."""
        return replace(self, low=min(self.low, default), high=max(self.high, default), default=default)

    def draw(self, trial: Draws, settings: Settings) -> Any:
        """See `Parameter.draw`."""
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        drawn = trial.suggest_float(self.name, self.low, self.high, log=self.log)
        value = drawn if self.times is None else drawn * settings[self.times]
        return float(f"{value:.{_DIGITS}g}")

    def drawn(self) -> Any:
        """See `Parameter.drawn`."""
        return self.default

    def words(self) -> str:
        """See `Parameter.words`."""
        of = "" if self.times is None else f" × {self.times}"
        return f"{self.low:g} … {self.high:g}{of}{', log-uniform' if self.log else ''}"


def shown_value(value: Any) -> str:
    """A setting's value for people: `None` as "its default", sizes of layers with × between."""
    if value is None:
        return "its default"
    if isinstance(value, tuple | list):
        return "×".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    """A value as Optuna's storage takes it."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else value
