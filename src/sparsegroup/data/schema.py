"""What the columns of a log are and how they are read: as a format, and as a YAML file."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
import pyarrow as pa
import yaml
from pydantic import Field

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.artifact.validation import STRICT, validated
from sparsegroup.data.batches import LABEL, TIME, WEIGHT
from sparsegroup.data.inference import ColumnFinding
from sparsegroup.data.keys import HASH
from sparsegroup.data.kinds import (
    ColumnKind,
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
from sparsegroup.data.log_errors import ClickLogError, LogOptionError
from sparsegroup.settings.yaml_settings import SettingsError, StrictSettings, checked, read_yaml

Split = Literal["none", "last-day", "last-of-7", "last-fraction", "column", "file"]
"""Where the test set begins: nowhere, at the last calendar day, after 6 of 7 equal parts, where `test_fraction` of the
rows are left, at the first row whose split column is 2, or with the second file."""

TEST_FRACTION = 0.1

Columns = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True)
class LogSchema:
    """What a model is given of a log's rows: logs have one, runs and exports keep that of the log they are made of.

    Attributes:
        fields: Categorical fields, in the order of their numbers in the keys.
        lists: Fields of several values.
        numbers: Numeric columns.
        hash: Name of the hash that keys are made with.
    """

    __pydantic_config__: ClassVar = STRICT

    fields: tuple[str, ...]
    lists: tuple[str, ...]
    numbers: tuple[str, ...]
    hash: str = HASH

    @classmethod
    def from_dict(cls, content: Any) -> "LogSchema":
        """The schema of which `dataclasses.asdict` made `content`.

        Raises:
            ValueError: It has other fields or types; the message begins with the field.
        """
        if isinstance(content, Mapping) and "hash" not in content:
            raise ValueError("hash is missing")
        schema = validated(cls, content)
        for name in ("fields", "lists", "numbers"):
            if len(set(given := getattr(schema, name))) < len(given):
                raise ValueError(f"{name}: one is there twice")
        if strange := set(schema.lists) - set(schema.fields):
            raise ValueError(f"lists: {min(strange)} is no field")
        return schema

    def check_fits(self, other: "LogSchema", log: str) -> None:
        """Check that a model trained with this schema can be given rows of another log.

        Args:
            other: The log's schema.
            log: Its name, for messages.

        Raises:
            ClickLogError: It has other columns, or keys made with another hash.
        """
        for name in ("fields", "lists", "numbers", "hash"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                shown = (", ".join(one) or "none" if isinstance(one, tuple) else one for one in (theirs, ours))
                raise ClickLogError("{}: its {} are {}; the run was trained with {}".format(log, name, *shown))


@dataclass(frozen=True)
class LogFormat:
    """How to read a log, and what to make of it.

    Attributes:
        name: Name of the data set.
        label: Column with 0 or 1.
        fields: Categorical fields, in the order of their numbers.
        numbers: Numeric columns.
        lists: Field → what separates its values, for fields of several values.
        time: Column of the time, or None: then it is the row's line number.
        split: Where the test set begins.
        split_column: The column that marks test rows, for the split "column".
        test_fraction: Share of the test rows, in [0, 1), for the split "last-fraction"; 0 for no test set.
        weight: Column of the rows' weights, numbers >= 0, or None: then every row counts the same.
        columns: All columns in order, of a log without a header; else empty.
        separator: Between columns of a text.
        variant: Which of several things `derive` makes, where the fields do not tell.
        derive: Makes the fields and numbers of the raw columns, where they are not simply those; null where it cannot.
            A function of a module, or a `partial` of one, can be sent to other processes with the log.
        checked: What is made → the raw column it is made of, beside numbers and time: null of a value is a bad row.
        sources: What is made under another name than its raw column → that column.
        labelled: Whether the log has the label column; a log to score need not. All labels are 0 then.
        kinds: Raw column → what it is, see `ColumnKind`, where `derive` goes by that: a missing number is NaN then, and
            what another log of the same columns is to be read by. Empty for all other formats.
        findings: Why the columns are that, where it was told from the log.

    Raises:
        LogOptionError: `test_fraction` out of range.
        ValueError: A list that is no field.
    """

    name: str
    label: str
    fields: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    lists: Mapping[str, str] = field(default_factory=dict)
    time: str | None = None
    split: Split = "last-fraction"
    split_column: str | None = None
    test_fraction: float = TEST_FRACTION
    weight: str | None = None
    columns: tuple[str, ...] = ()
    separator: str = ","
    variant: str = ""
    derive: Columns | None = None
    checked: Mapping[str, str] = field(default_factory=dict)
    labelled: bool = True
    sources: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[ColumnFinding, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise LogOptionError(f"test_fraction must be in [0, 1), got {self.test_fraction}")
        if unknown := [name for name in self.lists if name not in self.fields]:
            raise ValueError(f"lists must be fields, got {unknown[0]!r}, which is none")

    @property
    def raw(self) -> tuple[str, ...]:
        """The columns of the log that are read."""
        label = (self.label,) if self.labelled else ()
        wanted = (*label, *self.fields, *self.numbers, self.time, self.split_column, self.weight)
        return tuple(dict.fromkeys(self.sources.get(name, name) for name in wanted if name is not None))

    @property
    def has_header(self) -> bool:
        """Whether the first line names the columns."""
        return not self.columns

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of encoded rows.

        `label` uint8, `time` int64, `weight` float32 where there is one, an int64 column of keys per field (lists of
        them where the field has several values), and a float32 column per number.
        """
        key, keys = pa.int64(), pa.list_(pa.int64())
        columns = [(LABEL, pa.uint8()), (TIME, pa.int64())]
        columns += [(WEIGHT, pa.float32())] if self.weight is not None else []
        columns += [(name, keys if name in self.lists else key) for name in self.fields]
        return pa.schema(columns + [(name, pa.float32()) for name in self.numbers])

    @property
    def reserved(self) -> set[str]:
        """Names that no field and no number can have."""
        return {LABEL, TIME} | ({WEIGHT} if self.weight is not None else set())

    def for_scoring(self) -> "LogFormat":
        """The format for all rows in the order of the file: no test set, no time."""
        return replace(self, time=None, split="none", split_column=None)

    def without_label(self) -> "LogFormat":
        """The format of such a log that lacks its label column."""
        return replace(self, labelled=False, columns=tuple(name for name in self.columns if name != self.label))


