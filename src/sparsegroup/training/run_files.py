"""What lies in a run's folder: names of its files and of the folder itself, and the manifest of a finished run."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Self

from sparsegroup.artifact.manifest import FolderFormat, Manifest, Plain
from sparsegroup.artifact.validation import finite, validated
from sparsegroup.errors import UserError
from sparsegroup.reporting.run_record import Summary


class RunError(UserError):
    """A folder that holds no run, or a run that does not fit what is asked of it."""


class RunStoppedError(RunError):
    """A run that `Trainer.stop` has interrupted. `Session.resume` continues it from the checkpoint of that moment."""


SUMMARY = "summary.json"


@dataclass(frozen=True, kw_only=True)
class RunManifest(Manifest):
    """What a whole run holds. Its files are those that are read again; settings may be edited, and are none of them.

    Attributes:
        summary: What the run came to.
    """

    summary: Summary

    def as_plain(self) -> Plain:
        """See `Manifest.as_plain`."""
        content: Plain = finite(asdict(self.summary))
        return content

    @classmethod
    def from_plain(cls, content: Plain) -> Self:
        """See `Manifest.from_plain`."""
        header = {name: content.pop(name) for name in cls.HEADER}
        return super().from_plain({**header, "summary": validated(Summary, content)})

    def check(self) -> None:
        """See `Manifest.check`."""
        for name, rows in self.summary.fields.items():
            if not 0 <= rows.live <= rows.rows or rows.seen < 0:
                raise ValueError(f"fields.{name}: {rows.live:,} live of {rows.rows:,} rows, {rows.seen:,} seen")


RUN = FolderFormat(
    name="run",
    file=SUMMARY,
    version=1,
    manifest=RunManifest,
    error=RunError,
    missing="no run",
)
"""The format of runs."""


CONFIG = "config.yaml"

UNFINISHED = ".unfinished"
"""Folder in that of a run, for the one that is to replace it."""

FINISHED = ".finished"
"""Its name while it does so."""

LATEST = "latest"
"""A link beside runs, to the one that was begun last."""

_NAME = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?")


@contextmanager
def new_run_folder(parent: Path, now: datetime | None = None) -> Iterator[Path]:
    """An empty folder in `parent`, named by the local time; a second one in the same second ends with -2.

    It is made for the caller alone, and removed again, with parents that were made for it, where what follows raises.

    Args:
        parent: Where the runs on a log lie.
        now: The time, if not that of the clock.
    """
    name = f"{datetime.now() if now is None else now:%Y-%m-%d_%H-%M-%S}"
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            break
    try:
        yield folder
    except BaseException:
        for empty in (folder, *made):
            with suppress(OSError):  # another run has begun in it
                empty.rmdir()
        raise


def point_latest(folder: Path) -> None:
    """Let `latest` beside a run point to it; where links cannot be made, there is none."""
    link, temporary = folder.parent / LATEST, folder.parent / f".{LATEST}-{folder.name}"
    with suppress(OSError):
        temporary.symlink_to(folder.name, target_is_directory=True)
        try:
            temporary.replace(link)
        except OSError:
            temporary.unlink()


def without_latest(path: Path) -> Path:
    """The run that a path leads to now, if it is the link `latest`, which leads to another one when a run begins."""
    return path.parent / os.readlink(path) if path.name == LATEST and path.is_symlink() else path


def find_run(path: str | Path) -> Path:
    """The run that a path means: itself; or, of a folder of runs that is no run, the latest.

    The link `latest` is followed, so that what is returned stays the same run.
    """
    path = without_latest(Path(path))
    if any((path / name).exists() for name in (CONFIG, SUMMARY, UNFINISHED, FINISHED)):
        return path
    if (path / LATEST).is_symlink() and (path / LATEST).is_dir():
        return without_latest(path / LATEST)
    names = [folder.name for folder in path.iterdir()] if path.is_dir() else []
    runs = [match for match in map(_NAME.fullmatch, names) if match is not None]
    return path / max(runs, key=lambda run: (run[1], int(run[2] or 1)))[0] if runs else path


def run_name(folder: Path) -> str:
    """What to call a run where others are: its folder's name, behind that of the log where it is a time."""
    folder = folder.resolve()
    if folder.name in (UNFINISHED, FINISHED):
        folder = folder.parent
    return f"{folder.parent.name}/{folder.name}" if _NAME.fullmatch(folder.name) else folder.name
