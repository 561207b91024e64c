"""What every kind of raw file offers: how it begins, and its rows as columns of strings, chunk by chunk."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from sparsegroup.data.formats.log_format import Head, LogFormat
from sparsegroup.data.keys import MOST_FIELDS
from sparsegroup.data.log_errors import ClickLogError

BadRow = tuple[int, str, str]
"""A row that is left out: its line, the reason, and its text."""

TEXT = ""
_KINDS: dict[str, type["RawFile"]] = {}
"""Suffix → kind of file."""

LINE = ""
"""Column of the rows' line numbers in a frame."""


@dataclass(frozen=True)
class Chunk(ABC):
    """Consecutive rows of a file.

    Attributes:
        line: Number of the first one, from 1.
        end_offset: Where the chunk ends: the number of bytes (of a columnar file, rows) up to there.
        end_line: Number of the line after the last one.
    """

    line: int
    end_offset: int
    end_line: int

    @abstractmethod
    def frame(self, log: LogFormat, columns: Sequence[str], bad: list[BadRow]) -> pl.DataFrame:
        """The format's raw columns as strings, empty values as null, and the column `LINE`.

        Args:
            log: The format.
            columns: All columns of the file, in order.
            bad: Is told of rows that are left out.
        """


class RawFile(ABC):
    """A file of rows.

    Args:
        path: The file.

    Attributes:
        suffixes: What the names of such files end with; `TEXT` for all that no other kind names.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """From now on files with these suffixes are read as this kind; all that no kind names are text."""
        _KINDS.update(dict.fromkeys(cls.suffixes, cls))

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def head(self) -> Head:
        """How the file begins, which is read once.

        Raises:
            ClickLogError: The file is empty or damaged.
            OSError: No such file.
        """
        return self._read_head()

    @abstractmethod
    def _read_head(self) -> Head: ...

    @property
    @abstractmethod
    def size(self) -> int | None:
        """What `end_offset` of the last chunk will be; None where only reading the file tells."""

    @abstractmethod
    def columns(self, log: LogFormat) -> list[str]:
        """All columns of the file, in order."""

    def check(self, log: LogFormat) -> None:
        """Whether the columns are there that the format wants, and can be what it says.

        Raises:
            ClickLogError: They are not.
        """
        header, where = self.columns(log), f"{self.path}:1"
        if missing := [name for name in log.raw if name not in header]:
            raise ClickLogError(f"{where}: no column {missing[0]!r}; the columns are {', '.join(header)}")
        if repeated := [name for name in log.raw if header.count(name) > 1]:
            raise ClickLogError(f"{where}: column {repeated[0]!r} appears {header.count(repeated[0])} times")
        if not 1 <= len(log.fields) <= MOST_FIELDS:
            hint = (
                "" if log.fields or not log.kinds else ": no column was taken for a category; say in a schema which is"
            )
            raise ClickLogError(f"{where}: {len(log.fields)} fields; there must be 1 to {MOST_FIELDS}{hint}")
        named = {*log.fields, *log.numbers}
        if log.weight in named:
            raise ClickLogError(f"{where}: column {log.weight!r} is the weight; it cannot be a field, too")
        if taken := log.reserved & named:
            raise ClickLogError(f"{where}: a field cannot be named {min(taken)!r}; rename it, or leave it out")

    @abstractmethod
    def has_label(self, log: LogFormat) -> bool:
        """Whether the label column of the format is there."""

    @abstractmethod
    def first_row(self, log: LogFormat) -> int:
        """Line number of the first row, from 1."""

    @abstractmethod
    def chunks(self, log: LogFormat, offset: int, line: int, chunk_bytes: int) -> Iterator[Chunk]:
        """The rows from `offset` on, where line `line` begins.

        Where a chunk ends depends only on where it begins, so that reading can go on after any chunk.

        Args:
            log: The format.
            offset: `end_offset` of a chunk, or 0.
            line: `end_line` of that chunk, or 1.
            chunk_bytes: About how many bytes of a text a chunk has.

        Raises:
            ClickLogError: The file is damaged or truncated.
        """


def raw_file(path: Path) -> RawFile:
    """The file at `path`, by how its name ends."""
    return _KINDS.get(path.suffix, _KINDS[TEXT])(path)


def source_of(files: Sequence[RawFile], log: LogFormat) -> dict[str, Any]:
    """Names, sizes and times of files, and a hash of everything that their format says, as JSON."""
    stats = [[file.path.name, file.path.stat().st_size, file.path.stat().st_mtime_ns] for file in files]
    names = [field.name for field in fields(log) if field.name not in ("derive", "sources", "kinds", "findings")]
    names += ["kinds"] if log.kinds else []  # the hash of other formats is as before there were any
    text = json.dumps({name: getattr(log, name) for name in names}, default=dict)
    return {"files": stats, "format": hashlib.sha256(text.encode()).hexdigest()[:16]}


def identity_of(source: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`Log.identity` of a log that was made of `source_of` some files: without their times, for a copy has others."""
    if "files" not in source:
        return None
    return {"files": [[name, size] for name, size, *_ in source["files"]], "format": source.get("format")}
