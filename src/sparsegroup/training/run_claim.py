"""A run's folder, kept for the processes that train it by a lock."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sparsegroup.settings.yaml_settings import checked, read_yaml
from sparsegroup.training.config import Config
from sparsegroup.training.provenance import Provenance
from sparsegroup.training.ranks import RankGroup
from sparsegroup.training.run_dir import is_free, read_provenance
from sparsegroup.training.run_error import RunError
from sparsegroup.training.run_extra import RunExtra
from sparsegroup.training.run_naming import CONFIG

try:
    import fcntl
except ImportError:  # on Windows, where no process is kept out
    fcntl = None  # type: ignore[assignment]


class FolderLock:
    """Keeps other processes from locking an existing folder until `close`, or the end of this process.

    Raises:
        BlockingIOError: Another process holds it.
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


def lock_run(folder: Path) -> FolderLock:
    """Keep other processes away from a run, until what is returned is closed.

    Raises:
        RunError: Another process trains it.
    """
    try:
        return FolderLock(folder)
    except BlockingIOError as error:
        raise RunError(f"{folder}: another process is training this run") from error


@contextmanager
def claimed(folder: Path, ranks: RankGroup, *, is_new: bool) -> Iterator[FolderLock | None]:
    """A lock that lasts unless what follows fails; of several ranks, the first holds it for all.

    Args:
        folder: The run's.
        ranks: Who train it.
        is_new: It begins: the folder is made, if need be.

    Raises:
        RunError: Another process trains a run there, or, if it is new, one has begun.
    """

    def claim() -> FolderLock:
        if is_new:
            folder.mkdir(parents=True, exist_ok=True)
        lock = lock_run(folder)
        if is_new and not is_free(folder):
            lock.close()
            raise RunError(f"{folder}: another run has begun there meanwhile")
        return lock

    lock = ranks.on_rank_0(claim, "the run's folder")
    try:
        yield lock
    except BaseException:
        if lock is not None:
            lock.close()
        raise


def run_beginning(folder: Path) -> tuple[Config, Provenance]:
    """Settings and beginning of the run in a folder, whole or not.

    Raises:
        RunError: There is none.
    """
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder}: no run has begun there ({CONFIG} is missing)")
    config = checked(Config, read_yaml(folder / CONFIG), str(folder / CONFIG))
    return config, read_provenance(folder)


def check_settings(folder: Path, config: Config, extra: RunExtra) -> None:
    """Whether a run still has the settings that it was begun with; where its log lies may change, and checkpoints.

    Raises:
        RunError: It has not.
    """
    now = config.as_dict()
    for section in ("model", "optimizer", "training"):
        for name, before in extra.config.get(section, {}).items():
            if now[section].get(name) != before:
                raise RunError(
                    f"{folder / CONFIG}: {section}.{name} is {now[section].get(name)!r}, but the run was begun with "
                    f"{before!r}; put it back, or begin another run"
                )
