"""A study in its folder: Optuna draws settings and stores their scores, on more and more rows of a log."""

import csv
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from io import StringIO
from math import isnan, nan
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Literal

import numpy as np
import optuna
import yaml
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from sparsegroup.artifact.folder import FolderLock, name_errors, write_atomically
from sparsegroup.artifact.manifest import FolderFormat, Manifest, Plain
from sparsegroup.artifact.validation import Count, finite
from sparsegroup.data.log import Log
from sparsegroup.data.order import LogPart
from sparsegroup.errors import UserError
from sparsegroup.settings.yaml_settings import SettingsError, checked
from sparsegroup.training import Callback, TrainedBatch, Trainer
from sparsegroup.training.build import Config
from sparsegroup.training.selection.sizes import train_and_test
from sparsegroup.tuning.space import SearchSpace

STUDY_FILE, JOURNAL, BEST, TRIALS = "study.json", "trials.journal", "best.yaml", "trials.csv"

FACTOR = 3
"""One in this number of the trials of a rung continues to the next, which has this number of times the rows."""

STEPS = (1, FACTOR, FACTOR**2)
"""The rungs, by their rows: the first has a ninth of the last one's."""

MIN_ROWS = 100
MIN_RUNG_ROWS = 5_000
"""A rung of fewer rows is left out: it shows too little to stop a trial by."""

MAX_DEFAULT_ROWS = 1_000_000
MAX_ATTEMPTS = 3
"""How often a trial is started that kills its process, by taking all memory, say."""

_STUDY = "tune"
_SETTINGS, _ATTEMPTS, _RUNGS = "settings", "attempts", "rungs"  # a trial's attributes in Optuna

Reporting = Callable[[str, int], AbstractContextManager[Callback | None]]
"""From a name and a number of samples to a context that yields what follows the training of a rung."""

State = Literal["complete", "stopped early", "diverged", "failed", "cut off"]
"""How a trial ended. One that was cut off continues when the study is resumed."""

_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "stopped early",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "cut off",
    TrialState.WAITING: "cut off",
}
_ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
_logger = logging.getLogger(__name__)


class TuningError(UserError):
    """A folder that holds no study, or a study that does not fit the log, the rows or this version."""


class _TimeIsUpError(Exception):
    pass


class _Deadline(Callback):
    """Ends a training by `_TimeIsUpError` after the batch in which `clock` reaches `end`."""

    def __init__(self, clock: Callable[[], float], end: float) -> None:
        self._clock, self._end = clock, end

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._clock() >= self._end

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        if self.is_over:
            raise _TimeIsUpError


@dataclass(frozen=True, kw_only=True)
class RungScore:
    """A model trained on some rows, and its metrics on held-out rows.

    Attributes:
        metrics: Measure → value, of `AnyMetrics`.
        loss: The loss among them, by which trials are compared.
        rows: Rows it was trained on.
        feature_rate: Live features over features seen.
        seconds: The time it took.
    """

    metrics: Mapping[str, float]
    loss: float
    rows: int
    feature_rate: float
    seconds: float

    def as_plain(self) -> dict[str, Any]:
        """The measures and the other attributes by name."""
        return {**self.metrics, **{name: getattr(self, name) for name in ("rows", "feature_rate", "seconds")}}


