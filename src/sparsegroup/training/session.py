"""A training run in its folder: started, perhaps with the model of another run, or resumed from its last checkpoint."""

import logging
import platform
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparsegroup.artifact.folder import FolderLock, remove_folder
from sparsegroup.artifact.manifest import version
from sparsegroup.checkpoint import Checkpoints
from sparsegroup.checkpoint.load import saved_state
from sparsegroup.data.log import Log
from sparsegroup.errors import RunError
from sparsegroup.models.pairs import pairs_of
from sparsegroup.optim import GroupOptimizer
from sparsegroup.reporting.run_record import HistoryPoint, LargestFeature, RankFigures, Summary, Trial
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.table import FieldCount
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training.assessment.columns import ColumnAssessment, assess_columns
from sparsegroup.training.assessment.features import SHOWN, named_features
from sparsegroup.training.assessment.verdict import Assessment, assess
from sparsegroup.training.baseline import (
    MOST_ROWS,
    PASSES,
    BaselineCallback,
    after_more_passes,
    baseline_for,
    predicting,
)
from sparsegroup.training.build import Config
from sparsegroup.training.callbacks import tracking_callbacks
from sparsegroup.training.model import ClickModel
from sparsegroup.training.network_step import check_weights
from sparsegroup.training.plan import EarlierRanks, RankRows
from sparsegroup.training.predictions import EVALUATED, numbers_named
from sparsegroup.training.ranks import RankGroup
from sparsegroup.training.run_folder import (
    CHECKPOINTS,
    Provenance,
    RunFolder,
    TrainingRun,
    load_run,
    without_latest,
)
from sparsegroup.training.state import CheckpointMetadata, field_totals, table_figures
from sparsegroup.training.trainer import Callback, Trainer

_logger = logging.getLogger(__name__)

_STEPS_PER_CLOCK = 8
"""Number of steps after which several ranks agree on whether it is time for a checkpoint."""

_PACKAGES = ("sparsegroup", "torch", "numpy", "numba", "polars", "pyarrow")


class RunStoppedError(RunError):
    """A run that `Trainer.stop` has interrupted. `Session.resume` continues it from the checkpoint of that moment."""


