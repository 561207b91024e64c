"""A lock on a folder, which ends with the process that holds it."""

import os
from pathlib import Path
from typing import Self

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
