"""A study in its folder: trials of settings on a part of a log, one after the other, resumed where it was cut off."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from math import isnan, nan
from pathlib import Path
from time import monotonic
from typing import Any

from optuna.trial import FrozenTrial, Trial, TrialState

from sparsegroup.artifact.folder import FolderLock, write_atomically
from sparsegroup.data.log import Log
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training.config import Config
from sparsegroup.training.input_columns import Columns
from sparsegroup.tuning.rungs import STEPS, Reporting, Rungs, rungs_of
from sparsegroup.tuning.search_space import SearchSpace
from sparsegroup.tuning.study_journal import JOURNAL, StudyJournal, damage_told, quiet_optuna
from sparsegroup.tuning.study_manifest import STUDY, StudyManifest, TuningError
from sparsegroup.tuning.trial_record import RungScore, State, TrialRecord, best_of, trials_csv

BEST, TRIALS = "best.yaml", "trials.csv"

_ATTEMPTS = 3
"""How often a trial is begun that kills its process, by taking all memory, say."""

_SETTINGS, _ATTEMPT, _END, _RUNG = "settings", "attempts", "end", "rung "
"""What is kept of a trial beside what Optuna keeps."""

_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "stopped early",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "cut off",
}

_logger = logging.getLogger(__name__)


class _TimeUpError(Exception):
    pass


class Study:
    """Tries settings on a part of a log, by successive halving, and keeps what came of it in a folder.

    Made by `begin` or `resume`. A trial that was cut off, by a kill or because the time was up, goes on from its last
    rung when the study does; all later trials are those of a study that was never cut off.

    Attributes:
        space: What is searched. The first trial has the settings that it begins with.
        rungs: What trials are trained and measured on.

    Examples:
        >>> import tempfile
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.training import Config
        >>> from sparsegroup.tuning import Study
        >>> log = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     study = Study.begin(folder, Config.of(model="lr"), log, given={"model.name": "lr"})
        ...     study.run(trials=2, seconds=60)
        ...     [trial.number for trial in study.trials()], study.config(study.best).model.name
        ...     study.close()
        ([0, 1], 'lr')
    """

    def __init__(
        self, folder: Path, manifest: StudyManifest, space: SearchSpace, rungs: Rungs, lock: FolderLock
    ) -> None:
        self.folder, self.manifest, self.space, self.rungs, self._lock = folder, manifest, space, rungs, lock
        try:
            self._journal = StudyJournal(folder, space, manifest.seed, rungs.steps[0])
        except BaseException:
            lock.close()
            raise

    @classmethod
    def begin(
        cls,
        folder: str | Path,
        config: Config,
        log: Log,
        *,
        given: dict[str, Any],
        tune_rows: int | None = None,
        held_out: float = 0.2,
        arguments: Sequence[str] = (),
    ) -> "Study":
        """Begin a study in `folder`, which is made.

        Args:
            folder: For the study; empty, or not there.
            config: The given settings. Others are decided for the log, by the rules of `sparsegroup.training.defaults`.
            log: The log; its test rows are not touched.
            given: Dotted key → value of the settings that are given: they are not searched.
            tune_rows: Training rows to use, the last ones; None: all, or the last million.
            held_out: Share of these, the last ones, that trials are measured on, in (0, 1).
            arguments: What named the log on the command line.

        Raises:
            SettingsError: The settings do not go with the log, or leave nothing to search.
            TuningError: The folder is not empty, another process uses it, or there are too few rows.
        """
        folder = Path(folder)
        config.check_log(log)
        space = SearchSpace.beside(config.resolved_for(log), given, log)
        space.base.build_for(Columns.of(log))  # what cannot be built is said before there is a folder
        rungs = rungs_of(log, tune_rows, held_out)
        manifest = StudyManifest.of(
            log,
            space,
            part=rungs.part,
            held_out=rungs.held_out,
            steps=rungs.steps,
            given=given,
            arguments=tuple(arguments),
        )
        folder.mkdir(parents=True, exist_ok=True)
        lock = _locked(folder)
        if any(folder.iterdir()):
            raise TuningError(f"{folder} is not empty; give another folder")
        return cls(folder, STUDY.write(folder, manifest), space, rungs, lock)

    @classmethod
    def resume(cls, folder: str | Path, log: Log) -> "Study":
        """Go on with the study in `folder`.

        Args:
            folder: The study's.
            log: The one that it began on.

        Raises:
            TuningError: There is no study, another process uses it, or the log or the space has changed.
        """
        folder = Path(folder)
        manifest = STUDY.read(folder)
        manifest.check_log(folder, log)
        space = SearchSpace.beside(manifest.base(folder), manifest.given, log)
        manifest.check_space(folder, space)
        return cls(
            folder, manifest, space, Rungs(log, manifest.part, manifest.held_out, manifest.steps), _locked(folder)
        )

    def close(self) -> None:
        """Let another process, or another `Study`, go on with it."""
        self._lock.close()

    def trials(self) -> list[TrialRecord]:
        """All trials that have begun, by number.

        Raises:
            TuningError: What was kept of one is damaged.
        """
        with damage_told(self.folder / JOURNAL):
            return [_record(trial) for trial in self._journal.frozen()]

    @property
    def best(self) -> TrialRecord | None:
        """The trial of the lowest log loss on the rows held out; None before one has come to its end."""
        return best_of(self.trials())

    def config(self, trial: TrialRecord | None) -> Config:
        """The settings of a trial, complete: a run of them is as good as the trial, but for the rows it has more.

        Raises:
            ValueError: There is no trial.
        """
        if trial is None:
            raise ValueError("no trial has come to its end")
        return self.space.config(trial.settings)

    def run(
        self,
        trials: int,
        seconds: float,
        *,
        on_trial: Callable[[TrialRecord], None] = lambda record: None,
        reporting: Reporting = lambda name, samples: nullcontext(lambda rows, loss: None),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Try settings until there are so many trials, or the time is up: within a batch of it.

        Args:
            trials: How many the study is to have altogether, those of earlier calls among them.
            seconds: Time for this call.
            on_trial: Told of each trial that has ended, or was cut off.
            reporting: Shows how far a rung has come.
            clock: Seconds, from any moment.

        Raises:
            SettingsError: The settings that the search begins with cannot be trained.
        """
        end = clock() + seconds
        with quiet_optuna():
            while self._ended < trials and clock() < end:
                trial = self._journal.next_trial()
                try:
                    self._try(trial, _until(end, clock, reporting))
                except _TimeUpError:
                    pass
                finally:
                    self._write()
                on_trial(self.trials()[trial.number])

    @property
    def _ended(self) -> int:
        return sum(trial.state.is_finished() for trial in self._journal.frozen())

    def _try(self, trial: Trial, reporting: Reporting) -> None:
        """Train at one rung after the other, as long as successive halving has it."""
        study, before = self._journal.study, trial.user_attrs.get(_ATTEMPT, 0)
        drawn = self.space.draw(trial)
        settings = drawn if trial.number else {}
        trial.set_user_attr(_SETTINGS, settings)
        if before >= _ATTEMPTS:
            _logger.warning(f"trial {trial.number} has ended its process {before} times and is left out: {settings}")
            study.tell(trial, state=TrialState.FAIL)
            return
        trial.set_user_attr(_ATTEMPT, before + 1)
        try:
            value = self._climb(trial, self.space.config(settings), reporting)
        except (_TimeUpError, KeyboardInterrupt):
            trial.set_user_attr(_ATTEMPT, before)
            raise
        except FloatingPointError as error:
            _logger.debug(f"trial {trial.number}: {error}")
            trial.set_user_attr(_END, "diverged")
            study.tell(trial, state=TrialState.PRUNED)
        except SettingsError as error:
            if not trial.number:
                raise
            _logger.warning(f"trial {trial.number} cannot be trained: {error}")
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, value, state=TrialState.PRUNED if value is None else TrialState.COMPLETE)

    def _climb(self, trial: Trial, config: Config, reporting: Reporting) -> float | None:
        """The log loss at the last rung; None where the trial was stopped before.

        Raises:
            FloatingPointError: Training has diverged.
        """
        reported = self._journal.study.get_trials(deepcopy=False)[trial.number].intermediate_values
        for step in self.rungs.steps:
            log_loss = self._scored(trial, step, config, reporting)
            if step not in reported:
                trial.report(log_loss, step)
            if isnan(log_loss):
                raise FloatingPointError("the log loss is not a number")
            if step == STEPS[-1]:
                return log_loss
            if trial.should_prune():
                break
        return None

    def _scored(self, trial: Trial, step: int, config: Config, reporting: Reporting) -> float:
        """The log loss at a rung, as it was kept, or measured now; NaN where training has diverged."""
        key = f"{_RUNG}{step}"
        if key in trial.user_attrs:
            return RungScore.from_plain(trial.user_attrs[key]).log_loss
        name = f"trial {trial.number}, {self.rungs.rows(step):,} rows"
        try:
            score = self.rungs.score(config, step, name, reporting)
        except FloatingPointError as error:
            _logger.debug(f"{name}: {error}")
            return nan
        trial.set_user_attr(key, score.as_plain())
        return score.log_loss

    def _write(self) -> None:
        trials = self.trials()
        texts = {TRIALS: trials_csv(trials, self.space)}
        if (best := best_of(trials)) is not None:
            texts[BEST] = self.config(best).as_yaml()
        for name, text in texts.items():
            write_atomically(self.folder / name, partial(Path.write_text, data=text, encoding="utf-8"))


def _until(end: float, clock: Callable[[], float], reporting: Reporting) -> Reporting:
    """`reporting`, and an end to training when it is time."""

    @contextmanager
    def reporter(name: str, samples: int) -> Iterator[Callable[[int, float], None]]:
        with reporting(name, samples) as on_batch:

            def on_batch_in_time(rows: int, loss: float) -> None:
                on_batch(rows, loss)
                if clock() >= end:
                    raise _TimeUpError

            yield on_batch_in_time

    return reporter


def _locked(folder: Path) -> FolderLock:
    try:
        return FolderLock(folder)
    except BlockingIOError as error:
        raise TuningError(f"{folder}: another process goes on with this study") from error


def _record(trial: FrozenTrial) -> TrialRecord:
    kept = trial.user_attrs
    state: State = "diverged" if kept.get(_END) == "diverged" else _STATES[trial.state]
    rungs = (RungScore.from_plain(kept[f"{_RUNG}{step}"]) for step in STEPS if f"{_RUNG}{step}" in kept)
    return TrialRecord(trial.number, state, kept.get(_SETTINGS, {}), tuple(rungs))
