"""The command line's own entry point, called in this process: importing torch anew each time would take seconds."""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from sparsegroup.cli import main
from sparsegroup.kernels.cpu import threads
from sparsegroup.reporting import page


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


def call(patch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit status of `sparsegroup` with these arguments."""
    patch.setattr(threads, "_number", None)  # what a command sets goes with the patch
    patch.setattr(gc, "get_freeze_count", lambda: 1)  # the tests have frozen what is imported
    patch.setattr(sys, "argv", ["sparsegroup", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def without_pictures(patch: pytest.MonkeyPatch) -> None:
    """Write no report: it takes most of so small a run's time."""
    patch.setattr(page, "render_report", lambda *arguments: "the report")
