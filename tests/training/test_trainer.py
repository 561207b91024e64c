"""The trainer against a loop written out, on streams with weights, bags and plain tensors."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from plain_settings import plain
from sparsegroup import GroupAdagrad, GroupAdam, HashEmbedding, param_groups
from sparsegroup.data import MemoryLog, SyntheticConfig, synthetic_log
from sparsegroup.data.batches import Bags, Batch
from sparsegroup.models import DCN, MLP
from sparsegroup.training import ClickModel, Trainer
from sparsegroup.training.model import by_field, keys_to_look_up
from sparsegroup.training.network_step import has_compiler


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return synthetic_log(SyntheticConfig(rows=12_000, cardinalities=(10, 100, 2_000)), seed=4)


def batches_with_everything(seed: int = 0, count: int = 6) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        n = int(torch.randint(1, 40, (), generator=generator))
        sizes = torch.randint(0, 4, (n,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        batches.append(
            Batch(
                torch.randint(0, 50, (n, 2), generator=generator),
                torch.randn(n, 3, generator=generator),
                torch.randint(0, 2, (n,), generator=generator).float(),
                torch.arange(n),
                torch.rand(n, generator=generator) * 3,
                (Bags(torch.randint(50, 80, (int(offsets[-1]),), generator=generator), offsets),),
            )
        )
    return batches


def test_fit_is_the_loop_that_one_would_write() -> None:
    def parts() -> tuple[ClickModel, GroupAdam]:
        torch.manual_seed(1)
        model = ClickModel(HashEmbedding(4), DCN(fields=3, dim=4, numbers=3))
        return model, GroupAdam(param_groups(model, l21=1e-3), lr=1e-2)

    model, optimizer = parts()
    Trainer(model.embedding, model.network, optimizer).fit(batches_with_everything())
    plain, plain_optimizer = parts()
    for batch in batches_with_everything():
        plain_optimizer.zero_grad()
        logits = plain(batch.keys, batch.numbers, batch.bags)
        assert batch.weights is not None
        (batch.weights * binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")).mean().backward()
        plain_optimizer.step()
    ours, theirs = model.state_dict(), plain.state_dict()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-7)


def test_a_bag_is_the_mean_of_its_vectors_and_an_empty_one_is_zero() -> None:
    table = HashEmbedding(3)
    for batch in batches_with_everything(1):
        keys = keys_to_look_up(MLP(3, 3), batch.keys, batch.bags)
        embeddings = by_field(table(keys), tuple(batch.keys.shape), batch.bags)
        assert embeddings.shape == (len(batch), 3, 3)
        torch.testing.assert_close(embeddings[:, :2], table.lookup(batch.keys))
        bags = batch.bags[0]
        for row in range(len(batch)):
            values = table.lookup(bags.keys[bags.offsets[row] : bags.offsets[row + 1]])
            expected = values.mean(0) if len(values) else torch.zeros(3)
            torch.testing.assert_close(embeddings[row, 2], expected)


def test_a_data_loader_of_tensors_is_a_stream(log: MemoryLog) -> None:
    keys, labels = torch.from_numpy(log.keys[:1000]), torch.from_numpy(log.labels[:1000])
    results = []
    for stream in (DataLoader(TensorDataset(keys, labels), batch_size=100), log.batches(0, 1000, 100)):
        model, optimizer = plain(model="mlp", dim=4).build(log)
        trainer = Trainer(model.embedding, model.network, optimizer)
        trainer.fit(stream)
        results.append(trainer.predict([(keys, labels)]))
    np.testing.assert_array_equal(*results)
    with pytest.raises(
        TypeError, match=r"a batch is a Batch, \(keys, labels\) or \(keys, numbers, labels\), got 1 parts"
    ):
        trainer.fit([(keys,)])


def test_two_passes_are_one_over_both(log: MemoryLog) -> None:
    def trained(*ends: int) -> tuple[Trainer, ClickModel]:
        model, optimizer = plain(lr=1e-2, l21=1e-3).build(log)
        trainer = Trainer(model.embedding, model.network, optimizer, window=2_000)
        begin = 0
        for end in ends:
            history = trainer.history
            trainer = Trainer(model.embedding, model.network, optimizer, window=2_000)
            trainer.go_on_after(history)
            trainer.fit(log.batches(begin, end, 500))
            begin = end
        return trainer, model

    (once, one), (twice, two) = trained(8_000), trained(4_000, 8_000)
    assert once.history == twice.history
    assert twice.samples == 8_000
    assert all(torch.equal(tensor, two.state_dict()[name]) for name, tensor in one.state_dict().items())
    assert sorted(point.seconds for point in twice.history) == [point.seconds for point in twice.history]


def test_points_count_the_features_of_their_samples_alone(log: MemoryLog) -> None:
    model, optimizer = plain(l21=0.0, dim=4).build(log)
    # Batches so large that the next one's keys are looked up ahead.
    history = Trainer(model.embedding, model.network, optimizer, window=3_000).fit(log.batches(0, 10_500, 1_500))
    assert [point.samples for point in history] == [3_000, 6_000, 9_000, 10_500]
    for point in history:
        assert point.features_seen == len(np.unique(log.keys[: point.samples]))
        assert point.samples_per_s > 0


def test_several_optimizers_and_a_scheduler_are_stepped(log: MemoryLog) -> None:
    torch.manual_seed(0)
    table, network = HashEmbedding(4), MLP(fields=3, dim=4)
    before = {name: parameter.clone() for name, parameter in network.named_parameters()}
    first = GroupAdagrad(table.parameters(), lr=0.1, l21=1e-3)
    second = torch.optim.SGD(network.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(second, step_size=2, gamma=0.5)
    Trainer(table, network, [first, second], scheduler=scheduler).fit(log.batches(0, 2_000, 500))
    assert second.param_groups[0]["lr"] == pytest.approx(0.1 / 4)
    assert all(not torch.equal(parameter, before[name]) for name, parameter in network.named_parameters())
    assert not torch.equal(table.lookup(torch.from_numpy(log.keys[0])), table.initial(torch.from_numpy(log.keys[0])))


def test_an_empty_stream_trains_nothing_and_evaluates_to_nothing() -> None:
    trainer = Trainer(HashEmbedding(2), MLP(1, 2), ())
    assert trainer.fit([]) == []
    assert trainer.predict([]).shape == (0,)
    assert np.isnan(trainer.evaluate([]).auc)
    with pytest.raises(ValueError, match="window must be >= 1, got 0"):
        Trainer(HashEmbedding(2), DCN(1, 2), (), window=0)


def test_a_weight_of_zero_hides_a_row(log: MemoryLog) -> None:
    def trained(label: float) -> torch.Tensor:
        model, optimizer = plain(dim=4).build(log)
        batch = next(log.batches(0, 64, 64))
        labels = batch.labels.clone()
        labels[5] = label
        weights = torch.ones(64)
        weights[5] = 0
        Trainer(model.embedding, model.network, optimizer).fit([replace(batch, labels=labels, weights=weights)])
        return model.embedding.lookup(batch.keys)

    assert torch.equal(trained(0.0), trained(1.0))


def trained_and_compiled(log: MemoryLog, compile: bool) -> list[float]:
    model, optimizer = plain(dim=2, hidden=[4], lr=1e-2, seed=3).build(log)
    trainer = Trainer(model.embedding, model.network, optimizer, compile=compile)
    trainer.fit(log.batches(0, 1_100, 250))  # the last batch has another size
    return trainer.predict(log.batches(10_000, 11_000, 100)).tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while it compiles
@pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler")
def test_a_compiled_network_trains_to_the_same(log: MemoryLog) -> None:
    assert trained_and_compiled(log, True) == pytest.approx(trained_and_compiled(log, False), abs=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_without_a_compiler_the_network_is_eager_and_that_is_said(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    eager = trained_and_compiled(log, False)
    monkeypatch.setenv("CXX", "/none")
    monkeypatch.setenv("PATH", "/none")
    assert trained_and_compiled(log, True) == eager
    assert re.search(r"the network is not compiled, .*: there is no C\+\+ compiler", caplog.text)
    monkeypatch.setattr("sparsegroup.training.network_step.has_compiler", lambda: True)  # one that does not work
    torch.compiler.reset()
    with torch._inductor.config.patch(force_disable_caches=True):  # monkeypatch would leave it half undone
        assert trained_and_compiled(log, True) == eager
    assert "compiling failed" in caplog.text


def test_long_passes_are_compiled_if_that_is_left_to_the_trainer() -> None:
    assert not plain().training.compiles(1_000_000)
    assert plain().training.compiles(40_000_000)
    assert not plain(compile="never").training.compiles(40_000_000)
    assert plain(compile="always").training.compiles(1)


def test_a_model_is_recalibrated_on_a_stream() -> None:
    torch.manual_seed(0)
    table, network = HashEmbedding(3), MLP(fields=3, dim=3, hidden=(4,))
    trainer = Trainer(table, network, GroupAdam([*table.parameters(), *network.parameters()], lr=0.1))
    stream = [(torch.randint(50, (64, 3)), (torch.rand(64) < 0.2).float()) for _ in range(6)]
    trainer.fit(stream)
    later = [(keys, torch.rand(64).lt(0.6).float()) for keys, _ in stream]
    before = trainer.predictions(later)
    shift = trainer.recalibrate(later)
    after = trainer.predictions(later)
    np.testing.assert_allclose(after.logits(), before.logits() + shift, rtol=1e-5, atol=1e-6)
    assert after.metrics().calibration == pytest.approx(1, abs=0.01)
    assert after.metrics().auc == pytest.approx(before.metrics().auc)
    assert trainer.recalibrate(later) == pytest.approx(0, abs=0.02)  # half a positive and half a negative are added
