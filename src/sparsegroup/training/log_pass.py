"""Training on a click log, and what it leads to on the log's last part."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsegroup.data.log import Log
from sparsegroup.optim import GroupOptimizer, SizeTarget
from sparsegroup.reporting.run_record import HistoryPoint, Metrics
from sparsegroup.training.build import Config
from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.evaluation import EVALUATED, predictions_over
from sparsegroup.training.lookup_model import LookupModel
from sparsegroup.training.plan import EpochPlan
from sparsegroup.training.trainer import Callback, Trainer

WINDOWS = 50
"""Number of points along the pass at which progress is recorded."""


@dataclass(frozen=True)
class PassResult:
    """What a pass leaves behind.

    Attributes:
        history: The points along the pass.
        test: Metrics on the test rows.
        feature_rate: Live features over features seen.
        live_rows: Live rows of the table.
        epochs: How many there were.
        best_epoch: Number of the one whose state the model has, where validation has chosen it; else None.
    """

    history: list[HistoryPoint]
    test: Metrics
    feature_rate: float
    live_rows: int
    epochs: int = 1
    best_epoch: int | None = None


def train(
    model: ClickModel,
    optimizer: GroupOptimizer,
    log: Log,
    *,
    batch_size: int = 512,
    train_rows: int | None = None,
    windows: int = WINDOWS,
    compile: bool = False,
    target: Callable[[int], SizeTarget | None] = lambda steps: None,
    on_batch: Callable[[int, float], None] | None = None,
    on_progress: Callable[[HistoryPoint], None] | None = None,
) -> PassResult:
    """Train on the log's training rows once, in order, then evaluate.

    Args:
        model: The model, changed in place.
        optimizer: Over the model's parameters.
        log: The click log.
        batch_size: Samples per step.
        train_rows: Train on the first so many rows and evaluate on the rest of the log's training rows, to choose
            hyperparameters; by default train on all of them and evaluate on the test rows.
        windows: Points of the history.
        compile: See `Trainer`.
        target: Given the number of steps, what sets λ21 along them, or None.
        on_batch: Called with the number of samples and the loss of each batch.
        on_progress: Called about `windows` times.

    Returns:
        The history and the final metrics.
    """
    stop = log.train_rows if train_rows is None else train_rows
    end = len(log) if train_rows is None else log.train_rows
    window = window_of(stop, batch_size, windows)
    plan = EpochPlan(stop, batch_size)
    trainer = Trainer(
        model.embedding, model.network, optimizer, target=target(plan.steps), window=window, compile=compile
    )
    return _fitted(trainer, plan, log, (stop, end), on_batch, on_progress)


def train_as(
    config: Config,
    model: ClickModel,
    optimizer: GroupOptimizer,
    log: Log,
    *,
    on_batch: Callable[[int, float], None] | None = None,
    on_progress: Callable[[HistoryPoint], None] | None = None,
) -> PassResult:
    """Train on the log's training rows as a config says, in all its epochs, then evaluate on the test rows.

    Args:
        config: The settings.
        model, optimizer: Made by `config.build`, changed in place.
        log: The click log.
        on_batch, on_progress: See `Trainer.fit`.

    Raises:
        SettingsError: Fields that the log has not, or no rows beside those for validation.
    """
    plan = config.training.plan(log.train_rows)
    trainer = trainer_for(config, model, optimizer, log, plan)
    return _fitted(trainer, plan, log, (log.train_rows, len(log)), on_batch, on_progress)


def trainer_for(
    config: Config,
    model: ClickModel,
    optimizer: GroupOptimizer,
    log: Log,
    plan: EpochPlan,
    callbacks: Sequence[Callback] = (),
) -> Trainer:
    """The trainer that a config describes: with its target and its learning rates along the steps of a plan.

    Raises:
        SettingsError: Fields that the log has not.
    """
    return Trainer(
        model.embedding,
        model.network,
        optimizer,
        scheduler=config.optimizer.scheduler(optimizer, plan.steps),
        target=config.optimizer.target(optimizer, **plan.target_steps),
        window=window_of(plan.samples, plan.batch_size, config.training.windows),
        compile=config.training.compiles(plan.samples),
        callbacks=callbacks,
    )


def _fitted(
    trainer: Trainer,
    plan: EpochPlan,
    log: Log,
    tested: tuple[int, int],
    on_batch: Callable[[int, float], None] | None,
    on_progress: Callable[[HistoryPoint], None] | None,
) -> PassResult:
    history = trainer.fit(
        lambda epoch: plan.batches(log, epoch), **plan.arguments(log), on_batch=on_batch, on_progress=on_progress
    )
    test = trainer.evaluate(log.batches(*tested, EVALUATED))
    table, progress = trainer.table, trainer.progress
    return PassResult(history, test, table.feature_rate, table.num_live, progress.epoch, progress.best)


def window_of(rows: int, batch_size: int, windows: int) -> int:
    """Samples, whole batches, of each of at most so many windows over `rows`."""
    return max(1, math.ceil(rows / batch_size / windows)) * batch_size


def score(model: LookupModel, log: Log, start: int | None = None, stop: int | None = None) -> Metrics:
    """Metrics of `model` on rows `start` to `stop` of the log, by default its test rows."""
    start = log.train_rows if start is None else start
    stop = len(log) if stop is None else stop
    return predictions_over(model, log.batches(start, stop, EVALUATED)).metrics()


def predict(model: LookupModel, log: Log, start: int, stop: int) -> npt.NDArray[np.float64]:
    """Probabilities `[stop - start]` of rows `start` to `stop`. The model is left in evaluation mode."""
    return predictions_over(model, log.batches(start, stop, EVALUATED)).probabilities()
