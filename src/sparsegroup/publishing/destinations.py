"""Where releases are published: a folder, an object store, or Redis."""

import os
import platform
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow.fs as fs

from sparsegroup.addresses import UNCLEAR, is_unclear, public_address, without_secrets
from sparsegroup.artifact import folder as disk
from sparsegroup.artifact.folder import (
    FolderLock,
    atomic_folder,
    remove_folder,
    remove_leftovers,
    temporary_name,
    write_atomically,
)
from sparsegroup.artifact.manifest import check_file, facts_of
from sparsegroup.data.raw.files import open_filesystem
from sparsegroup.errors import require
from sparsegroup.publishing.releases import RELEASES, PublishError, Release, ReleaseIndex, is_folder_of, is_superseded

if TYPE_CHECKING:
    from redis import Redis

_BLOCK = 8 << 20
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://([^/?]*)([^?]*)\??(.*)", re.DOTALL)
REDIS_TIMEOUTS = {"socket_timeout": 60.0, "socket_connect_timeout": 10.0, "health_check_interval": 30}
"""Of a connection to Redis: one that is lost without a word does not hold its user for ever."""


class Destination(ABC):
    """Place where one process publishes the releases of a model, and any number of processes fetch the releases.

    The index names all releases. The index is written last, so that every named release is complete. A folder is
    locked. A destination without locks belongs to the process with the last claim. The claim writes a mark, which is
    compared before the index is written. Release names have the publisher's suffix, so that an earlier publisher cannot
    change the files of a later publisher.

    Args:
        name: The place, for messages.

    Attributes:
        name: See above.
        suffix: End of the names of this publisher's releases; "" if a lock excludes other publishers.
        scratch: Preferred folder for writing releases before publication; None: any folder.
    """

    scratch: Path | None = None
    suffix = ""

    def __init__(self, name: str) -> None:
        self.name = name
        self._last: bytes | None = None  # the index as this process has last read or written it
        self._is_claimed = self._is_sure = False

    def releases(self) -> tuple[Release, ...]:
        """All that can be fetched, by rising number; none if nothing is published yet. One small read.

        Raises:
            PublishError: The index is damaged, or the place cannot be reached.
        """
        return self._decoded(self._read_index())

    def claim(self) -> None:
        """Become the only process that publishes to the destination.

        The first call takes a destination without locks from an earlier publisher. Later calls do not take it back.

        Raises:
            PublishError: Another process publishes to the destination.
        """
        if self._is_claimed:
            self._check_owner()
        else:
            self._take()
        index = self._read_index()
        if not self.suffix:  # with a lock: without one, another publisher may still be writing
            with suppress(OSError, PublishError):  # the next publication tries again
                self._remove_others(self._decoded(index))
        self._is_claimed, self._is_sure, self._last = True, True, index

    def publish(self, folder: Path, release: Release, keep: Sequence[int]) -> None:
        """Publish a release: all files first, then the index; then the releases that are not in `keep` are removed.

        Whatever fails leaves the releases as before, or with the new one.

        Args:
            folder: The files of the release.
            release: Numbered above all others.
            keep: Numbers of the releases that remain; the new one always does.

        Raises:
            PublishError: Another process publishes there, or the place cannot be reached.
            OSError: The disk is full.
        """
        if not self._is_sure:
            self.claim()
        self._check_owner()
        before = self._read_index()
        if before != self._last:
            self._is_sure = False
            raise self._another()
        known = self._decoded(before)
        self._is_sure = False
        self._put(folder, release)
        remaining = tuple(one for one in known if one.number in keep)
        _, index = RELEASES.encoded(ReleaseIndex(releases=(*remaining, release)))
        self._write_index(index, before)
        self._last = index
        self._remove_others((*remaining, release))
        self._is_sure = True

    def fetch(self, release: Release, into: Path) -> Path:
        """The folder with all files of a release, whose digests have been checked.

        Args:
            release: One of `releases()`.
            into: A folder for the copy, which is named as the release. A complete one that is already there is not
                fetched again. A local folder gives its files in their place instead.

        Raises:
            PublishError: A file is missing or damaged, by name.
            OSError: The disk is full.
        """
        place = into / release.folder
        if place.is_dir():
            try:
                for name, facts in release.files.items():
                    check_file(place / name, facts, PublishError)
            except PublishError:
                remove_folder(place)
            else:
                return place
        with atomic_folder(place.absolute()) as folder:
            for name, facts in release.files.items():
                self._get(release, name, folder / name)
                if (found := facts_of(folder / name)) != facts:
                    raise PublishError(
                        f"{self.name}/{release.folder}/{name}: damaged ({found.bytes:,} bytes with the checksum "
                        f"{found.xxh3_64}, {facts.bytes:,} with {facts.xxh3_64} were written)"
                    )
        return place

    def close(self) -> None:
        """Let other processes publish there."""
        self._is_claimed, self._is_sure, self._last = False, False, None

    def _decoded(self, index: bytes | None) -> tuple[Release, ...]:
        return () if index is None else RELEASES.decoded(f"{self.name}/{RELEASES.file}", index).releases

    def _another(self) -> PublishError:
        return PublishError(f"{self.name}: another process publishes there; stop it, or give another destination")

    @abstractmethod
    def _take(self) -> None:
        """Become the only publisher. PublishError: another process holds the destination."""

    @abstractmethod
    def _check_owner(self) -> None:
        """Raise PublishError if another process has become the publisher since `_take`."""

    @abstractmethod
    def _read_index(self) -> bytes | None:
        """The content of the index; None if there is none."""

    @abstractmethod
    def _write_index(self, index: bytes, before: bytes | None) -> None:
        """Replace the index atomically. PublishError: another process has become the publisher."""

    @abstractmethod
    def _put(self, folder: Path, release: Release) -> None:
        """Copy the files of a release there."""

    @abstractmethod
    def _get(self, release: Release, name: str, path: Path) -> None:
        """Copy a file of a release to a path."""

    @abstractmethod
    def _remove_others(self, releases: Sequence[Release]) -> None:
        """Remove the files of all other releases, including unfinished releases of a killed process.

        Without a lock, releases of higher numbers remain, because a later publisher may have written them.
        """


