"""Folders that take their name when everything in them is on the disk."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsegroup.artifact import disk

_UNFINISHED, _REMOVED = ".unfinished-", ".removed-"


@contextmanager
def atomic_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A new folder to fill, by the path that this yields. It takes its name when the block ends without an error.

    The folders above it are created; its files get its permissions. `replace` removes an existing folder of that name.
    After an OSError (the disk is full, a folder that is not empty has the name) nothing is left behind or removed.
    """
    temporary, old = unfinished_place(folder), disk.temporary_name(folder, _REMOVED)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in sorted(temporary.iterdir()):
            path.chmod(temporary.stat().st_mode & 0o666)  # safetensors makes files that only their owner can read
            disk.sync(path)
        disk.sync(temporary)
        if replace and folder.exists():
            _exchange(temporary, folder, old)
        else:
            disk.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def unfinished_place(folder: Path) -> Path:
    """Where `atomic_folder` lets `folder` be filled."""
    return disk.temporary_name(folder, _UNFINISHED)


def _exchange(new: Path, folder: Path, old: Path) -> None:
    shutil.rmtree(old, ignore_errors=True)
    disk.rename(folder, old)
    try:
        disk.rename(new, folder)
    except OSError:
        disk.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder so that no part of it is ever taken for the whole."""
    removed = disk.temporary_name(folder, _REMOVED)
    shutil.rmtree(removed, ignore_errors=True)
    try:
        disk.rename(folder, removed)
    except FileNotFoundError:
        return
    shutil.rmtree(removed, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove what was left in `parent` by processes killed while they wrote or removed folders."""
    for left_behind in (*parent.glob(f"{_UNFINISHED}*"), *parent.glob(f"{_REMOVED}*")):
        shutil.rmtree(left_behind, ignore_errors=True)
