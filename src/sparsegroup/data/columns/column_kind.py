"""What a column of a log can be, as one text: "category", "number", "timestamp ms", "list |"."""

from dataclasses import dataclass
from typing import Literal, Self, get_args

from sparsegroup.data.log_errors import ClickLogError

PlainRole = Literal["category", "category of numbers", "number", "category, number", "boolean", "ignore"]
LogRole = Literal["label", "split", "weight"]
Unit = Literal["s", "ms", "us", "ns", "iso", "date"]

UNITS: tuple[str, ...] = get_args(Unit)
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Unit of whole numbers that are times → how many of them make a second."""

JSON = "json"
JOINT = "\x1f"
"""Between the values of a JSON list, once they are read."""

_NAMED = {"space": " ", "comma": ",", "tab": "\t"}
_PLAIN: tuple[str, ...] = (*get_args(PlainRole), *get_args(LogRole))


@dataclass(frozen=True)
class ColumnKind:
    """What a column is, and so what becomes of it.

    - `category`: a field; its values are hashed as they stand.
    - `category of numbers`: a field whose values are numbers, so that 1, 1.0 and 01 are one of them.
    - `number`: a number as it stands, float32; a missing or infinite one is NaN.
    - `category, number`: both of the last two.
    - `boolean`: a field of 0 and 1; true, yes, t, y are 1, false, no, f, n are 0, in any case.
    - `timestamp UNIT`: two fields, hour (0 to 23) and weekday (1, Monday, to 7); of a date the weekday alone. Units are
      s, ms, us, ns (whole numbers since 1970, UTC), iso (2024-01-31T09:30:00+01:00, in the zone written) and date.
    - `time UNIT`: the same, and the log's own time, in seconds since 1970. `time` alone: whole numbers as they stand,
      and no fields.
    - `list SEPARATOR`: a field of several values; the separator is one or more characters, `space`, `comma`, `tab`, or
      `json` for arrays.
    - `label`, `split`, `weight`: the label, what marks the test rows (2), and how much a row counts, a number >= 0.
    - `ignore`: nothing.

    Attributes:
        role: The kind without its detail.
        detail: Unit of a time, separator of a list, or "".

    Examples:
        >>> from sparsegroup.data.columns.column_kind import ColumnKind
        >>> ColumnKind.of("time ms")
        ColumnKind(role='time', detail='ms')
        >>> str(ColumnKind("list", ","))
        'list comma'
    """

    role: str
    detail: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        """The kind that a text says.

        Raises:
            ClickLogError: It says none.
        """
        words = " ".join(text.replace(",", ", ", 1).split()) if not text.strip().startswith("list") else text.strip()
        if words in _PLAIN or words == "time":
            return cls(words)
        if words == "number, category":
            return cls("category, number")
        role, _, detail = words.partition(" ")
        if role in ("time", "timestamp") and detail in UNITS:
            return cls(role, detail)
        if role == "list" and detail.strip():
            return cls(role, _NAMED.get(detail.strip(), detail.strip()))
        raise ClickLogError(
            f"a column is one of {'; '.join(_PLAIN)}; time or timestamp with one of {', '.join(UNITS)}; or list with "
            f"what separates its values, such as |, comma, space or json: got {text!r}"
        )

    def __str__(self) -> str:
        named = {separator: name for name, separator in _NAMED.items()}
        return f"{self.role} {named.get(self.detail, self.detail)}".strip()

    @property
    def separator(self) -> str:
        """What separates a list's values, once it is read."""
        return JOINT if self.detail == JSON else self.detail

    @property
    def is_own_time(self) -> bool:
        """Whether it is the log's own time."""
        return self.role == "time"
