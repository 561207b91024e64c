"""Files that are either whole or not there: written beside their place, brought to the disk, and renamed.

All of it goes through `write`, `sync` and `rename`, so that tests can let the process die at each of them.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


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
