"""What the columns of a log are and how they are read: as a schema, as a format, and as a YAML file."""

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import polars as pl
import pyarrow as pa
import yaml
from pydantic import Field

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.artifact.validation import STRICT, validated
from sparsegroup.data.batches import LABEL, TIME, WEIGHT
from sparsegroup.data.keys import HASH
from sparsegroup.data.kinds import SHARES, ColumnFinding, ColumnKind, Label
from sparsegroup.data.values import (
    TEXT,
    as_amount,
    as_amount_numeral,
    as_boolean,
    as_category,
    as_domain,
    as_list,
    as_number,
    as_numeral,
    as_seconds,
    as_words,
    hour_of,
    stripped,
    weekday_of,
    without_missing,
)
from sparsegroup.errors import ClickLogError, LogOptionError, did_you_mean
from sparsegroup.settings.yaml_settings import SettingsError, StrictSettings, checked, read_yaml

Split = Literal["none", "last-day", "last-of-7", "last-fraction", "time", "column", "file"]
"""Start of the test set: no test set, the last calendar day, after 6 of 7 equal parts, where `test_fraction` of the
rows remain, the first row of the time `test_from`, the first row that the split column marks, or the second file."""

TEST_FRACTION = 0.1

QUOTING = ",;"
"""Separators of the text formats in which quotes enclose values. With other separators a quote is part of a value."""


