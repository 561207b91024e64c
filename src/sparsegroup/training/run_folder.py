"""The folder of a training run: its files, its lock, how it is found, and how it replaces another run."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch.distributed as dist

from sparsegroup.artifact import folder as disk
from sparsegroup.artifact.folder import FolderLock, temporary_name, write_atomically
from sparsegroup.artifact.manifest import FileFacts, FolderFormat, Manifest, Plain, facts_of, verified_chain
from sparsegroup.artifact.validation import STRICT, Count, finite, validated
from sparsegroup.checkpoint import CheckpointError, Checkpoints, load_checkpoint
from sparsegroup.checkpoint.manifest import CHECKPOINT
from sparsegroup.data.log import Log
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import RunError
from sparsegroup.optim import GroupOptimizer
from sparsegroup.reporting.run_record import HistoryPoint, LargestFeature, Summary, Trial
from sparsegroup.settings.yaml_settings import checked, read_yaml
from sparsegroup.training.assessment.features import write_names
from sparsegroup.training.baseline import Baseline, baseline_of
from sparsegroup.training.build import Config
from sparsegroup.training.model import ClickModel
from sparsegroup.training.state import CheckpointMetadata

# The files of a run, in open formats
CONFIG = "config.yaml"  # all settings; `sparsegroup train` takes it
PROVENANCE = "provenance.json"  # see `Provenance`
COLUMNS = "columns.json"  # the fields and numbers that the model expects
METRICS = "metrics.jsonl"  # the history, a point per line
CHECKPOINTS = "checkpoints"  # model, optimizer and random numbers
VOCABULARY = "vocabulary.parquet"  # key → field and value, if a prepared log has it
NAMES = "names.parquet"  # the same of the features of the largest vectors, if the log's text is available
REPORT = "report.html"  # for people
TENSORBOARD, MLFLOW = "tensorboard", "mlflow.json"  # see `TrackingSettings`
SUMMARY = "summary.json"  # final figures and versions; written last
FIRST_ROWS = "first_rows"  # the first rows of a stream that it follows, which have decided format and settings

_BEFORE_IT_BEGINS = (PROVENANCE, COLUMNS, METRICS)
_ALL = {*_BEFORE_IT_BEGINS, CONFIG, CHECKPOINTS, VOCABULARY, NAMES, REPORT, TENSORBOARD, MLFLOW, SUMMARY}

_NEW, _OLD = ".new-", ".old-"
"""Prefixes of a run's name, of the run that is to replace it, and of itself while that one takes its place."""

Content = TypeVar("Content")


@dataclass(frozen=True, kw_only=True)
class RunManifest(Manifest):
    """The manifest of a finished run: its summary. `files` lists files that are read again; settings may be edited."""

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


RUN = FolderFormat(name="run", file=SUMMARY, version=1, manifest=RunManifest, error=RunError, missing="no run")
"""The format of runs."""


@dataclass(frozen=True)
class Provenance:
    """How a run began: when (ISO 8601), on which log, after which run, in which torchrun job."""

    __pydantic_config__: ClassVar = STRICT

    started: str
    rows: Count
    train_rows: Count
    source: Mapping[str, Any] | None = None  # `Log.identity`
    continued_from: str | None = None
    continued_id: str | None = None  # of the checkpoint that training was continued from
    job: str | None = None
    trials: tuple[Trial, ...] = ()  # by which settings were chosen
    stream: str | None = None  # the source that the training follows, if it follows one
    follows: Mapping[str, Any] = field(default_factory=dict)  # identity of the source, see `streaming.sources.Source`
    first_rows: Mapping[str, FileFacts] = field(default_factory=dict)  # files of its first rows, in the run's folder
    run: str = ""  # a random id of a run that follows a stream, which its releases have

    @classmethod
    def of(
        cls,
        log: Log,
        before: "TrainingRun | None",
        job: str | None = None,
        trials: tuple[Trial, ...] = (),
        stream: str | None = None,
        follows: Mapping[str, Any] | None = None,
        first_rows: Mapping[str, FileFacts] | None = None,
        run: str = "",
    ) -> Self:
        """The provenance of a run that begins now."""
        return cls(
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            rows=len(log),
            train_rows=log.train_rows,
            source=log.identity,
            continued_from=None if before is None else str(before.folder),
            continued_id=None if before is None else before.checkpoint_id,
            job=job,
            trials=trials,
            stream=stream,
            follows=follows or {},
            first_rows=first_rows or {},
            run=run,
        )

    def check(self, log: Log) -> None:
        """Raise RunError if `log` has changed."""
        if (len(log), log.train_rows, log.identity) != (self.rows, self.train_rows, self.source):
            raise RunError(
                f"{log.name}: has changed since the run began ({PROVENANCE}), so the remaining rows are unknown; begin "
                "a new run"
            )


