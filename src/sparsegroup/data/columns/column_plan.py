"""What becomes of columns whose kinds are known: the format of such a log."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import polars as pl

from sparsegroup.data.batches import LABEL, TIME, WEIGHT
from sparsegroup.data.columns.column_kind import ColumnKind
from sparsegroup.data.columns.column_values import (
    as_boolean,
    as_list,
    as_number,
    as_numeral,
    as_seconds,
    hour_of,
    is_missing,
    stripped,
    weekday_of,
)
from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.log_errors import ClickLogError

_CATEGORIES = ("category", "category of numbers", "category, number", "boolean", "list")


@dataclass(frozen=True)
class ColumnPlan:
    """What is made of the raw columns of a log; calling it makes it.

    Attributes:
        kinds: Raw columns in order, each with its kind as text.
    """

    kinds: tuple[tuple[str, str], ...]

    def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The columns of `frame`, texts, and what is made of them; null where a value cannot be read."""
        made = [one for name, kind in self._read() if name in frame.columns for one in self._made(name, kind)]
        return frame.with_columns(**dict(made))

    def _read(self) -> Iterator[tuple[str, ColumnKind]]:
        for name, kind in self.kinds:
            yield name, ColumnKind.of(kind)

    @property
    def sources(self) -> dict[str, str]:
        """What is made → the raw column it is made of, under whose own name nothing else goes."""
        pairs = [(made, name) for name, kind in self._read() for made, _ in self._made(name, kind)]
        return dict(sorted(pairs, key=lambda pair: pair[0] != pair[1]))

    @property
    def checked(self) -> dict[str, str]:
        """What is made, and of which a value that cannot be read makes a bad row → its raw column."""
        exact = {made: name for made, name in self.sources.items() if dict(self._read())[name].role not in _CATEGORIES}
        return exact | {number_name(name): name for name, kind in self._read() if kind.role == "category, number"}

    @property
    def fields(self) -> tuple[str, ...]:
        """The categorical fields, in the order of the columns."""
        return tuple(made for name, kind in self._read() for made in self._fields(name, kind))

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numbers, in the order of the columns."""
        found = {name: kind for name, kind in self._read() if "number" in kind.role.split(", ")}
        return tuple(self._name(name) if kind.role == "number" else number_name(name) for name, kind in found.items())

    @property
    def lists(self) -> dict[str, str]:
        """Fields of several values → what separates them once they are read."""
        return {self._name(name): kind.separator for name, kind in self._read() if kind.role == "list"}

    @property
    def time(self) -> str | None:
        """What is made of the column of the log's own time."""
        own = ((name, kind) for name, kind in self._read() if kind.is_own_time)
        return next((_time_name(name) if kind.detail else name for name, kind in own), None)

    def _name(self, name: str) -> str:
        """What is made of a column under its own name, unless encoded rows have another meaning for that."""
        taken = (LABEL, TIME, *((WEIGHT,) if "weight" in dict(self.kinds).values() else ()))
        return f"{name}.value" if name in taken else name

    def _fields(self, name: str, kind: ColumnKind) -> list[str]:
        if kind.role in _CATEGORIES:
            return [self._name(name)]
        if kind.role in ("time", "timestamp") and kind.detail:
            return [*([] if kind.detail == "date" else [f"{name}.hour"]), f"{name}.weekday"]
        return []

    def _made(self, name: str, kind: ColumnKind) -> list[tuple[str, pl.Expr]]:
        """What is made of a column → how."""
        own = self._name(name)
        match kind.role:
            case "category":
                return [(own, pl.col(name))]
            case "category of numbers":
                return [(own, as_numeral(name))]
            case "number":
                return [(own, as_number(name))]
            case "category, number":
                return [(own, as_numeral(name)), (number_name(name), as_number(name))]
            case "boolean":
                return [(own, as_boolean(name))]
            case "list":
                return [(own, as_list(name, kind.detail))]
            case "time" | "timestamp" if kind.detail:
                seconds, local = as_seconds(name, kind.detail)
                gone = is_missing(stripped(name))
                parts = {f"{name}.hour": hour_of(local), f"{name}.weekday": weekday_of(local)}
                fields = self._fields(name, kind)
                made = [(part, pl.when(gone).then(pl.lit("")).otherwise(parts[part])) for part in fields]
                return made + ([(_time_name(name), seconds)] if kind.is_own_time else [])
        return []


def planned_format(kinds: Mapping[str, str], label: str, **others: object) -> LogFormat:
    """The format of a log whose columns have these kinds.

    Args:
        kinds: Raw column → its kind.
        label: The label column; of another column the kind "label" means nothing then.
        **others: More of `LogFormat`.

    Raises:
        ClickLogError: A kind that there is not, two times or weights of the log, or columns that need the same name.
    """
    kinds = {name: str(ColumnKind.of(kind)) for name, kind in kinds.items()}
    plan = ColumnPlan(tuple((name, kind) for name, kind in kinds.items() if name != label))
    for made, name in plan.sources.items():
        if made != name and kinds.get(made, "ignore") != "ignore":
            raise ClickLogError(f"{made!r} is made of column {name!r}, and there is one of that name, too: rename it")
    times = [name for name, kind in kinds.items() if ColumnKind.of(kind).is_own_time]
    if len(times) > 1:
        raise ClickLogError(f"columns {times[0]!r} and {times[1]!r} cannot both be the log's own time")
    weights = [name for name, kind in plan.kinds if kind == "weight"]
    if len(weights) > 1:
        raise ClickLogError(f"columns {weights[0]!r} and {weights[1]!r} cannot both be the weight")
    return LogFormat(
        "log",
        label,
        plan.fields,
        numbers=plan.numbers,
        lists=plan.lists,
        time=plan.time,
        weight=weights[0] if weights else None,
        derive=plan,
        checked=plan.checked,
        sources=plan.sources,
        kinds=kinds,
        **others,  # type: ignore[arg-type]
    )


def number_name(name: str) -> str:
    """What the number of a column is called that is a category, too."""
    return f"{name}.number"


def _time_name(name: str) -> str:
    return f"{name}.seconds"
