"""Several epochs: what is held out, what is kept, and what becomes of the embeddings."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from following import Each
from plain_settings import plain
from sparsegroup import GroupAdam, HashEmbedding, TargetRate, param_groups
from sparsegroup.data import LogView, MemoryLog, SyntheticConfig, synthetic_log
from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import FIELD_BITS, keys_of
from sparsegroup.models import MLP
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Trainer
from sparsegroup.training.model import ClickModel
from sparsegroup.training.selection.sizes import train_and_test

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


class TestFit:
    def test_two_epochs_are_two_passes(self, log: MemoryLog) -> None:
        (once, one), (twice, two) = made(l21=1e-3), made(l21=1e-3)
        one.fit(list(log.batches(0, 2_000, 500)), epochs=2)
        for _ in range(2):
            two.fit(log.batches(0, 2_000, 500))
        assert same(bits(once), bits(twice))
        assert [point.epoch for point in one.history] == [1, 2]
        assert (one.samples, one.progress.epoch, one.progress.best) == (4_000, 2, None)

    def test_validation_changes_nothing_that_is_learnt(self, log: MemoryLog) -> None:
        (plain, one), (measured, two) = made(l21=1e-3, fallback=True), made(l21=1e-3, fallback=True)
        after_first: list[dict[str, Tensor]] = []
        one.callbacks.append(Each(epoch=lambda _: after_first.append(bits(plain))))
        one.fit(list(log.batches(0, 2_000, 500)), epochs=2)
        seen: list[dict[str, Tensor]] = []
        two.callbacks.append(Each(epoch=lambda _: seen.append(bits(measured))))
        two.fit(
            list(log.batches(0, 2_000, 500)),
            epochs=2,
            validation=list(log.batches(2_000, 3_000, 500)),
        )
        assert same(seen[0], after_first[0])
        assert two.progress.best is not None
        assert same(bits(measured), [after_first[0], bits(plain)][two.progress.best - 1])
        assert not same(after_first[0], bits(plain))
        assert measured.embedding.num_seen == plain.embedding.num_seen == len(np.unique(log.keys[:2_000]))
        last = [point for point in two.history if point.validation_log_loss is not None]
        assert [point.epoch for point in last] == [1, 2]
        assert two.progress.validation is not None
        assert two.progress.validation.log_loss == min(point.validation_log_loss for point in last)

    def test_it_stops_and_the_best_comes_back(self, log: MemoryLog) -> None:
        model, trainer = made(l21=1e-3)
        optimizer = trainer.optimizers[0]
        trainer.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.9)
        kept: list[tuple[dict[str, Tensor], object]] = []
        rate = optimizer.param_groups[0]
        trainer.callbacks.append(Each(epoch=lambda _: kept.append((bits(model), rate["lr"]))))
        trainer.fit(
            poisoned(log, from_epoch=2),
            epochs=9,
            patience=2,
            validation=lambda epoch: log.batches(3_000, ROWS, 500),
        )
        assert (trainer.progress.epoch, trainer.progress.best, len(kept)) == (4, 2, 3)
        assert same(bits(model), kept[1][0])
        assert not same(bits(model), kept[2][0])
        assert optimizer.param_groups[0]["lr"] == kept[1][1] == pytest.approx(1e-2 * 0.9**3)
        states = trainer.evaluate(log.batches(3_000, ROWS, 500))
        assert trainer.progress.validation == states
        before = trainer.samples
        trainer.fit(log.batches(0, 500, 500))  # a training that is over is followed by another
        assert (trainer.samples - before, trainer.progress.epoch) == (500, 1)

    def test_a_loader_of_tensors_is_an_epoch_each_time(self, log: MemoryLog) -> None:
        keys, labels = torch.from_numpy(log.keys[:600]), torch.from_numpy(log.labels[:600])
        loader = DataLoader(TensorDataset(keys, labels), batch_size=100)
        _, trainer = made()
        trainer.fit(loader, epochs=3, validation=[(keys, labels)], patience=1)
        assert trainer.samples == 600 * trainer.progress.epoch

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"epochs": 0}, "epochs must be >= 1, got 0"),
            ({"patience": -1}, "patience must be >= 0, got -1"),
            ({"epochs": 2, "patience": 1}, "patience=1 needs the validation log loss: give validation"),
            (
                {"epochs": 2, "stream": iter([])},
                "stream is used up by the first of 2 epochs: give one that can be read",
            ),
            ({"epochs": 2, "validation": iter([])}, "validation is used up by the first of 2 epochs"),
            ({"after_first_epoch": "drop"}, "after_first_epoch must be 'train', 'reset' or 'freeze', got 'drop'"),
        ],
    )
    def test_what_cannot_be_is_refused(self, options: dict[str, object], message: str) -> None:
        _, trainer = made()
        with pytest.raises(ValueError, match=message):
            trainer.fit(**{"stream": [], **options})


class TestLaterEmbeddings:
    def test_frozen_ones_stay_and_the_network_goes_on(self, log: MemoryLog) -> None:
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

    def test_reset_ones_start_again_as_if_never_trained(self, log: MemoryLog) -> None:
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
    def test_each_epoch_that_may_be_the_best_has_the_size_that_was_asked_for(self, log: MemoryLog, after: str) -> None:
        config = plain(
            target_rate=0.1, epochs=3, validation=0.2, after_first_epoch=after, batch_size=100, dim=4, hidden=[8]
        )
        model, optimizer = config.build(log)
        plan = config.training.plan(log.train_rows)
        rates: list[float] = []
        note = Each(epoch=lambda _: rates.append(model.embedding.feature_rate))
        trainer = config.trainer(model, optimizer, plan, [note])
        trainer.fit(**plan.arguments(log))
        assert [*rates, model.embedding.feature_rate] == pytest.approx([0.1] * 3, abs=1e-3)
        assert trainer.progress.best is not None

    def test_an_epoch_before_the_target_is_reached_is_not_the_best(self, log: MemoryLog) -> None:
        model, trainer = made(penalty="hard")
        trainer.target = TargetRate(trainer.optimizers[0], 0.1, steps=90, ramp=50)
        trainer.fit(poisoned(log, from_epoch=1), epochs=3, validation=lambda epoch: log.batches(3_000, ROWS, 500))
        assert trainer.progress.best in (2, 3)  # though the first was the only one with the right labels
        assert model.embedding.feature_rate == pytest.approx(0.1, abs=1e-3)


class TailTeaches(LogView):
    """A log whose labels follow from the features in its last training rows, and in the test rows, alone."""

    def __init__(self, log: MemoryLog, from_row: int) -> None:
        super().__init__(log)
        self._from = from_row

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        for batch in self.log.batches(start, stop, size):
            learnt = (batch.keys[:, 0] & 1).float()
            yield replace(batch, labels=torch.where(batch.times < self._from, batch.times % 2, learnt))


class TestPlan:
    def test_rows_held_out_are_not_learnt_from(self) -> None:
        draw = np.random.default_rng(0)
        keys = keys_of(draw.integers(0, 50, ROWS).astype(str).tolist(), 0)[:, None]
        memory = MemoryLog("tail", ("a",), keys, np.zeros(ROWS, np.float32), 3_600)
        log = TailTeaches(memory, from_row=2_880)
        settings: dict[str, object] = {"epochs": 3, "batch_size": 60, "l21": 0.0, "dim": 4, "lr": 0.02}
        aucs = []
        for validation in (0.0, 0.2):
            config = plain(validation=validation, **settings)
            model, optimizer = config.build(log)
            aucs.append(train_and_test(config, model, optimizer, log).test.auc)
        assert aucs[0] > 0.95
        assert 0.35 < aucs[1] < 0.65

    def test_the_last_rows_are_held_out_and_the_others_come_in_each_epoch(self, log: MemoryLog) -> None:
        plan = plain(validation=0.1, epochs=2, shuffle_buffer=500).training.plan(log.train_rows)
        assert (plan.rows, plan.validation_rows) == (3_240, 360)
        epochs = [torch.cat([batch.times for batch in plan.batches(log, epoch)]).tolist() for epoch in (0, 1)]
        assert epochs[0] != epochs[1]
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(3_240))
        assert torch.cat([batch.times for batch in plan.batches(log, 1, 700)]).tolist() == epochs[1][700:]
        validation = plan.arguments(log)["validation"]
        assert callable(validation)
        assert [int(batch.times[0]) for batch in validation(1)] == [3_240]

    def test_all_rows_cannot_be_held_out(self) -> None:
        with pytest.raises(SettingsError, match=r"training.validation=0.9 leaves none of 1 rows to train on"):
            plain(validation=0.9).training.plan(1)
