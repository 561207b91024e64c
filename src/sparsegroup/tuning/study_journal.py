"""Where Optuna keeps the trials of a study: a journal in the study's folder, which no kill leaves unreadable."""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import optuna
from optuna.pruners import SuccessiveHalvingPruner
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from sparsegroup.tuning.rungs import FACTOR
from sparsegroup.tuning.search_space import SearchSpace
from sparsegroup.tuning.study_manifest import TuningError

JOURNAL = "trials.journal"
_NAME = "tune"


class StudyJournal:
    """The trials of a study, and what comes next of them.

    What a trial draws follows from the seed, its number and the trials before it, so that a study that was cut off goes
    on with the trials that it would have had.

    Args:
        folder: The study's, which no other process uses.
        space: What is searched; the first trial has the settings that it begins with.
        seed: The seed of what is drawn.
        first_rung: Step of the first rung.

    Raises:
        TuningError: The journal is damaged.
    """

    def __init__(self, folder: Path, space: SearchSpace, seed: int, first_rung: int) -> None:
        self._seed = seed
        path = folder / JOURNAL
        _drop_torn_line(path)
        for left in folder.glob(f"{JOURNAL}.lock*"):  # of a process that was killed: the folder is ours
            left.unlink()
        with quiet_optuna(), damage_told(path):
            self._storage = JournalStorage(JournalFileBackend(str(path), lock_obj=JournalFileOpenLock(str(path))))
            self.study = optuna.create_study(
                study_name=_NAME,
                storage=self._storage,
                pruner=SuccessiveHalvingPruner(min_resource=first_rung, reduction_factor=FACTOR),
                direction="minimize",
                load_if_exists=True,
            )
            if not self.study.get_trials(deepcopy=False):
                self.study.enqueue_trial(space.beginning)

    def frozen(self) -> list[FrozenTrial]:
        """All trials that have begun."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]

    def next_trial(self) -> Trial:
        """The trial that was cut off, or else a new one."""
        cut_off = [trial.number for trial in self.frozen() if trial.state == TrialState.RUNNING]
        number = cut_off[0] if cut_off else len(self.frozen())
        seed = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        self.study.sampler = TPESampler(seed=seed, constant_liar=False)
        if not cut_off:
            return self.study.ask()
        study_id = self._storage.get_study_id_from_name(_NAME)
        return Trial(self.study, self._storage.get_trial_id_from_study_id_trial_number(study_id, number))


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """While it lasts, Optuna logs nothing below errors and does not say what of it is experimental."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


@contextmanager
def damage_told(journal: Path) -> Iterator[None]:
    """Whatever Optuna, or what is made of its trials, says to a journal becomes an error that names it.

    Raises:
        TuningError: Names the line, where that is known.
    """
    try:
        yield
    except (OSError, TuningError):
        raise
    except Exception as error:  # Optuna replays the lines without looking at them
        for number, line in enumerate(journal.read_bytes().splitlines(), 1):
            try:
                is_object = isinstance(json.loads(line), dict)
            except (ValueError, RecursionError):
                is_object = False
            if not is_object:
                raise TuningError(f"{journal}:{number}: damaged (no JSON object)") from error
        raise TuningError(f"{journal}: damaged ({type(error).__name__}: {str(error)[:200]})") from error


def _drop_torn_line(path: Path) -> None:
    """Cut off what a process that was killed had not written to the end of its line."""
    if not path.is_file():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
