"""A study in its folder: Optuna draws settings and stores what they score, on more and more rows of a log."""

import csv
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import isnan, nan
from pathlib import Path
from time import monotonic, perf_counter
from typing import Annotated, Any, Literal

import numpy as np
import optuna
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState
from pydantic import Field, Strict

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.artifact.manifest import FolderFormat, Manifest, Plain
from sparsegroup.artifact.validation import Count, finite
from sparsegroup.data.log import Log, LogPart
from sparsegroup.errors import UserError
from sparsegroup.settings.yaml_settings import SettingsError, checked
from sparsegroup.training.config import Config
from sparsegroup.training.log_pass import train_as
from sparsegroup.training.run_folder import FolderLock
from sparsegroup.tuning.space import SearchSpace

STUDY_FILE, JOURNAL, BEST, TRIALS = "study.json", "trials.journal", "best.yaml", "trials.csv"

FACTOR = 3
"""One in so many of the trials that reach a rung continues to the next, which has so many times the rows."""

STEPS = (1, FACTOR, FACTOR**2)
"""The rungs, by their rows: the first has a ninth of those of the last."""

MIN_ROWS = 100
MIN_RUNG_ROWS = 5_000
"""A rung of fewer rows is left out: it shows too little to stop a trial by."""

MAX_DEFAULT_ROWS = 1_000_000
MAX_ATTEMPTS = 3
"""How often a trial is started that kills its process, by taking all memory, say."""

_STUDY = "tune"
_SETTINGS, _ATTEMPTS, _DIVERGED, _RUNG = "settings", "attempts", "diverged", "rung "  # a trial's attributes in Optuna

Reporting = Callable[[str, int], AbstractContextManager[Callable[[int, float], None]]]
"""Given a name and a number of samples, a context that yields the `on_batch` of `train_as`."""

State = Literal["complete", "stopped early", "diverged", "failed", "cut off"]
"""How a trial ended. One that was cut off continues when the study is resumed."""

_STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "stopped early",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "cut off",
    TrialState.WAITING: "cut off",
}
_logger = logging.getLogger(__name__)


class TuningError(UserError):
    """A folder that holds no study, or a study that does not fit the log, the rows or this version."""


class _CutOffError(BaseException):
    """The time is up, or an error, its cause, ends the call: Optuna does not catch it, and the trial is unfinished."""


@dataclass(frozen=True)
class RungScore:
    """A model trained on some rows, measured on those that are held out.

    Attributes:
        rows: Rows it was trained on.
        log_loss, auc, normalized_entropy: On the rows held out; see `Metrics`.
        feature_rate: Live features over features seen.
        seconds: The time it took.
    """

    rows: int
    log_loss: float
    auc: float
    normalized_entropy: float
    feature_rate: float
    seconds: float


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
        kept = trial.user_attrs
        rungs = (RungScore(**kept[key]) for step in STEPS if (key := f"{_RUNG}{step}") in kept)
        state = "diverged" if kept.get(_DIVERGED) else _STATES[trial.state]
        return cls(trial.number, state, kept.get(_SETTINGS, {}), tuple(rungs))

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
        last = {} if self.last is None else asdict(self.last)
        seconds = round(self.seconds, 3)
        return {"number": self.number, "state": self.state, **last, "seconds": seconds, "settings": dict(self.settings)}


