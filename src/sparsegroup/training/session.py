"""A training run in its folder: begun, perhaps with the model of another run, or resumed where it was cut off."""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparsegroup.artifact.folder import remove_folder
from sparsegroup.checkpoint import Checkpoints
from sparsegroup.checkpoint.load import saved_state
from sparsegroup.data.log import Log
from sparsegroup.optim import GroupOptimizer
from sparsegroup.reporting.run_record import HistoryPoint, RankFigures, Summary
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training.assessment import assess
from sparsegroup.training.baseline import BaselineCallback, LogisticBaseline, predicting
from sparsegroup.training.callbacks.tracking import tracking_callbacks
from sparsegroup.training.checks import check_weights, numbers_named
from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.config import Config
from sparsegroup.training.evaluation import EVALUATED, probabilities_of
from sparsegroup.training.largest_features import SHOWN, named_features
from sparsegroup.training.log_pass import trainer_for
from sparsegroup.training.plan import EarlierRanks, EpochParts
from sparsegroup.training.ranks import RankGroup
from sparsegroup.training.run_files import RunError, RunStoppedError, without_latest
from sparsegroup.training.run_folder import (
    CHECKPOINTS,
    FolderLock,
    TrainingRun,
    append_point,
    begin_run,
    check_settings,
    checkpoint_extra,
    finish_run,
    load_run,
    locked_run_folder,
    read_columns,
    run_beginning,
    summarize,
    write_history,
)
from sparsegroup.training.run_metadata import CheckpointMetadata, Provenance
from sparsegroup.training.trainer import Callback

_logger = logging.getLogger(__name__)


_STEPS_PER_CLOCK = 8
"""Ranks have to agree that it is time for a checkpoint, and do so every so many steps."""