class FolderDestination(Destination):
    """A folder on this machine or on a file system that several machines mount."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(str(folder))
        self.folder = self.scratch = Path(folder)
        self._claim: FolderLock | None = None

    def fetch(self, release: Release, into: Path) -> Path:
        """See `Destination.fetch`; the files remain in their place."""
        place = self.folder / release.folder
        for name, facts in release.files.items():
            check_file(place / name, facts, PublishError)
        return place

    def close(self) -> None:
        """See `Destination.close`."""
        super().close()
        if self._claim is not None:
            self._claim.close()
        self._claim = None

    def _take(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._claim = FolderLock(self.folder)
        except BlockingIOError:
            raise self._another() from None
        remove_leftovers(self.folder)
        temporary_name(self.folder / RELEASES.file, ".", ".tmp").unlink(missing_ok=True)

    def _check_owner(self) -> None:
        """Do nothing, because the lock excludes other publishers."""

    def _read_index(self) -> bytes | None:
        try:
            return (self.folder / RELEASES.file).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PublishError(f"{self.folder / RELEASES.file}: cannot be read ({error.strerror})") from error

    def _write_index(self, index: bytes, before: bytes | None) -> None:
        def write_index(path: Path) -> None:
            with path.open("wb", buffering=0) as file:
                disk.write(file, index)

        write_atomically(self.folder / RELEASES.file, write_index)

    def _put(self, folder: Path, release: Release) -> None:
        with atomic_folder((self.folder / release.folder).absolute()) as place:
            for path in sorted(folder.iterdir()):
                try:
                    os.link(path, place / path.name)
                except OSError:  # on another file system, or one without links
                    disk.copy(path, place / path.name)

    def _get(self, release: Release, name: str, path: Path) -> None:
        disk.copy(self.folder / release.folder / name, path)

    def _remove_others(self, releases: Sequence[Release]) -> None:
        wanted = {release.folder for release in releases}
        for path in self.folder.iterdir():
            if is_folder_of(path.name) and path.name not in wanted:
                remove_folder(path)


class StoreDestination(Destination):
    """A folder in any store that pyarrow or fsspec opens. A file there appears when all of it is written.

    Args:
        filesystem: The store.
        root: Path of the folder in it.
        name: The folder's URI, for messages.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str, name: str) -> None:
        super().__init__(name)
        self._filesystem, self._root = filesystem, root
        self._mark = _new_mark()
        self.suffix = _suffix_of(self._mark)

    def _take(self) -> None:
        self._write(PUBLISHER, self._mark)

    def _check_owner(self) -> None:
        if self._read(PUBLISHER) != self._mark:
            raise self._another()

    def _read_index(self) -> bytes | None:
        return self._read(RELEASES.file)

    def _write_index(self, index: bytes, before: bytes | None) -> None:
        # Such stores offer no conditional write: a process that claims between these two requests is not noticed here.
        self._check_owner()
        self._write(RELEASES.file, index)

    def _read(self, name: str) -> bytes | None:
        try:
            with self._errors(name), self._filesystem.open_input_stream(f"{self._root}/{name}") as file:
                content: bytes = file.read()
        except FileNotFoundError:
            return None
        return content

    def _write(self, name: str, content: bytes) -> None:
        with self._errors(name):
            self._filesystem.create_dir(self._root, recursive=True)
            with self._filesystem.open_output_stream(f"{self._root}/{name}") as file:
                file.write(content)

    def _put(self, folder: Path, release: Release) -> None:
        place = f"{self._root}/{release.folder}"
        with self._errors(release.folder):
            self._filesystem.create_dir(place, recursive=True)
        for path in sorted(folder.iterdir()):
            with (
                self._errors(f"{release.folder}/{path.name}"),
                path.open("rb") as source,
                self._filesystem.open_output_stream(f"{place}/{path.name}") as target,
            ):
                shutil.copyfileobj(source, target, _BLOCK)

    def _get(self, release: Release, name: str, path: Path) -> None:
        inside = f"{release.folder}/{name}"
        try:
            with (
                self._errors(inside),
                self._filesystem.open_input_stream(f"{self._root}/{inside}") as source,
            ):
                disk.save(source, path)
        except FileNotFoundError as error:
            raise PublishError(f"{self.name}/{inside}: missing") from error

    def _remove_others(self, releases: Sequence[Release]) -> None:
        with self._errors(""):
            for info in self._filesystem.get_file_info(fs.FileSelector(self._root, allow_not_found=True)):
                if is_superseded(info.base_name, releases):
                    with suppress(FileNotFoundError):
                        self._filesystem.delete_dir(info.path)

    @contextmanager
    def _errors(self, inside: str) -> Iterator[None]:
        """Put the URI before a store's messages."""
        try:
            yield
        except (FileNotFoundError, PublishError):
            raise
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.filename is not None:  # of this machine
                raise
            raise PublishError(f"{self.name}/{inside}: {error}") from error


