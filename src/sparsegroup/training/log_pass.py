"""One pass over a click log, and what it leads to on the log's last part."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsegroup.data.log import Log
from sparsegroup.optim import GroupOptimizer, SizeTarget
from sparsegroup.reporting.run_record import HistoryPoint, Metrics
from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.evaluation import EVALUATED, predictions_over
from sparsegroup.training.lookup_model import LookupModel
from sparsegroup.training.trainer import Trainer

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
    """

    history: list[HistoryPoint]
    test: Metrics
    feature_rate: float
    live_rows: int


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
    steps = -(-stop // batch_size)
    trainer = Trainer(model.network, model.embedding, optimizer, target=target(steps), window=window, compile=compile)
    stream = log.batches(0, stop, batch_size)
    history = trainer.fit(stream, on_batch=on_batch, on_progress=on_progress)
    test = trainer.evaluate(log.batches(stop, end, EVALUATED))
    return PassResult(history, test, model.embedding.feature_rate, model.embedding.num_live)


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