class Session:
    """Trains a model in a folder, so that a process that dies loses no more than since the last checkpoint.

    Made by `begin` or `resume`. Resumed, it ends with the same bits as if it had never been cut off. Several ranks that
    train one model all do the same with their sessions; the folder is on a file system of all, and the first one writes
    what is not a part of the table.

    Attributes:
        plan: The rows of its epochs.
        parts: Those of this rank.
        ranks: Who train it.
        notes: What the user should know of how it was continued or resumed.
    """

    def __init__(
        self, folder: Path, config: Config, log: Log, model: ClickModel, optimizer: GroupOptimizer, begun: Provenance
    ) -> None:
        self.folder, self.config, self.log, self.begun = folder, config, log, begun
        self.model, self.optimizer = model, optimizer
        self.plan = config.training.plan(log.train_rows)
        numbers = len(log.numbers)
        self._baseline = BaselineCallback(LogisticBaseline(numbers=numbers)) if config.training.baseline else None
        self._own_callbacks: list[Callback] = [] if self._baseline is None else [self._baseline]
        self.trainer = trainer_for(config, model, optimizer, log, self.plan, self._own_callbacks)
        self.ranks = self.trainer.ranks
        self.parts = EpochParts(self.plan, self.ranks.rank, self.ranks.count)
        self._earlier: tuple[EarlierRanks, ...] = ()
        self.checkpoints = Checkpoints(
            folder / CHECKPOINTS, keep=config.checkpoint.keep, incremental=config.checkpoint.incremental
        )
        self.notes: list[str] = []
        self._last = perf_counter()
        self._saved_at: int | None = None
        self._lock: FolderLock | None = None

    @classmethod
    def begin(
        cls,
        folder: Path,
        config: Config,
        log: Log,
        run: TrainingRun | None = None,
        process_group: dist.ProcessGroup | None = None,
        *,
        job: str | None = None,
    ) -> "Session":
        """Begin a run in `folder`, which is made; with `run`, go on with its model and optimizer.

        Settings that were not given are decided for the log by the rules of `sparsegroup.training.defaults`; with `run`
        only those in `defaults.PER_LOG`.

        Args:
            folder, config, log, run: As above.
            process_group: `torch.distributed.group.WORLD` where all its ranks train the model, else None. The tables of
                `run` lie on them, too.
            job: The id of the torchrun job, see `Provenance`.

        Raises:
            SettingsError: The settings ask for what the log has not, fields or times; or a run that is continued would
                have its embeddings reset.
            RunError: The log has fewer than two training rows, or the folder is not free, or another process holds it.
            ClickLogError: The log has other columns than the run.
        """
        if log.train_rows < 2:
            rows = f"{len(log)} row{'s' * (len(log) != 1)}, {log.train_rows} for training"
            raise RunError(f"{log.name}: has {rows}; a run needs at least 2 rows to train on")
        config.check_log(log)
        config = config.for_log(log)
        if run is None:
            config = config.resolved_for(log)
        else:
            run.columns.check_fits(log.schema, log.name)
            config = config.resolved_again_for(log)
            if config.training.epochs > 1 and config.training.after_first_epoch == "reset":
                raise SettingsError(
                    f"training.after_first_epoch: reset would undo, in the second epoch, what {run.folder} has learnt; "
                    "give `epochs`=1, or `after_first_epoch`=train or freeze",
                    "epochs",
                    "after_first_epoch",
                )
        ranks = RankGroup(process_group)
        with locked_run_folder(folder, ranks, is_new=True) as lock:
            model, optimizer = config.build(log, process_group) if run is None else (run.model, run.optimizer)
            before, id = (None, None) if run is None else (str(run.folder), run.checkpoint_id)
            session = cls(folder, config, log, model, optimizer, Provenance.now(log, before, id, job))
            session._lock = lock
            session._continue_from(run)
            begin = partial(begin_run, folder, config, log, session.trainer.history, session.begun)
            ranks.on_rank_0(begin, "the run's beginning")
        session._log_notes()
        return session

    @classmethod
    def resume(cls, folder: Path, log: Log, process_group: dist.ProcessGroup | None = None) -> "Session":
        """Go on with the run in `folder` from its last good checkpoint, or from its start.

        Args:
            folder: The folder of a run that was cut off, at whatever moment.
            log: The one that it was begun on.
            process_group: See `begin`; the number of ranks may be another one than before.

        Raises:
            RunError: There is no such run, another process trains it, the log or the settings have changed, or the run
                that it went on with is not there any more.
            CheckpointError: The checkpoint is another model's.
        """
        folder = without_latest(folder)
        config, begun = run_beginning(folder)
        with locked_run_folder(folder, RankGroup(process_group), is_new=False) as lock:
            session = cls._resumed(folder, config, begun, log, process_group)
            session._lock = lock
        session._log_notes()
        if session.position:
            _logger.info("%s: resumed at row %s", folder, f"{session.position:,}")
        return session

    @classmethod
    def _resumed(
        cls,
        folder: Path,
        config: Config,
        begun: Provenance,
        log: Log,
        process_group: dist.ProcessGroup | None,
    ) -> "Session":
        read_columns(folder).check_fits(log.schema, log.name)
        begun.check(log)
        checkpoints, ranks, run = Checkpoints(folder / CHECKPOINTS), RankGroup(process_group), None
        latest = ranks.broadcast(None if ranks.rank else checkpoints.latest(), "the last checkpoint")
        if latest is None and begun.continued_from is not None:
            run = load_run(begun.continued_from, config, process_group)
            if run.checkpoint_id != begun.continued_id:
                raise RunError(f"{run.folder}: has changed since {folder} continued it; begin {folder} again")
        extra = None
        if latest is not None:
            extra = CheckpointMetadata.of(saved_state(latest).extra, latest)
            check_settings(folder, config, extra)
        model, optimizer = config.build(log, process_group) if run is None else (run.model, run.optimizer)
        session = cls(folder, config, log, model, optimizer, begun)
        session._continue_from(run)
        session.notes += [f"{error}; passed over" for error in checkpoints.skipped]
        if latest is not None and extra is not None:
            session._restore_trainer(extra, latest)
            loaded = session.checkpoints.load(latest, model, optimizer, session.trainer.scheduler)
            session._saved_at = loaded.step
            session.notes += loaded.notes
        ranks.on_rank_0(partial(write_history, folder, session.trainer.history), "the history")
        return session

    def _continue_from(self, run: TrainingRun | None) -> None:
        """Set the random numbers of a rank, and take history and baseline of a run that is continued."""
        if rank := self.trainer.ranks.rank:  # dropout differs
            torch.manual_seed((self.config.training.seed + rank) % (1 << 64))
        if run is not None:
            self.trainer.go_on_after(run.history)
            if run.baseline is not None and self._baseline is not None:
                self._baseline.model = run.baseline
            self.notes = list(run.notes)

    def _log_notes(self) -> None:
        for note in self.notes:
            _logger.warning(note)

    def _restore_trainer(self, extra: CheckpointMetadata, checkpoint: Path) -> None:
        trainer, state = self.trainer, extra.trainer_state(checkpoint)
        try:
            trainer.load_state_dict(state)
            if trainer.progress.epoch > self.plan.epochs or trainer.progress.position > self.plan.rows:
                raise ValueError(f"progress: is beyond {self.plan.epochs} epochs of {self.plan.rows:,} rows")
        except ValueError as error:
            raise RunError(f"{checkpoint}: damaged (state.extra.trainer.{error})") from error
        progress = trainer.progress
        self._earlier = tuple(extra.earlier)
        positions = tuple(rank.taken for rank in state.ranks)
        if len(positions) != self.ranks.count and progress.steps:
            self._earlier += (EarlierRanks(progress.epoch, progress.steps, positions),)
        if progress.best is not None and not progress.is_over:
            self.checkpoints.pinned = self._step_of_best

    @property
    def position(self) -> int:
        """Rows that have been trained on, in all epochs of this run."""
        progress = self.trainer.progress
        return progress.epoch * self.plan.rows + progress.position

    @property
    def step(self) -> int:
        """Batches of this run that have been trained on."""
        return self.trainer.progress.epoch * self.plan.epoch_steps + self.trainer.progress.steps

    @property
    def earlier(self) -> tuple[EarlierRanks, ...]:
        """Other numbers of ranks that the epoch under way was begun with."""
        return tuple(one for one in self._earlier if one.epoch == self.trainer.progress.epoch)

    @property
    def _step_of_best(self) -> int:
        assert self.trainer.progress.best is not None
        return self.trainer.progress.best * self.plan.epoch_steps

    def keep(self) -> None:
        """Save the state after the best epoch so far: see `BestState`.

        Raises:
            CheckpointError, OSError: It cannot be written. Those that there are stay.
        """
        self.checkpoints.pinned = self._step_of_best
        self.checkpoint()

    def restore(self) -> None:
        """Bring table, network, optimizer and target back to where they were after the best epoch.

        Raises:
            CheckpointError: That checkpoint is missing or damaged.
        """
        trainer = self.trainer
        path = self.checkpoints.of_step(self._step_of_best)
        loaded = self.checkpoints.load(path, self.model, self.optimizer, trainer.scheduler)
        state = CheckpointMetadata.of(loaded.extra, path).trainer_state(path)
        if trainer.target is not None and state.target is not None:
            trainer.target.load_state_dict(asdict(state.target))

    def train(
        self,
        *,
        on_batch: Callable[[int, float], None] | None = None,
        on_progress: Callable[[HistoryPoint], None] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Summary:
        """Train on what is left of the epochs, evaluate on the test rows, and write what the run leaves behind.

        Args:
            on_batch, on_progress: See `Trainer.fit`.
            callbacks: Called before those that the settings ask for (`TrackingConfig`).

        Raises:
            CheckpointError, OSError: A checkpoint cannot be written. Those that there are stay.
            FloatingPointError: Training has diverged; checkpoints from before stay.
            RunStoppedError: A callback has called `Trainer.stop`; there is a checkpoint of that moment.
        """
        tracking = [] if self.ranks.rank else tracking_callbacks(self.config.tracking, self.folder)
        callbacks = self.trainer.callbacks = [*self._own_callbacks, *callbacks, *tracking]
        with self._lock or nullcontext(), numbers_named(self.log):
            summary = None
            for callback in callbacks:
                callback.on_run_begin(self.folder, self.config)
            try:
                summary = self._train(on_batch, on_progress)
            except FloatingPointError as error:
                paths = self.checkpoints.paths()
                # Its weights give no finite loss any more.
                if paths and self._saved_at == self.step and not self.ranks.rank:
                    remove_folder(paths.pop())
                if not paths:
                    raise
                raise FloatingPointError(f"{error}; the last good checkpoint is {paths[-1]}") from error
            finally:
                for callback in callbacks:
                    callback.on_run_end(self.folder, summary)
            return summary

    def _train(
        self, on_batch: Callable[[int, float], None] | None, on_progress: Callable[[HistoryPoint], None] | None
    ) -> Summary:
        def note(point: HistoryPoint) -> None:
            append_point(self.folder, point)
            if on_progress is not None:
                on_progress(point)

        log, plan, trainer, self._last = self.log, self.plan, self.trainer, perf_counter()

        def between_batches() -> None:
            if self._is_due() and trainer.progress.position < plan.rows:
                self.checkpoint()

        def between_epochs() -> None:
            if self._is_due() and self._saved_at != self.step:
                self.checkpoint()

        if trainer.progress.is_over:  # cut off behind its last batch
            with trainer.notified():
                pass
        else:
            trainer.fit(
                lambda epoch: self.parts.batches(log, epoch, trainer.progress.steps, self.earlier),
                **plan.arguments(log, partial(self.parts.of_rows, log)),
                best=self,
                on_batch=on_batch,
                on_progress=note,
                after_batch=between_batches,
                after_epoch=between_epochs,
            )
            if not trainer.progress.is_over:
                if self._saved_at != self.step:
                    self.checkpoint()
                raise RunStoppedError(
                    f"{self.folder}: stopped at row {self.position:,}; `resume` continues it", "resume"
                )
        self.checkpoints.pinned = None
        if self._saved_at != self.step:
            self.checkpoint(whole=True)
        else:  # cut off after that one
            self.ranks.on_rank_0(self.checkpoints.tidy, "the checkpoints")
        return self._conclude()

    def _conclude(self) -> Summary:
        """Evaluate the model on the test rows, and write what the run leaves behind; all ranks do."""
        log, trainer, ranks = self.log, self.trainer, self.ranks
        stream, beside = self.parts.of_rows(log, log.train_rows, len(log), EVALUATED), list[Tensor]()
        if self._baseline is not None:
            stream = predicting(self._baseline.of_all_ranks(ranks), stream, beside)
        predictions = trainer.predictions(stream) if len(log) > log.train_rows else None
        beside = ranks.all_gather(beside, "the baseline's predictions")
        named = named_features(log, self.model.rows.values(), ranks)
        summary = summarize(
            log,
            self.model,
            trainer.history,
            assess(predictions, trainer.history, log, probabilities_of(beside) if beside else None),
            self.begun.started,
            continued_from=self.begun.continued_from,
            bad_rows=log.bad_rows,
            progress=trainer.progress,
            validation_rows=self.plan.validation_rows,
            largest=named[:SHOWN],
            ranks=self._rank_figures(),
        )
        finish = partial(finish_run, self.folder, self.config, log, named, trainer.history, summary)
        ranks.on_rank_0(finish, "what the run leaves behind")
        for warning in summary.warnings:
            _logger.warning(warning)
        return summary

    def _rank_figures(self) -> list[RankFigures]:
        """The figures of each of several ranks."""
        ranks = self.ranks
        if ranks.is_alone:
            return []
        tables = tables_in(self.model).values()
        traffic = [table.across.shards.traffic for table in tables if table.across is not None]
        own = RankFigures(
            rows=self.trainer.trained,
            features=sum(table.num_rows for table in self.model.rows.values()),
            sent=ranks.sent + sum(one.sent for one in traffic),
            waited=ranks.waited + sum(one.waited for one in traffic),
        )
        return ranks.all_gather([own], "their figures")

    def _is_due(self) -> bool:
        settings = self.config.checkpoint
        if settings.steps and self.step % settings.steps == 0:
            return True
        if not settings.minutes or (self.step % _STEPS_PER_CLOCK and not self.ranks.is_alone):
            return False
        is_late = perf_counter() - self._last >= 60 * settings.minutes
        return self.ranks.broadcast(is_late, "whether a checkpoint is due")

    def checkpoint(self, *, whole: bool = False) -> Path:
        """Write the state of the run. To be called between two batches.

        Args:
            whole: Write all rows, not only those that have changed.

        Raises:
            CheckpointError, OSError: It cannot be written. Those that there are stay.
            FloatingPointError: The network's weights are not finite.
        """
        check_weights(self.model, self.trainer.samples)
        extra: dict[str, Any] = checkpoint_extra(
            self.config,
            self.log.schema,
            self.trainer.samples,
            position=self.position,
            trainer=self.trainer.state_dict(),
            earlier=[asdict(one) for one in self.earlier],
        )
        path = self.checkpoints.save(
            self.step, self.model, self.optimizer, self.trainer.scheduler, extra=extra, whole=whole
        )
        self._last, self._saved_at = perf_counter(), self.step
        _logger.info("checkpoint at %s samples: %s", f"{self.trainer.samples:,}", path)
        return path
