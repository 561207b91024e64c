"""Checks the content of a file against annotated dataclasses: fields, types and ranges, before it is used."""

import math
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, Strict, TypeAdapter, ValidationError

Kind = TypeVar("Kind")

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
"""For the outermost class of a file, as its `__pydantic_config__`: no other fields, and finite numbers, all the way."""

MOST = (1 << 63) - 1
"""No file holds more of anything than an int64 counts."""

Count = Annotated[int, Strict(), Field(ge=0, le=MOST)]
"""A number of things."""

Key = Annotated[int, Strict(), Field(ge=-MOST - 1, le=MOST)]
"""An int64."""

Real = Annotated[float, Strict()]
"""A finite number, under `STRICT`."""

AnyReal = Annotated[float, Strict(), Field(allow_inf_nan=True)]
"""A number, NaN and the infinities among them."""

Flag = Annotated[bool, Strict()]
"""true or false, and neither 1 nor "yes"."""

Number = Annotated[
    AnyReal,
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else None),
]
"""A number that may be undefined; JSON has no NaN: an AUC of one class is null."""

_SHOWN = 60


def finite(value: Any) -> Any:
    """`value` with None for numbers that JSON does not have: an AUC of one class is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def validated(kind: type[Kind], content: Any) -> Kind:
    """A dataclass of `kind`, with those inside it, from JSON (and tensors where the class has them).

    Raises ValueError, whose message begins with the field, if one is missing, unknown, of another type or out of range.
    """
    try:
        made: Kind = _adapter(cast("Any", kind)).validate_python(content)
    except ValidationError as error:
        raise ValueError(_in_words(error.errors(include_url=False)[0])) from error
    return made


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _in_words(error: Any) -> str:
    field = ".".join(map(str, error["loc"])) or "the whole"
    if error["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"{field} is missing"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{field} is unknown"
    if error["type"] == "value_error":  # ours, in full
        return f"{field}: {error['ctx']['error']}"
    message = error["msg"]
    return f"{field}: {message[0].lower()}{message[1:]}, got {shortened(error['input'])}"


def shortened(given: Any) -> str:
    """The `repr` of a value for a message, cut off if it is long."""
    text = repr(given)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
