"""Files that are either whole or not there: written beside their place, brought to the disk, and renamed.

All of it goes through `write`, `sync`, `rename` and `remove`, so that tests can let the process die at each of them.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

_BLOCK = 8 << 20


@contextmanager
def named(path: object) -> Iterator[None]:
    """While it lasts, an error of the system that names no file names this one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def write(file: BinaryIO, data: bytes | memoryview) -> None:
    """Write all of `data` to an unbuffered file."""
    left = memoryview(data).cast("B")
    with named(file.name):
        while len(left):
            left = left[file.write(left) :]


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():  # some systems open no folders
            return
        raise
    try:
        with named(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Put `source` in the place of `target`, which may be a file that exists, but no folder; and keep it so."""
    source.replace(target)
    sync(target.parent)


def remove(folder: Path) -> None:
    """Remove a folder so that no part of it is ever taken for the whole."""
    gone = folder.with_name(f".removed-{folder.name}")
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(FileNotFoundError):
        rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def write_atomically(path: Path, make: Callable[[Path], object]) -> None:
    """Let `make(temporary)` make a file, and put it in its place when it is on disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with named(path):
            make(temporary)
        sync(temporary)
        rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A new folder to fill, which takes its name when it is whole and on disk; until then nothing is in its place.

    Yields:
        Where to write. Each file in it is to be synced by who writes it.
    """
    temporary = folder.with_name(f".unfinished-{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        sync(temporary)
        rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def checksum(path: Path) -> str:
    """XXH3_64 of a file's bytes, 16 hexadecimal digits."""
    digest, block = xxhash.xxh3_64(), bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()
