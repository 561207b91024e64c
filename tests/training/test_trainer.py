"""The trainer against a loop written out, on streams with weights, bags and plain tensors; what it measures; what it
refuses: parameters that no optimizer has, labels other than 0 and 1."""

import copy
import re
from collections.abc import Callable
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from over import over
from plain_settings import plain
from sparsegroup import FieldTables, GroupAdam, HashEmbedding
from sparsegroup.data import MemoryLog, SyntheticConfig, synthetic_log
from sparsegroup.data.batches import Bags, Batch
from sparsegroup.models import DCN, MLP
from sparsegroup.serving.frozen import FrozenTable, live_rows
from sparsegroup.serving.frozen_model import frozen_copy
from sparsegroup.settings.names import OptimizerName
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training import ClickModel, Trainer, evaluate, prune_rows
from sparsegroup.training.model import LookupModel, by_field
from sparsegroup.training.predictions import logits_over

KEYS = torch.arange(12).view(4, 3)
LABELS = torch.tensor([0, 1, 1, 0])


def parts() -> tuple[MLP, HashEmbedding]:
    torch.manual_seed(0)
    return MLP(fields=3, dim=2, hidden=(4,)), HashEmbedding(2)


def made() -> Trainer:
    model, table = parts()
    return Trainer(table, model, GroupAdam([*table.parameters(), *model.parameters()]))


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return synthetic_log(SyntheticConfig(rows=12_000, cardinalities=(10, 100, 2_000)), seed=3)


def built(log: MemoryLog, window: int = 100_000, **settings: object) -> tuple[ClickModel, Trainer]:
    model, optimizer = plain(**settings).build(log)
    return model, Trainer(model.embedding, model.network, optimizer, window=window)


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


