"""A training that is stopped anywhere, and goes on from a checkpoint, ends as one that was never stopped."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from following import Each
from sparsegroup import GroupAdagrad, HashEmbedding, param_groups
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.models import MLP
from sparsegroup.reporting.run_record import HistoryPoint, Metrics
from sparsegroup.table import MinCount
from sparsegroup.training import Callback, Trainer
from sparsegroup.training.model import LookupModel
from sparsegroup.training.trainer import TrainedBatch

BATCHES, BATCH = 7, 20
UNLIKE = {"seconds": 0, "samples_per_s": 0}
"""Times."""


def samples(epoch: int, begin: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of an epoch behind `begin` samples."""
    draw = torch.Generator().manual_seed(epoch)
    pairs = [
        (torch.randint(60, (BATCH, 2), generator=draw), torch.randint(2, (BATCH,), generator=draw))
        for _ in range(BATCHES)
    ]
    return pairs[begin // BATCH :]


class StopAt(Callback):
    """Calls `stop` behind a batch, or at a validation."""

    def __init__(self, batch: int | None = None, *, validation: int | None = None, finish: bool = False) -> None:
        self.batch, self.validation, self.finish = batch, validation, finish
        self.batches, self.metrics, self.points = 0, list[Metrics](), list[int]()

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        self.batches += 1
        if self.batches == self.batch:
            trainer.stop(finish=self.finish)

    def on_validation(self, trainer: Trainer, metrics: Metrics) -> None:
        self.metrics.append(metrics)
        assert trainer.history[-1].validation_log_loss == metrics.log_loss
        if len(self.metrics) == self.validation:
            trainer.stop(finish=self.finish)

    def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
        self.points.append(point.samples)


class Training:
    """A model, what steps it, and a trainer; the parts of a checkpoint."""

    def __init__(self, *callbacks: Callback, admit_after: int = 1) -> None:
        torch.manual_seed(0)
        admission = None if admit_after == 1 else MinCount(admit_after)
        self.table, self.network = HashEmbedding(3, admission=admission), MLP(fields=2, dim=3, dropout=0.2)
        self.model = LookupModel(self.table, self.network)
        self.optimizer = GroupAdagrad(param_groups(self.model, l21=1e-3), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.trainer = Trainer(
            self.table, self.network, self.optimizer, scheduler=self.scheduler, window=60, callbacks=callbacks
        )

    def fit(self, **more: Any) -> None:
        progress = self.trainer.progress
        self.trainer.fit(lambda epoch: samples(epoch, progress.position if epoch == progress.epoch else 0), **more)

    def outcome(self) -> tuple[list[Any], int]:
        keys = torch.arange(60)
        points = [{**vars(point), **UNLIKE} for point in self.trainer.history]
        weights = {name: value.tolist() for name, value in self.network.state_dict().items()}
        return [points, weights, self.table.lookup(keys).tolist(), self.scheduler.get_last_lr()], self.table.num_seen


@pytest.fixture
def keys_ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another thread looks the next batch's keys up, however few they are."""
    monkeypatch.setattr("sparsegroup.table.table.pays_ahead", lambda keys: True)
    set_num_threads(2)
    yield
    set_num_threads(None)


@pytest.mark.usefixtures("keys_ahead")
@pytest.mark.parametrize(("at", "admit_after"), [(1, 2), (3, 1), (7, 2), (8, 1), (14, 1)])
def test_it_continues_as_if_it_had_not_been_stopped(tmp_path: Path, at: int, admit_after: int) -> None:
    whole = Training(admit_after=admit_after)
    whole.fit(epochs=2)
    stopped = Training(StopAt(at), admit_after=admit_after)
    stopped.fit(epochs=2)
    assert at == stopped.trainer.samples // BATCH
    assert stopped.trainer.progress.is_over == (at == 2 * BATCHES)
    if at == 2 * BATCHES:
        assert stopped.outcome() == whole.outcome()
        return
    drawn, extra = torch.get_rng_state(), {"trainer": stopped.trainer.state_dict()}
    save_checkpoint(tmp_path / "checkpoint", stopped.model, stopped.optimizer, stopped.scheduler, extra=extra)
    other = Training(admit_after=admit_after)
    loaded = load_checkpoint(tmp_path / "checkpoint", other.model, other.optimizer, other.scheduler)
    other.trainer.load_state_dict(loaded.extra["trainer"])
    other.fit(epochs=2)
    assert other.outcome() == whole.outcome()
    torch.set_rng_state(drawn)
    stopped.trainer.callbacks.clear()
    stopped.fit(epochs=2)  # in the same process, too
    assert stopped.outcome() == whole.outcome()


def test_another_thread_stops_it_between_two_batches_and_on_begin_before_all() -> None:
    def elsewhere(trainer: Trainer) -> None:
        if trainer.samples == 3 * BATCH:
            thread = threading.Thread(target=trainer.stop)
            thread.start()
            thread.join()

    training = Training(Each(batch=elsewhere))
    training.fit()
    assert (training.trainer.samples, training.trainer.progress.position) == (3 * BATCH, 3 * BATCH)
    at_once = Callback()
    at_once.on_begin = lambda trainer: trainer.stop()  # type: ignore[method-assign]
    training = Training(at_once)
    training.fit()
    assert (training.trainer.samples, training.trainer.progress.is_over) == (0, False)
    training.trainer.callbacks.clear()
    training.trainer.stop()  # nothing is trained, and a stop lasts for one fit
    training.fit()
    assert training.trainer.samples == BATCHES * BATCH


def test_validation_is_told_and_its_own_early_stopping_brings_the_best_back() -> None:
    def validated(number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return samples(99)[:2]

    recorder = StopAt()
    whole = Training(recorder)
    whole.fit(epochs=5, validation=validated)
    losses = [one.log_loss for one in recorder.metrics]
    assert len(losses) == 5
    best = int(np.argmin(losses[:4])) + 1
    stopping = StopAt(validation=4, finish=True)
    ended = Training(stopping)
    ended.fit(epochs=5, validation=validated)
    progress = ended.trainer.progress
    assert (progress.epoch, progress.is_over, progress.best) == (4, True, best)
    assert ended.trainer.evaluate(validated(0)).log_loss == pytest.approx(losses[best - 1], rel=1e-6)


def test_a_finish_within_an_epoch_is_its_end() -> None:
    recorder = StopAt(batch=BATCHES + 2, finish=True)
    training = Training(recorder)
    training.fit(epochs=3, validation=lambda epoch: samples(99)[:2])
    assert training.trainer.samples == (BATCHES + 2) * BATCH
    assert (training.trainer.progress.epoch, training.trainer.progress.is_over) == (2, True)
    assert len(recorder.metrics) == 2
    assert training.trainer.history[-1].samples == training.trainer.samples


def test_points_are_reported_once() -> None:
    training = Training(points := StopAt(4))
    training.fit()
    training.fit()
    assert points.points == [60, 120, 140]