def best_of(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial of the lowest log loss among the complete ones, the earliest of equals."""
    whole = [(trial.last.log_loss, trial.number, trial) for trial in trials if trial.state == "complete" and trial.last]
    return min(whole)[2] if whole else None


def trials_csv(trials: Sequence[TrialRecord], space: SearchSpace) -> str:
    """A line for each trial: how it ended, its last scores, and its settings."""
    scored = ("rows", "log_loss", "auc", "normalized_entropy", "feature_rate")
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("trial", "state", *scored, "seconds", *space.keys))
    for trial in trials:
        last = {} if trial.last is None else finite(asdict(trial.last))
        figures = (*(last.get(name) for name in scored), f"{trial.seconds:.3f}")
        lines.writerow((trial.number, trial.state, *figures, *space.shown(trial.settings).values()))
    return text.getvalue()


@dataclass(frozen=True)
class Rungs:
    """Where the trials of a study are trained and measured: on the rows before a held-out part, and on more each time.

    A model is trained from scratch at each rung, on the last rows before the held-out ones, with the epochs, schedule
    and target of its settings: whatever the rung, the model that is measured has the target size.

    Attributes:
        log: The log. Its test rows are not touched.
        part: Training rows of it, the last ones, that are used.
        held_out: The last of these rows, on which models are measured.
        steps: The rungs of the study: the last of `STEPS`, and those before that have enough rows.

    Raises:
        TuningError: Too few rows, or more than there are.
    """

    log: Log
    part: int
    held_out: int
    steps: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.part > self.log.train_rows:
            raise TuningError(
                f"`tune_rows` is {self.part:,}, but {self.log.name} has {self.log.train_rows:,} to train on",
                "tune_rows",
            )
        if self.part < MIN_ROWS or not 1 <= self.held_out <= self.part - STEPS[-1]:
            raise TuningError(
                f"{self.part:,} training rows of {self.log.name}, {self.held_out:,} of them held out, are too few to "
                f"tune on: at least {MIN_ROWS} are needed",
            )

    @classmethod
    def of(cls, log: Log, tune_rows: int | None, held_out: float) -> "Rungs":
        """The rungs on the last `tune_rows` training rows of a log, of which a share is held out.

        Raises:
            TuningError: Too few rows, more than there are, or a share out of range.
        """
        if not 0 < held_out < 1:
            raise TuningError(f"`held_out` must be a share between 0 and 1, such as 0.2, got {held_out:g}", "held_out")
        rows = min(log.train_rows, MAX_DEFAULT_ROWS) if tune_rows is None else tune_rows
        whole = cls(log, rows, max(1, round(held_out * rows)), STEPS)
        steps = tuple(step for step in STEPS if whole.rows(step) >= MIN_RUNG_ROWS or step == STEPS[-1])
        return replace(whole, steps=steps)

    def rows(self, step: int) -> int:
        """Rows that are trained on at a rung."""
        return (self.part - self.held_out) * step // STEPS[-1]

    def score(self, config: Config, step: int, name: str, reporting: Reporting) -> RungScore:
        """Train as a config says at a rung, and measure.

        Raises:
            SettingsError: The config does not suit the log.
            FloatingPointError: Training has diverged.
        """
        start, rows = perf_counter(), self.rows(step)
        log = LogPart(self.log, self.log.train_rows - self.held_out - rows, rows, self.held_out)
        model, optimizer = config.build(log)
        with reporting(name, config.training.plan(rows).samples) as on_batch:
            result = train_as(config, model, optimizer, log, on_batch=on_batch)
        test, seconds = result.test, round(perf_counter() - start, 3)
        return RungScore(rows, test.log_loss, test.auc, test.normalized_entropy, result.feature_rate, seconds)


@dataclass(frozen=True, kw_only=True)
class StudyManifest(Manifest):
    """What a study searches, and on what: written when it starts, and never changed.

    Attributes:
        log: Name of the log, for messages.
        rows, train_rows, source: The log's rows, its training rows, and its `Log.identity`.
        config: The settings that the search starts with, all of them.
        given: Dotted key → value of those that were given; the others were decided for the log.
        space: What is searched, as `SearchSpace.as_plain` has it.
        part, held_out, steps: See `Rungs`.
        seed: The seed of what is drawn.
    """

    log: str
    rows: Count
    train_rows: Count
    source: Mapping[str, Any] | None
    config: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    space: list[Plain]
    part: Count
    held_out: Count
    steps: tuple[Count, ...]
    seed: Annotated[int, Strict(), Field(ge=0, lt=1 << 64)]

    def check(self) -> None:
        """See `Manifest.check`."""
        if not self.steps or list(self.steps) != sorted({*self.steps} - {0}):
            raise ValueError(f"steps: rising numbers are expected, got {list(self.steps)}")
        for name in self.given:
            section, _, key = name.partition(".")
            if key not in self.config.get(section, ()):
                raise ValueError(f"given.{name}: is not in config")

    def base(self, folder: Path) -> Config:
        """The settings that the search starts with; SettingsError if this version does not know them."""
        return checked(Config, self.config, str(folder / STUDY_FILE))


STUDY = FolderFormat(
    name="study", file=STUDY_FILE, version=1, manifest=StudyManifest, error=TuningError, missing="no study of `tune`"
)
"""The format of studies."""


class Study:
    """Tries settings on a part of a log, by successive halving, and stores the results in a folder.

    Made by `begin` or `resume`. A trial that was cut off, by a kill or because the time was up, continues from its last
    rung when the study does; all later trials are those of a study that was never cut off.

    Attributes:
        folder: The study's.
        space: What is searched. The first trial has the settings that it starts with.
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

    def __init__(self, folder: Path, space: SearchSpace, rungs: Rungs, seed: int, lock: FolderLock) -> None:
        self.folder, self.space, self.rungs, self._seed, self._lock = folder, space, rungs, seed, lock
        self._journal = path = folder / JOURNAL
        try:
            _drop_torn_line(path)
            for left in folder.glob(f"{JOURNAL}.lock*"):  # of a process that was killed: the folder is locked by us
                left.unlink()
            with _quiet_optuna(), _explain_damage(path):
                self._storage = JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
                self._study = optuna.create_study(
                    study_name=_STUDY,
                    storage=self._storage,
                    pruner=SuccessiveHalvingPruner(min_resource=rungs.steps[0], reduction_factor=FACTOR),
                    load_if_exists=True,
                )
                if not self._study.get_trials(deepcopy=False):
                    self._study.enqueue_trial(space.initial)
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
        given: Mapping[str, Any],
        tune_rows: int | None = None,
        held_out: float = 0.2,
    ) -> "Study":
        """Start a study in a new folder.

        Args:
            folder: For the study; empty, or a new one.
            config: The given settings. Others are decided for the log, by the rules of `sparsegroup.training.defaults`.
            log: The log; its test rows are not touched.
            given: Dotted key → value of the settings that are given: they are not searched.
            tune_rows: Training rows to use, the last ones; None: all, or the last million.
            held_out: Share of these, the last ones, that trials are measured on, in (0, 1).

        Raises:
            SettingsError: The settings do not suit the log, or leave nothing to search.
            TuningError: The folder is not empty, another process uses it, or there are too few rows.
        """
        folder = Path(folder)
        config.check_log(log)
        space = SearchSpace.excluding(given, config.resolved_for(log), log)
        space.base.build_for(log.schema)  # settings that cannot be built leave no folder
        rungs = Rungs.of(log, tune_rows, held_out)
        manifest = StudyManifest(
            log=log.name,
            rows=len(log),
            train_rows=log.train_rows,
            source=log.identity,
            config=space.base.as_dict(),
            given=given,
            space=space.as_plain(),
            part=rungs.part,
            held_out=rungs.held_out,
            steps=rungs.steps,
            seed=space.base.training.seed,
        )
        folder.mkdir(parents=True, exist_ok=True)
        lock = _locked(folder)
        if any(folder.iterdir()):
            raise TuningError(f"{folder} is not empty; give another folder")
        STUDY.write(folder, manifest)
        return cls(folder, space, rungs, manifest.seed, lock)

    @classmethod
    def resume(cls, folder: str | Path, log: Log) -> "Study":
        """Continue the study in `folder`, on the log that it started on.

        Raises:
            TuningError: There is no study, another process uses it, or the log or the space has changed.
        """
        folder = Path(folder)
        manifest = STUDY.read(folder)
        if (len(log), log.train_rows, _plain(log.identity)) != (manifest.rows, manifest.train_rows, manifest.source):
            raise TuningError(
                f"{folder}: {log.name} is not what it was when the study began on {manifest.log}, so that its trials "
                "cannot be compared with new ones; begin another study"
            )
        space = SearchSpace.excluding(manifest.given, manifest.base(folder), log)
        if _plain(space.as_plain()) != manifest.space:
            raise TuningError(
                f"{folder}: the study searches another space than this version ({manifest.written_by} began it); begin "
                "another study"
            )
        rungs = Rungs(log, manifest.part, manifest.held_out, manifest.steps)
        return cls(folder, space, rungs, manifest.seed, _locked(folder))

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
        """The trial of the lowest log loss on the rows held out; None before one is complete."""
        return best_of(self.trials())

    def config(self, trial: TrialRecord | None) -> Config:
        """The settings of a trial, complete; ValueError if it is None."""
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
        """Try settings until there are `trials` trials, or the time is up: within a batch of it.

        Args:
            trials: How many the study has in the end, including those of earlier calls.
            seconds: Time for this call.
            on_trial: Called with each trial that has ended, or was cut off.
            reporting: Shows the progress of a rung.
            clock: Seconds, from any moment.

        Raises:
            SettingsError: The settings that the search starts with cannot be trained.
        """
        end = clock() + seconds

        @contextmanager
        def reporting_in_time(name: str, samples: int) -> Iterator[Callable[[int, float], None]]:
            def on_batch_in_time(rows: int, loss: float) -> None:
                on_batch(rows, loss)
                if clock() >= end:
                    raise _CutOffError

            with reporting(name, samples) as on_batch:
                yield on_batch_in_time

        def on_end(study: optuna.Study, frozen: FrozenTrial) -> None:
            self._write()
            on_trial(TrialRecord.of(frozen))
            if clock() >= end:
                study.stop()

        remaining = trials - sum(trial.state.is_finished() for trial in self._study.get_trials(deepcopy=False))
        if remaining <= 0:
            return
        study_id = self._storage.get_study_id_from_name(_STUDY)
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):  # which was cut off
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
            self._storage.set_trial_state_values(trial_id, TrialState.WAITING)  # Optuna runs it next, as it was drawn
        with _quiet_optuna():
            try:
                self._study.optimize(
                    partial(self._try, reporting=reporting_in_time), remaining, callbacks=[on_end], catch=()
                )
            except _CutOffError as cut_off:
                self._write()
                if cut_off.__cause__ is not None:
                    raise cut_off.__cause__ from None
                on_trial(self.trials()[-1])

    def _try(self, trial: Trial, *, reporting: Reporting) -> float:
        """Train at one rung after the other, until successive halving stops the trial; the log loss at the last one."""
        # What a trial draws follows from the seed, its number and the trials before it, also after an interruption.
        seed = int(np.random.SeedSequence([self._seed, trial.number]).generate_state(1)[0])
        self._study.sampler = TPESampler(seed=seed)
        attempts = trial.user_attrs.get(_ATTEMPTS, 0)
        drawn = self.space.draw(trial)
        settings = drawn if trial.number else {}
        trial.set_user_attr(_SETTINGS, settings)
        if attempts >= MAX_ATTEMPTS:
            _logger.warning(f"trial {trial.number} has ended its process {attempts} times and is left out: {settings}")
            return nan  # Optuna records a failure
        trial.set_user_attr(_ATTEMPTS, attempts + 1)
        try:
            return self._climb(trial, self.space.config(settings), reporting)
        except FloatingPointError as error:
            _logger.debug(f"trial {trial.number}: {error}")
            trial.set_user_attr(_DIVERGED, True)
            raise optuna.TrialPruned from error
        except optuna.TrialPruned:
            raise
        except (_CutOffError, KeyboardInterrupt) as error:
            trial.set_user_attr(_ATTEMPTS, attempts)
            raise _CutOffError from (error if isinstance(error, KeyboardInterrupt) else None)
        except Exception as error:
            if not isinstance(error, SettingsError) or not trial.number:
                raise _CutOffError from error
            _logger.warning(f"trial {trial.number} cannot be trained: {error}")
            return nan

    def _climb(self, trial: Trial, config: Config, reporting: Reporting) -> float:
        """See `_try`; a rung that the trial has reached before it was cut off is not trained again.

        Raises:
            FloatingPointError: Training has diverged.
        """
        reported = self._study.get_trials(deepcopy=False)[trial.number].intermediate_values
        for step in self.rungs.steps:
            key, name = f"{_RUNG}{step}", f"trial {trial.number}, {self.rungs.rows(step):,} rows"
            if key not in trial.user_attrs:
                try:
                    score = self.rungs.score(config, step, name, reporting)
                except FloatingPointError:
                    trial.report(nan, step)
                    raise
                trial.set_user_attr(key, asdict(score))
            log_loss = RungScore(**trial.user_attrs[key]).log_loss
            if step not in reported:
                trial.report(log_loss, step)
            if isnan(log_loss):
                raise FloatingPointError("the log loss is not a number")
            if step != STEPS[-1] and trial.should_prune():
                raise optuna.TrialPruned
        return log_loss

    def _write(self) -> None:
        trials = self.trials()
        texts = {TRIALS: trials_csv(trials, self.space)}
        if (best := best_of(trials)) is not None:
            texts[BEST] = self.config(best).as_yaml()
        for name, text in texts.items():
            write_atomically(self.folder / name, partial(Path.write_text, data=text, encoding="utf-8"))


def _locked(folder: Path) -> FolderLock:
    try:
        return FolderLock(folder)
    except BlockingIOError as error:
        raise TuningError(f"{folder}: another process goes on with this study") from error


def _plain(content: Any) -> Any:
    """What JSON makes of it, to compare with what a manifest holds."""
    return json.loads(json.dumps(content))


def _drop_torn_line(path: Path) -> None:
    """Cut off what a process that was killed had not written to the end of its line: Optuna would append to it."""
    content = path.read_bytes() if path.is_file() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Optuna logs nothing below errors, and no warnings of what is experimental."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
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
                is_object = isinstance(json.loads(line), dict)
            except (ValueError, RecursionError):
                is_object = False
            if not is_object:
                raise TuningError(f"{journal}:{line_number}: damaged (no JSON object)") from error
        raise TuningError(f"{journal}: damaged ({type(error).__name__}: {str(error)[:200]})") from error