@dataclass(frozen=True)
class Head:
    """How a raw file begins.

    Attributes:
        source: The file, for messages.
        columns: Names of its columns: of a text, the cells of its first line.
        line: First line of a text, without its end; empty for other files.
        separator: What separates the columns of a text, if the first line is a header; empty for other files.
    """

    source: str
    columns: tuple[str, ...]
    line: str = ""
    separator: str = ""

    @classmethod
    def of_text(cls, source: str, line: str) -> "Head":
        """The head of a text that begins with `line`: tabs separate its columns if there are any, else commas."""
        separator = "\t" if "\t" in line else ","
        return cls(source, cells_of(line, separator), line, separator)

    def cells(self, separator: str) -> tuple[str, ...]:
        """The cells of the first line of a text, without quotes."""
        return cells_of(self.line, separator)

    def has_columns(self, label: str, others: Collection[str], needs_label: bool) -> bool:
        """Whether these columns are there; the label only if it is needed."""
        return set(others) <= set(self.columns) and (not needs_label or label in self.columns)


def cells_of(line: str, separator: str) -> tuple[str, ...]:
    """The cells of a line, without quotes."""
    return tuple(cell.strip('"') for cell in line.split(separator))


@dataclass(frozen=True)
class KnownFormat:
    """A format that has a name, or is told from how a log begins.

    Attributes:
        recognise: Head of a log, and whether the log needs a label → its format, or None for another format's log.
        name: Value of `dataset` that asks for the format; None if it is only recognised.
        make: Makes the format that `name` asks for; takes the value of `option`, if it has one.
        option: Name of the option of `open_log` that says how to read this format, and of no other.
    """

    recognise: Callable[[Head, bool], LogFormat | None]
    name: str | None = None
    make: Callable[..., LogFormat] | None = None
    option: str | None = None


def same(names: Sequence[str]) -> dict[str, str]:
    """`checked` of columns that are made of those of the same names."""
    return {name: name for name in names}


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


_LISTS = ("time", "categorical", "numeric", "multi")


class SchemaFile(StrictSettings):
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
        schema = checked(SchemaFile, read_yaml(path), str(path))
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


def _format_of(schema: SchemaFile, label: str, split: str | None) -> LogFormat:
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
