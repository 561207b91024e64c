"""Folders and files that are either whole or not there: written under a temporary name, synced, and renamed.

All of it goes through `write`, `sync` and `rename`, so that tests can let the process die at each of them.
"""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

import xxhash

try:
    import fcntl
except ImportError:  # on Windows, where no process is kept out
    fcntl = None  # type: ignore[assignment]

LONGEST_NAME = 255
"""Bytes that file systems allow a name."""

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
    """Let `make(temporary)` write a file, which takes its name `path` when it is on disk; an OSError leaves nothing."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
    temporary = temporary_name(path, ".", ".tmp")
    try:
        with name_errors(path):
            make(temporary)
        sync(temporary)
        rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


_UNFINISHED, _REMOVED = ".unfinished-", ".removed-"


@contextmanager
def atomic_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A new folder to fill, by the path that this yields. It takes its name when the block ends without an error.

    The folders above it are created; its files get its permissions. `replace` removes an existing folder of that name.
    After an OSError (the disk is full, a folder that is not empty has the name) nothing is left behind or removed.
    """
    temporary, old = unfinished_place(folder), removed_place(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in sorted(temporary.iterdir()):
            path.chmod(temporary.stat().st_mode & 0o666)  # safetensors makes files that only their owner can read
            sync(path)
        sync(temporary)
        if replace and folder.exists():
            _exchange(temporary, folder, old)
        else:
            rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def unfinished_place(folder: Path) -> Path:
    """Where `atomic_folder` lets `folder` be filled."""
    return temporary_name(folder, _UNFINISHED)


def removed_place(folder: Path) -> Path:
    """Where `remove_folder` moves `folder` before it removes it."""
    return temporary_name(folder, _REMOVED)


def _exchange(new: Path, folder: Path, old: Path) -> None:
    shutil.rmtree(old, ignore_errors=True)
    rename(folder, old)
    try:
        rename(new, folder)
    except OSError:
        rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder so that no part of it is ever taken for the whole."""
    removed = removed_place(folder)
    shutil.rmtree(removed, ignore_errors=True)
    try:
        rename(folder, removed)
    except FileNotFoundError:
        return
    shutil.rmtree(removed, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove what was left in `parent` by processes killed while they wrote or removed folders."""
    for left_behind in (*parent.glob(f"{_UNFINISHED}*"), *parent.glob(f"{_REMOVED}*")):
        shutil.rmtree(left_behind, ignore_errors=True)


class FolderLock:
    """Keeps other processes from locking a folder until `close`, or this process's end; BlockingIOError if one has."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        if fcntl is not None:
            self._descriptor = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise

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
