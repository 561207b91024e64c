"""Successive halving by rows: on how many rows a trial is trained, one time after another."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from time import perf_counter

from sparsegroup.data.log import Log
from sparsegroup.data.log_part import LogPart
from sparsegroup.training.config import Config
from sparsegroup.training.log_pass import train_as
from sparsegroup.tuning.study_manifest import TuningError
from sparsegroup.tuning.trial_record import RungScore

FACTOR = 3
"""Of the trials that reach a rung, one in so many goes on to the next, which has so many times the rows."""

STEPS = (1, FACTOR, FACTOR**2)
"""The rungs, by their rows: the first has a ninth of those of the last."""

LEAST_ROWS = 100
"""Of a part to tune on."""

LEAST_OF_A_RUNG = 5_000
"""Rows below which a rung tells too little to stop a trial by: it is left out."""

MOST_ROWS = 1_000_000
"""Training rows that are used where nobody has said how many."""

Reporting = Callable[[str, int], AbstractContextManager[Callable[[int, float], None]]]
"""Given a name and the samples there are, a context that yields the `on_batch` of `train_as`."""


@dataclass(frozen=True)
class Rungs:
    """Where the trials of a study are trained and measured: rows before a held-out part, and more of them each time.

    A model is trained anew at each rung, on the last rows before those that are held out, with all of the settings'
    epochs, schedule and target within: what is measured has the size that was asked for, whatever the rung.

    Attributes:
        log: The log. Its test rows are not touched.
        part: Training rows of it, the last ones, that are used.
        held_out: Those of them, the last ones, on which models are measured.
        steps: The rungs, those of `STEPS` that there are, the last of them always.

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
        if self.part < LEAST_ROWS or not 1 <= self.held_out <= self.part - STEPS[-1]:
            raise TuningError(
                f"{self.part:,} training rows of {self.log.name}, {self.held_out:,} of them held out, are too few to "
                f"tune on: at least {LEAST_ROWS} are needed",
            )

    def rows(self, step: int) -> int:
        """Rows that are trained on at a rung."""
        return (self.part - self.held_out) * step // STEPS[-1]

    def score(self, config: Config, step: int, name: str, reporting: Reporting) -> RungScore:
        """Train as a config says at a rung, and measure.

        Raises:
            SettingsError: The config asks for what the log or the network has not.
            FloatingPointError: Training has diverged.
        """
        began, rows = perf_counter(), self.rows(step)
        log = LogPart(self.log, self.log.train_rows - self.held_out - rows, rows, self.held_out)
        model, optimizer = config.build(log)
        with reporting(name, config.training.plan(rows).samples) as on_batch:
            result = train_as(config, model, optimizer, log, on_batch=on_batch)
        test, seconds = result.test, perf_counter() - began
        return RungScore(rows, test.log_loss, test.auc, test.normalized_entropy, result.feature_rate, round(seconds, 3))


def rungs_of(log: Log, tune_rows: int | None, held_out: float) -> Rungs:
    """The rungs on the last training rows of a log, those that have `LEAST_OF_A_RUNG` and the last.

    Args:
        log: The log.
        tune_rows: How many rows; None: all, at most `MOST_ROWS`.
        held_out: Share of these to measure on, in (0, 1).

    Raises:
        TuningError: Too few rows, more than there are, or a share out of range.
    """
    if not 0 < held_out < 1:
        raise TuningError(f"`held_out` must be a share between 0 and 1, such as 0.2, got {held_out:g}", "held_out")
    rows = min(log.train_rows, MOST_ROWS) if tune_rows is None else tune_rows
    whole = Rungs(log, rows, max(1, round(held_out * rows)), STEPS)
    steps = tuple(step for step in STEPS if whole.rows(step) >= LEAST_OF_A_RUNG or step == STEPS[-1])
    return replace(whole, steps=steps)