class RedisDestination(Destination):
    """Keys of a Redis: `prefix:releases.json`, `prefix:RELEASE:FILE`, `prefix:publisher`, and the set `prefix:files`.

    Args:
        client: The connection, which gives bytes.
        prefix: Beginning of the keys.
        name: The URI, for messages.
    """

    def __init__(self, client: "Redis", prefix: str, name: str) -> None:
        super().__init__(name)
        self._client, self._prefix = client, prefix
        self._mark = _new_mark()
        self.suffix = _suffix_of(self._mark)

    def _key(self, *parts: object) -> str:
        return ":".join(map(str, (self._prefix, *parts)))

    def _take(self) -> None:
        with self._errors(PUBLISHER):
            self._client.set(self._key(PUBLISHER), self._mark)

    def _check_owner(self) -> None:
        if self._read(PUBLISHER) != self._mark:
            raise self._another()

    def _read_index(self) -> bytes | None:
        return self._read(RELEASES.file)

    def _read(self, name: str) -> bytes | None:
        with self._errors(name):
            content: Any = self._client.get(self._key(name))
        return content  # type: ignore[no-any-return]

    def _write_index(self, index: bytes, before: bytes | None) -> None:
        from redis import WatchError

        key, owner = self._key(RELEASES.file), self._key(PUBLISHER)
        with self._errors(RELEASES.file), self._client.pipeline() as pipeline:
            pipeline.watch(key, owner)  # type: ignore[no-untyped-call]
            if (pipeline.get(key), pipeline.get(owner)) != (before, self._mark):
                raise self._another()
            pipeline.multi()
            pipeline.set(key, index)
            try:
                pipeline.execute()
            except WatchError:
                raise self._another() from None

    def _put(self, folder: Path, release: Release) -> None:
        for path in sorted(folder.iterdir()):
            key = self._key(release.folder, path.name)
            with self._errors(f"{release.folder}:{path.name}"):
                if path.stat().st_size > _LARGEST:
                    raise PublishError(
                        f"{self.name}: {path.name} has {path.stat().st_size:,} bytes, and a value in Redis at most "
                        f"{_LARGEST:,}; publish to a folder or an object store"
                    )
                self._client.sadd(self._key("files"), key)
                self._client.set(key, path.read_bytes())

    def _get(self, release: Release, name: str, path: Path) -> None:
        with self._errors(f"{release.folder}:{name}"):
            content: Any = self._client.get(self._key(release.folder, name))
        if content is None:
            raise PublishError(f"{self.name}: the key {self._key(release.folder, name)} is missing")
        with disk.name_errors(path):
            path.write_bytes(content)

    def _remove_others(self, releases: Sequence[Release]) -> None:
        wanted = {self._key(release.folder, name) for release in releases for name in release.files}
        with self._errors("files"):
            members: Any = self._client.smembers(self._key("files"))
            for key in sorted({member.decode() for member in members} - wanted):
                folder = key.removeprefix(f"{self._prefix}:").partition(":")[0]
                if folder not in {release.folder for release in releases} and not is_superseded(folder, releases):
                    continue
                self._client.delete(key)
                self._client.srem(self._key("files"), key)

    @contextmanager
    def _errors(self, inside: str) -> Iterator[None]:
        from redis import RedisError

        try:
            yield
        except RedisError as error:
            raise PublishError(f"{self.name}: {inside}: {error}") from error


