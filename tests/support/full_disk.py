"""A disk that becomes full at any moment."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from sparsegroup.artifact import folder, tensor_file


class FullDisk:
    """Lets `left` operations succeed, and no other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: float = float("inf")
        for name in ("write", "sync", "rename"):
            self._wrap(monkeypatch, folder, name)
        self._wrap(monkeypatch, tensor_file, "save_file")

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        real = getattr(module, name)

        def wrapped(*arguments: Any) -> Any:
            if self.left <= 0:
                paths = [argument for argument in arguments if isinstance(argument, Path)]
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(paths[0] if paths else arguments[0].name))
            self.left -= 1
            return real(*arguments)

        monkeypatch.setattr(module, name, wrapped)
