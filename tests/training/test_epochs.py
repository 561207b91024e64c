"""Several epochs: what is held out and kept, what becomes of the embeddings; a training that is stopped anywhere."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from following import Each
from plain_settings import plain
from sparsegroup import GroupAdagrad, GroupAdam, HashEmbedding, TargetRate, param_groups
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.data import MemoryLog, SyntheticConfig, synthetic_log
from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import FIELD_BITS
from sparsegroup.models import MLP
from sparsegroup.reporting.run_record import Metrics
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.table import MinCount
from sparsegroup.training import Callback, Trainer
from sparsegroup.training.model import ClickModel, LookupModel
from sparsegroup.training.trainer import TrainedBatch

ROWS = 4_000


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return synthetic_log(SyntheticConfig(rows=ROWS, cardinalities=(10, 200, 3_000)), seed=4)


def made(**settings: object) -> tuple[ClickModel, Trainer]:
    torch.manual_seed(1)
    table = HashEmbedding(4, field_bits=FIELD_BITS, fallback=bool(settings.pop("fallback", False)))
    model = ClickModel(table, MLP(fields=3, dim=4, hidden=(8,)))
    optimizer = GroupAdam(param_groups(model, **settings), lr=1e-2)
    return model, Trainer(model.embedding, model.network, optimizer)


def bits(model: ClickModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def poisoned(log: MemoryLog, from_epoch: int) -> Callable[[int], Iterator[Batch]]:
    """The first 3,000 rows, with the opposite labels from an epoch on."""

    def stream(epoch: int) -> Iterator[Batch]:
        for batch in log.batches(0, 3_000, 100):
            yield batch if epoch < from_epoch else replace(batch, labels=1 - batch.labels)

    return stream


def test_two_epochs_are_two_passes_and_validation_changes_nothing_that_is_learnt(log: MemoryLog) -> None:
    (once, one), (twice, two), (measured, three) = (made(l21=1e-3, fallback=True) for _ in range(3))
    rows, after_first, seen = list(log.batches(0, 2_000, 500)), list[dict[str, Tensor]](), list[dict[str, Tensor]]()
    one.callbacks.append(Each(epoch=lambda _: after_first.append(bits(once))))
    one.fit(rows, epochs=2)
    for _ in range(2):
        two.fit(rows)
    assert same(bits(once), bits(twice))
    assert [point.epoch for point in one.history] == [1, 2]
    assert (one.samples, one.progress.epoch, one.progress.best) == (4_000, 2, None)
    three.callbacks.append(Each(epoch=lambda _: seen.append(bits(measured))))
    three.fit(rows, epochs=2, validation=list(log.batches(2_000, 3_000, 500)))
    assert same(seen[0], after_first[0])
    assert same(bits(measured), [after_first[0], bits(once)][three.progress.best - 1])
    assert not same(after_first[0], bits(once))
    assert measured.embedding.num_seen == once.embedding.num_seen == len(np.unique(log.keys[:2_000]))
    last = [point for point in three.history if point.validation_log_loss is not None]
    assert [point.epoch for point in last] == [1, 2]
    assert three.progress.validation.log_loss == min(point.validation_log_loss for point in last)


def test_it_stops_and_the_best_comes_back(log: MemoryLog) -> None:
    model, trainer = made(l21=1e-3)
    optimizer = trainer.optimizers[0]
    trainer.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.9)
    kept: list[tuple[dict[str, Tensor], object]] = []
    rate = optimizer.param_groups[0]
    trainer.callbacks.append(Each(epoch=lambda _: kept.append((bits(model), rate["lr"]))))
    trainer.fit(
        poisoned(log, from_epoch=2), epochs=9, patience=2, validation=lambda epoch: log.batches(3_000, ROWS, 500)
    )
    assert (trainer.progress.epoch, trainer.progress.best, len(kept)) == (4, 2, 3)
    assert same(bits(model), kept[1][0])
    assert not same(bits(model), kept[2][0])
    assert optimizer.param_groups[0]["lr"] == kept[1][1] == pytest.approx(1e-2 * 0.9**3)
    assert trainer.progress.validation == trainer.evaluate(log.batches(3_000, ROWS, 500))
    before = trainer.samples
    keys, labels = torch.from_numpy(log.keys[:600]), torch.from_numpy(log.labels[:600])
    loader = DataLoader(TensorDataset(keys, labels), batch_size=100)
    trainer.fit(loader, epochs=2, validation=[(keys, labels)])  # a training that is over is followed by another
    assert (trainer.samples - before, trainer.progress.epoch) == (1_200, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be >= 1, got 0"),
        ({"patience": -1}, "patience must be >= 0, got -1"),
        ({"epochs": 2, "patience": 1}, "patience=1 needs the validation log loss: give validation"),
        ({"epochs": 2, "stream": iter([])}, "stream is used up by the first of 2 epochs: give one that can be read"),
        ({"epochs": 2, "validation": iter([])}, "validation is used up by the first of 2 epochs"),
        ({"after_first_epoch": "drop"}, "after_first_epoch must be 'train', 'reset' or 'freeze', got 'drop'"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    _, trainer = made()
    with pytest.raises(ValueError, match=message):
        trainer.fit(**{"stream": [], **options})


def test_frozen_embeddings_stay_and_the_network_is_trained_further(log: MemoryLog) -> None:
    model, trainer = made(l21=1e-3, fallback=True)
    after: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    def note(_: Trainer) -> None:
        table = {name: tensor.clone() for name, tensor in model.embedding.state_dict().items()}
        after.append((table, {name: tensor.clone() for name, tensor in model.network.state_dict().items()}))

    trainer.callbacks.append(Each(epoch=note))
    trainer.fit(list(log.batches(0, 2_000, 500)), epochs=3, after_first_epoch="freeze")
    note(trainer)
    assert same(after[0][0], after[1][0])
    assert same(after[0][0], after[2][0])
    assert not same(after[0][1], after[1][1])
    assert not same(after[1][1], after[2][1])
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_reset_embeddings_start_again_as_if_never_trained(log: MemoryLog) -> None:
    """Their second epoch is the first one of a new table, beside the network that the first epoch has left."""
    keys = torch.from_numpy(log.keys[:2_000])

    def parts() -> tuple[HashEmbedding, MLP, Trainer]:
        torch.manual_seed(1)
        table, network = HashEmbedding(4), MLP(fields=3, dim=4, hidden=(8,))
        optimizers = [GroupAdam(table.parameters(), lr=1e-2, l21=3e-3), torch.optim.SGD(network.parameters(), 0.1)]
        return table, network, Trainer(table, network, optimizers)

    (table, network, trainer), (fresh, other, alone) = parts(), parts()

    def stream(epoch: int) -> Iterator[Batch]:
        if epoch:
            assert torch.equal(table.lookup(keys), table.initial(keys))
            assert table.num_live == table.num_rows == table.num_seen == len(np.unique(log.keys[:2_000]))
            other.load_state_dict(network.state_dict())
        return log.batches(0, 2_000, 500)

    trainer.fit(stream, epochs=2, after_first_epoch="reset")
    alone.fit(log.batches(0, 2_000, 500))
    assert 0 < table.num_live < table.num_rows
    assert torch.equal(table.lookup(keys), fresh.lookup(keys))
    assert same(dict(network.state_dict()), dict(other.state_dict()))


@pytest.mark.parametrize("after", ["train", "reset", "freeze"])
def test_each_epoch_that_may_be_the_best_has_the_target_size(log: MemoryLog, after: str) -> None:
    settings = {"target_rate": 0.1, "epochs": 3, "validation": 0.2, "batch_size": 100, "dim": 4, "hidden": [8]}
    config = plain(**settings, after_first_epoch=after)
    model, optimizer = config.build(log)
    plan = config.training.plan(log.train_rows)
    rates: list[float] = []
    trainer = config.trainer(model, optimizer, plan, [Each(epoch=lambda _: rates.append(model.embedding.feature_rate))])
    trainer.fit(**plan.arguments(log))
    assert [*rates, model.embedding.feature_rate] == pytest.approx([0.1] * 3, abs=1e-3)
    assert trainer.progress.best is not None


def test_an_epoch_before_the_target_is_reached_is_not_the_best(log: MemoryLog) -> None:
    model, trainer = made(penalty="hard")
    trainer.target = TargetRate(trainer.optimizers[0], 0.1, steps=90, ramp=50)
    trainer.fit(poisoned(log, from_epoch=1), epochs=3, validation=lambda epoch: log.batches(3_000, ROWS, 500))
    assert trainer.progress.best in (2, 3)  # though the first was the only one with the right labels
    assert model.embedding.feature_rate == pytest.approx(0.1, abs=1e-3)


def test_the_last_rows_are_held_out_and_the_others_are_in_each_epoch(log: MemoryLog) -> None:
    plan = plain(validation=0.1, epochs=2, shuffle_buffer=500).training.plan(log.train_rows)
    assert (plan.rows, plan.validation_rows) == (3_240, 360)
    epochs = [torch.cat([batch.times for batch in plan.batches(log, epoch)]).tolist() for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(3_240))
    assert torch.cat([batch.times for batch in plan.batches(log, 1, 700)]).tolist() == epochs[1][700:]
    validation = plan.arguments(log)["validation"]
    assert callable(validation)
    assert [int(batch.times[0]) for batch in validation(1)] == [3_240]
    with pytest.raises(SettingsError, match=r"training.validation=0.9 leaves none of 1 rows to train on"):
        plain(validation=0.9).training.plan(1)


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


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("at", "admit_after"), [(1, 2), (3, 1), (7, 2), (8, 1), (14, 1)])
def test_it_continues_as_if_it_had_not_been_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, admit_after: int
) -> None:
    """Also where another thread looks the next batch's keys up, however few they are."""
    monkeypatch.setattr("sparsegroup.table.table.pays_ahead", lambda keys: True)
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
