"""The folder that a training run leaves behind, in open formats, kept by a lock for the processes that train it."""

import json
import math
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, TypeVar

import torch.distributed as dist

from sparsegroup.artifact import folder as disk
from sparsegroup.artifact.folder import remove_folder, write_atomically
from sparsegroup.artifact.manifest import facts_of
from sparsegroup.artifact.validation import finite, validated
from sparsegroup.checkpoint import Checkpoints, load_checkpoint
from sparsegroup.checkpoint.manifest import CHECKPOINT
from sparsegroup.data.log import Log
from sparsegroup.data.schema import LogSchema
from sparsegroup.optim import GroupOptimizer
from sparsegroup.reporting.run_record import HistoryPoint, LargestFeature, Metrics, RankFigures, Summary
from sparsegroup.settings.yaml_settings import checked, read_yaml
from sparsegroup.table import FieldCount
from sparsegroup.training.assessment import Assessment
from sparsegroup.training.baseline import LogisticBaseline
from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.config import Config
from sparsegroup.training.largest_features import named_features, write_names
from sparsegroup.training.ranks import RankGroup
from sparsegroup.training.run_files import CONFIG, FINISHED, RUN, SUMMARY, UNFINISHED, RunError, RunManifest, find_run
from sparsegroup.training.run_metadata import CheckpointMetadata, Provenance
from sparsegroup.training.shown_settings import shown_settings
from sparsegroup.training.state import EpochProgress, TableTotals, field_totals

COLUMNS = "columns.json"
METRICS = "metrics.jsonl"
BEGUN = "begun.json"
CHECKPOINTS = "checkpoints"
VOCABULARY = "vocabulary.parquet"
NAMES = "names.parquet"
PLOT = "progress.png"
REPORT = "report.html"

TENSORBOARD = "tensorboard"
MLFLOW = "mlflow.json"

Content = TypeVar("Content")

_FILES = (BEGUN, COLUMNS, METRICS, MLFLOW, VOCABULARY, NAMES, REPORT, PLOT)


@dataclass(frozen=True)
class TrainingRun:
    """What a folder holds: settings, columns, the trained model, its optimizer and baseline, and what was recorded."""

    folder: Path
    config: Config
    columns: LogSchema
    model: ClickModel
    optimizer: GroupOptimizer
    history: list[HistoryPoint]
    summary: Summary
    checkpoint_id: str
    notes: list[str]
    baseline: LogisticBaseline | None = None


def save_run(
    folder: Path,
    config: Config,
    log: Log,
    model: ClickModel,
    optimizer: GroupOptimizer,
    history: Sequence[HistoryPoint],
    summary: Summary,
) -> None:
    """Write the run into `folder`, which is made if need be; `summary.json`, written last, makes it whole.

    - `config.yaml`: all settings, to be given to `sparsegroup train` again.
    - `begun.json`: when, on which log, and what it went on with.
    - `columns.json`: the fields and numbers that the model expects.
    - `metrics.jsonl`: the history, a point per line.
    - `checkpoints`: model, optimizer and random numbers, to use or to go on with.
    - `vocabulary.parquet`: key → field and value, of a prepared log that has it.
    - `names.parquet`: the same of features of the largest vectors alone, of any log whose text is at hand.
    - `report.html` and `progress.png`: for people.
    - `tensorboard` and `mlflow.json`: see `TrackingConfig`; `Session` writes them.
    - `summary.json`: final figures, versions.
    """
    config = config.for_log(log)
    begin_run(folder, config, log, history, Provenance.now(log))
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    for path in checkpoints.paths():
        remove_folder(path)
    checkpoints.save(0, model, optimizer, extra=checkpoint_extra(config, log.schema, summary.samples))
    finish_run(folder, config, log, named_features(log, model.rows.values()), history, summary)


def checkpoint_extra(config: Config, columns: LogSchema, samples: int, **more: Any) -> dict[str, Any]:
    """The content of `CheckpointMetadata`, to be saved."""
    return {"config": config.as_dict(), "columns": asdict(columns), "samples": samples, **more}


