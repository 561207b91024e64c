"""What a model expects of its logs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sparsegroup.artifact.validation import STRICT, validated
from sparsegroup.data.keys import HASH
from sparsegroup.data.log import Log
from sparsegroup.training.run_error import RunError


@dataclass(frozen=True)
class Columns:
    """What a model expects of its logs.

    Attributes:
        fields: Categorical fields, in the order of their numbers in the keys.
        lists: Those of them with several values.
        numbers: Numeric ones.
        hash: What keys are made with.
    """

    __pydantic_config__: ClassVar = STRICT

    fields: tuple[str, ...]
    lists: tuple[str, ...]
    numbers: tuple[str, ...]
    hash: str = HASH

    @classmethod
    def of(cls, log: Log) -> "Columns":
        """Those of a log."""
        return cls(
            tuple(log.fields),
            tuple(log.lists),
            tuple(log.numbers),
            log.hash,
        )

    @classmethod
    def from_dict(cls, content: Any) -> "Columns":
        """Them from what `asdict` gave.

        Raises:
            ValueError: They are not; the message begins with the field.
        """
        if isinstance(content, Mapping) and "hash" not in content:
            raise ValueError("hash is missing")
        columns = validated(cls, content)
        for name in ("fields", "lists", "numbers"):
            if len(set(given := getattr(columns, name))) < len(given):
                raise ValueError(f"{name}: one is there twice")
        if strange := set(columns.lists) - set(columns.fields):
            raise ValueError(f"lists: {min(strange)} is no field")
        return columns

    def check(self, log: Log) -> None:
        """Whether a model trained on these can go on with `log`.

        Raises:
            RunError: It has other columns, or keys made otherwise.
        """
        other = Columns.of(log)
        for name in ("fields", "lists", "numbers", "hash"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise RunError(f"{log.name}: its {name} are {_shown(theirs)}; the run was trained with {_shown(ours)}")


def _shown(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)