@dataclass(frozen=True)
class LogSchema:
    """What a model is given of a log's rows: logs have one, runs and exports keep that of the log they are made of.

    Attributes:
        fields: Categorical fields, in the order of their numbers in the keys.
        lists: Fields of several values.
        numbers: Numeric columns.
        hash: Name of the hash that keys are made with.
        shares: Field → field whose vocabulary it shares: equal values of both have one key, and so one vector.
    """

    __pydantic_config__: ClassVar = STRICT

    fields: tuple[str, ...]
    lists: tuple[str, ...]
    numbers: tuple[str, ...]
    hash: str = HASH
    shares: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        fields: Sequence[str],
        lists: Collection[str],
        numbers: Sequence[str],
        kinds: Mapping[str, str],
        hash: str = HASH,
    ) -> "LogSchema":
        """Return the schema of fields and numbers that are made of columns of these kinds."""

        def made(column: str) -> str:
            return column if column in fields else f"{column}.value"

        given = {name: ColumnKind.of(kind).shares for name, kind in kinds.items() if SHARES in kind}
        shares = {made(name): made(other) for name, other in given.items() if {made(name), made(other)} <= {*fields}}
        return cls(tuple(fields), tuple(lists), tuple(numbers), hash, shares)

    @classmethod
    def from_dict(cls, content: Any) -> "LogSchema":
        """The schema of which `asdict` made `content`; of anything else ValueError, beginning with the attribute."""
        if isinstance(content, Mapping) and "hash" not in content:
            raise ValueError("hash is missing")
        schema = validated(cls, content)
        schema.check()
        return schema

    @property
    def key_fields(self) -> dict[str, int]:
        """Field → the field number in its keys: its place, or the place of the field whose vocabulary it shares."""
        places = {name: place for place, name in enumerate(self.fields)}
        return {name: places[self.shares.get(name, name)] for name in places}

    @property
    def single(self) -> tuple[str, ...]:
        """Fields of one value, in the order of a batch's keys."""
        return tuple(name for name in self.fields if name not in self.lists)

    def encoded(self, *, weighted: bool, binary: bool = True, tasks: int = 0) -> pa.Schema:
        """The columns of encoded rows: a column of keys per field, or of lists of keys, and one per number.

        The labels of several tasks are a list of one size.
        """
        key, keys = pa.int64(), pa.list_(pa.int64())
        label = pa.uint8() if binary else pa.float32()
        columns = [
            (LABEL, pa.list_(label, tasks) if tasks else label),
            (TIME, pa.int64()),
            *([(WEIGHT, pa.float32())] if weighted else []),
        ]
        columns += [(name, keys if name in self.lists else key) for name in self.fields]
        return pa.schema(columns + [(name, pa.float32()) for name in self.numbers])

    def check(self) -> None:
        """Raise ValueError if a name is there twice or a list is no field; the message begins with the attribute."""
        for name in ("fields", "lists", "numbers"):
            if len(set(given := getattr(self, name))) < len(given):
                raise ValueError(f"{name}: one is there twice")
        if strange := set(self.lists) - set(self.fields):
            raise ValueError(f"lists: {min(strange)} is no field")
        if strange := {*self.shares, *self.shares.values()} - set(self.fields):
            raise ValueError(f"shares: {min(strange)} is no field")
        if strange := self.shares.keys() & set(self.shares.values()):
            raise ValueError(f"shares: {min(strange)} both shares a vocabulary and is shared")

    def check_fits(self, other: "LogSchema", log: str) -> None:
        """Raise ClickLogError unless a model trained with this schema can be given rows of `log`, which has `other`."""
        for name in ("fields", "lists", "numbers", "hash"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                shown = (", ".join(one) or "none" if isinstance(one, tuple) else one for one in (theirs, ours))
                raise ClickLogError("{}: its {} are {}; the run was trained with {}".format(log, name, *shown))
        if self.shares != other.shares:
            shown = (", ".join(f"{a} shares {b}" for a, b in of.shares.items()) or "none" for of in (other, self))
            raise ClickLogError("{}: its shared vocabularies are {}; the run was trained with {}".format(log, *shown))


@dataclass(frozen=True)
class LogFormat:
    """How to read a raw log, and what to make of its columns.

    Attributes:
        name: Name of the data set.
        label: Column of the labels.
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
        variant: Which of several things `derive` makes, where the fields do not show it.
        derive: Makes the fields and numbers of the raw columns, unless they are simply those; null where it cannot. A
            function of a module, or a `partial` of one, can be sent to other processes with the log.
        checked: Made column → its raw column, besides numbers and time: a row where only the made one is null is bad.
        sources: Made column → its raw column, where their names differ.
        labelled: Whether the log has the label column; a log to score need not. All labels are 0 then.
        label_rule: How labels are read of their column, see `Label`.
        tasks: Column and rule of each label, the first one's too, where there are several: one of each task.
        test_from: Seconds since 1970 from which on rows are test rows, for the split "time".
        class_weights: How much a row with label 0 counts, and one with label 1, times its weight if it has one.
        kinds: Raw column → what it is, see `ColumnKind`, if `derive` goes by that: a missing number is NaN then, and
            another log of the same columns is read by them. Empty for all other formats.
        findings: Why the columns are that, where it was inferred from the log.
        described: The content of the schema that describes the log, see `read_schema`; None without a schema.

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
    derive: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    checked: Mapping[str, str] = field(default_factory=dict)
    labelled: bool = True
    label_rule: str = ""
    tasks: tuple[tuple[str, str], ...] = ()
    test_from: int | None = None
    class_weights: tuple[float, float] = (1.0, 1.0)
    sources: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[ColumnFinding, ...] = field(default=(), compare=False)
    described: Mapping[str, Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise LogOptionError(f"test_fraction must be in [0, 1), got {self.test_fraction}")
        if unknown := [name for name in self.lists if name not in self.fields]:
            raise ValueError(f"lists must be fields, got {unknown[0]!r}, which is none")

    @cached_property
    def raw(self) -> tuple[str, ...]:
        """The columns of the log that are read."""
        labels = self.label_columns if self.labelled else ()
        wanted = (*labels, *self.fields, *self.numbers, self.time, self.split_column, self.weight)
        return tuple(dict.fromkeys(self.sources.get(name, name) for name in wanted if name is not None))

    def kind_of(self, name: str) -> ColumnKind | None:
        """Return the kind of a raw column; `list` for a list by separator; None if the format has no kinds."""
        if self.kinds:
            return ColumnKind.of(self.kinds.get(name, "category"))
        return ColumnKind("list", self.lists[name]) if name in self.lists else None

    @property
    def has_header(self) -> bool:
        """Whether the first line names the columns."""
        return not self.columns

    @cached_property
    def columns_of_model(self) -> LogSchema:
        """Return the columns that a model receives."""
        return LogSchema.of(self.fields, self.lists, self.numbers, self.kinds)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of encoded rows."""
        return self.columns_of_model.encoded(weighted=self.weighted, binary=self.is_binary, tasks=len(self.tasks))

    @property
    def reader(self) -> Label:
        """How the labels are read; of several tasks, the first one's."""
        return self.readers[0]

    @property
    def readers(self) -> tuple[Label, ...]:
        """How the labels of each task are read."""
        return tuple(Label(*task) for task in self.tasks) or (Label(self.label, self.label_rule),)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns that labels are read of."""
        return tuple(column for one in self.readers for column in one.columns)

    @property
    def is_binary(self) -> bool:
        """Whether there is one label, 0 or 1."""
        return not self.tasks and self.reader.is_binary

    def labelled_by(self, labels: Sequence[Label]) -> "LogFormat":
        """The same with these labels, of one task each."""
        tasks = tuple((one.column, one.rule) for one in labels) if len(labels) > 1 else ()
        return replace(self, label=labels[0].column, label_rule="" if tasks else labels[0].rule, tasks=tasks)

    @property
    def weighted(self) -> bool:
        """Whether rows have weights."""
        is_by_label = self.class_weights != (1, 1) or self.reader.tries is not None
        return self.weight is not None or (self.labelled and is_by_label)

    @property
    def reserved(self) -> set[str]:
        """Names that no field and no number can have."""
        return {LABEL, TIME} | ({WEIGHT} if self.weighted else set())

    @property
    def explained(self) -> tuple[ColumnFinding, ...]:
        """Why the columns are what they are: what was inferred, or else that the format has them so."""
        if self.findings:
            return self.findings
        reason = "as the schema says" if self.name == "log" else f"as the format {self.name!r} has it"
        kinds = self.kinds or {
            **(dict.fromkeys(self.label_columns, "label") if self.labelled else {}),
            **dict.fromkeys(self.fields, "category"),
            **{name: str(ColumnKind("list", separator)) for name, separator in self.lists.items()},
            **dict.fromkeys(self.numbers, "number"),
            **({self.sources.get(self.time, self.time): "time"} if self.time is not None else {}),
            **({self.weight: "weight"} if self.weight is not None else {}),
        }
        return tuple(ColumnFinding(name, kind, reason) for name, kind in kinds.items())

    def for_scoring(self) -> "LogFormat":
        """The format for all rows in the order of the file: no test set, no time."""
        # A time may be missing in a row to score; what its kind makes of it is checked in each row that has one.
        checked = {made: raw for made, raw in self.checked.items() if made != self.time or not self.kinds}
        return replace(self, time=None, split="none", split_column=None, test_from=None, checked=checked)

    def endless(self) -> "LogFormat":
        """The format without a test set: all rows of a stream are predicted and then learnt."""
        return replace(self, split="none", split_column=None, test_from=None)

    def without_label(self) -> "LogFormat":
        """The format of such a log that lacks its label column."""
        columns = tuple(name for name in self.columns if name not in self.label_columns)
        return replace(self, labelled=False, columns=columns)


@dataclass(frozen=True)
class Head:
    """How a raw file begins.

    Attributes:
        source: The file, for messages.
        columns: Names of its columns: of a text, the cells of its first line.
        line: First line of a text, without its end; empty for other files.
        separator: What separates the columns of a text, if the first line is a header; empty for other files.
        added: The columns among these that the file's folders add.
    """

    source: str
    columns: tuple[str, ...]
    line: str = ""
    separator: str = ""
    added: tuple[str, ...] = ()

    @classmethod
    def of_text(cls, source: str, line: str) -> "Head":
        """Return the head of a text whose first line is `line`.

        The separator is the first of tab, comma, semicolon and vertical bar that occurs in the line.
        """
        head = cls(source, (), line, next((sign for sign in "\t,;|" if sign in line), ","))
        return replace(head, columns=head.cells(head.separator))

    def cells(self, separator: str) -> tuple[str, ...]:
        """Return the cells of the first line of a text, without quotes."""
        if separator in QUOTING and '"' in self.line:
            return tuple(next(csv.reader([self.line], delimiter=separator)))
        return tuple(cell.strip('"') for cell in self.line.split(separator))

    def has_columns(self, label: str, others: Collection[str], needs_label: bool) -> bool:
        """Whether these columns are there; the label only if it is needed."""
        return set(others) <= set(self.columns) and (not needs_label or label in self.columns)


@dataclass(frozen=True)
class KnownFormat:
    """A format that has a name, or is recognised by how a log begins.

    Attributes:
        recognise: Head of a log, and whether the log needs a label → its format, or None for another format's log.
        name: Value of `dataset` that selects the format; None if it is only recognised.
        make: Makes the format of `name`; takes the value of `option`, if it has one.
        option: Name of the option of `open_log` that says how to read this format, and of no other.
    """

    recognise: Callable[[Head, bool], LogFormat | None]
    name: str | None = None
    make: Callable[..., LogFormat] | None = None
    option: str | None = None


def same(names: Sequence[str]) -> dict[str, str]:
    """`checked` of columns made from columns of the same names."""
    return {name: name for name in names}


# The format of columns whose kinds are known


def format_for_kinds(kinds: Mapping[str, str], label: str, **others: Any) -> LogFormat:
    """The format of a log whose raw columns have these kinds; a kind "label" of other columns means nothing."""
    kinds = {name: str(ColumnKind.of(kind)) for name, kind in kinds.items()}
    transform = ColumnTransform(tuple((name, kind) for name, kind in kinds.items() if name != label))
    read = {name: ColumnKind.of(kind) for name, kind in transform.kinds}
    _check_vocabularies(read)
    outputs = transform.outputs
    sources = {made: name for made, _, name, _ in outputs if made != name}
    for made, name in sources.items():
        if kinds.get(made, "ignore") != "ignore":
            raise ClickLogError(f"column {name!r} yields {made!r}, but the log has a column of that name: rename one")
    times, weights = ([name for name, kind in read.items() if kind.role == role] for role in ("time", "weight"))
    for names, what in ((times, "log's own time"), (weights, "weight")):
        if len(names) > 1:
            raise ClickLogError(f"columns {names[0]!r} and {names[1]!r} cannot both be the {what}")
    return LogFormat(
        "log",
        label,
        tuple(made for made, role, _, _ in outputs if role == "field"),
        numbers=tuple(made for made, role, _, _ in outputs if role == "number"),
        lists={made: read[name].separator for made, _, name, _ in outputs if read[name].separator},
        time=next((made for made, role, _, _ in outputs if role == "time"), next(iter(times), None)),
        weight=next(iter(weights), None),
        derive=transform,
        checked={made: name for made, role, name, _ in outputs if role != "field" or read[name].can_be_unread},
        sources=sources,
        kinds=kinds,
        **others,
    )


def _check_vocabularies(kinds: Mapping[str, ColumnKind]) -> None:
    """Raise ClickLogError if a column shares a vocabulary that another column does not have; `kinds` lack the label."""
    for name, kind in kinds.items():
        if not kind.shares:
            continue
        owner = kinds.get(kind.shares)
        if owner is None:
            why = f"there is no such column of features. {did_you_mean(kind.shares, kinds)}".strip()
        elif owner.role == "ignore":
            why = "that is left out: leave out both, or let it share that of another column"
        elif owner.shares:
            what = "itself" if kind.shares == name else f"that of {owner.shares!r}"
            why = f"that shares {what}: name the column whose vocabulary all of them share"
        elif not kind.can_share(owner):
            why = (
                f"their values differ: the kinds are {kind} and {owner}. Kinds of one field share with their equals, "
                "and a list also with a category"
            )
        else:
            continue
        raise ClickLogError(f"column {name!r} shares the vocabulary of {kind.shares!r}, but {why}")


@dataclass(frozen=True)
class ColumnTransform:
    """Makes fields, numbers and the time of raw columns, given in order, each with its kind."""

    kinds: tuple[tuple[str, str], ...]

    def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the columns of `frame`, of any types, and the derived columns. Unreadable values are null.

        Raises:
            ClickLogError: A column's type cannot be what its kind is.
        """
        schema = frame.schema
        odd = {name: list(missing) for name, missing in self._missing.items() if name in schema}
        frame = frame.with_columns(
            pl.when(~stripped(name, schema[name]).is_in(texts)).then(pl.col(name)).alias(name)
            for name, texts in odd.items()
        )
        return frame.with_columns(how.alias(made) for made, _, name, how in self._outputs(schema) if name in schema)

    def __reduce__(self) -> tuple[type["ColumnTransform"], tuple[Any]]:
        return ColumnTransform, (self.kinds,)  # expressions need not be sent to other processes

    @cached_property
    def _missing(self) -> dict[str, tuple[str, ...]]:
        """Column → additional spellings of a missing value, for the columns that have such spellings."""
        read = {name: ColumnKind.of(kind).missing for name, kind in self.kinds}
        return {name: missing for name, missing in read.items() if missing}

    @cached_property
    def outputs(self) -> tuple[tuple[str, str, str, pl.Expr], ...]:
        """Return each derived column: name, role (field, number or time), raw column, and the expression over texts.

        The expressions read columns in which the texts of `ColumnKind.missing` are null already.
        """
        return tuple(self._outputs({}))

    def _outputs(self, schema: Mapping[str, pl.DataType]) -> Iterator[tuple[str, str, str, pl.Expr]]:
        given = dict(self.kinds)
        taken = {LABEL, TIME} | ({WEIGHT} if "weight" in given.values() else set())
        for name, text in self.kinds:
            kind, made = ColumnKind.of(text), f"{name}.value" if name in taken else name
            dtype = schema.get(name, TEXT)
            match kind.role:
                case "category":
                    yield made, "field", name, as_category(name, dtype)
                case "category of numbers":
                    yield made, "field", name, as_numeral(name, dtype)
                case "number":
                    yield made, "number", name, as_number(name, dtype)
                case "category, number":
                    yield made, "field", name, as_numeral(name, dtype)
                    yield f"{name}.number", "number", name, as_number(name, dtype)
                case "amount":
                    yield made, "number", name, as_amount(name, kind.detail, dtype)
                case "category, amount":
                    yield made, "field", name, as_amount_numeral(name, kind.detail, dtype)
                    yield f"{name}.number", "number", name, as_amount(name, kind.detail, dtype)
                case "boolean":
                    yield made, "field", name, as_boolean(name, dtype)
                case "words":
                    yield made, "field", name, as_words(name, dtype)
                case "domain":
                    yield made, "field", name, as_domain(name, dtype)
                case "category, domain":
                    yield made, "field", name, as_category(name, dtype)
                    yield f"{name}.domain", "field", name, as_domain(name, dtype)
                case "list":
                    spelling = ColumnKind.of(given.get(kind.shares, "list |")).spelling
                    yield made, "field", name, as_list(name, kind.detail, dtype, spelling)
                case "time" | "timestamp" if kind.detail:
                    seconds, local = as_seconds(name, kind.detail, dtype)
                    parts = {f"{name}.hour": hour_of(local)} if kind.has_hour else {}
                    for made, part in (parts | {f"{name}.weekday": weekday_of(local)}).items():
                        yield made, "field", name, without_missing(name, dtype, part)
                    if kind.role == "time":
                        yield f"{name}.seconds", "time", name, seconds


# The YAML file

_LONGEST_KEY = 1000
"""Longest key, in characters, with its value on the same line. YAML allows 1,024."""


class SchemaFile(StrictSettings):
    """The keys of a schema file.

    Attributes:
        label: With 0 or 1 (true, false, yes, no), or a comparison such as `rating>=4`, see `Label`; a list of several
            names a label for each task.
        classes: Texts of the classes that labels are, in the order of their numbers, where they are classes.
        time: Whole numbers, or none.
        categorical: Fields of one value.
        numeric: Numbers, unchanged; a missing one is 0.
        multi: Field of several values → what separates them.
        weight: Column of the rows' weights, numbers >= 0, or none.
        split: Column that marks the test rows, which come last: train, valid and test, or 0, 1 and 2.
        test_fraction: Share of the rows, the last ones, in [0, 1), that is the test set where there is no `split`.
        separator: Between columns of a text log.
        columns: Column → what it is, see `ColumnKind`, instead of `time`, `categorical`, `numeric` and `multi`. Or the
            names of all columns in order, of a log without a header.
    """

    label: str | Annotated[list[str], Field(min_length=1)] | None = None
    classes: list[str | int | float] = Field(default_factory=list)
    time: str | None = None
    categorical: list[str] = Field(default_factory=list)
    numeric: list[str] = Field(default_factory=list)
    multi: dict[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    weight: str | None = None
    split: str | None = None
    test_fraction: float | None = Field(default=None, ge=0, lt=1)
    separator: str = Field(default=",", min_length=1, max_length=1, pattern=r"[ -~\t]")
    columns: list[str] | dict[str, str] = Field(default_factory=list)

    def format(self) -> LogFormat:
        """The format that the keys describe; ValueError if they exclude each other."""
        kinds = self.columns if isinstance(self.columns, dict) else None
        found: dict[str, Any] = {"label": self.label, "split": self.split}
        for role in found:
            named = [name for name, kind in (kinds or {}).items() if ColumnKind.of(kind).role == role]
            if not found[role] and len(named) > 1:
                raise ValueError(f"columns {named[0]!r} and {named[1]!r} cannot both be the {role}")
            found[role] = found[role] or next(iter(named), None)
        if found["label"] is None:
            raise ValueError("label is missing")
        given, split = found["label"], found["split"]
        if isinstance(given, str):
            given = [given]
        label, *others = labels = Label.several(given, self.columns or None)
        if self.classes:
            if label.rule or others:
                raise ValueError(f"classes and the label {found['label']!r} cannot both be given")
            labels = (Label.of_classes(label.column, list(map(str, self.classes))),)
        if split is not None and self.test_fraction is not None:
            raise ValueError("split and test_fraction cannot both be given")
        rest: dict[str, Any] = {
            "split": "column" if split else "last-fraction",
            "split_column": split,
            "test_fraction": TEST_FRACTION if self.test_fraction is None else self.test_fraction,
            "separator": self.separator,
        }
        if kinds is not None:
            for name in ("time", "categorical", "numeric", "multi"):
                if getattr(self, name):
                    raise ValueError(f"{name} and columns cannot both be given: say in columns what {name} has")
            kinds = kinds | ({} if self.weight is None else {self.weight: "weight"})
            kinds |= {one.column: "label" for one in others}
            kinds |= {split: "split"} if split in kinds else {}
            return format_for_kinds(kinds, label.column, **rest).labelled_by(labels)
        fields = (*self.categorical, *self.multi)
        named = [
            *fields,
            *self.numeric,
            *(one.column for one in labels),
            *([] if self.weight is None else [self.weight]),
        ]
        if repeated := {name for name in named if named.count(name) > 1}:
            raise ValueError(f"column {min(repeated)!r} appears twice")
        rest |= {"numbers": tuple(self.numeric), "lists": self.multi, "time": self.time, "weight": self.weight}
        return LogFormat("log", label.column, fields, columns=tuple(self.columns), **rest).labelled_by(labels)


def read_schema(schema: Path | Mapping[str, Any]) -> LogFormat:
    """Return the format of a schema file, or of the content of a schema file. The format holds the content.

    ClickLogError: the file is not YAML, or its keys contradict each other.
    """
    source = "data.schema" if isinstance(schema, Mapping) else str(schema)
    try:
        file = checked(SchemaFile, schema if isinstance(schema, Mapping) else read_yaml(schema), source)
        return replace(file.format(), described=file.model_dump(exclude_unset=True))
    except SettingsError as error:
        raise ClickLogError(str(error)) from error
    except ValueError as error:
        raise ClickLogError(f"{source}: {error}") from error


def write_schema(path: Path, log: LogFormat, source: str, left_out: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write the kinds of a log, and why they are so, as a schema file to be edited: `read_schema` gives `log` again.

    `left_out`: column → why it is to be ignored.
    """
    lines = [_comment(f"What the columns of {source} are. To be edited, and given with --schema.")]
    if log.split == "last-fraction":
        lines.append(f"test_fraction: {log.test_fraction!r}")
    if log.tasks:
        lines.append(f"label: [{', '.join(_scalar(str(one)) for one in log.readers)}]")
    elif str(log.reader) != log.label:
        lines.append(_entry("label", str(log.reader)))
    if log.reader.classes:
        lines.append(f"classes: [{', '.join(map(_scalar, log.reader.classes))}]")
    lines += [_entry("separator", log.separator or ","), "columns:"]
    why = {finding.name: finding.why for finding in log.findings} | dict(left_out)
    kinds = {name: "ignore" if name in left_out else kind for name, kind in log.kinds.items()}
    columns = {name: f"  {_entry(name, kind)}" for name, kind in kinds.items()}
    width = min(max(map(len, columns.values()), default=0), 48)  # the comments below each other
    lines += [f"{text:{width}}  {_comment(why[name])}" if why.get(name) else text for name, text in columns.items()]
    text = "\n".join(lines) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _entry(key: str, value: str) -> str:
    """Return an entry of a YAML mapping: one line, or two lines if the key is too long."""
    key = _scalar(key)
    return f"{key}: {_scalar(value)}" if len(key) < _LONGEST_KEY else f"? {key}\n  : {_scalar(value)}"


def _scalar(text: str) -> str:
    """Return a text as YAML on one line, quoted if necessary."""
    for style in (None, '"'):
        line = yaml.safe_dump([text], allow_unicode=True, width=1 << 30, default_flow_style=True, default_style=style)
        line = line.strip()[1:-1]
        if "\n" not in line:
            break
    return line


def _comment(text: str) -> str:
    """Return a text as a YAML comment on one line."""
    return "# " + "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