class RunFolder:
    """The folder of a run. It `replaces` that of another run when it is complete."""

    def __init__(self, path: str | Path, replaces: Path | None = None) -> None:
        self.path, self.replaces = Path(path), replaces

    @property
    def place(self) -> Path:
        """Where the run is when it is complete."""
        return self.replaces or self.path

    # Its state

    @property
    def is_free(self) -> bool:
        """Whether a run can begin here: the folder is missing, empty, or of a run that was cut off while it began."""
        if not self.path.exists():
            return True
        left = {*_BEFORE_IT_BEGINS, FIRST_ROWS, *(f".{name}.tmp" for name in (*_BEFORE_IT_BEGINS, CONFIG))}
        left.add(disk.removed_place(self.path / FIRST_ROWS).name)
        return self.path.is_dir() and left.issuperset(path.name for path in self.path.iterdir())

    @property
    def has_begun(self) -> bool:
        """Whether there is a run, complete or not."""
        return (self.path / CONFIG).is_file()

    @property
    def is_complete(self) -> bool:
        """Whether the run is finished and its last checkpoint is intact; if not, it can be resumed."""
        if not (self.path / SUMMARY).is_file():
            return False
        try:
            verified_chain(self.last_checkpoint(), CHECKPOINT)
        except (CheckpointError, RunError):
            return False
        return True

    def lock(self) -> FolderLock:
        """Keep other processes away; RunError if one trains this run."""
        try:
            return FolderLock(self.path)
        except BlockingIOError as error:
            raise RunError(f"{self.path}: another process is training this run") from error

    def lock_new(self) -> FolderLock:
        """Make the folder and lock it; RunError if another process has started a run in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self.lock()
        if not self.is_free:
            lock.close()
            raise RunError(f"{self.path}: another run has begun there meanwhile")
        return lock

    # What it holds; RunError names the file if one is missing or damaged

    def config(self) -> Config:
        """All settings."""
        if not self.has_begun:
            raise RunError(f"{self.path}: no run has begun there ({CONFIG} is missing)")
        return checked(Config, read_yaml(self.path / CONFIG), str(self.path / CONFIG))

    def finished_config(self) -> Config:
        """The settings of a finished run, or of one that follows a stream and has a model."""
        if not self.path.is_dir():
            found = "it is a file" if self.path.exists() else "there is no such folder"
            raise RunError(f"{self.path}: no run ({found})")
        if not (self.path / SUMMARY).is_file() and not self.follows_a_stream:
            what = "no run"
            if self.has_begun:
                what = "a run that did not finish; `resume` completes it"
                what += f", and {checkpoint} holds its model" if (checkpoint := self.unfinished_checkpoint) else ""
            raise RunError(f"{self.path}: {what} ({SUMMARY} is missing)", "resume")
        return self.config()

    @property
    def follows_a_stream(self) -> bool:
        """Whether it is a run that has no end, see `sparsegroup.streaming`."""
        return self.has_begun and self.provenance().stream is not None

    def provenance(self) -> Provenance:
        """How the run began."""
        return self._read(PROVENANCE, partial(validated, Provenance))

    def columns(self) -> LogSchema:
        """The columns that the model expects."""
        return self._read(COLUMNS, LogSchema.from_dict)

    def summary(self) -> Summary:
        """The figures of a finished run."""
        return RUN.read(self.path).summary

    def check_names(self) -> None:
        """Raise RunError if the run is finished and the file of its features' names has changed."""
        if (names := [name for name in (NAMES, VOCABULARY) if (self.path / name).is_file()]) and RUN.is_in(self.path):
            RUN.read(self.path).check_files(self.path, RunError, *names)

    def last_checkpoint(self) -> Path:
        """The checkpoint that a finished run ended with."""
        paths = Checkpoints(self.path / CHECKPOINTS).paths()
        if not paths:
            what = "has no checkpoint yet" if self.follows_a_stream else f"damaged (no checkpoint in {CHECKPOINTS})"
            raise RunError(f"{self.path}: {what}")
        return paths[-1]

    @property
    def unfinished_checkpoint(self) -> Path | None:
        """Return the last checkpoint of an unfinished run; None if there is no such run or checkpoint."""
        if not self.has_begun or (self.path / SUMMARY).is_file() or self.follows_a_stream:
            return None
        return next(reversed(Checkpoints(self.path / CHECKPOINTS).paths()), None)

    def check_settings(self, config: Config, saved: CheckpointMetadata) -> None:
        """Raise RunError if settings that change the result differ from a checkpoint's."""
        now = config.as_dict()
        for section in ("model", "optimizer", "training"):
            for name, before in saved.config.get(section, {}).items():
                if now[section].get(name) != before:
                    raise RunError(
                        f"{self.path / CONFIG}: {section}.{name} is {now[section].get(name)!r}, but the run was begun "
                        f"with {before!r}; put it back, or begin another run"
                    )

    def _read(self, name: str, parsed: Callable[[Any], Content]) -> Content:
        try:
            return parsed(json.loads((self.path / name).read_text()))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{self.path / name}: damaged ({error})") from error

    # Writing

    def check_there(self) -> None:
        """Raise RunError if the folder has been removed or moved since the run began."""
        if not self.has_begun:
            raise RunError(
                f"{self.path}: the folder of the run has been removed or moved while the run trained; move it back to "
                "continue at its last checkpoint, or begin another run"
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an error within the block into a RunError if the run's folder has been removed or moved."""
        self.check_there()
        try:
            yield
        except (OSError, CheckpointError):
            self.check_there()
            raise

    def begin(self, config: Config, log: Log, history: Sequence[HistoryPoint], provenance: Provenance) -> None:
        """Write all that is known before the training; `config.yaml` comes last."""
        self._write_json(PROVENANCE, asdict(provenance))
        self._write_json(COLUMNS, asdict(log.schema))
        self.write_history(history)
        self._write_text(CONFIG, config.as_yaml())

    def write_history(self, history: Sequence[HistoryPoint]) -> None:
        """Write all of `metrics.jsonl`."""
        self._write_text(METRICS, "".join(map(_line, history)))

    def append_point(self, point: HistoryPoint) -> None:
        """Add a point to `metrics.jsonl`."""
        path = self.path / METRICS
        with self.writing(), disk.name_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(_line(point))

    def finish(
        self,
        config: Config,
        log: Log,
        named: Sequence[LargestFeature],
        history: Sequence[HistoryPoint],
        summary: Summary,
    ) -> None:
        """Write all that is known at the end; `summary.json` comes last."""
        from sparsegroup.reporting.page import render_report  # not before the end

        with self.writing():
            self.write_history(history)
            if (vocabulary := log.checked_vocabulary()) is not None:
                write_atomically(self.path / VOCABULARY, partial(disk.copy, vocabulary))
            write_names(named, self.path / NAMES)
            self._write_text(REPORT, render_report(config.effective(log.train_rows), history, summary))
            written = (self.path / name for name in (COLUMNS, NAMES, VOCABULARY))
        files = {path.name: facts_of(path) for path in written if path.is_file()}
        RUN.write(self.path, RunManifest(files=files, summary=summary))

    def _write_json(self, name: str, content: object) -> None:
        self._write_text(name, json.dumps(finite(content), indent=1, allow_nan=False) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        write_atomically(self.path / name, lambda path: path.write_text(text, encoding="utf-8"))

    # Replacing another run

    @classmethod
    def replacing(cls, folder: Path) -> Self:
        """A run that is to replace the one in `folder`: it is trained next to it."""
        return cls(_next_to(folder, _NEW), folder)

    @classmethod
    def to_resume(cls, path: Path) -> Self:
        """The run that began last: one that is to replace the run in `path`, or that run, see `find_run`."""
        path = without_latest(path)
        run = find_run(path)
        started = [new for new in map(cls.replacing, (path, run)) if new.has_begun]
        return started[0] if started else cls(run)

    def clear(self) -> None:
        """Remove an earlier attempt to replace the same run; RunError if a process trains it."""
        if self.path.is_dir():
            self.lock().close()
            disk.remove_folder(self.path)

    def take_place(self) -> None:
        """Let this complete run replace the old one; to be called again if the process was killed while it did.

        The old run is moved aside until this one has its name; `find_run` leads to it until then. Other files are kept.
        """
        if self.replaces is not None and self.path.exists():
            if self.replaces.exists():
                self._remove_old()
                disk.rename(self.replaces, _next_to(self.replaces, _OLD))
            disk.rename(self.path, self.replaces)
        self._remove_old()

    def _remove_old(self) -> None:
        old = _next_to(self.place, _OLD)
        for path in old.iterdir() if old.is_dir() else ():
            if path.name not in _ALL and not path.name.endswith(".tmp"):
                disk.rename(path, self.place / path.name)
        shutil.rmtree(old, ignore_errors=True)


def _next_to(folder: Path, prefix: str) -> Path:
    """The folder of that name with a prefix."""
    if folder.name in ("", "..") or folder.is_symlink():
        folder = Path(os.path.realpath(folder))  # `resolve` raises an error if a link leads to itself
    return temporary_name(folder, prefix) if folder.name else folder / prefix


def _line(point: HistoryPoint) -> str:
    return json.dumps(finite(asdict(point)), allow_nan=False) + "\n"


# Folders named by time, of runs and studies

LATEST = "latest"
"""A link next to runs, to the one that began last."""

_NAME = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(?:-(\d+))?")


@contextmanager
def new_run_folder(parent: Path, now: datetime | None = None) -> Iterator[Path]:
    """An empty folder in `parent`, named by the local time; a second one in the same second ends with -2.

    If the block raises, the folder is removed, with parents that were made for it.
    """
    name = f"{datetime.now() if now is None else now:%Y-%m-%d_%H-%M-%S}"
    with disk.new_folder(parent):
        for number in count(1):
            folder = parent / (name if number == 1 else f"{name}-{number}")
            with suppress(FileExistsError):
                folder.mkdir()
                break
        try:
            yield folder
        except BaseException:
            with suppress(OSError):  # another run has started in it
                folder.rmdir()
            raise


def point_latest(folder: Path) -> None:
    """Let the link `latest` next to a run point to it; where links cannot be made, there is none."""
    link, temporary = folder.parent / LATEST, folder.parent / f".{LATEST}-{folder.name}"
    with suppress(OSError):
        temporary.symlink_to(folder.name, target_is_directory=True)
        try:
            temporary.replace(link)
        except OSError:
            temporary.unlink()


def without_latest(path: Path) -> Path:
    """The run that the link `latest` leads to now: it leads to another one when a run begins."""
    return path.parent / os.readlink(path) if path.name == LATEST and path.is_symlink() else path


def find_run(path: str | Path) -> Path:
    """The run in a folder: the folder itself or, if that is a folder of runs, the latest in it.

    The link `latest` is followed: the returned path remains that of the same run.
    """
    path = without_latest(Path(path))
    if any((path / name).exists() for name in (CONFIG, SUMMARY)):
        return path
    if (path / LATEST).is_symlink() and (path / LATEST).is_dir():
        return without_latest(path / LATEST)
    names = [folder.name for folder in path.iterdir()] if path.is_dir() else []
    runs = [match for match in map(_NAME.fullmatch, names) if match is not None]
    if runs:
        return path / max(runs, key=lambda run: (run[1], int(run[2] or 1)))[0]
    old = _next_to(path, _OLD)
    return old if old.is_dir() and not path.exists() else path


def run_name(folder: Path) -> str:
    """The name of a run among others: its folder's, after that of the log if it is a time."""
    folder = folder.resolve()
    name = folder.name.removeprefix(_NEW)
    return f"{folder.parent.name}/{name}" if _NAME.fullmatch(name) else name


# Loading


@dataclass(frozen=True)
class TrainingRun:
    """A loaded run: settings, columns, the trained model, its optimizer and baseline, and what was recorded."""

    folder: Path
    config: Config
    columns: LogSchema
    model: ClickModel
    optimizer: GroupOptimizer
    history: list[HistoryPoint]
    summary: Summary
    checkpoint_id: str
    notes: list[str]
    baseline: Baseline | None = None


def load_run(
    folder: str | Path, config: Config | None = None, process_group: dist.ProcessGroup | None = None
) -> TrainingRun:
    """A run with its model and optimizer, to continue. Sets torch's random numbers to their state at its end.

    Args:
        folder: The folder of a finished run, or of runs named by time, of which the latest is taken.
        config: Settings to continue with, if they are not the run's. With another λ, u and the moments are kept; with
            another optimizer the weights are, and it starts afresh.
        process_group: The ranks that hold the tables; all have to call it.

    Raises:
        RunError: No complete run, or a damaged one.
    """
    run = RunFolder(find_run(folder))
    before = run.finished_config()
    if run.follows_a_stream:
        raise RunError(f"{run.path}: follows a stream and has no end; `follow` continues it", "follow")
    manifest = RUN.read(run.path)
    manifest.check_files(run.path, RunError, COLUMNS)
    config = config or before
    columns, path = run.columns(), run.last_checkpoint()
    model, optimizer = config.build_for(columns, process_group)
    same = config.optimizer.name == before.optimizer.name
    loaded = load_checkpoint(path, model, optimizer if same else None, settings="own")
    metadata = CheckpointMetadata.of(loaded.extra, path)
    notes = [note for note in loaded.notes if not (config.optimizer.has_target and note.startswith("l21 is "))]
    if not same:
        was, now = before.optimizer.name, config.optimizer.name
        notes.append(f"the optimizer was {was} and is {now}: the weights are kept; u and the moments start afresh")
    return TrainingRun(
        folder=run.path,
        config=config,
        columns=columns,
        model=model,
        optimizer=optimizer,
        history=list(metadata.trainer.history),
        summary=manifest.summary,
        checkpoint_id=CHECKPOINT.read(path).id,
        notes=notes,
        baseline=baseline_of(metadata, path, model.network, config.objective),
    )


def load_model(folder: str | Path) -> ClickModel:
    """The trained model of a run, or of the latest in a folder of runs, in evaluation mode.

    Raises:
        RunError, CheckpointError: No complete run, or a damaged one.
    """
    run = RunFolder(find_run(folder))
    model, _ = run.finished_config().build_for(run.columns(), device="cpu", draws=False)
    load_checkpoint(run.last_checkpoint(), model, rng=False)
    return model.eval()
