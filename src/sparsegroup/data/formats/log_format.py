"""What a format says of a log: which columns it has, what becomes of them, and where the test set begins."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import polars as pl
import pyarrow as pa

from sparsegroup.data.batches import LABEL, TIME, WEIGHT
from sparsegroup.data.columns.column_finding import ColumnFinding
from sparsegroup.data.log_errors import LogOptionError

Split = Literal["none", "last-day", "last-of-7", "last-fraction", "column", "file"]
"""Where the test set begins: nowhere, at the last calendar day, after 6 of 7 equal parts, where `test_fraction` of the
rows are left, at the first row whose split column is 2, or with the second file."""

TEST_FRACTION = 0.1

Columns = Callable[[pl.DataFrame], pl.DataFrame]


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
