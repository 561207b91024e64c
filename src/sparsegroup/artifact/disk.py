"""Files that are either whole or not there: written beside their place, brought to the disk, and renamed.

All of it goes through `write`, `sync` and `rename`, so that tests can let the process die at each of them.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import xxhash

LONGEST_NAME = 255
"""Bytes that file systems allow a name."""


def beside(path: Path, prefix: str, suffix: str = "") -> Path:
    """The place for what is to become `path`: its name with another before and after it, or, if too long, a digest."""
    name = prefix + path.name + suffix
    if len(os.fsencode(name)) > LONGEST_NAME:
        name = prefix + xxhash.xxh3_64(os.fsencode(path.name)).hexdigest() + suffix
    return path.with_name(name)


_OF_RUST = re.compile(r"\(os error (\d+)\)")


@contextmanager
def named(path: object) -> Iterator[None]:
    """While it lasts, an error of the system that names no file names this one.

    Those that libraries in Rust (safetensors, polars) put into errors of their own are made errors of the system.
    """
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
def made_folder(folder: Path) -> Iterator[None]:
    """A folder to write into, made if need be with those above it; what is empty of these goes again at an error."""
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for empty in made:
            with suppress(OSError):  # there is something in it
                empty.rmdir()
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


def write_atomically(path: Path, make: Callable[[Path], object]) -> None:
    """Let `make(temporary)` make a file, and put it in its place when it is on disk."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
    temporary = beside(path, ".", ".tmp")
    try:
        with named(path):
            make(temporary)
        sync(temporary)
        rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
