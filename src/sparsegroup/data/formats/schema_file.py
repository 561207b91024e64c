"""A YAML file that says what the columns of a log are."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from sparsegroup.data.formats.log_format import TEST_FRACTION, LogFormat
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.yaml_settings import SettingsError, StrictSettings, checked, read_yaml


class LogSchema(StrictSettings):
    """The columns of a log.

    Attributes:
        label: With 0 or 1.
        time: Whole numbers, or none.
        categorical: Fields of one value.
        numeric: Numbers, taken as they are; a missing one is 0.
        multi: Field of several values → what separates them.
        weight: Column of the rows' weights, numbers >= 0, or none.
        split: Column whose value 2 marks the test rows, which come last.
        test_fraction: Share of the rows, the last ones, in [0, 1), that is the test set where there is no `split`.
        separator: Between columns of a text log.
        columns: Names of all columns in order, of a log without a header.
    """

    label: str
    time: str | None = None
    categorical: list[str] = Field(default_factory=list)
    numeric: list[str] = Field(default_factory=list)
    multi: dict[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    weight: str | None = None
    split: str | None = None
    test_fraction: float | None = Field(default=None, ge=0, lt=1)
    separator: str = Field(default=",", min_length=1, max_length=1, pattern=r"[ -~\t]")
    columns: list[str] = Field(default_factory=list)


def read_schema(path: Path) -> LogFormat:
    """The format that a schema file describes.

    Raises:
        ClickLogError: Not YAML, an unknown or missing key, a value of another type, or keys that exclude each other.
    """
    try:
        schema = checked(LogSchema, read_yaml(path), str(path))
    except SettingsError as error:
        raise ClickLogError(str(error)) from error
    fields = (*schema.categorical, *schema.multi)
    columns = [*fields, *schema.numeric, schema.label, *([schema.weight] if schema.weight is not None else [])]
    if repeated := {name for name in columns if columns.count(name) > 1}:
        raise ClickLogError(f"{path}: column {min(repeated)!r} appears twice")
    if schema.split is not None and schema.test_fraction is not None:
        raise ClickLogError(f"{path}: split and test_fraction cannot both be given")
    return LogFormat(
        "log",
        schema.label,
        fields,
        numbers=tuple(schema.numeric),
        lists=schema.multi,
        time=schema.time,
        split="column" if schema.split else "last-fraction",
        split_column=schema.split,
        test_fraction=TEST_FRACTION if schema.test_fraction is None else schema.test_fraction,
        weight=schema.weight,
        columns=tuple(schema.columns),
        separator=schema.separator,
    )