def test_fit_is_the_loop_that_one_would_write_with_a_bag_as_the_mean_of_its_vectors() -> None:
    def parts() -> tuple[HashEmbedding, DCN, list[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]:
        torch.manual_seed(1)
        table, network = HashEmbedding(4), DCN(fields=3, dim=4, numbers=3)
        optimizers = [GroupAdam(table.parameters(), lr=1e-2, l21=1e-3), torch.optim.SGD(network.parameters(), lr=0.1)]
        return table, network, optimizers, torch.optim.lr_scheduler.StepLR(optimizers[1], step_size=2, gamma=0.5)

    table, network, optimizers, scheduler = parts()
    Trainer(table, network, optimizers, scheduler=scheduler).fit(batches_with_everything())
    plain_table, plain, plain_optimizers, plain_scheduler = parts()
    for batch in batches_with_everything():
        (bag,) = batch.bags
        values = plain_table(torch.cat([batch.keys.flatten(), bag.keys]))
        singles, listed = values[: batch.keys.numel()], values[batch.keys.numel() :]
        means = [
            listed[begin:end].sum(0) / max(int(end - begin), 1)
            for begin, end in zip(bag.offsets[:-1], bag.offsets[1:], strict=True)
        ]
        vectors = torch.cat([singles.view(len(batch), 2, 4), torch.stack(means)[:, None]], dim=1)
        losses = binary_cross_entropy_with_logits(plain(vectors, batch.numbers), batch.labels, reduction="none")
        for optimizer in plain_optimizers:
            optimizer.zero_grad()
        (batch.weights * losses).mean().backward()
        for optimizer in plain_optimizers:
            optimizer.step()
        plain_scheduler.step()
    assert scheduler.get_last_lr() == [0.1 / 8]
    keys = torch.arange(80)
    torch.testing.assert_close(table.lookup(keys), plain_table.lookup(keys), rtol=1e-5, atol=1e-7)
    for one, other in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@over(("rows", "fields"), [(9, 2), (9, 0), (0, 2), (0, 0)])
def test_lists_that_the_table_pools_are_those_pooled_afterwards(rows: int, fields: int) -> None:
    """Also where a row has nothing else, and of no rows."""
    table, network = HashEmbedding(4, fallback=True).eval(), MLP(fields=fields + 2, dim=4, hidden=(5,))
    offsets = torch.arange(rows + 1) * 3 // 2
    bags = [Bags(torch.arange(int(offsets[-1])) % size, offsets) for size in (3, 5)]
    keys = torch.arange(rows * fields).view(rows, fields)
    with torch.no_grad():
        table.fallback += 1.0
        table.assign(torch.tensor([1, 4]), torch.randn(2, 4))
    vectors = table(torch.cat([keys.flatten(), *(bag.keys for bag in bags)]))
    expected = network(by_field(vectors, (rows, fields), bags))
    assert torch.equal(LookupModel(table, network)(keys, None, bags), expected)


class Doubled(HashEmbedding):
    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(keys)


@pytest.mark.parametrize("is_subclass", [True, False])
def test_what_a_subclass_or_a_hook_makes_of_vectors_is_pooled(is_subclass: bool) -> None:
    table, network = Doubled(4) if is_subclass else HashEmbedding(4), MLP(fields=1, dim=4, hidden=(5,))
    if not is_subclass:
        table.register_forward_hook(lambda module, inputs, output: 2 * output)
    offsets, keys = torch.tensor([0, 2, 3]), torch.tensor([5, 6, 5])
    logits = LookupModel(table, network)(torch.zeros(2, 0, dtype=torch.int64), None, [Bags(keys, offsets)])
    vectors = 2 * table.lookup(keys)
    assert torch.equal(logits, network(torch.stack([vectors[:2].mean(0), vectors[2]])[:, None]))


@pytest.mark.usefixtures("two_threads")
def test_a_point_tests_samples_before_they_are_trained_on_and_counts_their_features_alone(log: MemoryLog) -> None:
    _, trainer = built(log, 3_000, l21=0.0, dim=4)
    batch = next(log.batches(0, 3_000, 3_000))
    untrained = torch.sigmoid(built(log, dim=4)[0](batch.keys).detach().double())
    before = evaluate(batch.labels.numpy(), untrained.numpy())
    # Batches so large that the next one's keys are looked up ahead.
    history = trainer.fit([batch, *log.batches(3_000, 10_500, 1_500)])
    assert history[0].auc == pytest.approx(before.auc, abs=1e-6)
    assert history[0].log_loss == pytest.approx(before.log_loss, abs=1e-6)
    assert [point.samples for point in history] == [3_000, 6_000, 9_000, 10_500]
    for point in history:
        assert point.features_seen == len(np.unique(log.keys[: point.samples]))
        assert point.samples_per_s > 0


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        *product(["dcn"], get_args(OptimizerName)),
        *product(["lr", "fm", "deepfm", "mlp", "opnn", "dcnv2", "xdeepfm"], ["adahessian"]),
    ],
)
def test_every_optimizer_trains_every_model_twice_the_same(log: MemoryLog, model: str, optimizer: str) -> None:
    settings = {"model": model, "optimizer": optimizer, "dim": 1 if model == "lr" else 4, "lr": 1e-2, "l21": 1e-3}
    results = []
    for _ in range(2):
        trained, trainer = built(log, **settings, seed=5)
        trainer.fit(log.batches(0, 1_000, 500))
        results.append((trainer.history, trained.state_dict()))
    (one, weights), (two, same) = results
    assert one == two
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert np.isfinite(one[-1].log_loss)


