"""What every kind of raw file offers: how it begins, and its rows as columns of strings, chunk by chunk."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import polars as pl

from sparsegroup.data.keys import MOST_FIELDS
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.raw.stored_file import StoredFile
from sparsegroup.data.schema import Head, LogFormat

BadRow = tuple[int, str, str]
"""A row that is left out: its line, the reason, and its text."""

TEXT = ""
_KINDS: dict[str, type["RawFile"]] = {}
"""Suffix → kind of file."""

_KEY = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

LINE = ""
"""Column of the rows' line numbers in a frame."""


@dataclass(frozen=True)
class Chunk(ABC):
    """Consecutive rows of a file.

    Attributes:
        line: Number of the first one, from 1.
        end_offset: Where the chunk ends: the number of bytes (of a columnar file, rows) up to there.
        end_line: Number of the line after the last one.
        is_entry: Whether reading begins with this chunk without reading, decoding or uncompressing what is before it.
    """

    line: int
    end_offset: int
    end_line: int
    is_entry: bool = field(default=True, kw_only=True)

    @abstractmethod
    def frame(self, log: LogFormat, columns: Sequence[str], bad: list[BadRow]) -> pl.DataFrame:
        """The format's raw columns as strings, empty values as null, and the column `LINE`.

        Args:
            log: The format.
            columns: All columns of the file, in order.
            bad: Is told of rows that are left out.
        """

    def full_frame(
        self, log: LogFormat, columns: Sequence[str], bad: list[BadRow], partition: Mapping[str, str | None]
    ) -> pl.DataFrame:
        """The frame, with those of the columns in `partition` that the format wants and the file itself has not."""
        frame = self.frame(log, columns, bad)
        added = [name for name in log.raw if name in partition and name not in frame.columns]
        return frame.with_columns(pl.lit(partition[name], pl.String).alias(name) for name in added)


