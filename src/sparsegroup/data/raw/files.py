"""The files of a raw log, on a disk or in a store: what each kind offers, and which files a path names."""

import errno
import hashlib
import json
import lzma
import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote
from urllib.request import url2pathname

import polars as pl
import pyarrow as pa
import pyarrow.fs as fs

from sparsegroup.addresses import UNCLEAR, is_unclear, public_address, without_secrets
from sparsegroup.artifact.folder import LONGEST_NAME
from sparsegroup.data.keys import MOST_FIELDS
from sparsegroup.data.local_files import LOCAL, check_name, on_disk
from sparsegroup.data.schema import Head, LogFormat
from sparsegroup.errors import ClickLogError

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
COMPRESSED = (*_CODECS, ".xz")
"""Suffixes of compressed texts."""

TEXT = ""
_KINDS: dict[str, type["RawFile"]] = {}
"""Suffix → kind of file."""

_KEY = re.compile(r"([^=]+)=(.*)", re.DOTALL)
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"

LINE = ""
"""Column of the rows' line numbers in a frame."""


# Bad rows

BadRow = tuple[int, str, str]
"""A row that is left out: its line, the reason, and its text."""

SAMPLE = 80
"""Characters of a bad row that are shown."""

_SAMPLES, _FILES = 5, 20
"""Bad rows of a file, and files with bad rows, that are shown."""


@dataclass
class BadRows:
    """Rows of a file that were left out; they are added in order.

    Attributes:
        source: The file.
        reasons: Reason → number of rows.
        samples: The first few, as (line, reason, text).
    """

    source: str
    reasons: Counter[str] = field(default_factory=Counter)
    samples: list[BadRow] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of rows skipped."""
        return self.reasons.total()

    def add(self, line: int, reason: str, text: str) -> None:
        """Count a row and keep it as a sample if it is one of the first."""
        self.reasons[reason] += 1
        if len(self.samples) < _SAMPLES:
            self.samples.append((line, reason, text[:SAMPLE]))

    def __str__(self) -> str:
        lines = [f"{self.source}: skipped {self.count:,} bad row{'s' if self.count != 1 else ''}"]
        lines += [f"  {count:,} × {reason}" for reason, count in self.reasons.most_common()]
        lines += [f"  line {line}: {reason}: {text!r}" for line, reason, text in self.samples]
        return "\n".join(lines)


def shown_bad_rows(bads: Iterable[BadRows]) -> list[str]:
    """The bad rows of a log's files for a reader: a text for each of the first files that have any, then a count."""
    found = [bad for bad in bads if bad.count]
    texts = [str(bad) for bad in found[:_FILES]]
    if others := found[_FILES:]:
        texts.append(f"and {sum(bad.count for bad in others):,} bad rows in {len(others):,} more files")
    return texts