@dataclass(frozen=True)
class TrialRecord:
    """A trial.

    Attributes:
        number: From 0, which has the settings that the search started with.
        state: How it ended.
        settings: Dotted key → value, of what is searched; empty for trial 0, and before anything was drawn.
        rungs: Its scores, from the fewest rows to the most.
    """

    number: int
    state: State
    settings: Mapping[str, Any]
    rungs: tuple[RungScore, ...]

    @classmethod
    def of(cls, trial: FrozenTrial) -> "TrialRecord":
        """What Optuna has stored of a trial."""
        has_diverged = trial.last_step is not None and isnan(trial.intermediate_values[trial.last_step])
        rungs = tuple(RungScore(**score) for score in trial.user_attrs.get(_RUNGS, ()))
        state = "diverged" if has_diverged else _STATES[trial.state]
        return cls(trial.number, state, trial.user_attrs.get(_SETTINGS, {}), rungs)

    @property
    def last(self) -> RungScore | None:
        """Its score on the most rows."""
        return self.rungs[-1] if self.rungs else None

    @property
    def seconds(self) -> float:
        """The time that all its rungs took."""
        return sum(rung.seconds for rung in self.rungs)

    def as_plain(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        last = {} if self.last is None else self.last.as_plain()
        seconds = round(self.seconds, 3)
        return {"number": self.number, "state": self.state, **last, "seconds": seconds, "settings": dict(self.settings)}


@dataclass(frozen=True, kw_only=True)
class StudyManifest(Manifest):
    """What a study searches, and on what: written when it starts, and never changed."""

    log: str  # its name, for messages
    rows: Count
    train_rows: Count
    source: Mapping[str, Any] | None  # `Log.identity`
    config: Mapping[str, Any]  # the settings that the search starts with, as a settings file has them
    given: tuple[str, ...]  # keys of the given ones; the others were decided for the log
    space: list[Plain]  # `SearchSpace.as_plain`
    part: Count  # training rows that are used, the last ones
    held_out: Count  # the last of these, on which models are measured

    def check(self) -> None:
        """See `Manifest.check`."""
        if not 0 < self.held_out <= self.part - STEPS[-1] or self.part > self.train_rows:
            raise ValueError(f"part: {self.part:,} of {self.train_rows:,} rows, {self.held_out:,} held out")

    def base(self, folder: Path) -> Config:
        """The settings that the search starts with; SettingsError if this version does not know them."""
        return checked(Config, self.config, str(folder / STUDY_FILE))


STUDY = FolderFormat(
    name="study", file=STUDY_FILE, version=1, manifest=StudyManifest, error=TuningError, missing="no study of `tune`"
)
"""The format of studies."""


class Study:
    """Tries settings on a part of a log, by successive halving, and stores the results in a folder.

    `begin` starts one, and `Study(folder, log)` continues it. A trial that was cut off, by a kill or because the time
    was up, continues from its last rung when the study does; all later trials are the same as in a study that was never
    interrupted.

    Args:
        folder: The study's.
        log: The log that it started on, whose test rows are not touched.

    Attributes:
        space: What is searched. The first trial has the settings that it starts with.
        part: Number of training rows that are used, the last ones.
        held_out: Number of rows on which models are measured, the last of these.
        steps: The rungs, by their rows. At each a model is trained from scratch, with the epochs, schedule and target
            of its settings, so that the measured model has the target size.

    Raises:
        TuningError: There is no study, another process uses it, or the log or the space has changed.

    Examples:
        >>> import tempfile
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.training import Config
        >>> from sparsegroup.tuning import Study
        >>> log = synthetic_log(SyntheticConfig(rows=1_000), seed=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     study = Study.begin(folder, Config.of(model="lr"), log, given={"model.name"})
        ...     study.run(trials=2, seconds=60)
        ...     [trial.number for trial in study.trials()], study.config(study.best).model.name
        ...     study.close()
        ([0, 1], 'lr')
    """

    def __init__(self, folder: str | Path, log: Log) -> None:
        folder = Path(folder)
        manifest = STUDY.read(folder)
        identity = to_jsonable_python(log.identity)
        if (len(log), log.train_rows, identity) != (manifest.rows, manifest.train_rows, manifest.source):
            raise TuningError(
                f"{folder}: {log.name} is not what it was when the study began on {manifest.log}, so that its trials "
                "cannot be compared with new ones; begin another study"
            )
        space = SearchSpace.excluding(manifest.given, manifest.base(folder), log)
        if to_jsonable_python(space.as_plain()) != manifest.space:
            raise TuningError(
                f"{folder}: the study searches another space than this version ({manifest.written_by} began it); begin "
                "another study"
            )
        self.folder, self.log, self.space, self._journal = folder, log, space, folder / JOURNAL
        self.part, self.held_out = manifest.part, manifest.held_out
        self.steps = tuple(step for step in STEPS if self.rows(step) >= MIN_RUNG_ROWS or step == STEPS[-1])
        self._lock = _locked(folder)
        try:
            self._storage, self._study = _open_journal(self._journal, self.steps[0], space.initial)
        except BaseException:
            self.close()
            raise

    @classmethod
    def begin(
        cls,
        folder: str | Path,
        config: Config,
        log: Log,
        *,
        given: Collection[str],
        tune_rows: int | None = None,
        held_out: float = 0.2,
    ) -> "Study":
        """Start a study in a new folder.

        Args:
            folder: For the study; empty, or a new one.
            config: The given settings. Others are decided for the log, by the rules of `sparsegroup.settings.auto`.
            log: The log; its test rows are not touched.
            given: Dotted keys of the given settings: they are not searched.
            tune_rows: Number of training rows to use, the last ones; None: all, or the last million.
            held_out: Share of these, the last ones, that trials are measured on, in (0, 1).

        Raises:
            SettingsError: The settings do not suit the log, or leave nothing to search.
            TuningError: The folder is not empty, another process uses it, or there are too few rows.
        """
        folder = Path(folder)
        config.check_log(log)
        resolved = config.resolved_for(log)
        space = SearchSpace.excluding(given, resolved if log.described is None else resolved.for_log(log), log)
        space.base.build_for(log.schema)  # settings that cannot be built leave no folder
        part, measured = _rows_to_tune_on(log, tune_rows, held_out)
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if any(folder.iterdir()):
                raise TuningError(f"{folder} is not empty; give another folder")
            manifest = StudyManifest(
                log=log.name,
                rows=len(log),
                train_rows=log.train_rows,
                source=log.identity,
                config=yaml.safe_load(space.base.as_yaml()),
                given=tuple(given),
                space=space.as_plain(),
                part=part,
                held_out=measured,
            )
            STUDY.write(folder, manifest)
        return cls(folder, log)

    def close(self) -> None:
        """Let another process, or another `Study`, continue it."""
        self._lock.close()

    def trials(self) -> list[TrialRecord]:
        """All trials that have started, by number.

        Raises:
            TuningError: The journal is damaged.
        """
        with _explain_damage(self._journal):
            trials = self._study.get_trials(deepcopy=False)
            return [TrialRecord.of(trial) for trial in trials if trial.state != TrialState.WAITING or trial.user_attrs]

    @property
    def best(self) -> TrialRecord | None:
        """The trial of the lowest loss on the rows held out; None before one is complete."""
        complete = (trial for trial in self.trials() if trial.state == "complete")
        return min(complete, key=lambda trial: trial.rungs[-1].loss, default=None)

    def config(self, trial: TrialRecord | None) -> Config:
        """The settings of a trial, complete; ValueError if it is None."""
        if trial is None:
            raise ValueError("no trial has come to its end")
        return self.space.config(trial.settings)

    def rows(self, step: int) -> int:
        """Number of rows that are trained on at a rung: the last ones before those held out."""
        return (self.part - self.held_out) * step // STEPS[-1]

    def run(
        self,
        trials: int,
        seconds: float,
        *,
        on_trial: Callable[[TrialRecord], None] = lambda record: None,
        reporting: Reporting = lambda name, samples: nullcontext(),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Try settings until there are `trials` trials, or the time is up: within a batch of it.

        Args:
            trials: Number of trials of the study in the end, including those of earlier calls.
            seconds: Time for this call.
            on_trial: Called with each trial that has ended, or was cut off.
            reporting: Shows the progress of a rung.
            clock: Seconds, from any moment.

        Raises:
            SettingsError: The settings that the search starts with cannot be trained.
        """
        deadline = _Deadline(clock, clock() + seconds)
        study_id = self._storage.get_study_id_from_name(_STUDY)
        for cut_off in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, cut_off.number)
            self._storage.set_trial_state_values(trial_id, TrialState.WAITING)  # the next to run, as drawn
        while len(self._study.get_trials(deepcopy=False, states=_ENDED)) < trials:
            trial = self._study.ask()
            try:
                self._try(trial, reporting, deadline)
            except _TimeIsUpError:
                pass
            finally:
                self._write()
            on_trial(self.trials()[trial.number])
            if deadline.is_over:
                break

    def _try(self, trial: Trial, reporting: Reporting, deadline: _Deadline) -> None:
        """Draw the settings of a trial, train it, and report its end to Optuna; an error leaves it unfinished."""
        # What a trial draws follows from the seed, its number and the trials before it, also after an interruption.
        seed = np.random.SeedSequence([self.space.base.training.seed, trial.number]).generate_state(1)[0]
        self._study.sampler = TPESampler(seed=int(seed))
        attempts, drawn = trial.user_attrs.get(_ATTEMPTS, 0), self.space.draw(trial)
        settings = drawn if trial.number else {}
        trial.set_user_attr(_SETTINGS, settings)
        if attempts >= MAX_ATTEMPTS:
            _logger.warning(f"trial {trial.number} has ended its process {attempts} times and is left out: {settings}")
            self._study.tell(trial, state=TrialState.FAIL)
            return
        trial.set_user_attr(_ATTEMPTS, attempts + 1)
        try:
            loss = self._train(trial, self.space.config(settings), reporting, deadline)
            self._study.tell(trial, loss, TrialState.PRUNED if loss is None else TrialState.COMPLETE)
        except (Exception, KeyboardInterrupt) as error:
            if not isinstance(error, SettingsError) or not trial.number:
                trial.set_user_attr(_ATTEMPTS, attempts)  # the process has not ended
                raise
            _logger.warning(f"trial {trial.number} cannot be trained: {error}")
            self._study.tell(trial, state=TrialState.FAIL)

    def _train(self, trial: Trial, config: Config, reporting: Reporting, deadline: _Deadline) -> float | None:
        """The loss at the last rung; None if successive halving stops the trial before, or it diverges."""
        scores = list(trial.user_attrs.get(_RUNGS, ()))  # before the trial was cut off
        for step in self.steps[len(scores) :]:
            if scores and (isnan(scores[-1]["loss"]) or trial.should_prune()):
                return None
            rows, start = self.rows(step), perf_counter()
            log = LogPart(self.log, self.log.train_rows - self.held_out - rows, rows, self.held_out)
            model, optimizer = config.build(log)
            try:
                samples = config.training.plan(rows).samples
                with reporting(f"trial {trial.number}, {rows:,} rows", samples) as shown:
                    callbacks = [*([] if shown is None else [shown]), deadline]
                    score = train_and_test(config, model, optimizer, log, callbacks=callbacks)
            except FloatingPointError as error:
                _logger.debug(f"trial {trial.number}: {error}")
                trial.report(nan, step)
                return None
            seconds = round(perf_counter() - start, 3)
            rung = RungScore(
                metrics={name: one for name, one in asdict(score.test).items() if name != "tasks"},
                loss=score.test.loss,
                rows=rows,
                feature_rate=score.feature_rate,
                seconds=seconds,
            )
            scores.append(asdict(rung))
            trial.report(rung.loss, step)
            trial.set_user_attr(_RUNGS, scores)
        loss = float(scores[-1]["loss"])
        return None if isnan(loss) else loss

    def _write(self) -> None:
        trials = self.trials()
        measures = next((trial.last.metrics for trial in trials if trial.last is not None), {})
        figures, rows = ("rows", *measures, "feature_rate", "seconds"), []
        for trial in trials:
            last = {} if trial.last is None else finite(trial.last.as_plain())
            last["seconds"] = f"{trial.seconds:.3f}"
            rows.append(
                [trial.number, trial.state, *map(last.get, figures), *self.space.shown(trial.settings).values()]
            )
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([["trial", "state", *figures, *self.space.keys], *rows])
        contents = {TRIALS: text.getvalue()}
        if (best := self.best) is not None:
            contents[BEST] = self.config(best).as_yaml()
        for name, content in contents.items():
            write_atomically(self.folder / name, partial(Path.write_text, data=content, encoding="utf-8"))


def _rows_to_tune_on(log: Log, tune_rows: int | None, share: float) -> tuple[int, int]:
    """Training rows that a study uses, and how many of them are held out; TuningError if that is impossible."""
    if not 0 < share < 1:
        raise TuningError(f"`held_out` must be a share between 0 and 1, such as 0.2, got {share:g}", "held_out")
    part = min(log.train_rows, MAX_DEFAULT_ROWS) if tune_rows is None else tune_rows
    held_out = max(1, round(share * part))
    if part > log.train_rows:
        raise TuningError(f"`tune_rows` is {part:,}, but {log.name} has {log.train_rows:,} to train on", "tune_rows")
    if part < MIN_ROWS or part - held_out < STEPS[-1]:
        raise TuningError(
            f"{part:,} training rows of {log.name}, {held_out:,} of them held out, are too few to tune on: at least "
            f"{MIN_ROWS} are needed"
        )
    return part, held_out


def _locked(folder: Path) -> FolderLock:
    try:
        return FolderLock(folder)
    except BlockingIOError as error:
        raise TuningError(f"{folder}: another process uses this study") from error


class _Journal(JournalFileBackend):
    """Optuna's journal in a locked file, which errors name."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), lock_obj=JournalFileOpenLock(str(path)))
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append entries."""
        with name_errors(self._path):
            super().append_logs(logs)


def _open_journal(path: Path, first_step: int, initial: dict[str, Any]) -> tuple[JournalStorage, optuna.Study]:
    """Optuna's study in a journal of a locked folder; a new one first tries the parameters `initial`."""
    content = path.read_bytes() if path.is_file() else b""
    if not content.endswith(b"\n"):  # a process was killed while it wrote: Optuna would append to the torn line
        path.write_bytes(content[: content.rfind(b"\n") + 1])
    for leftover in path.parent.glob(f"{path.name}.lock*"):
        leftover.unlink()
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        with _explain_damage(path):
            storage = JournalStorage(_Journal(path))
            pruner = SuccessiveHalvingPruner(min_resource=first_step, reduction_factor=FACTOR)
            study = optuna.create_study(study_name=_STUDY, storage=storage, pruner=pruner, load_if_exists=True)
            if not study.get_trials(deepcopy=False):
                study.enqueue_trial(initial)
            return storage, study
    finally:
        optuna.logging.set_verbosity(level)


@contextmanager
def _explain_damage(journal: Path) -> Iterator[None]:
    """Any error of Optuna, which replays the journal without looking at its lines, becomes one that names the line."""
    try:
        yield
    except (OSError, TuningError):
        raise
    except Exception as error:
        for line_number, line in enumerate(journal.read_bytes().splitlines(), 1):
            try:
                TypeAdapter(dict[str, Any]).validate_json(line)
            except ValueError:
                raise TuningError(f"{journal}:{line_number}: damaged (no JSON object)") from error
        raise TuningError(f"{journal}: damaged ({type(error).__name__}: {str(error)[:200]})") from error
