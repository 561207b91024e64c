"""Folders that take their name when all that is in them is on the disk."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsegroup.artifact import disk

_UNFINISHED, _REMOVED = ".unfinished-", ".removed-"


@contextmanager
def whole_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A new folder to fill. It takes its name when the block ends well; until then nothing is in its place.

    Args:
        folder: Its place. The folders above it are made.
        replace: Take the place of a folder that is there, which is removed.

    Yields:
        Where to write. The files are brought to the disk and made readable as the folder is when the block ends.

    Raises:
        OSError: The disk is full, say, or a folder that is not empty is in its place. Nothing is left behind, and
            the folder that was to be replaced is in its place.
    """
    temporary, old = unfinished_place(folder), disk.beside(folder, _REMOVED)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in sorted(temporary.iterdir()):
            path.chmod(temporary.stat().st_mode & 0o666)  # safetensors makes files that their owner alone can read
            disk.sync(path)
        disk.sync(temporary)
        if replace and folder.exists():
            _exchange(temporary, folder, old)
        else:
            disk.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def unfinished_place(folder: Path) -> Path:
    """Where `whole_folder` lets `folder` be filled."""
    return disk.beside(folder, _UNFINISHED)


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
    gone = disk.beside(folder, _REMOVED)
    shutil.rmtree(gone, ignore_errors=True)
    try:
        disk.rename(folder, gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    """Remove what writers and removers of folders in `parent` have left that were killed."""
    for left_behind in (*parent.glob(f"{_UNFINISHED}*"), *parent.glob(f"{_REMOVED}*")):
        shutil.rmtree(left_behind, ignore_errors=True)
