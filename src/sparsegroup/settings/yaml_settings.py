"""Settings that people write in YAML files: checked, with errors that name the key and the one that was meant."""

import stat
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from sparsegroup.errors import UserError, did_you_mean

MOST_BYTES = 1 << 20
"""Size of a file of settings."""

MOST_VALUES = 100_000
"""Values in settings, each counted as often as aliases repeat it."""

HIGHEST = 1e30
"""Above it, products with gradients, and with the √d that λ21 counts by, leave float32, which ends at 3.4e38."""


class StrictSettings(BaseModel):
    """Frozen keys with types; other keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _has_numbers_of_a_run(cls, given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """pydantic takes true for 1, and numbers of any size."""
        value = validate(given)
        if isinstance(value, StrictSettings):
            return value
        leaves = list(_leaves(value))
        if any(isinstance(one, bool) for one in _leaves(given)) and not any(isinstance(one, bool) for one in leaves):
            raise ValueError(f"true and false are no numbers, got {given}")
        for one in leaves:
            if isinstance(one, int) and abs(one) >= 1 << 64:
                raise ValueError("whole numbers must be below 2⁶⁴")
            if isinstance(one, float) and HIGHEST < abs(one) < inf:
                raise ValueError(f"numbers must be at most {HIGHEST:g}, got {one:g}: beyond, float32 overflows")
        return value


def _leaves(value: Any) -> Iterator[Any]:
    """A value, or what lists and mappings hold in the end."""
    if isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(one)
    else:
        yield value


def share_of(value: object) -> object:
    """A text such as "0.1%" or "0.001" as 0.001, or ValueError; anything else unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        raise ValueError("must be a share like 5% or .05") from None


Share = Annotated[float, BeforeValidator(share_of), Field(ge=0, lt=1)]
"""A number in [0, 1), or a text such as "0.1%"."""


class SettingsError(UserError):
    """Settings that do not hold. The message names the file, the key, and the nearest one that exists."""


AnySettings = TypeVar("AnySettings", bound=StrictSettings)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, without what it leaves empty; raises SettingsError or OSError."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):  # it may have no end
        raise SettingsError(f"{path}: is a pipe or a device; write the settings into a file")
    if about.st_size > MOST_BYTES:
        raise SettingsError(f"{path}: {about.st_size:,} bytes; settings have at most {MOST_BYTES:,}")
    try:
        content = _parsed(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SettingsError(f"{path}: not YAML ({error})") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path}: keys and values are expected, got {type(content).__name__}")
    return {name: value for name, value in content.items() if value is not None}


def _parsed(text: str) -> Any:
    """The content of a YAML text, or ValueError: it is not YAML, or not plain, see `_count`."""
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            _count(node, {})  # before anything is made of it: merged mappings are copied
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from error


def _count(node: Any, counted: dict[int, int]) -> int:
    """How many values a node of YAML has; the counts of its nodes are noted in `counted`, 0 before.

    ValueError: They are too many, an alias is in itself, or a mapping has a key twice, of which YAML takes the last.
    """
    if id(node) not in counted:
        counted[id(node)] = 0
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        keys = [key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise ValueError(f"the key {key!r} is there twice, {str(pairs[place][0].start_mark).strip()}")
        inner = [one for pair in pairs for one in pair] or (node.value if isinstance(node, yaml.SequenceNode) else ())
        counted[id(node)] = 1 + sum(_count(each, counted) for each in inner)
    elif not counted[id(node)]:
        raise ValueError("an alias stands for what it is in")
    if counted[id(node)] > MOST_VALUES:
        raise ValueError(f"its aliases stand for more than {MOST_VALUES:,} values")
    return counted[id(node)]


def checked(kind: type[AnySettings], content: Mapping[str, Any], source: str) -> AnySettings:
    """`content`, nested as the class `kind` is, as its settings; raises SettingsError, which names the source."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(kind, one, source) for one in error.errors())) from error


def _explain(kind: type[StrictSettings], error: Any, source: str) -> str:
    key = ".".join(map(str, error["loc"])) or "the whole"
    if error["type"] == "extra_forbidden":
        known = keys_of(kind)
        if isinstance(error["input"], Mapping) and error["input"]:  # an unknown section
            key = f"{key}.{next(iter(error['input']))}"
        hint = did_you_mean(key, known, likeness=0.5) or f"there are {', '.join(known)}"
        return f"{source}: no setting {key!r}; {hint}"
    if error["type"] == "model_type":
        example = next(name for name in keys_of(kind) if name.startswith(f"{key}."))
        return f"{source}: {key} has settings of its own, as in {example}; got {error['input']!r}"
    if error["type"] == "missing":
        return f"{source}: {key} is missing"
    message = error["msg"]
    ours = message.startswith("Value error, ")
    message = message.removeprefix("Value error, ") if ours else message[0].lower() + message[1:]
    given = error["input"]
    shown = (
        f", got {given!r}" if not isinstance(given, dict | list | StrictSettings) and repr(given) not in message else ""
    )
    return f"{source}: {key}: {message}{shown}"


def keys_of(kind: type[StrictSettings]) -> list[str]:
    """All keys, nested ones with dots."""
    keys = list[str]()
    for name, field in kind.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, StrictSettings):
            keys += [f"{name}.{key}" for key in keys_of(inner)]
        else:
            keys.append(field.alias or name)
    return keys


def with_values(content: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested `content` with other values at dotted keys."""
    result = {name: dict(value) if isinstance(value, Mapping) else value for name, value in content.items()}
    for key, value in values.items():
        *sections, last = key.split(".")
        place = result
        for section in sections:
            inner = place.get(section)
            place[section] = place = dict(inner) if isinstance(inner, Mapping) else {}
        place[last] = value
    return result


def assignment(text: str) -> tuple[str, Any]:
    """`key=value` as key and value, which is read as YAML; raises SettingsError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"`set` wants key=value, as in optimizer.l21=1e-3, got {text!r}", "set")
    try:
        return key.strip(), _parsed(value)
    except ValueError as error:
        raise SettingsError(f"`set` {text[:80]}: the value is not YAML ({error})", "set") from error