def test_an_empty_stream_trains_nothing_and_evaluates_to_nothing() -> None:
    trainer = Trainer(HashEmbedding(2), MLP(1, 2), ())
    assert trainer.fit([]) == []
    assert trainer.predict([]).shape == (0,)
    assert np.isnan(trainer.evaluate([]).auc)
    with pytest.raises(ValueError, match="window must be >= 1, got 0"):
        Trainer(HashEmbedding(2), DCN(1, 2), (), window=0)
    with pytest.raises(ValueError, match="matmul_precision must be 'highest', 'high' or 'medium', got 'low'"):
        Trainer(HashEmbedding(2), DCN(1, 2), (), matmul_precision="low")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_without_a_compiler_that_works_the_network_is_eager_and_that_is_said(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def trained(compile: bool) -> list[float]:
        model, optimizer = plain(model="opnn", dim=2, hidden=[4], lr=1e-2, seed=3).build(log)
        trainer = Trainer(model.embedding, model.network, optimizer, compile=compile)
        trainer.fit(log.batches(0, 500, 250))
        return trainer.predict(log.batches(10_000, 10_100, 100)).tolist()

    eager = trained(False)
    monkeypatch.setenv("CXX", "/none")
    monkeypatch.setenv("PATH", "/none")
    assert trained(True) == eager
    assert re.search(r"the network is not compiled, .*: there is no C\+\+ compiler", caplog.text)
    monkeypatch.setattr("sparsegroup.training.network_step.has_compiler", lambda: True)  # one that does not work
    torch.compiler.reset()
    with torch._inductor.config.patch(force_disable_caches=True):  # monkeypatch would leave it half undone
        assert trained(True) == eager
    assert "compiling failed" in caplog.text


def test_long_passes_are_compiled_if_that_is_left_to_the_trainer() -> None:
    assert not plain().training.compiles(1_000_000)
    assert plain().training.compiles(40_000_000)
    assert not plain(compile="never").training.compiles(40_000_000)
    assert plain(compile="always").training.compiles(1)


def test_a_model_is_recalibrated_on_a_stream() -> None:
    trainer = made()
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


def test_the_validation_is_of_the_recalibrated_model() -> None:
    trainer = made()
    stream = [(torch.randint(50, (64, 3)), (torch.rand(64) < 0.2).float()) for _ in range(6)]
    later = [(keys, torch.rand(64).lt(0.6).float()) for keys, _ in stream]
    trainer.fit(stream, validation=later)
    before = trainer.progress.validation
    trainer.recalibrate(later, later)
    assert trainer.progress.validation == trainer.evaluate(later) != before


def test_pruning_keeps_the_rows_of_largest_norm() -> None:
    embedding = HashEmbedding(2)
    keys = torch.arange(5)
    embedding.assign(keys, torch.tensor([[0.0, 3.0], [1.0, 1.0], [-4.0, 0.0], [0.0, 0.0], [2.0, 2.0]]))
    prune_rows(embedding, 2)
    torch.testing.assert_close(embedding.lookup(keys), torch.tensor([[0.0, 3.0], [0, 0], [-4.0, 0.0], [0, 0], [0, 0]]))
    with pytest.raises(ValueError, match=r"keep must be in \[0, 2\], got 6"):
        prune_rows(embedding, 6)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("exported", [False, True])
def test_logits_while_the_next_keys_are_looked_up_are_those_of_the_model(
    log: MemoryLog, exported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = plain(dim=4, hidden=[8], seed=1).build(log)
    batches = list(log.batches(0, 9_000, 2_100))
    for batch in batches[:2]:  # the features of the others are unknown
        model(batch.keys, batch.numbers, batch.bags)
    model.eval()
    ahead: list[int] = []
    kind = FrozenTable if exported else HashEmbedding
    own = kind.prefetch
    monkeypatch.setattr(kind, "prefetch", lambda table, keys: ahead.append(len(keys)) or own(table, keys))
    if exported:
        model = frozen_copy(model, {name: live_rows(table, "int8") for name, table in tables_in(model).items()})
    with torch.no_grad():
        expected = [model(batch.keys, batch.numbers, batch.bags) for batch in batches]
    found = list(logits_over(model, batches))
    assert all(torch.equal(logits, one) for (_, logits), one in zip(found, expected, strict=True))
    assert len(ahead) == len(expected) - 1
    scoring = logits_over(model, batches)
    next(scoring)
    scoring.close()  # given up: nothing stays on the model
    assert not model.embedding._forward_hooks


def test_a_network_in_the_tables_place_is_an_error_that_gives_the_order() -> None:
    model, table = parts()
    with pytest.raises(TypeError, match=r"got MLP: the order is Trainer\(table, network, optimizer\)"):
        Trainer(model, table, GroupAdam(model.parameters()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got MLP: the order is ClickModel\(table, network\)"):
        ClickModel(model, table)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer, such as GroupAdam, got 'adam'"):
        Trainer(table, model, "adam")  # type: ignore[arg-type]


def test_parameters_that_no_optimizer_has_are_an_error_or_a_warning_unless_frozen() -> None:
    model, table = parts()
    with pytest.raises(ValueError, match=r"no optimizer has table\.weight, so that it would never be trained"):
        Trainer(table, model, GroupAdam(model.parameters()))
    with pytest.raises(ValueError, match=r"give its module's parameters\(\) to one"):
        Trainer(table, model, torch.optim.Adam(model.parameters()))
    tables = FieldTables(2, {0: 2, 1: 1})
    with pytest.raises(ValueError, match=r"no optimizer has table\.dim_1\.weight, so"):
        Trainer(tables, model, GroupAdam([*model.parameters(), *tables.tables["dim_2"].parameters()]))
    with pytest.warns(UserWarning, match=r"no optimizer has network\.\S+, .* these stay as they are") as warned:
        Trainer(table, model, GroupAdam(table.parameters()))
    assert warned[0].filename == __file__
    with_fallback = HashEmbedding(2, fallback=True)
    with pytest.warns(UserWarning, match=r"no optimizer has table\.fallback: these stay as they are"):
        Trainer(with_fallback, model, GroupAdam([with_fallback.weight, *model.parameters()]))
    Trainer(table, model, [GroupAdam(table.parameters()), torch.optim.Adam(model.parameters())])
    Trainer(table.requires_grad_(False), model, GroupAdam(model.parameters()))
    model, table = parts()
    Trainer(table, model.requires_grad_(False), GroupAdam(table.parameters()))


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ((np.zeros((4, 3), np.int64), np.zeros(4)), TypeError, r"numbers, labels\), got \['ndarray', 'ndarray'\]"),
        ({"keys": torch.zeros(4, 3)}, TypeError, r"got \['dict'\]"),
        ((KEYS,), TypeError, r"a batch is a Batch, \(keys, labels\) or \(keys, numbers, labels\), got 1 parts"),
        ((torch.zeros(4, 3), torch.zeros(4), torch.ones(4)), ValueError, r"must be \[batch, numbers\], got \[4\]"),
    ],
)
def test_a_batch_of_another_kind_is_named(sample: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made().fit([sample])


@over("use", [Trainer.fit, Trainer.evaluate])
@over("value", ["2", "-1", "nan", "inf", "0.5"])
def test_labels_other_than_0_and_1_are_named_with_their_place(value: str, use: Callable[..., object]) -> None:
    trainer = made()
    before = copy.deepcopy(trainer.network.state_dict())
    wrong = torch.tensor([0, 1, float(value), 0])
    wrong = wrong if wrong[2] != wrong[2].round() or wrong[2].isinf() else wrong.long()
    message = rf"labels must be 0 or 1, got {value} in row 2 of batch 1 of the stream"
    with pytest.raises(ValueError, match=message):
        use(trainer, [(KEYS, LABELS), (KEYS + 100, wrong)])
    assert not trainer.table.contains(KEYS + 100).any()
    for name, tensor in trainer.network.state_dict().items():
        assert torch.equal(tensor, before[name]), "nothing was trained with the batch before it"


def test_0_and_1_may_have_any_dtype_and_a_prediction_needs_no_labels() -> None:
    trainer = made()
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float64):
        trainer.fit([(KEYS, LABELS.to(dtype))])
    assert trainer.samples == 16
    assert np.isfinite(trainer.predict([(KEYS, torch.full((4,), float("nan")))])).all()
