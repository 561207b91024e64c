"""One pass over a click log, testing each batch before training on it."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsegroup.data.batches import Log
from sparsegroup.optim import GroupAdaHessian, GroupOptimizer
from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.metrics import Metrics, evaluate

_EVALUATED = 4096
"""Samples of a batch in evaluation."""

WINDOWS = 50
"""Number of points along the pass at which progress is recorded."""


@dataclass(frozen=True)
class Progress:
    """State of the pass after `samples` samples.

    Attributes:
        samples: Samples trained on so far.
        auc: Progressive (test-then-train) AUC over the samples since the last point.
        log_loss: Progressive log loss over the same samples.
        feature_rate: Live features over features seen so far.
        table_bytes: Of the table, index and optimizer's state included.
    """

    samples: int
    auc: float
    log_loss: float
    feature_rate: float
    table_bytes: int


@dataclass(frozen=True)
class Trained:
    """What a pass leaves behind.

    Attributes:
        history: Progress along the pass.
        test: Metrics on the test rows.
        feature_rate: Live features over features seen.
        live_rows: Live rows of the table.
    """

    history: list[Progress]
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
    on_batch: Callable[[int, float], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Trained:
    """Train on the log's training rows once, in order, then evaluate.

    Args:
        model: The model, changed in place.
        optimizer: Over the model's parameters.
        log: The click log.
        batch_size: Samples per step.
        train_rows: Train on the first so many rows and evaluate on the rest of the log's training rows, to choose
            hyperparameters; by default train on all of them and evaluate on the test rows.
        on_batch: Called with the number of samples and the loss of each batch.
        on_progress: Called about `WINDOWS` times.

    Returns:
        The history and the final metrics.
    """
    stop = log.train_rows if train_rows is None else train_rows
    evaluate_until = len(log) if train_rows is None else log.train_rows
    window = max(1, math.ceil(stop / batch_size / WINDOWS)) * batch_size
    history: list[Progress] = []
    labels_since: list[Tensor] = []
    logits_since: list[Tensor] = []
    samples = 0
    model.train()
    for batch in log.batches(0, stop, batch_size):
        labels = batch.labels
        optimizer.zero_grad()
        logits = model(batch.keys, batch.numbers)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels)
        _backward(loss, second_order=isinstance(optimizer, GroupAdaHessian))
        optimizer.step()
        samples += len(labels)
        labels_since.append(labels)
        logits_since.append(logits.detach())
        if on_batch is not None:
            on_batch(len(labels), float(loss.detach()))
        if samples % window == 0 or samples == stop:
            metrics = evaluate(torch.cat(labels_since).numpy(), _probabilities(torch.cat(logits_since)))
            table = model.embedding
            history.append(Progress(samples, metrics.auc, metrics.log_loss, table.feature_rate, table.memory().total))
            labels_since, logits_since = [], []
            if on_progress is not None:
                on_progress(history[-1])
    metrics = score(model, log, stop, evaluate_until)
    return Trained(history, metrics, model.embedding.feature_rate, model.embedding.num_live)


def _backward(loss: Tensor, second_order: bool) -> None:
    if not second_order:
        loss.backward()  # type: ignore[no-untyped-call]
        return
    with warnings.catch_warnings():
        # torch warns of a reference cycle; GroupAdaHessian breaks it in step().
        warnings.filterwarnings("ignore", message=r"Using backward\(\) with create_graph=True", category=UserWarning)
        loss.backward(create_graph=True)  # type: ignore[no-untyped-call]


def score(model: ClickModel, log: Log, start: int | None = None, stop: int | None = None) -> Metrics:
    """Metrics of `model` on rows `start` to `stop` of the log, by default its test rows."""
    start = log.train_rows if start is None else start
    stop = len(log) if stop is None else stop
    return evaluate(*_labels_and_probabilities(model, log, start, stop))


def predict(model: ClickModel, log: Log, start: int, stop: int) -> npt.NDArray[np.float64]:
    """Probabilities `[stop - start]` of rows `start` to `stop`. The model is left in evaluation mode."""
    return _labels_and_probabilities(model, log, start, stop)[1]


@torch.no_grad()
def _labels_and_probabilities(
    model: ClickModel, log: Log, start: int, stop: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    model.eval()
    labels, logits = [], []
    for batch in log.batches(start, stop, _EVALUATED):
        labels.append(batch.labels)
        logits.append(model(batch.keys, batch.numbers))
    if not labels:
        return np.zeros(0, np.float32), np.zeros(0)
    return torch.cat(labels).numpy(), _probabilities(torch.cat(logits))


def _probabilities(logits: Tensor) -> npt.NDArray[np.float64]:
    probabilities: npt.NDArray[np.float64] = torch.sigmoid(logits.double()).numpy()
    return probabilities
