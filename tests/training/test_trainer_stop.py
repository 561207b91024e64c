"""A training that is stopped anywhere, and goes on from a checkpoint, ends as one that was never stopped."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparsegroup import GroupAdagrad, HashEmbedding, param_groups
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
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
        self.batches, self.metrics = 0, list[Metrics]()

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        self.batches += 1
        if self.batches == self.batch:
            trainer.stop(finish=self.finish)

    def on_validation(self, trainer: Trainer, metrics: Metrics) -> None:
        self.metrics.append(metrics)
        assert trainer.history[-1].validation_log_loss == metrics.log_loss
        if len(self.metrics) == self.validation:
            trainer.stop(finish=self.finish)


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


def resumed(stopped: Training, folder: Path, **more: Any) -> Training:
    save_checkpoint(
        folder, stopped.model, stopped.optimizer, stopped.scheduler, extra={"trainer": stopped.trainer.state_dict()}
    )
    other = Training(**more)
    loaded = load_checkpoint(folder, other.model, other.optimizer, other.scheduler)
    other.trainer.load_state_dict(loaded.extra["trainer"])
    return other


@pytest.mark.parametrize("admit_after", [1, 2])
@pytest.mark.parametrize("at", [1, 3, 7, 8, 14])
def test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path, at: int, admit_after: int) -> None:
    whole = Training(admit_after=admit_after)
    whole.fit(epochs=2)
    stopped = Training(StopAt(at), admit_after=admit_after)
    stopped.fit(epochs=2)
    assert at == stopped.trainer.samples // BATCH
    assert stopped.trainer.progress.is_over == (at == 2 * BATCHES)
    if at == 2 * BATCHES:
        assert stopped.outcome() == whole.outcome()
        return
    drawn = torch.get_rng_state()
    other = resumed(stopped, tmp_path / "checkpoint", admit_after=admit_after)
    other.fit(epochs=2)
    assert other.outcome() == whole.outcome()
    torch.set_rng_state(drawn)
    stopped.trainer.callbacks.clear()
    stopped.fit(epochs=2)  # in the same process, too
    assert stopped.outcome() == whole.outcome()


def test_another_thread_stops_it_between_two_batches() -> None:
    class Elsewhere(Callback):
        def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
            if trainer.samples == 3 * BATCH:
                thread = threading.Thread(target=trainer.stop)
                thread.start()
                thread.join()

    training = Training(Elsewhere())
    training.fit()
    assert (training.trainer.samples, training.trainer.progress.position) == (3 * BATCH, 3 * BATCH)


def test_at_the_begin_nothing_is_trained_and_a_stop_lasts_for_one_fit() -> None:
    class AtOnce(Callback):
        def on_begin(self, trainer: Trainer) -> None:
            trainer.stop()

    training = Training(AtOnce())
    training.fit()
    assert (training.trainer.samples, training.trainer.progress.is_over) == (0, False)
    training.trainer.callbacks.clear()
    training.trainer.stop()  # nothing is trained
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


def test_points_are_told_once(tmp_path: Path) -> None:
    class Points(Callback):
        def __init__(self) -> None:
            self.samples: list[int] = []

        def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
            self.samples.append(point.samples)

    points = Points()
    training = Training(StopAt(4), points)
    training.fit()
    training.trainer.callbacks = [points]
    training.fit()
    assert points.samples == [60, 120, 140]