class Session:
    """Trains a model in a folder, so that a process that dies loses no more than since the last checkpoint.

    Made by `begin` or `resume`. A resumed session ends with the same bits as one that was never interrupted. If several
    ranks train one model, each makes the same calls on its session; all of them see the folder, and the first one
    writes everything except their parts of the table.

    Attributes:
        plan: The rows of the epochs.
        ranks: The ranks that train the model.
        notes: Messages about how the run was continued or resumed.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.training import Config, Session, load_model
        >>> log, folder = synthetic_log(SyntheticConfig(rows=300)), Path(tempfile.mkdtemp()) / "run"
        >>> Session.begin(folder, Config.of(model="lr", baseline=False), log).train().samples
        270
        >>> model = load_model(folder)
    """

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        log: Log,
        model: ClickModel,
        optimizer: GroupOptimizer,
        provenance: Provenance,
        before: TrainingRun | None,
    ) -> None:
        self.run, self.config, self.log, self.provenance = run, config, log, provenance
        self.model, self.optimizer = model, optimizer
        self.plan = config.training.plan(log.train_rows)
        self._pairs = pairs_of(model.network)
        baseline = baseline_for(config.objective, log.schema, self._pairs)
        is_compared = config.training.baseline and baseline is not None
        self._baseline = BaselineCallback(baseline) if is_compared else None
        own = [] if self._baseline is None else [self._baseline]
        self.trainer = config.trainer(model, optimizer, self.plan, own)
        self._own_callbacks = self.trainer.callbacks
        self.ranks = self.trainer.ranks
        self.rows = RankRows(self.plan, log, self.ranks.rank, self.ranks.count)
        self._earlier: tuple[EarlierRanks, ...] = ()
        settings = config.checkpoint
        self.checkpoints = Checkpoints(run.path / CHECKPOINTS, keep=settings.keep, incremental=settings.incremental)
        self.notes = [] if before is None else list(before.notes)
        self._saved_when = perf_counter()
        self._saved_step: int | None = None
        self._lock: FolderLock | None = None
        if self.ranks.rank:  # dropout differs
            torch.manual_seed((config.training.seed + self.ranks.rank) % (1 << 64))
        if before is not None:
            self.trainer.go_on_after(before.history)
            if before.baseline is not None and self._baseline is not None:
                self._baseline.model = before.baseline

    @classmethod
    def begin(
        cls,
        folder: Path,
        config: Config,
        log: Log,
        run: TrainingRun | None = None,
        process_group: dist.ProcessGroup | None = None,
        *,
        trials: tuple[Trial, ...] = (),
        job: str | None = None,
    ) -> "Session":
        """Begin a run in `folder`, which is made; with `run`, continue its model and optimizer.

        Settings that were not given are decided for the log by the rules of `sparsegroup.settings.auto`; with `run`
        only those in `settings.auto.PER_LOG`.

        Args:
            folder: The folder.
            config: The settings.
            log: What to train and test on.
            run: The run to continue.
            process_group: `torch.distributed.group.WORLD` if all its ranks train the model, else None. The tables of
                `run` are also on them.
            trials: Those by which the settings were chosen, see `settings_by_trials`; the report shows them.
            job: The id of the torchrun job, see `Provenance`.

        Raises:
            SettingsError: The settings need fields or times that the log does not have; or they would reset the
                embeddings of `run`.
            RunError: The log has fewer than two training rows, the folder is not free, or another process holds it.
            ClickLogError: The log has other columns than `run`.
        """
        if log.train_rows < 2:
            rows = f"{len(log)} row{'s' * (len(log) != 1)}, {log.train_rows} for training"
            raise RunError(f"{log.name}: has {rows}; a run needs at least 2 rows to train on")
        config.check_log(log)
        if run is None:
            config = config.resolved_for(log).for_log(log)
        else:
            run.columns.check_fits(log.schema, log.name)
            config = config.resolved_again_for(log).for_log(log)
            if config.training.epochs > 1 and config.training.after_first_epoch == "reset":
                raise SettingsError(
                    f"training.after_first_epoch: reset would undo, in the second epoch, what {run.folder} has learnt; "
                    "give `epochs`=1, or `after_first_epoch`=train or freeze",
                    "epochs",
                    "after_first_epoch",
                )
        new, ranks = RunFolder(folder), RankGroup(process_group)
        with ExitStack() as until_begun:
            if (lock := ranks.on_rank_0(new.lock_new, "the run's folder")) is not None:
                until_begun.enter_context(lock)
            model, optimizer = config.build(log, process_group) if run is None else (run.model, run.optimizer)
            session = cls(new, config, log, model, optimizer, Provenance.of(log, run, job, trials), run)
            begin = partial(new.begin, config, log, session.trainer.history, session.provenance)
            ranks.on_rank_0(begin, "the run's beginning")
            session._lock = lock
            until_begun.pop_all()
        session._log_notes()
        return session

    @classmethod
    def resume(cls, folder: Path, log: Log, process_group: dist.ProcessGroup | None = None) -> "Session":
        """Resume the run in `folder` from its last intact checkpoint, or from its start.

        Args:
            folder: The folder of a run that was interrupted at any moment.
            log: The log that it started on.
            process_group: See `begin`; the number of ranks may differ from before.

        Raises:
            RunError: There is no such run, another process trains it, the log or the settings have changed, or the run
                that it continued is missing.
            CheckpointError: The checkpoint is another model's.
        """
        run, ranks = RunFolder(without_latest(folder)), RankGroup(process_group)
        config, provenance = run.config(), run.provenance()
        if provenance.stream is not None:
            raise RunError(f"{folder}: follows the stream {provenance.stream}; `follow` continues it", "follow")
        with ExitStack() as until_resumed:
            if (lock := ranks.on_rank_0(run.lock, "the run's folder")) is not None:
                until_resumed.enter_context(lock)
            run.columns().check_fits(log.schema, log.name)
            provenance.check(log)
            checkpoints = Checkpoints(run.path / CHECKPOINTS)
            latest = ranks.broadcast(None if ranks.rank else checkpoints.latest(), "the last checkpoint")
            before = saved = None
            if latest is not None:
                saved = CheckpointMetadata.of(saved_state(latest).extra, latest)
                run.check_settings(config, saved)
            elif provenance.continued_from is not None:
                before = load_run(provenance.continued_from, config, process_group)
                if before.checkpoint_id != provenance.continued_id:
                    raise RunError(f"{before.folder}: has changed since {folder} continued it; begin {folder} again")
            model, optimizer = config.build(log, process_group) if before is None else (before.model, before.optimizer)
            session = cls(run, config, log, model, optimizer, provenance, before)
            session.notes += [f"{error}; passed over" for error in checkpoints.skipped]
            if latest is not None and saved is not None:
                session._load(latest, saved)
            ranks.on_rank_0(partial(run.write_history, session.trainer.history), "the history")
            session._lock = lock
            until_resumed.pop_all()
        session._log_notes()
        if session.position:
            _logger.info("%s: resumed at row %s", run.path, f"{session.position:,}")
        return session

    def _log_notes(self) -> None:
        for note in self.notes:
            _logger.warning(note)

    def _load(self, checkpoint: Path, saved: CheckpointMetadata) -> None:
        """Continue from a checkpoint of this run."""
        trainer, state = self.trainer, saved.trainer
        try:
            trainer.load_state_dict(state)
            if trainer.progress.epoch > self.plan.epochs or trainer.progress.position > self.plan.rows:
                raise ValueError(f"progress: is beyond {self.plan.epochs} epochs of {self.plan.rows:,} rows")
        except ValueError as error:
            raise RunError(f"{checkpoint}: damaged (state.extra.trainer.{error})") from error
        progress = trainer.progress
        self._earlier = saved.earlier
        positions = tuple(rank.taken for rank in state.ranks)
        if len(positions) != self.ranks.count and progress.steps:
            self._earlier += (EarlierRanks(progress.epoch, progress.steps, positions),)
        if progress.best is not None and not progress.is_over:
            self.checkpoints.pinned = self._step_of_best
        loaded = self.checkpoints.load(checkpoint, self.model, self.optimizer, trainer.scheduler)
        self._saved_step = loaded.step
        self.notes += loaded.notes

    @property
    def folder(self) -> Path:
        """The folder in which the run is trained."""
        return self.run.path

    @property
    def position(self) -> int:
        """Rows trained on in all epochs of this run."""
        progress = self.trainer.progress
        return progress.epoch * self.plan.rows + progress.position

    @property
    def step(self) -> int:
        """Batches trained on in this run."""
        return self.trainer.progress.epoch * self.plan.epoch_steps + self.trainer.progress.steps

    @property
    def earlier(self) -> tuple[EarlierRanks, ...]:
        """Other numbers of ranks that the current epoch started with."""
        return tuple(ranks for ranks in self._earlier if ranks.epoch == self.trainer.progress.epoch)

    @property
    def _step_of_best(self) -> int:
        assert self.trainer.progress.best is not None
        return self.trainer.progress.best * self.plan.epoch_steps

    def keep(self) -> None:
        """Save the state after the best epoch so far; see `BestState`."""
        self.checkpoints.pinned = self._step_of_best
        self.checkpoint()

    def restore(self) -> None:
        """Load table, network and optimizer as they were after the best epoch; see `BestState`."""
        path = self.checkpoints.of_step(self._step_of_best)
        self.checkpoints.load(path, self.model, self.optimizer, self.trainer.scheduler)

    def train(self, *, callbacks: Sequence[Callback] = ()) -> Summary:
        """Train on the remaining rows of all epochs, evaluate on the test rows, and complete the folder.

        Args:
            callbacks: Called before the callbacks of `TrackingSettings`.

        Raises:
            CheckpointError, OSError: A checkpoint cannot be written. Earlier ones remain.
            FloatingPointError: Training has diverged; earlier checkpoints remain.
            RunStoppedError: A callback has called `Trainer.stop`; there is a checkpoint of that moment.
        """
        tracking = [] if self.ranks.rank else tracking_callbacks(self.config.tracking, self.folder)
        callbacks = self.trainer.callbacks = [_Recorder(self), *self._own_callbacks, *callbacks, *tracking]
        with self._lock or nullcontext(), numbers_named(self.log):
            summary = None
            for callback in callbacks:
                callback.on_run_begin(self.folder, self.config)
            try:
                self._fit()
                summary = self._finish()
            except FloatingPointError as error:
                paths = self.checkpoints.paths()
                # Its weights give no finite loss any more.
                if paths and self._saved_step == self.step and not self.ranks.rank:
                    remove_folder(paths.pop())
                if not paths:
                    raise
                raise FloatingPointError(f"{error}; the last good checkpoint is {paths[-1]}") from error
            finally:
                for callback in callbacks:
                    callback.on_run_end(self.folder, summary)
            return summary

    def _fit(self) -> None:
        """Train to the end of the last epoch, and save the state."""
        trainer, self._saved_when = self.trainer, perf_counter()
        if trainer.progress.is_over:  # interrupted after its last batch
            with trainer.notified():
                pass
        else:
            arguments = self.plan.arguments(self.log, self.rows.of_range)
            arguments["stream"] = lambda epoch: self.rows.of_epoch(epoch, trainer.progress.steps, self.earlier)
            trainer.fit(**arguments, best=self)
            if not trainer.progress.is_over:
                if self._saved_step != self.step:
                    self.checkpoint()
                raise RunStoppedError(
                    f"{self.folder}: stopped at row {self.position:,}; `resume` continues it", "resume"
                )
            if self.plan.recalibrate:
                trainer.recalibrate(self.rows.recalibration(), arguments["validation"])
        self.checkpoints.pinned = None
        if self._saved_step != self.step:
            self.checkpoint(whole=True)
        else:  # interrupted after that checkpoint
            self.ranks.on_rank_0(self.checkpoints.tidy, "the checkpoints")

    def _finish(self) -> Summary:
        """Evaluate the model on the test rows, and complete the folder; all ranks do."""
        log, trainer, ranks = self.log, self.trainer, self.ranks
        test, baseline_logits = partial(self.rows.of_range, log.train_rows, len(log), EVALUATED), list[Tensor]()
        baseline = None if self._baseline is None else self._baseline.of_all_ranks(ranks)
        stream = test() if baseline is None else predicting(baseline, test(), baseline_logits)
        predictions = trainer.predictions(stream) if len(log) > log.train_rows else None
        baseline_logits = ranks.all_gather(baseline_logits, "the baseline's predictions")
        of_baseline = None
        if baseline is not None and predictions is not None:
            passes = PASSES if ranks.is_alone and self.plan.rows <= MOST_ROWS else 1
            further = (self.plan.batches(log, epoch) for epoch in range(1, passes))
            of_baseline = after_more_passes(baseline, baseline_logits, further, test, predictions)
        assessment = assess(predictions, trainer.history, log, of_baseline)
        named = named_features(
            log, self.config.model.features(log.schema), self.model.rows.values(), ranks, self._pairs
        )
        summary = self._summary(assessment, assess_columns(self.model, log), named)
        finish = partial(self.run.finish, self.config, log, named, trainer.history, summary)
        ranks.on_rank_0(finish, "the run's files")
        for warning in summary.warnings:
            _logger.warning(warning)
        return summary

    def _summary(self, assessment: Assessment, columns: ColumnAssessment, named: Sequence[LargestFeature]) -> Summary:
        log, history, progress = self.log, self.trainer.history, self.trainer.progress
        sizes, dropped = table_figures(self.model.embedding)
        counts, names = field_totals(self.model.embedding), self.config.model.vocabularies(log.schema)
        return Summary(
            **{**vars(assessment), **vars(columns), "warnings": (*assessment.warnings, *columns.warnings)},
            **sizes,
            **dropped,
            log=log.name,
            test_rows=len(log) - log.train_rows,
            samples=history[-1].samples if history else 0,
            seconds=history[-1].seconds if history else 0.0,
            fields={name: counts.get(number, FieldCount(0, 0, 0)) for number, name in names.items()},
            started=self.provenance.started,
            versions={"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
            continued_from=self.provenance.continued_from,
            bad_rows=dict(log.bad_rows),
            epochs=progress.epoch,
            best_epoch=progress.best,
            validation_rows=self.plan.validation_rows,
            validation=progress.validation,
            largest=tuple(named[:SHOWN]),
            ranks=tuple(self._rank_figures()),
            trials=self.provenance.trials,
        )

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

    def checkpoint_if_due(self) -> None:
        """Write a checkpoint if the settings say so, except after the last batch of an epoch, which is yet to end."""
        settings, ends = self.config.checkpoint, self.trainer.progress.position >= self.plan.rows
        is_due = settings.steps and self.step % settings.steps == 0
        if not is_due and settings.minutes and (self.ranks.is_alone or self.step % _STEPS_PER_CLOCK == 0):
            is_late = perf_counter() - self._saved_when >= 60 * settings.minutes
            is_due = self.ranks.broadcast(is_late, "whether a checkpoint is due")
        if is_due and not ends and self._saved_step != self.step:
            self.checkpoint()

    def checkpoint(self, *, whole: bool = False) -> Path:
        """Write the state of the run, between two batches.

        Args:
            whole: Write all rows, not only changed ones.

        Raises:
            CheckpointError, OSError: It cannot be written. Earlier ones remain.
            RunError: The run's folder has been removed or moved.
            FloatingPointError: The network's weights are not finite.
        """
        trainer = self.trainer
        self.ranks.on_rank_0(self.run.check_there, "the run's folder")
        check_weights(self.model, trainer.samples)
        extra: dict[str, Any] = {
            "config": self.config.as_dict(),
            "columns": asdict(self.log.schema),
            "trainer": trainer.state_dict(),
            "earlier": [asdict(ranks) for ranks in self.earlier],
        }
        with nullcontext() if self.ranks.rank else self.run.writing():
            path = self.checkpoints.save(
                self.step, self.model, self.optimizer, trainer.scheduler, extra=extra, whole=whole
            )
        self._saved_when, self._saved_step = perf_counter(), self.step
        _logger.info("checkpoint at %s samples: %s", f"{trainer.samples:,}", path)
        return path


class _Recorder(Callback):
    """Writes a session's points and checkpoints while it trains."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
        self._session.run.append_point(point)

    def between_batches(self, trainer: Trainer) -> None:
        self._session.checkpoint_if_due()
