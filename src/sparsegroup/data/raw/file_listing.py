"""The files that make up a raw log: one, those of a folder or a pattern, or several, on a disk or in a store."""

import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.request import url2pathname

import pyarrow.fs as fs

from sparsegroup.artifact.folder import LONGEST_NAME
from sparsegroup.data.local_files import LOCAL, check_name, on_disk
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.raw.raw_file import RawFile, raw_file
from sparsegroup.data.raw.stored_file import StoredFile, named, open_filesystem

LogPath = str | Path
"""A file or a folder; where nothing has that name, a pattern of `*`, `?`, `[…]` and `**` (any folders), or a URI such
as s3://bucket/day=*/."""

LogPaths = LogPath | Sequence[LogPath]
"""One of them, or several that are one log."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/?]*)([^?]*)\??(.*)", re.DOTALL)
_IN_PATTERNS = "*?["
_PREPARED = "log.json"


def paths_of(log: LogPaths) -> list[str]:
    """The paths that a log is named by, as text.

    Raises:
        ClickLogError: There are none, or one is no text.
    """
    paths = [log] if isinstance(log, str | Path) else list(log)
    if not paths:
        raise ClickLogError("a log of several files has one at least, got an empty list")
    for path in paths:
        check_name(path)
    return [os.fspath(path) for path in paths]


def shown(log: LogPaths) -> str:
    """A log, for messages."""
    first, *others = paths_of(log)
    return _public(first) + (f" and {len(others):,} more" if others else "")


def _public(path: str) -> str:
    """A path without the keys of a store."""
    return re.sub(r"://[^/@:]+:[^/@]+@", "://", path)


def short_name(log: LogPaths) -> str:
    """A name for what is made of a log: that of its file, or of the folder that its files lie in."""
    first, *others = paths_of(log)
    uri = _uri(first)
    place, path = ("", first) if uri is None else (uri[2].rpartition("@")[2], uri[3])
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
    """Whether two logs are named by the same paths; on a disk, wherever they are seen from."""
    return [_absolute(path) for path in paths_of(log)] == [_absolute(path) for path in paths_of(other)]


def _absolute(path: str) -> str:
    return path if _uri(path) else os.path.realpath(path)


def _uri(path: str) -> re.Match[str] | None:
    """The parts of a URI; of a path that exists as it is given, none."""
    return None if os.path.lexists(path) else _URI.fullmatch(path)


def listed(log: LogPaths, *, by_name: bool = True) -> list[RawFile]:
    """The files of a log.

    In a folder and for a pattern, what is empty or begins with "." or "_" is passed over.

    Args:
        log: The log.
        by_name: Sort all files by their paths, numbers in them by value (`day9` before `day10`); if not, files lie as
            their paths are given, and only those of one folder or pattern are sorted.

    Raises:
        ClickLogError: No files, one that is named twice, or a store that cannot be opened.
        FileNotFoundError: No such file or folder.
    """
    files = [file for path in paths_of(log) for file in sorted(_files_at(path), key=_by_value)]
    if by_name:
        files.sort(key=_by_value)
    seen: set[str] = set()
    for file in files:
        if file.source in seen:
            raise ClickLogError(f"{shown(log)}: {file.source} is in it twice; name each file once")
        seen.add(file.source)
    return files


def _by_value(file: RawFile) -> tuple[list[list[Any]], str]:
    parts = [re.split(r"(\d+)", part) for part in file.source.split("/")]
    return [[int(piece) if place % 2 else piece for place, piece in enumerate(part)] for part in parts], file.source


def _files_at(path: str) -> list[RawFile]:
    uri = _uri(path)
    if uri is None or uri[1] == "file":
        return _on_disk(path if uri is None else url2pathname(uri[3]))
    scheme, place, inner, query = uri.groups()
    with named(_public(path)):
        filesystem, root = open_filesystem(scheme, place, query)
        fixed, pattern = _cut(inner.rstrip("/"), "*[")  # a question mark begins the query
        return _Tree(filesystem, root + fixed, _public(f"{scheme}://{place}{fixed}")).files(pattern, _public(path))


def _on_disk(path: str) -> list[RawFile]:
    if os.path.isfile(path):
        return [raw_file(path)]
    fixed, pattern = (path, []) if os.path.lexists(path) else _cut(path)
    fixed = fixed.rstrip("/") or ("/" if fixed else "")
    return _Tree(LOCAL, on_disk(fixed or os.curdir), fixed).files(pattern, path)


def _cut(path: str, signs: str = _IN_PATTERNS) -> tuple[str, list[str]]:
    """The part of a path that is no pattern, and the names after it."""
    parts = path.split("/")
    first = next((place for place, part in enumerate(parts) if any(sign in part for sign in signs)), len(parts))
    fixed = "/".join(parts[:first])
    return fixed or ("/" if first and path.startswith("/") else ""), [part for part in parts[first:] if part]


@dataclass(frozen=True)
class _Tree:
    """The files below a folder, or the one that is in its place.

    Attributes:
        filesystem: Where it lies.
        root: Its path there.
        source: The same as the user would name it.
    """

    filesystem: fs.FileSystem
    root: str
    source: str

    def files(self, pattern: Sequence[str], asked: str) -> list[RawFile]:
        """The files that match a pattern, or lie in folders that do.

        Args:
            pattern: Names of folders and files, in each other; none for all files.
            asked: All of it, for messages.

        Raises:
            FileNotFoundError: There is nothing.
            ClickLogError: There are no files, or those of a prepared log.
        """
        here = self.filesystem.get_file_info(self.root)
        if here.type not in (fs.FileType.Directory, fs.FileType.NotFound) and not pattern:  # a pipe is refused then
            return [raw_file(self._stored(here))]
        if here.type == fs.FileType.NotFound and not pattern:
            raise FileNotFoundError(errno.ENOENT, "no such file", asked)
        found = {info.path: info for info in self._matching(here, pattern)} if not here.is_file else {}
        names = {self._inside(info): info for info in found.values()}
        if _PREPARED in names:
            raise ClickLogError(f"{asked}: is a prepared log, which is read from a disk and by itself; copy it to one")
        files = [raw_file(self._stored(info), name) for name, info in names.items() if info.size]
        if not files:
            what = "matches no files" if pattern else "holds no files"
            raise ClickLogError(f"{asked}: {what} with rows in them" if names else f"{asked}: {what}")
        return files

    def _inside(self, info: fs.FileInfo) -> str:
        return str(info.path.removeprefix(self.root).lstrip("/"))

    def _stored(self, info: fs.FileInfo) -> StoredFile:
        inside = self._inside(info)
        source = f"{self.source.rstrip('/')}/{inside}" if self.source and inside else self.source or inside
        return StoredFile.of_info(self.filesystem, info, source)

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
        """What is in a folder; on a disk no folder that a link leads back into, which would have no end."""
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
