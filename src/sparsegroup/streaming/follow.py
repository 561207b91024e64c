"""A training that follows a stream: predicts each row, then learns it, for ever; exact after any kill."""

import logging
import os
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from sparsegroup.artifact.folder import FolderLock, remove_folder
from sparsegroup.artifact.manifest import check_file, facts_of
from sparsegroup.checkpoint import Checkpoints
from sparsegroup.checkpoint.load import saved_state
from sparsegroup.data.open import raw_log_files
from sparsegroup.data.raw.encode import EncodedRows
from sparsegroup.data.raw.files import LogPaths, listed
from sparsegroup.data.raw.raw_log import RawLog
from sparsegroup.errors import RunError
from sparsegroup.optim import GroupOptimizer
from sparsegroup.reporting.run_record import HistoryPoint
from sparsegroup.serving import TrainedModel
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.streaming.blocks import BlockReader, FullBatches, Journal, Place
from sparsegroup.streaming.live import WINDOW, LiveRecord
from sparsegroup.streaming.publication import Publication
from sparsegroup.streaming.sources import Block, JoinedSource, Source
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training.baseline import BaselineCallback, baseline_for
from sparsegroup.training.build import Config
from sparsegroup.training.model import ClickModel
from sparsegroup.training.network_step import check_weights
from sparsegroup.training.predictions import numbers_named
from sparsegroup.training.run_folder import (
    CHECKPOINTS,
    FIRST_ROWS,
    PROVENANCE,
    Provenance,
    RunFolder,
    TrainingRun,
    load_run,
)
from sparsegroup.training.state import CheckpointMetadata, StreamState
from sparsegroup.training.trainer import Callback, TrainedBatch, Trainer

_logger = logging.getLogger(__name__)

JOURNAL = "journal.jsonl"
"""The file of the blocks that were taken since the oldest checkpoint."""

KEPT_POINTS = 500
"""Points of the history that checkpoints keep; `metrics.jsonl` has all of them."""

_RETRY = 60.0
"""Seconds until another checkpoint is tried, after one that could not be written."""

_ENDLESS: Mapping[str, Any] = {
    "training.epochs": 1,
    "training.validation": 0.0,
    "training.patience": 0,
    "training.shuffle_buffer": 0,
    "training.after_first_epoch": "train",
    "training.average": 0.0,
    "training.recalibrate": False,
    "training.selection": "never",
    "optimizer.schedule": "constant",
    "optimizer.warmup": 0.0,
}
"""Settings that a stream without an end leaves no choice."""

_DEFAULTS: Mapping[str, Any] = {
    "model.name": "dcnv2",
    "training.batch_size": 512,
    "training.baseline": False,
    "checkpoint.minutes": 1.0,
}
"""Settings whose default is another one for a stream."""


def stream_settings(config: Config) -> Config:
    """Settings as a stream needs them.

    Raises:
        SettingsError: One is given that needs an end, such as epochs or a schedule.
    """
    for key, value in _ENDLESS.items():
        section, name = key.split(".")
        if key in config.given_keys and (given := getattr(getattr(config, section), name)) != value:
            raise SettingsError(
                f"{key}: a stream has no end, so that it must be {value}, got {given}; leave `{name}` out", name
            )
    defaults = {key: value for key, value in _DEFAULTS.items() if key not in config.given_keys}
    return config.with_keys({**_ENDLESS, **defaults}, "follow")


def first_rows_log(path: LogPaths, folder: Path, config: Config, like: Config | None = None) -> RawLog:
    """Return the log of a stream's first rows, all of them for training.

    Args:
        path: The copies of the rows.
        folder: The run's folder. Only the folders of the copies in it add columns.
        config: The settings.
        like: Settings that columns are read by.

    Raises:
        ClickLogError: No rows, or no label column.
    """
    options: Any = config.format_options
    if like is not None:
        options = {**like.format_options, **{name: value for name, value in options.items() if value is not None}}
    files, found, _ = raw_log_files(path, root=folder / FIRST_ROWS, **options)
    found = found.endless()
    return RawLog(files, found, on_bad_row="skip", max_bad=0.99)


