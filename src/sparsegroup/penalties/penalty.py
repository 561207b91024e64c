"""A group penalty: its parameters, and how much it shrinks a group."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, dataclass_transform

from sparsegroup.rules.hyperparameter import Described, Range


def parameter(default: Any, valid: Range | Described) -> Any:
    """A parameter of a penalty, which is a field of its class: the default, and the valid values."""
    return field(default=default, metadata={"valid": valid})


@dataclass_transform(frozen_default=True, field_specifiers=(parameter,))
class NamedChoice:
    """A penalty or a norm. Its fields are its parameters, and defining a class makes it known by its `name`.

    Raises:
        TypeError: A parameter is unknown or not a number.
        ValueError: A parameter is out of range.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    known: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, kind: str | None = None) -> None:
        super().__init_subclass__()
        if kind is not None:
            cls.kind, cls.known = kind, {}
            return
        dataclass(frozen=True)(cls)
        same = cls.known.get(cls.name, cls)
        if (same.__module__, same.__qualname__) != (cls.__module__, cls.__qualname__):
            owner = f"{same.__module__}.{same.__qualname__}"
            raise ValueError(f"{cls.__qualname__}: there is a {cls.kind} {cls.name!r} already, {owner}")
        cls.known[cls.name] = cls

    def __post_init__(self) -> None:
        for name, value in self.parameters.items():
            valid = self.__dataclass_fields__[name].metadata["valid"]  # type: ignore[attr-defined]
            valid.check(f"{name} of the {self.kind} {self.name!r}", value)

    @property
    def parameters(self) -> dict[str, Any]:
        """Names and values."""
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]

    @property
    def plain(self) -> str | dict[str, Any]:
        """The name, or name and parameters if they are not at their defaults: what `of` takes and files contain."""
        if self == type(self)():
            return self.name
        parameters = self.parameters.items()
        return {
            "name": self.name,
            **{name: list(value) if isinstance(value, tuple) else float(value) for name, value in parameters},
        }

    def __str__(self) -> str:
        plain = self.plain
        if isinstance(plain, str):
            return plain
        return f"{self.name} ({', '.join(f'{name} = {value:g}' for name, value in self.parameters.items())})"

    @classmethod
    def of(cls, given: object) -> Self:
        """The object of an optimizer's argument: an object, a name, or a mapping of the name and the parameters."""
        if isinstance(given, cls):
            return given
        parameters = dict(given) if isinstance(given, Mapping) else {"name": given}
        name = parameters.pop("name", None)
        found = cls.known.get(name) if isinstance(name, str) else None
        if found is None:
            names = ", ".join(map(repr, cls.known))
            raise ValueError(f"{cls.kind} must be one of {names} or a {cls.__name__}, got {given!r}")
        if unknown := parameters.keys() - found.__dataclass_fields__.keys():
            raise TypeError(f"the {cls.kind} {name!r} has no parameter {min(unknown)!r}")
        made: Self = found(**parameters)
        return made


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
