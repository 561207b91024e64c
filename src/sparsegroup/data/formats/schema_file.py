"""A YAML file that says what the columns of a log are."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.data.columns.column_finding import ColumnFinding
from sparsegroup.data.columns.column_kind import ColumnKind
from sparsegroup.data.columns.column_plan import planned_format
from sparsegroup.data.formats.log_format import TEST_FRACTION, LogFormat
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.settings.yaml_settings import SettingsError, StrictSettings, checked, read_yaml

_LISTS = ("time", "categorical", "numeric", "multi")


class LogSchema(StrictSettings):
    """The columns of a log.

    Attributes:
        label: With 0 or 1 (true, false, yes, no).
        time: Whole numbers, or none.
        categorical: Fields of one value.
        numeric: Numbers, taken as they are; a missing one is 0.
        multi: Field of several values → what separates them.
        weight: Column of the rows' weights, numbers >= 0, or none.
        split: Column whose value 2 marks the test rows, which come last.
        test_fraction: Share of the rows, the last ones, in [0, 1), that is the test set where there is no `split`.
        separator: Between columns of a text log.
        columns: Column → what it is, see `ColumnKind`, instead of `time`, `categorical`, `numeric` and `multi`. Or the
            names of all columns in order, of a log without a header.
    """

    label: str | None = None
    time: str | None = None
    categorical: list[str] = Field(default_factory=list)
    numeric: list[str] = Field(default_factory=list)
    multi: dict[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    weight: str | None = None
    split: str | None = None
    test_fraction: float | None = Field(default=None, ge=0, lt=1)
    separator: str = Field(default=",", min_length=1, max_length=1, pattern=r"[ -~\t]")
    columns: list[str] | dict[str, str] = Field(default_factory=list)

    def column_of(self, role: str) -> str | None:
        """The column that `columns` give this role, of those that only one column can have.

        Raises:
            ValueError: There are several.
        """
        kinds = self.columns if isinstance(self.columns, dict) else {}
        found = [name for name, kind in kinds.items() if ColumnKind.of(kind).role == role]
        if len(found) > 1:
            raise ValueError(f"columns {found[0]!r} and {found[1]!r} cannot both be the {role}")
        return found[0] if found else None


def read_schema(path: Path) -> LogFormat:
    """The format that a schema file describes.

    Raises:
        ClickLogError: Not YAML, an unknown or missing key, a value of another type, or keys that exclude each other.
    """
    try:
        schema = checked(LogSchema, read_yaml(path), str(path))
        label = schema.label or schema.column_of("label")
        split = schema.split or schema.column_of("split")
        if label is None:
            raise ValueError("label is missing")
        if split is not None and schema.test_fraction is not None:
            raise ValueError("split and test_fraction cannot both be given")
        return _format_of(schema, label, split)
    except SettingsError as error:
        raise ClickLogError(str(error)) from error
    except ValueError as error:
        raise ClickLogError(f"{path}: {error}") from error


def _format_of(schema: LogSchema, label: str, split: str | None) -> LogFormat:
    rest = {
        "split": "column" if split else "last-fraction",
        "split_column": split,
        "test_fraction": TEST_FRACTION if schema.test_fraction is None else schema.test_fraction,
        "separator": schema.separator,
    }
    if isinstance(schema.columns, dict):
        if others := [name for name in _LISTS if getattr(schema, name)]:
            raise ValueError(f"{others[0]} and columns cannot both be given: say in columns what {others[0]} has")
        weight = {} if schema.weight is None else {schema.weight: "weight"}
        marks = {split: "split"} if split in schema.columns else {}
        return planned_format({**schema.columns, **weight, **marks}, label, **rest)
    fields = (*schema.categorical, *schema.multi)
    named = [*fields, *schema.numeric, label, *([schema.weight] if schema.weight is not None else [])]
    if repeated := {name for name in named if named.count(name) > 1}:
        raise ValueError(f"column {min(repeated)!r} appears twice")
    return LogFormat(
        "log",
        label,
        fields,
        numbers=tuple(schema.numeric),
        lists=schema.multi,
        time=schema.time,
        columns=tuple(schema.columns),
        weight=schema.weight,
        **rest,  # type: ignore[arg-type]
    )


def write_schema(path: Path, log: LogFormat, source: str) -> None:
    """Write what is known of a log's columns as a schema file, to be edited: `read_schema` gives the same format.

    Args:
        path: The file.
        log: The format, whose `kinds` are known; why they are so becomes comments.
        source: The log, for the first line.
    """
    lines = [f"# What the columns of {source} are. To be edited, and given with --schema."]
    if log.split == "last-fraction":
        lines.append(f"test_fraction: {log.test_fraction!r}")
    lines += [_line("separator", log.separator or ","), "columns:"]
    why = {finding.name: finding.why for finding in log.findings}
    lines += _aligned((f"  {_line(name, kind)}", why.get(name, "")) for name, kind in log.kinds.items())
    text = "\n".join(lines) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def findings_of(log: LogFormat) -> tuple[ColumnFinding, ...]:
    """Why the columns of a format are what they are; where nothing was told from the log, the format says it."""
    if log.findings:
        return log.findings
    reason = "as the schema says" if log.name == "log" else f"as the format {log.name!r} has it"
    kinds = log.kinds or {
        **({log.label: "label"} if log.labelled else {}),
        **dict.fromkeys(log.fields, "category"),
        **{name: str(ColumnKind("list", separator)) for name, separator in log.lists.items()},
        **dict.fromkeys(log.numbers, "number"),
        **({log.sources.get(log.time, log.time): "time"} if log.time is not None else {}),
        **({log.weight: "weight"} if log.weight is not None else {}),
    }
    return tuple(ColumnFinding(name, kind, reason) for name, kind in kinds.items())


def _line(key: str, value: str) -> str:
    return yaml.safe_dump({key: value}, allow_unicode=True, width=1 << 20).strip()


def _aligned(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Lines with their comments below each other."""
    pairs = list(lines)
    width = min(max((len(line) for line, _ in pairs), default=0), 48)
    return [f"{line:{width}}  # {why}" if why else line for line, why in pairs]