PUBLISHER = "publisher"
"""File or key that holds the mark of the publishing process."""


def _new_mark() -> bytes:
    """Return a text that names a publisher: a random number, its process and its machine."""
    return f"{uuid4().hex} process {os.getpid()} on {platform.node()}\n".encode()


def _suffix_of(mark: bytes) -> str:
    return f"-{mark[:8].decode()}"


_LARGEST = 512 << 20
"""Bytes of a value in Redis."""


def open_destination(place: str | Path) -> Destination:
    """The destination of this name.

    Args:
        place: A folder; a URI that pyarrow or fsspec opens, such as `s3://bucket/prefix`; or
            `redis://host:6379/0/prefix`, which needs the extra `redis`.

    Raises:
        PublishError: The URI cannot be opened.
        MissingExtraError: The extra is not installed.
    """
    uri = _URI.fullmatch(str(place))
    if uri is None:
        return FolderDestination(place)
    scheme, host, path, query = uri.groups()
    name = public_address(str(place)).partition("?")[0].rstrip("/")
    if is_unclear(str(place)):
        raise PublishError(f"{name}: the address is ambiguous; {UNCLEAR}")
    if scheme in ("redis", "rediss"):
        return _open_redis(f"{scheme}://{host}", path, query, name)
    if scheme == "file":
        return FolderDestination(path)
    try:
        filesystem, root = open_filesystem(scheme, host, query)
    except (OSError, ValueError, ImportError) as error:
        raise PublishError(f"{name}: {without_secrets(error, str(place))}") from error
    return StoreDestination(filesystem, root + path.rstrip("/"), name)


def _open_redis(server: str, path: str, query: str, name: str) -> Destination:
    require("redis", name)
    from redis import Redis

    database, _, prefix = path.strip("/").partition("/")
    if not database.isdigit() or not prefix:
        raise PublishError(
            f"{name}: must be redis://HOST:PORT/DATABASE/PREFIX, such as redis://localhost:6379/0/clicks"
        )
    try:
        client = Redis.from_url(f"{server}/{database}" + (f"?{query}" if query else ""), **REDIS_TIMEOUTS)
    except ValueError as error:
        raise PublishError(f"{name}: {without_secrets(error, f'{server}?{query}')}") from error
    return RedisDestination(client, prefix, name)