class RawFile(ABC):
    """A file of rows.

    Args:
        path: A file on a disk, or in a store.
        name: What it is called within its log, wherever that lies; by default the file's own name. The folders that add
            columns belong to it.

    Attributes:
        suffixes: What the names of such files end with; `TEXT` for all that no other kind names.
        stored: Where its bytes lie.
        source: The file, for messages.
        partition: Name → value of the columns that the folders above it add, such as `day=2026-01-02`; None is a
            missing one.
        others: The files after it, of the first file of a log.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """From now on files with these suffixes are read as this kind; all that no kind names are text."""
        _KINDS.update(dict.fromkeys(cls.suffixes, cls))

    def __init__(self, path: StoredFile | str | Path, name: str | None = None) -> None:
        self.stored = StoredFile.at(path)
        self.source = self.stored.source
        keyed, self.partition = _partition(self.source)
        self.name = max(name or self.stored.name, keyed, key=len)
        self._added: tuple[str, ...] = ()
        self._first: RawFile | None = None
        self.others: Sequence[RawFile] = ()

    @property
    def path(self) -> Path:
        """The path, of a file on a disk."""
        return Path(self.source)

    @cached_property
    def head(self) -> Head:
        """How the file begins, with the columns that its folders add; it is read once.

        Raises:
            ClickLogError: The file is empty or damaged.
            OSError: No such file.
        """
        head = self._read_head()
        self._added = tuple(name for name in self.partition if name not in head.columns)
        head = replace(head, columns=(*head.columns, *self._added))
        like = None if self._first is None else self._first.head
        if like is not None and (like.line, like.columns) == (head.line, head.columns):
            return replace(like, source=head.source)  # of many files, one copy of the names is kept
        return head

    @property
    def added(self) -> tuple[str, ...]:
        """The columns of a file that names its columns which its folders add."""
        return self._added if self.head.columns else ()

    def lead(self, others: Sequence["RawFile"], *, alike: bool) -> None:
        """Be the first of several files that make up a log.

        Args:
            others: The files after it.
            alike: Whether they must have the same columns.
        """
        self.others, self._first = others, None
        for file in others:
            file.others, file._first = (), self if alike else None

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
        """Whether the columns are there that the format wants, and can be what it says; and are those of the others.

        Raises:
            ClickLogError: They are not.
        """
        where = f"{self.source}:1"
        self.check_alike(log)
        header = self._all_columns(log)
        if missing := [name for name in log.raw if name not in header]:
            raise ClickLogError(f"{where}: no column {missing[0]!r}; the columns are {', '.join(header)}")
        if repeated := [name for name in log.raw if header.count(name) > 1]:
            raise ClickLogError(f"{where}: column {repeated[0]!r} appears {header.count(repeated[0])} times")
        if not 1 <= len(log.fields) <= MOST_FIELDS:
            hint = (
                ""
                if log.fields or not log.kinds
                else ": none was taken for a category, and numbers have no embeddings; say in a schema which one is"
            )
            raise ClickLogError(f"{where}: {len(log.fields)} fields; there must be 1 to {MOST_FIELDS}{hint}")
        named = {*log.fields, *log.numbers}
        if log.weight in named:
            raise ClickLogError(f"{where}: column {log.weight!r} is the weight; it cannot be a field, too")
        if taken := log.reserved & named:
            raise ClickLogError(f"{where}: a field cannot be named {min(taken)!r}; rename it, or leave it out")

    def _all_columns(self, log: LogFormat) -> list[str]:
        own = self.columns(log)
        return [*own, *(name for name in self.partition if name not in own)]

    def check_alike(self, log: LogFormat) -> None:
        """Whether the columns are those of the first file, where all have the same.

        Raises:
            ClickLogError: They are not.
        """
        first, where = self._first, f"{self.source}:1"
        if first is None:
            return
        if type(self) is not type(first):
            raise ClickLogError(
                f"{where}: is no file like {first.source}, which the log begins with; give those of one kind"
            )
        ours, theirs = set(self._all_columns(log)), set(first._all_columns(log))
        for where_not, where_is, names in ((self, first, theirs - ours), (first, self, ours - theirs)):
            if names:
                raise ClickLogError(
                    f"{where}: has not the columns of {first.source}: {', '.join(map(repr, sorted(names)))} "
                    f"{'is' if len(names) == 1 else 'are'} in {where_is.source} and not in {where_not.source}"
                )

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


def raw_file(path: StoredFile | str | Path, name: str | None = None) -> RawFile:
    """The file at `path`, of the kind that its name's end tells.

    Args:
        path: A file on a disk, or in a store.
        name: See `RawFile`.
    """
    stored = StoredFile.at(path)
    return _KINDS.get(stored.suffix, _KINDS[TEXT])(stored, name)


def _partition(source: str) -> tuple[str, dict[str, str | None]]:
    """The path from the first folder on whose name is a key and a value, as Hive writes them; and all of these."""
    parts, keys, keyed = source.split("/"), {}, ""
    for place, part in enumerate(parts[:-1]):
        if found := _KEY.fullmatch(part):
            keyed = keyed or "/".join(parts[place:])
            keys[unquote(found[1])] = None if found[2] == _NO_VALUE else unquote(found[2]) or None
    return keyed, keys


def source_of(files: Sequence[RawFile], log: LogFormat, tests: int = 0) -> dict[str, Any]:
    """Names, sizes and times of files, and a hash of everything that their format says, as JSON.

    Args:
        files: Those of the log, then those of the test set's own log.
        log: Their format.
        tests: How many the latter are; the split of the format tells of a single one.
    """
    stats = [[file.name, *file.stored.facts] for file in files]
    names = [one.name for one in fields(log) if one.name not in ("derive", "sources", "findings")]
    text = json.dumps({name: getattr(log, name) for name in names}, default=dict)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {"files": stats, "format": digest, **({"tests": tests} if tests and len(files) > 2 else {})}


def identity_of(source: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`Log.identity` of a log that was made of `source_of` some files: without their times, for a copy has others."""
    if "files" not in source:
        return None
    kept = {name: source[name] for name in ("format", "tests") if name in source}
    return {"files": [[name, size] for name, size, *_ in source["files"]], **kept}