# What every kind of file offers


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a file, read but not parsed.

    Attributes:
        line: Number of the first one, from 1.
        end_offset: Where the chunk ends: the number of bytes (of a columnar file, rows) up to there.
        end_line: Number of the line after the last one.
        data: The rows, as `RawFile.frame` takes them.
        is_entry: Whether reading can begin with this chunk without decoding what is before it.
    """

    line: int
    end_offset: int
    end_line: int
    data: Any
    is_entry: bool = True


class RawFile(ABC):
    """A file of rows, on a disk or in any store that pyarrow or fsspec opens.

    A kind of file reads the head, cuts the rows into chunks, and parses a chunk.

    Args:
        path: The path in the file system.
        name: The name within its log, wherever that is stored; by default the file's own name. The folders that add
            columns belong to it.
        filesystem: By default this machine's.
        source: The file as the user would name it, for messages; by default the path.

    Attributes:
        suffixes: Ends of the names of such files, in lower case; `TEXT` for all that no other kind names.
        partition: Name → value of the columns that the folders above it add, such as `day=2026-01-02`; None is a
            missing one. On a disk these are all folders above it, also of a relative path.
        first: The first file of the log, if all must have the same columns.
    """

    suffixes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """From now on files with these suffixes are read as this kind; all that no kind names are text."""
        _KINDS.update(dict.fromkeys(cls.suffixes, cls))

    def __init__(
        self,
        path: str | Path,
        name: str | None = None,
        *,
        filesystem: fs.FileSystem = LOCAL,
        source: str | None = None,
    ) -> None:
        self.filesystem, self.source = filesystem, str(path) if source is None else source
        self.path = on_disk(path) if filesystem is LOCAL else str(path)
        keyed, self.partition = _partition(os.path.abspath(self.path) if filesystem is LOCAL else self.source)
        self.name = max(name or posixpath.basename(self.path), keyed, key=len)
        self.suffix = posixpath.splitext(self.path)[1].lower()
        self.first: RawFile | None = None

    def set_root(self, folder: str | Path) -> None:
        """Take columns only from the folders between a folder on this machine and the file."""
        keyed, self.partition = _partition(os.path.relpath(self.path, on_disk(folder)))
        self.name = keyed or posixpath.basename(self.path)

    def missing_columns(self, log: LogFormat) -> list[str]:
        """Return the format's columns that neither the file nor its folders have, without the label's."""
        known = {*self._all_columns(log), *log.label_columns}
        return [name for name in log.raw if name not in known]

    def add_missing(self, names: Iterable[str]) -> None:
        """Add columns in which every value is missing."""
        self.partition = {**self.partition, **dict.fromkeys(names)}
        vars(self).pop("head", None)  # it has the added columns

    @abstractmethod
    def _read_head(self) -> Head: ...

    @property
    @abstractmethod
    def size(self) -> int | None:
        """The `end_offset` of the last chunk; None if it is unknown before the file is read."""

    @abstractmethod
    def chunks(self, log: LogFormat, offset: int, line: int, chunk_bytes: int) -> Iterator[Chunk]:
        """The rows from `offset` on, where line `line` begins.

        The end of a chunk depends only on its beginning, so that reading can resume after any chunk.

        Args:
            log: The format.
            offset: `end_offset` of a chunk, or 0.
            line: `end_line` of that chunk, or 1.
            chunk_bytes: About how many bytes of a text a chunk has.

        Raises:
            ClickLogError: The file is damaged or truncated.
        """

    @abstractmethod
    def frame(self, chunk: Chunk, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
        """The format's raw columns as strings, empty values as null, and the column `LINE`; `bad` receives the rest."""

    def full_frame(self, chunk: Chunk, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
        """The frame, with the columns of the format that only the folders have."""
        frame = self.frame(chunk, log, bad)
        added = [name for name in log.raw if name in self.partition and name not in frame.columns]
        return frame.with_columns(pl.lit(self.partition[name], pl.String).alias(name) for name in added)

    def columns(self, log: LogFormat) -> list[str]:
        """All columns of the file itself, in order."""
        added = set(self.head.added)
        return [name for name in self.head.columns if name not in added]

    def has_label(self, log: LogFormat) -> bool:
        """Whether the label columns of the format are there."""
        return set(log.label_columns) <= set(self.head.columns)

    def first_row(self, log: LogFormat) -> int:
        """Line number of the first row, from 1."""
        return 1

    @cached_property
    def head(self) -> Head:
        """How the file begins, with the columns that its folders add; it is read once.

        Raises:
            ClickLogError: The file is empty or damaged.
            OSError: No such file.
        """
        head = self._read_head()
        added = tuple(name for name in self.partition if name not in head.columns)
        head = replace(head, columns=(*head.columns, *added), added=added)
        if self.first is not None and replace(self.first.head, source=head.source) == head:
            return replace(self.first.head, source=head.source)  # of many files, one copy of the names is kept
        return head

    @property
    def is_compressed(self) -> bool:
        """Whether the bytes are a compressed text."""
        return self.suffix in COMPRESSED

    @cached_property
    def facts(self) -> tuple[int, int]:
        """Size in bytes and time of the last change in ns since 1970 (0 if unknown), as they were at first.

        Raises:
            FileNotFoundError, IsADirectoryError: There is no such file.
            ClickLogError: It is a pipe or a device.
        """
        return self.facts_now()

    def facts_now(self, info: fs.FileInfo | None = None) -> tuple[int, int]:
        """As `facts`, of this moment, or of when `info` was read."""
        info = info or self.filesystem.get_file_info(self.path)
        if info.type == fs.FileType.Directory:
            raise IsADirectoryError(errno.EISDIR, "is a directory, not a click log", self.source)
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(errno.ENOENT, "no such file", self.source)
        if info.type != fs.FileType.File:
            raise ClickLogError(
                f"{self.source}: is a pipe or a device, and a log is read more than once; write a file first"
            )
        return info.size or 0, info.mtime_ns or 0

    def open_bytes(self) -> Any:
        """A stream of the stored bytes, which can seek; raises as `facts`."""
        _ = self.facts  # opening a pipe would wait for its writer
        try:
            return self.filesystem.open_input_file(self.path)
        except OSError:
            self.facts_now()  # has a clearer message if there is no such file
            raise

    def open_text(self) -> Any:
        """A binary stream of the text, uncompressed; it can seek unless the file `is_compressed`; raises as `facts`."""
        stream = self.open_bytes()
        if self.suffix == ".xz":  # the one compression that Arrow does not know
            return lzma.open(stream, "rb")
        return pa.CompressedInputStream(stream, _CODECS[self.suffix]) if self.is_compressed else stream

    def check(self, log: LogFormat) -> None:
        """Raise ClickLogError unless the file has the format's columns, and the same ones as the log's other files."""
        where = f"{self.source}:1"
        self.check_alike(log)
        header = self._all_columns(log)
        times = Counter(header)
        if missing := [name for name in log.raw if name not in times]:
            raise ClickLogError(f"{where}: no column {missing[0]!r}; the columns are {', '.join(header)}")
        if repeated := [name for name in log.raw if times[name] > 1]:
            raise ClickLogError(f"{where}: column {repeated[0]!r} appears {times[repeated[0]]} times")
        if not 1 <= len(log.fields) <= MOST_FIELDS:
            hint = ": leave some out with `exclude`, or give a schema" if log.fields else ""
            if log.kinds and not log.fields:
                hint = ": none was taken for a category, and numbers have no embeddings; say in a schema which one is"
            raise ClickLogError(f"{where}: {len(log.fields)} fields; there must be 1 to {MOST_FIELDS}{hint}", "exclude")
        named = {*log.fields, *log.numbers}
        if log.weight in named:
            raise ClickLogError(f"{where}: column {log.weight!r} is the weight; it cannot also be a field")
        if taken := log.reserved & named:
            raise ClickLogError(f"{where}: a field cannot be named {min(taken)!r}; rename it, or leave it out")

    def check_alike(self, log: LogFormat) -> None:
        """Raise ClickLogError unless the columns are the first file's, if all must have the same."""
        first, where = self.first, f"{self.source}:1"
        if first is None:
            return
        if type(self) is not type(first):
            raise ClickLogError(f"{where}: is not the same kind of file as {first.source}; all files of a log must be")
        ours, theirs = set(self._all_columns(log)), set(first._all_columns(log))
        for where_not, where_is, names in ((self, first, theirs - ours), (first, self, ours - theirs)):
            if names:
                raise ClickLogError(
                    f"{where}: has not the columns of {first.source}: {', '.join(map(repr, sorted(names)))} "
                    f"{'is' if len(names) == 1 else 'are'} in {where_is.source} and not in {where_not.source}"
                )

    def _all_columns(self, log: LogFormat) -> list[str]:
        own = self.columns(log)
        return [*own, *(name for name in self.partition if name not in own)]


def raw_file(path: str | Path, name: str | None = None, **stored: Any) -> RawFile:
    """Return the file at `path`, of the kind that its suffix names in any case; see `RawFile`."""
    return _KINDS.get(posixpath.splitext(path)[1].lower(), _KINDS[TEXT])(path, name, **stored)


def _partition(source: str) -> tuple[str, dict[str, str | None]]:
    """The path from the first folder on whose name is a key and a value, as Hive writes them; and all of these."""
    parts, keys, keyed = source.split("/"), {}, ""
    for place, part in enumerate(parts[:-1]):
        if found := _KEY.fullmatch(part):
            keyed = keyed or "/".join(parts[place:])
            keys[unquote(found[1])] = None if found[2] == _NO_VALUE else unquote(found[2]) or None
    return keyed, keys


def source_of(files: Sequence[RawFile], log: LogFormat, tests: int = 0) -> dict[str, Any]:
    """Names, sizes and times of files, the last `tests` of them the test set's, and a hash of their format, as JSON."""
    stats = [[file.name, *file.facts] for file in files]
    later = ("label_rule", "tasks", "test_from", "class_weights")  # logs of before have identities without them
    names = [one.name for one in fields(log) if one.name not in ("derive", "sources", "findings", "described", *later)]
    names += [name for name in later if getattr(log, name) not in ("", None, (), (1, 1))]
    text = json.dumps({name: getattr(log, name) for name in names}, default=dict)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    # Of two files, the split of the format says that one is the test set's.
    return {"files": stats, "format": digest, **({"tests": tests} if tests and len(files) > 2 else {})}


def identity_of(source: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """`Log.identity` of a log made of `source_of` some files: without their times, because a copy has others."""
    if "files" not in source:
        return None
    kept = {name: source[name] for name in ("format", "tests") if name in source}
    return {"files": [[name, size] for name, size, *_ in source["files"]], **kept}


# The files that a path names

LogPath = str | Path
"""A file or a folder; if nothing has that name, a pattern of `*`, `?`, `[…]` and `**` (any folders), or a URI such as
s3://bucket/day=*/."""

LogPaths = LogPath | Sequence[LogPath]
"""One of them, or several that are one log."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/?]*)([^?]*)\??(.*)", re.DOTALL)
_IN_PATTERNS = "*?["
_PREPARED = "log.json"


def paths_of(log: LogPaths) -> list[str]:
    """The paths that a log is named by, as text; ClickLogError if there are none, or one is not text."""
    paths = [log] if isinstance(log, str | Path) else list(log)
    if not paths:
        raise ClickLogError("a log of several files has one at least, got an empty list")
    for path in paths:
        check_name(path)
    return [os.fspath(path) for path in paths]


def shown(log: LogPaths) -> str:
    """A log, for messages."""
    first, *others = paths_of(log)
    return public_address(first) + (f" and {len(others):,} more" if others else "")


def short_name(log: LogPaths) -> str:
    """A name for what is made of a log: that of its file, or of the folder of its files."""
    first, *others = paths_of(log)
    uri = _uri(public_address(first))
    place, path = ("", first) if uri is None else (uri[2], uri[3])
    fixed, _ = _cut(path) if uri is not None or not os.path.lexists(path) else (path, [])
    name = Path(fixed).name
    if name in ("", "..") and uri is None:
        name = os.path.basename(os.path.realpath(fixed or os.curdir))
    name = name or place
    if "=" not in name:  # the value of a partition's key may have dots
        name = name.split(".")[0]
    more = f"+{len(others)}" if others else ""
    return (name.encode()[: LONGEST_NAME - len(more)].decode(errors="ignore") or "log") + more


def is_same(log: LogPaths, other: LogPaths) -> bool:
    """Whether two logs are named by the same paths; on a disk, from any folder."""
    return identified(log) == identified(other)


def identified(log: LogPaths) -> list[str]:
    """Return absolute paths of a log, and its addresses without secrets."""
    return [public_address(path) if _uri(path) else os.path.realpath(path) for path in paths_of(log)]


def _uri(path: str) -> re.Match[str] | None:
    """The parts of a URI; None for an existing path."""
    return None if os.path.lexists(path) else _URI.fullmatch(path)


class NoFilesError(ClickLogError):
    """A folder or a pattern without files that have rows."""


def listed(
    log: LogPaths, *, by_name: bool = True, waits: bool = False, root: str | Path | None = None
) -> list[RawFile]:
    """The files of a log; files of a folder or pattern that are empty or begin with "." or "_" are skipped.

    Args:
        log: The log.
        by_name: Sort all files by their paths, numbers in them by value (`day9` before `day10`); if not, the order is
            that of the given paths, and only the files of each folder or pattern are sorted.
        waits: Whether files may still be missing, because the log is being written.
        root: A folder on this machine that has the files. Its own name and the folders above it add no columns.

    Raises:
        ClickLogError: No files, one that is named twice, or a store that cannot be opened.
        FileNotFoundError: No such file or folder.
    """
    files = [file for path in paths_of(log) for file in sorted(_files_at(path, waits), key=_by_value)]
    if by_name:
        files.sort(key=_by_value)
    seen: set[str] = set()
    for file in files:
        if file.source in seen:
            raise ClickLogError(f"{shown(log)}: {file.source} is in it twice; name each file once")
        seen.add(file.source)
        if root is not None:
            file.set_root(root)
    return files


def _by_value(file: RawFile) -> tuple[list[list[Any]], str]:
    parts = [re.split(r"(\d+)", part) for part in file.source.split("/")]
    return [[int(piece) if place % 2 else piece for place, piece in enumerate(part)] for part in parts], file.source


def _files_at(path: str, waits: bool) -> list[RawFile]:
    try:
        return _files_that_are_at(path)
    except (FileNotFoundError, NoFilesError):
        if waits:
            return []
        raise


def _files_that_are_at(path: str) -> list[RawFile]:
    uri = _uri(path)
    if uri is None or uri[1] == "file":
        return _on_disk(path if uri is None else url2pathname(uri[3]))
    scheme, place, inner, query = uri.groups()
    with _named(path):
        filesystem, root = open_filesystem(scheme, place, query)
        fixed, pattern = _cut(inner.rstrip("/"), "*[")  # a question mark begins the query
        source = public_address(f"{scheme}://{place}{fixed}")
        return _Tree(filesystem, root + fixed, source).files(pattern, public_address(path))


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Put the URI, without its secrets, before a store's messages."""
    name = public_address(uri)
    try:
        yield
    except ClickLogError:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such file", name) from error
    except (OSError, ValueError, ImportError) as error:
        hint = f"; {UNCLEAR}" if is_unclear(uri) else ""
        raise ClickLogError(f"{name}: {without_secrets(error, uri)}{hint}") from error


def open_filesystem(scheme: str, place: str, query: str) -> tuple[fs.FileSystem, str]:
    """The file system of `scheme://place?query` and the path of its root in it: pyarrow's, or else fsspec's.

    `place` is a bucket or host; `query` has pyarrow's options, such as `region=…&endpoint_override=…`.
    """
    uri = f"{scheme}://{place}"
    try:
        filesystem, root = fs.FileSystem.from_uri(f"{uri}?{query}" if query else uri)
        return filesystem, root.rstrip("/")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if "filesystem type" not in str(error) and "built" not in str(error):  # neither unknown nor left out
            raise
    from fsspec.core import url_to_fs  # always there: torch needs it

    filesystem, root = url_to_fs(uri)  # its ImportError names the package to install
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), root.rstrip("/")


def _on_disk(path: str) -> list[RawFile]:
    if os.path.isfile(path):
        return [raw_file(path)]
    fixed, pattern = (path, []) if os.path.lexists(path) else _cut(path)
    fixed = fixed.rstrip("/") or ("/" if fixed else "")
    return _Tree(LOCAL, on_disk(fixed or os.curdir), fixed).files(pattern, public_address(path))


def _cut(path: str, signs: str = _IN_PATTERNS) -> tuple[str, list[str]]:
    """The part of a path before a pattern, and the names after it."""
    parts = path.split("/")
    first = next((place for place, part in enumerate(parts) if any(sign in part for sign in signs)), len(parts))
    fixed = "/".join(parts[:first])
    return fixed or ("/" if first and path.startswith("/") else ""), [part for part in parts[first:] if part]


@dataclass(frozen=True)
class _Tree:
    """The files below a folder, or the one in its place: the folder's path in its file system, and for messages."""

    filesystem: fs.FileSystem
    root: str
    source: str

    def files(self, pattern: Sequence[str], requested: str) -> list[RawFile]:
        """The files that match a pattern (names of folders and files), or are in folders that do; `[]` is all files."""
        here = self.filesystem.get_file_info(self.root)
        if here.type not in (fs.FileType.Directory, fs.FileType.NotFound) and not pattern:  # a pipe is refused then
            return [self._file(here, None)]
        if here.type == fs.FileType.NotFound and not pattern:
            raise FileNotFoundError(errno.ENOENT, "no such file", requested)
        found = {info.path: info for info in self._matching(here, pattern)} if not here.is_file else {}
        names = {self._inside(info): info for info in found.values()}
        if _PREPARED in names:
            raise ClickLogError(
                f"{requested}: is a prepared log, which is read from a disk and by itself; copy it to one"
            )
        files = [self._file(info, name) for name, info in names.items() if info.size]
        if not files:
            what = "matches no files" if pattern else "holds no files"
            raise NoFilesError(f"{requested}: {what}{' with rows in them' if names else ''}")
        return files

    def _inside(self, info: fs.FileInfo) -> str:
        return str(info.path.removeprefix(self.root).lstrip("/"))

    def _file(self, info: fs.FileInfo, name: str | None) -> RawFile:
        inside = self._inside(info)
        source = f"{self.source.rstrip('/')}/{inside}" if self.source and inside else self.source or inside
        file = raw_file(info.path, name, filesystem=self.filesystem, source=source)
        file.facts = file.facts_now(info)
        return file

    def _matching(self, here: fs.FileInfo, pattern: Sequence[str]) -> Iterator[fs.FileInfo]:
        """Files at `here` or in it."""
        if not pattern:
            below = self._below(here.path, recursive=True) if here.type == fs.FileType.Directory else [here]
            yield from (info for info in below if info.is_file and not self._is_hidden(info, here))
        elif here.type != fs.FileType.Directory:
            return
        elif pattern[0] == "**" and len(pattern) > 1:
            folders = [info for info in self._below(here.path, recursive=True) if not info.is_file]
            for folder in [here, *(info for info in folders if not self._is_hidden(info, here))]:
                yield from self._matching(folder, pattern[1:])
        else:
            for info in self._below(here.path):
                hidden = info.base_name[0] in "._" and info.base_name[0] != pattern[0][0]
                if not hidden and (pattern[0] == "**" or fnmatchcase(info.base_name, pattern[0])):
                    yield from self._matching(info, pattern[1:])

    def _below(self, folder: str, *, recursive: bool = False, above: tuple[str, ...] = ()) -> list[fs.FileInfo]:
        """The content of a folder; on a disk without folders that a link leads back into, which would have no end."""
        local = isinstance(self.filesystem, fs.LocalFileSystem)
        selector = fs.FileSelector(folder, allow_not_found=True, recursive=recursive and not local)
        try:
            found = [info for info in self.filesystem.get_file_info(selector) if info.base_name]
        except UnicodeDecodeError as error:
            raise ClickLogError(f"{self.source}: the name of {error.object!r} in it is not UTF-8; rename it") from error
        if recursive and local:
            above = (*above, os.path.realpath(folder))
            for info in [info for info in found if info.type == fs.FileType.Directory]:
                if os.path.realpath(info.path) not in above:
                    found += self._below(info.path, recursive=True, above=above)
        return found

    def _is_hidden(self, info: fs.FileInfo, here: fs.FileInfo) -> bool:
        return any(part[0] in "._" for part in info.path.removeprefix(here.path).split("/") if part)