class Follower:
    """Trains a model on the rows of a source, for ever, in a folder from which it continues after any kill.

    Made by `begin` or `resume`. Rows are learnt in batches of one size, in the order in which they are read; the
    journal keeps that order. So a training that was killed at any moment and resumed has the bits of one that was not,
    if the source can be read again.

    Attributes:
        run: Its folder.
        log: The log of its first rows, which says what the columns are.
        trainer: The trainer, whose `samples` counts learnt rows.
        notes: Messages about how it was continued or resumed.
    """

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        log: RawLog,
        source: Source,
        model: ClickModel,
        optimizer: GroupOptimizer,
        before: TrainingRun | None,
    ) -> None:
        self.run, self.config, self.log, self.source = run, config, log, source
        self.model, self.optimizer, self.notes = model, optimizer, list[str]()
        size = config.training.batch_size
        baseline = baseline_for(config.objective, log.schema)
        is_compared = config.training.baseline and baseline is not None
        self._live = LiveRecord(run.path, log, model.objective)
        self.trainer = config.trainer(
            model,
            optimizer,
            None,
            [_Recorder(self), *([BaselineCallback(baseline)] if is_compared else [])],
            window=max(1, WINDOW // size) * size,
        )
        self._journal = Journal(run.path / JOURNAL)
        settings = config.checkpoint
        self._checkpoints = Checkpoints(run.path / CHECKPOINTS, keep=settings.keep, incremental=settings.incremental)
        self._saved_when, self._saved_step, self._retry_at = monotonic(), 0, 0.0
        self._saved_blocks: list[int] = []
        self._again: list[Any] = []
        self._batches = FullBatches(size)
        self._samples_before = 0
        self._publication: Publication | None = None
        self._stop = threading.Event()
        self._lock: FolderLock | None = None
        if before is not None:
            self.trainer.go_on_after(before.history)
            self._live.begin(before.history)
            self.notes += before.notes
            self._samples_before = self.trainer.samples

    @classmethod
    def begin(
        cls,
        folder: Path,
        config: Config,
        source: Source,
        run: TrainingRun | None = None,
        *,
        first_rows: int = 10_000,
        patience: float = 10.0,
    ) -> "Follower":
        """Begin in `folder`, which is made; with `run`, continue its model and optimizer.

        Waits for the first rows, which decide the format and the settings that were not given.

        Args:
            folder: The folder.
            config: The settings, see `stream_settings`.
            source: Where the rows come from, not opened yet.
            run: The run to continue.
            first_rows: Rows to wait for.
            patience: Seconds to wait for them, once there are some.

        Raises:
            SettingsError: Settings that a stream cannot have, or that need other columns.
            ClickLogError: The first rows cannot be read, or have other columns than `run`.
            RunError: The folder is not free, or another process holds it.
        """
        new, config = RunFolder(folder), stream_settings(config)
        lock = new.lock_new()
        try:
            remove_folder(folder / FIRST_ROWS)  # of a process that was killed here
            paths = source.first_rows(folder / FIRST_ROWS, first_rows, patience)
            log = first_rows_log(paths, folder, config, None if run is None else run.config)
            if len(log) < 2:
                raise RunError(f"{source.name}: has {len(log)} row; the first rows must be at least 2")
            config.check_log(log)
            config = config.resolved_for(log).for_log(log)
            if run is None:
                model, optimizer = config.build(log)
            else:
                run.columns.check_fits(log.schema, log.name)
                model, optimizer = run.model, run.optimizer
            made = cls(new, config, log, source, model, optimizer, run)
            first = {os.path.relpath(file.path, folder): facts_of(Path(file.path)) for file in listed(paths)}
            provenance = Provenance.of(
                log, run, stream=source.name, follows=source.identity, first_rows=first, run=uuid.uuid4().hex
            )
            new.begin(config, log, made.trainer.history, provenance)
        except BaseException:
            lock.close()
            raise
        made._lock = lock
        source.open(log.format)
        made._log_notes()
        return made

    @classmethod
    def resume(cls, folder: Path, source: Source) -> "Follower":
        """Continue in `folder` behind the last row that its last intact checkpoint has learnt.

        Args:
            folder: The folder of a training that ended at any moment.
            source: The source that it began with, not opened yet; a join has the same options.

        Raises:
            RunError: There is no such training, another process holds it, its settings have changed, or the source is
                another one or no longer has the rows.
        """
        run = RunFolder(folder)
        config, provenance = run.config(), run.provenance()
        if provenance.stream is None:
            raise RunError(f"{folder}: is a run that trains on a log and does not follow a stream; give another folder")
        if difference := source.difference_from(provenance.follows):
            raise RunError(
                f"{folder}: the run follows {provenance.stream}, and its place there means nothing elsewhere: "
                f"{difference}. Give the same source, or another folder; if the same rows have another address now, "
                f"change `follows` in {run.path / PROVENANCE}"
            )
        lock = run.lock()
        try:
            for name, facts in provenance.first_rows.items():
                check_file(folder / name, facts, RunError)
            log = first_rows_log([folder / name for name in provenance.first_rows], folder, config)
            checkpoints = Checkpoints(run.path / CHECKPOINTS)
            latest, before = checkpoints.latest(), None
            saved = None if latest is None else CheckpointMetadata.of(saved_state(latest).extra, latest)
            if saved is not None:
                run.check_settings(config, saved)
            elif provenance.continued_from is not None:
                before = load_run(provenance.continued_from, config)
            model, optimizer = config.build(log) if before is None else (before.model, before.optimizer)
            made = cls(run, config, log, source, model, optimizer, before)
            made.notes += [f"{error}; passed over" for error in checkpoints.skipped]
            place = Place()
            if latest is not None and saved is not None:
                place = made._load(latest, saved)
            made._live.cut(made.trainer.samples, place.block)
            made._live.begin(made.trainer.history)
            source.open(log.format, place.position)
            if source.is_replayable:
                made._again = made._journal.spans_after(place.block)
        except BaseException:
            lock.close()
            raise
        made._lock = lock
        made._log_notes()
        return made

    def _log_notes(self) -> None:
        for note in self.notes:
            _logger.warning(note)

    def _load(self, checkpoint: Path, saved: CheckpointMetadata) -> Place:
        if saved.stream is None:
            raise RunError(f"{checkpoint}: damaged (state.extra.stream: is missing)")
        try:
            self.trainer.load_state_dict(saved.trainer)
        except ValueError as error:
            raise RunError(f"{checkpoint}: damaged (state.extra.trainer.{error})") from error
        loaded = self._checkpoints.load(checkpoint, self.model, self.optimizer)
        stream, self._saved_step = saved.stream, self.step
        self.notes += loaded.notes
        self._samples_before = self.trainer.samples
        place = Place(stream.block, stream.position, stream.skip, stream.read_until)
        if not self.source.is_replayable:  # other rows follow
            place = Place(stream.block + (stream.skip > 0), None, 0, stream.read_until)
        self._batches = FullBatches(self._batches.size, place)
        self._saved_blocks = [stream.block]
        self._live.load(stream)
        return place

    @property
    def step(self) -> int:
        """Batches learnt by this training."""
        return self.trainer.progress.steps

    def follow(
        self,
        publication: Publication | None = None,
        *,
        stop: threading.Event | None = None,
        until_idle: float | None = None,
        threads: int = 1,
    ) -> None:
        """Read, predict and learn, until `stop` is set, the source ends, or no row has come for a while.

        The state is then saved. At the end of a source that cannot be read again, the last rows are learnt as a
        smaller batch; otherwise rows that fill no batch wait for later ones.

        Args:
            publication: Where the model is published; None for nowhere.
            stop: Ends it, from a signal handler or another thread.
            until_idle: Seconds without a row after which to end; None for never.
            threads: Threads that parse and hash.

        Raises:
            ClickLogError, OSError: The source can no longer be read.
            FloatingPointError: Training has diverged; checkpoints remain.
        """
        self._stop = stop = stop or threading.Event()
        reader = BlockReader(self.source, self._again, threads=threads)
        idle_since, ended = monotonic(), ""
        self._publication = publication
        try:
            with numbers_named(self.log), self.trainer.notified():
                while not stop.is_set():
                    item = reader.next(0.2)
                    if item is not None:
                        self._learn(*item)
                        idle_since = monotonic()
                    elif reader.is_over:
                        if not self.source.is_replayable:
                            self._train(rest=True)
                        break
                    elif until_idle is not None and monotonic() - idle_since >= until_idle:
                        break
                    self._write_status(reader)
                    self._checkpoint_if_due()
                    if publication is not None and publication.is_due(self.trainer.samples):
                        publication.start(self.trained, self._facts)
                if self._saved_step != self.step:
                    self.checkpoint()
                if publication is not None and publication.is_newer(self.trainer.samples):
                    publication.start(self.trained, self._facts)
                    publication.wait()
        except BaseException as error:
            ended = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.source.stop()
            if reader.close():
                self.source.close()
            else:
                _logger.warning("%s: does not end a read; it is left open", self.source.name)
            if publication is not None:
                publication.close()
            self._write_status(reader, ended=ended)
            if self._lock is not None:
                self._lock.close()

    def _write_status(self, reader: BlockReader, *, ended: str | None = None) -> None:
        late, waiting = None, self._batches.waiting
        if isinstance(self.source, JoinedSource):
            late = {"late": self.source.clicks_late, "without a row": self.source.clicks_unmatched}
        self._live.write_status(
            reader.lag, waiting, self._publication, samples=self.trainer.samples, late=late, ended=ended
        )

    def _learn(self, block: Block, encoded: EncodedRows) -> None:
        """Take a block: note it, then learn the batches that it fills."""
        number = self._batches.add(block, encoded.batch)
        if self.source.is_replayable:
            self._note(number, block.span)
        self._live.note_rows(number, block, encoded)
        self._train()

    def _note(self, number: int, span: Any) -> None:
        """Write a block into the journal, and wait as long as the disk is full: nothing is learnt that is not noted."""
        warned = False
        while True:
            try:
                return self._journal.append(number, span)
            except OSError as error:
                self.run.check_there()
                if self._stop.is_set():
                    raise
                if not warned:
                    _logger.warning("waiting for room: %s", error)
                warned = True
                self._stop.wait(1.0)

    def _train(self, *, rest: bool = False) -> None:
        self.trainer.partial_fit(self._batches.full(rest=rest))

    @property
    def _facts(self) -> Mapping[str, Any]:
        """What a release says of the rows that its model has learnt."""
        return {
            "samples": self.trainer.samples,
            "learnt_until": self._live.learnt_until,
            "read_until": self._place.read_at,
            "run": self.run.provenance().run,
        }

    @property
    def _place(self) -> Place:
        """Behind the last row that was learnt."""
        return self._batches.place(self.trainer.samples - self._samples_before)

    @property
    def trained(self) -> TrainedModel:
        """The model of this moment, for an export."""
        tables = [self.optimizer.state.get(table.weight) for table in tables_in(self.model).values()]
        return TrainedModel(
            self.run.path,
            "run",
            self.config,
            self.log.schema,
            self.model,
            None,
            samples=self.trainer.samples,
            steps=max(int(entry["step"]) if entry else 0 for entry in tables),
            l21=float(self.optimizer.param_groups[0]["l21"]),
        )

    def _checkpoint_if_due(self) -> None:
        settings = self.config.checkpoint
        by_step = settings.steps > 0 and self.step - self._saved_step >= settings.steps
        by_time = settings.minutes > 0 and monotonic() - self._saved_when >= 60 * settings.minutes
        if not (by_step or by_time) or self._saved_step == self.step or monotonic() < self._retry_at:
            return
        try:
            self.checkpoint()
        except OSError as error:  # a full disk: earlier checkpoints remain, and the next one may find room
            _logger.warning("no checkpoint: %s; the next try is in a minute", error)
            self._retry_at = monotonic() + _RETRY

    def checkpoint(self) -> Path:
        """Write the state between two batches.

        Raises:
            CheckpointError, OSError: It cannot be written. Earlier ones remain.
            RunError: The run's folder has been removed or moved.
            FloatingPointError: The network's weights are not finite.
        """
        trainer = self.trainer
        check_weights(self.model, trainer.samples)
        place = self._place
        state = StreamState(
            place.block,
            place.position,
            place.skip,
            dict(self._live.bad_rows_until(place.block)),
            self._live.learnt_until,
            place.read_at,
        )
        extra: dict[str, Any] = {
            "config": self.config.as_dict(),
            "columns": asdict(self.log.schema),
            "trainer": trainer.state_dict(),
            "stream": asdict(state),
        }
        with self.run.writing():
            path = self._checkpoints.save(self.step, self.model, self.optimizer, None, extra=extra)
        self._saved_when, self._saved_step = monotonic(), self.step
        if place.position is not None:
            self.source.acknowledge(place.position)
        self._saved_blocks.append(place.block)
        keep = self.config.checkpoint.keep + 1
        if self.source.is_replayable and len(self._saved_blocks) >= keep:
            with suppress(OSError):  # a full disk: the journal is longer than it need be
                self._journal.forget(self._saved_blocks[-keep])
        del self._saved_blocks[:-keep]
        _logger.info("checkpoint at %s rows: %s", f"{trainer.samples:,}", path)
        return path


class _Recorder(Callback):
    """Passes what a follower learns to its record and to its gate."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        self._follower._live.note_batch(trained.batch)
        if (publication := self._follower._publication) is not None:
            publication.add(trained.batch, trained.logits, trainer.samples)

    def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
        self._follower._live.note_point(point)
        trainer.forget(KEPT_POINTS)