def begin_run(folder: Path, config: Config, log: Log, history: Sequence[HistoryPoint], begun: Provenance) -> None:
    """Make the folder of a run, with what is known before it; `config.yaml`, written last, makes it one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    _write_json(folder / BEGUN, asdict(begun))
    _write_json(folder / COLUMNS, asdict(log.schema))
    write_history(folder, history)
    text = config.as_yaml()
    write_atomically(folder / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def is_free(folder: Path) -> bool:
    """Whether a run can begin in a folder: there is none, or an empty one, or one that was left as soon as begun."""
    if not folder.exists():
        return True
    own = (BEGUN, COLUMNS, METRICS)
    temporary = [f".{name}.tmp" for name in (*own, CONFIG)]
    return folder.is_dir() and all(path.name in (*own, *temporary) for path in folder.iterdir())


def write_history(folder: Path, history: Sequence[HistoryPoint]) -> None:
    """Write all of `metrics.jsonl`."""
    text = "".join(map(_line, history))
    write_atomically(folder / METRICS, lambda path: path.write_text(text))


def finish_run(
    folder: Path,
    config: Config,
    log: Log,
    named: Sequence[LargestFeature],
    history: Sequence[HistoryPoint],
    summary: Summary,
) -> None:
    """Write what a run leaves behind at its end; `named`: features and their text, to be kept."""
    from sparsegroup.reporting.charts import plot_progress  # charts: not before a run has come to its end
    from sparsegroup.reporting.page import render_report, run_title

    write_history(folder, history)
    if (vocabulary := log.vocabulary) is not None:
        write_atomically(folder / VOCABULARY, lambda path: shutil.copyfile(vocabulary, path))
    write_names(named, folder / NAMES)
    settings = shown_settings(config, log.train_rows)
    page = render_report(settings, history, summary)
    write_atomically(folder / REPORT, lambda path: path.write_text(page, encoding="utf-8"))
    test_auc = math.nan if summary.test is None else summary.test.auc
    title = f"{run_title(settings)} on {Path(log.name).name}"
    write_atomically(folder / PLOT, lambda path: plot_progress(history, test_auc, title, path))
    files = {name: facts_of(folder / name) for name in (COLUMNS, METRICS)}
    RUN.write(folder, RunManifest(files=files, summary=summary))


def replace_run(unfinished: Path, folder: Path) -> None:
    """Move a complete run into the place of another, whose files go; others in `folder` stay.

    It lies in the folder `UNFINISHED` in `folder`, which is renamed to `FINISHED` when the old run's files are gone, so
    that an interrupted replacement can be completed.
    """
    if unfinished.name == UNFINISHED:
        for name in (SUMMARY, CONFIG, *_FILES):
            (folder / name).unlink(missing_ok=True)
        remove_folder(folder / CHECKPOINTS)
        shutil.rmtree(folder / TENSORBOARD, ignore_errors=True)
        shutil.rmtree(folder / FINISHED, ignore_errors=True)  # of one that was cut off here, and never resumed
        disk.rename(unfinished, folder / FINISHED)
        unfinished = folder / FINISHED
    for name in (CHECKPOINTS, TENSORBOARD, *_FILES, CONFIG, SUMMARY):
        if (unfinished / name).exists():
            disk.rename(unfinished / name, folder / name)
    shutil.rmtree(unfinished)


def append_point(folder: Path, point: HistoryPoint) -> None:
    """Add a point to `metrics.jsonl` while training goes on."""
    with (folder / METRICS).open("a") as file:
        file.write(_line(point))


def _line(point: HistoryPoint) -> str:
    return json.dumps(finite(asdict(point)), allow_nan=False) + "\n"


def config_of(folder: str | Path) -> Config:
    """The settings of a complete run; raises RunError where the folder holds none."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"{folder}: no run ({'it is a file' if folder.exists() else 'there is no such folder'})")
    if not (folder / SUMMARY).is_file():
        begun = (folder / CONFIG).is_file()
        what = "a run that did not finish; `resume` completes it" if begun else "no run"
        raise RunError(f"{folder}: {what} ({SUMMARY} is missing)", "resume")
    return checked(Config, read_yaml(folder / CONFIG), str(folder / CONFIG))


def load_run(
    folder: str | Path, config: Config | None = None, process_group: dist.ProcessGroup | None = None
) -> TrainingRun:
    """A run with its model and optimizer, to go on with. Sets torch's random numbers to where they were.

    Args:
        folder: As written by `save_run`; or one of runs named by time, of which the latest is taken.
        config: Settings to go on with, where they are not the run's. With another λ, u and the moments are kept; with
            another optimizer the weights are, and it starts afresh.
        process_group: The ranks that the tables are to lie on; all have to call it.

    Raises:
        RunError: No complete run, or a damaged one.
    """
    folder = find_run(folder)
    before = config_of(folder)
    manifest = RUN.read(folder)
    manifest.check_files(folder, RunError)
    config = config or before
    columns, path = read_columns(folder), last_checkpoint(folder)
    model, optimizer = config.build_for(columns, process_group)
    same = config.optimizer.name == before.optimizer.name
    loaded = load_checkpoint(path, model, optimizer if same else None, settings="own")
    notes = [note for note in loaded.notes if not (config.optimizer.has_target and note.startswith("l21 is "))]
    if not same:
        was, now = before.optimizer.name, config.optimizer.name
        notes.append(f"the optimizer was {was} and is {now}: the weights are kept; u and the moments start afresh")
    history = read_history(folder)
    checkpoint = CHECKPOINT.read(path)
    baseline = CheckpointMetadata.of(loaded.extra, path).baseline(path)
    return TrainingRun(
        folder, config, columns, model, optimizer, history, manifest.summary, checkpoint.id, notes, baseline
    )


def load_model(folder: str | Path) -> ClickModel:
    """The trained model of a run, or of the latest in a folder of runs, in evaluation mode.

    Raises:
        RunError, CheckpointError: No complete run, or a damaged one.
    """
    folder = find_run(folder)
    config, columns = config_of(folder), read_columns(folder)
    model, _ = config.build_for(columns)
    load_checkpoint(last_checkpoint(folder), model, rng=False)
    return model.eval()


