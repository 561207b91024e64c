"""Folders and files that are either whole or not there: written under a temporary name, synced, and renamed.

All of it goes through `write`, `sync` and `rename`, so that tests can let the process die at each of them.
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, Protocol, Self

import xxhash

try:
    import fcntl
except ImportError:  # on Windows, where no process is kept out
    fcntl = None  # type: ignore[assignment]

LONGEST_NAME = 255
"""Bytes that file systems allow a name."""

_COPIED_BYTES = 8 << 20


class Readable(Protocol):
    """Open file, on this machine or in an object store."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most `size`; none at the end."""


_OF_RUST = re.compile(r"\(os error (\d+)\)")


def temporary_name(path: Path, prefix: str, suffix: str = "") -> Path:
    """A neighbour of `path`, named by prefix, its name (a digest of it if too long) and suffix."""
    name = prefix + path.name + suffix
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = prefix + xxhash.xxh3_64(os.fsencode(path.name)).hexdigest() + suffix
    return path.with_name(name)


@contextmanager
def name_errors(path: object) -> Iterator[None]:
    """Errors of the system that name no file name this one, also if libraries in Rust raise them as their own."""
    try:
        yield
    except ValueError:  # of this package, or of what was given
        raise
    except Exception as error:
        if isinstance(error, OSError) and (error.filename is not None or error.errno is not None):
            error.filename = error.filename or str(path)
            raise
        if (found := _OF_RUST.search(str(error))) is None:
            raise
        raise OSError(number := int(found[1]), os.strerror(number), str(path)) from error


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Create a folder, with those above it; if the block raises, the empty ones among them are removed."""
    created = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for empty in created:
            with suppress(OSError):  # there is something in it
                empty.rmdir()
        raise


def write(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of `data` to an unbuffered file."""
    remaining = memoryview(data).cast("B")
    with name_errors(file.name):
        while len(remaining):
            remaining = remaining[file.write(remaining) :]


def copy(source: Path, target: Path) -> None:
    """Copy the content of a file; an error while writing names the target, unlike those of `shutil.copyfile`."""
    with source.open("rb") as file:
        save(file, target)


def save(stream: Readable, path: Path) -> None:
    """Write the rest of an open file to a file `path`."""
    with path.open("wb", buffering=0) as file:
        while block := stream.read(_COPIED_BYTES):
            write(file, block)


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():  # some systems open no folders
            return
        raise
    try:
        with name_errors(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename durably; a file may replace a file, but no folder."""
    source.replace(target)
    sync(target.parent)


def write_atomically(path: Path, make: Callable[[Path], object]) -> None:
    """Write a file by `make(temporary)`, then rename the file to `path`. After an error no new file remains.

    Several processes may write `path` at the same time: each has a separate temporary file, and the last file remains.

    Args:
        path: The file. Its folder must exist.
        make: Function that opens the given empty file and writes it. The function must not replace the file.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
    with _claimed(path, ".", ".tmp", Path.touch) as temporary:
        try:
            os.truncate(temporary, 0)  # a killed process may have left it
            with name_errors(path):
                make(temporary)
            sync(temporary)
            rename(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


_UNFINISHED, _REMOVED = ".unfinished-", ".removed-"


@contextmanager
def atomic_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a new folder to fill, and rename the new folder to `folder` when the block ends without an error.

    Parent folders are created. The files get the permissions of the folder. `replace` removes an existing folder of
    that name. After an OSError (the disk is full, a non-empty folder has the name) nothing is left behind or removed.
    Several processes may fill the same `folder`: each has a separate temporary folder. With `replace` the last remains.
    """
    with _claimed(folder, _UNFINISHED, "", _make_folder) as temporary:
        try:
            for path in temporary.iterdir():  # left by a killed process
                _remove(path)
            yield temporary
            for path in sorted(temporary.iterdir()):
                path.chmod(temporary.stat().st_mode & 0o666)  # safetensors creates files that only their owner can read
                sync(path)
            sync(temporary)
            if replace:
                _replace(folder, temporary)
            else:
                rename(temporary, folder)
        except BaseException:
            _remove(temporary)
            raise


def _make_folder(folder: Path) -> None:
    with suppress(FileExistsError):
        folder.mkdir(parents=True)


@contextmanager
def _claimed(path: Path, prefix: str, suffix: str, create: Callable[[Path], object]) -> Iterator[Path]:
    """Yield a path next to `path` that no other process uses until the block ends.

    The process locks the path. Names locked by other processes are skipped, and names left by killed processes are used
    again. So names remain predictable, and no call lists the folder. Without locks the name is random.
    """
    number = 0
    while True:
        place = temporary_name(path, prefix, f".{number}{suffix}" if number else suffix)
        create(place)
        try:
            lock = FolderLock(place)
        except BlockingIOError:
            number += 1
            continue
        except FileNotFoundError:  # another process has just renamed it
            continue
        except OSError:  # this file system has no locks
            _remove(place)
            place = temporary_name(path, prefix, f".{secrets.token_hex(8)}{suffix}")
            create(place)
            yield place
            return
        with lock:
            if lock.holds(place):
                yield place
                return


def removed_place(folder: Path, number: int = 0) -> Path:
    """Return the path to which `remove_folder` moves `folder` first, or its number-th alternative."""
    return temporary_name(folder, _REMOVED, f".{number}" if number else "")


def _replace(folder: Path, new: Path) -> None:
    """Rename `new` to `folder`, and remove an earlier `folder`. Other processes may do the same at any time."""
    while True:
        old = _set_aside(folder)
        try:
            rename(new, folder)
        except OSError as error:
            if error.errno in _OCCUPIED:
                continue  # by another process
            if old is not None:
                rename(old, folder)
            raise
        if old is not None:
            _remove(old)
        return


def _set_aside(folder: Path) -> Path | None:
    """Rename a folder to a name under which any process may remove the folder. None: there is no such folder."""
    for number in count():
        removed = removed_place(folder, number)
        _remove(removed)
        try:
            rename(folder, removed)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _OCCUPIED:  # by another process, or by a path that cannot be removed
                raise
        else:
            return removed
    raise AssertionError


_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)


def _remove(path: Path) -> None:
    """Remove a file or folder, ignoring errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def remove_folder(folder: Path) -> None:
    """Remove a folder so that no part of it is ever taken for the whole."""
    if (removed := _set_aside(folder)) is not None:
        _remove(removed)


def remove_leftovers(parent: Path) -> None:
    """Remove the temporary files and folders that killed processes have left in `parent`."""
    for left_behind in (*parent.glob(f"{_UNFINISHED}*"), *parent.glob(f"{_REMOVED}*")):
        with suppress(OSError), FolderLock(left_behind):  # not that of a living process
            _remove(left_behind)


class FolderLock:
    """Lock of a folder or file, held until `close` or the end of the process.

    BlockingIOError: another process has locked the folder or file.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        if fcntl is not None:
            self._descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise

    def holds(self, path: Path) -> bool:
        """Return whether the locked folder or file has the name `path` now."""
        if self._descriptor is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._descriptor), path.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Let others lock it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