def last_checkpoint(folder: Path) -> Path:
    """The checkpoint that a complete run ended with; raises RunError where there is none."""
    paths = Checkpoints(folder / CHECKPOINTS).paths()
    if not paths:
        raise RunError(f"{folder}: damaged (no checkpoint in {CHECKPOINTS})")
    return paths[-1]


def read_columns(folder: Path) -> LogSchema:
    """The columns of a run; raises RunError where the file is missing or damaged."""
    return _read_json(folder / COLUMNS, LogSchema.from_dict)


def read_history(folder: Path) -> list[HistoryPoint]:
    """The points of `metrics.jsonl`; RunError names file, line and field of what is damaged."""
    path = folder / METRICS
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: damaged ({error})") from error
    history = []
    for number, line in enumerate(lines, 1):
        try:
            history.append(validated(HistoryPoint, json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path}, line {number}: damaged ({error})") from error
    return history


def _read_json(path: Path, parsed: Callable[[Any], Content]) -> Content:
    try:
        return parsed(json.loads(path.read_text()))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({error})") from error


def summarize(
    log: Log,
    model: ClickModel,
    history: Sequence[HistoryPoint],
    test: Assessment | Metrics | None,
    started: str,
    *,
    continued_from: str | None = None,
    bad_rows: Mapping[str, int] | None = None,
    progress: EpochProgress | None = None,
    validation_rows: int = 0,
    largest: Sequence[LargestFeature] = (),
    ranks: Sequence[RankFigures] = (),
) -> Summary:
    """What a run came to. Where the tables lie on several ranks, all have to call it.

    Args:
        test: What the test rows say, or their metrics alone; None where there are none.
        progress: Where the epochs have ended; None is one epoch.
        log, model, history, started, continued_from, bad_rows, validation_rows, largest, ranks: See `Summary`.
    """
    found = Assessment(test) if isinstance(test, Metrics | None) else test
    progress = progress or EpochProgress(epoch=1)
    table, counts = TableTotals.of(model.embedding), field_totals(model.embedding)
    rows = {name: counts.get(number, FieldCount(0, 0, 0)) for number, name in enumerate(log.fields)}
    return Summary(
        log=log.name,
        test_rows=len(log) - log.train_rows,
        test=found.test,
        samples=history[-1].samples if history else 0,
        seconds=history[-1].seconds if history else 0.0,
        feature_rate=table.feature_rate,
        live_rows=table.num_live,
        features_seen=table.num_seen,
        table_bytes=table.bytes,
        fields=rows,
        started=started,
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("sparsegroup", "torch", "numpy", "numba", "polars", "pyarrow")},
        },
        continued_from=continued_from,
        bad_rows=dict(bad_rows or {}),
        evicted_rows=table.num_evicted,
        refused_rows=table.num_refused,
        epochs=progress.epoch,
        best_epoch=progress.best,
        validation_rows=validation_rows,
        validation=progress.validation,
        baseline=found.baseline,
        curves=found.curves,
        baseline_curves=found.baseline_curves,
        warnings=found.warnings,
        largest=tuple(largest),
        ranks=tuple(ranks),
    )


def _write_json(path: Path, content: object) -> None:
    text = json.dumps(finite(content), indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))


try:
    import fcntl
except ImportError:  # on Windows, where no process is kept out
    fcntl = None  # type: ignore[assignment]


class FolderLock:
    """Keeps other processes from locking a folder until `close`, or this process's end; BlockingIOError if one has."""

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
    """Keep other processes away from a run until the lock is closed; raises RunError where one trains it."""
    try:
        return FolderLock(folder)
    except BlockingIOError as error:
        raise RunError(f"{folder}: another process is training this run") from error


@contextmanager
def locked_run_folder(folder: Path, ranks: RankGroup, *, is_new: bool) -> Iterator[FolderLock | None]:
    """A run's lock, released only where what follows fails; the first of several ranks holds it for all.

    A new run's folder is made. RunError: another process trains a run there or, of a new one, has begun one.
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
    """Settings and provenance of the run in a folder, complete or not; raises RunError where there is none."""
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder}: no run has begun there ({CONFIG} is missing)")
    config = checked(Config, read_yaml(folder / CONFIG), str(folder / CONFIG))
    return config, _read_json(folder / BEGUN, partial(validated, Provenance))


def check_settings(folder: Path, config: Config, extra: CheckpointMetadata) -> None:
    """Raise RunError where a run's settings have changed; those of its log's place and of checkpoints may."""
    now = config.as_dict()
    for section in ("model", "optimizer", "training"):
        for name, before in extra.config.get(section, {}).items():
            if now[section].get(name) != before:
                raise RunError(
                    f"{folder / CONFIG}: {section}.{name} is {now[section].get(name)!r}, but the run was begun with "
                    f"{before!r}; put it back, or begin another run"
                )
