"""The streaming pass: test-then-train metrics, the feature rate over features seen, pruning, a reloadable run."""

from dataclasses import dataclass
from itertools import product
from math import ceil
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from plain_settings import plain
from sparsegroup import HashEmbedding
from sparsegroup.data import MemoryLog, SyntheticConfig, synthetic_log
from sparsegroup.optim import GroupOptimizer
from sparsegroup.settings.names import OptimizerName
from sparsegroup.training import (
    ClickModel,
    Config,
    HistoryPoint,
    Metrics,
    Session,
    Trainer,
    evaluate,
    load_model,
    load_run,
    predict,
    prune_rows,
)

WINDOWS = 50


@dataclass(frozen=True)
class Trained:
    history: list[HistoryPoint]
    test: Metrics
    feature_rate: float
    live_rows: int


def train(
    model: ClickModel, optimizer: GroupOptimizer, log: MemoryLog, *, batch_size: int = 512, rows: int | None = None
) -> Trained:
    """Train on the training rows, or the first of them, and measure on the test rows, or the other training rows."""
    stop, end = (log.train_rows, len(log)) if rows is None else (rows, log.train_rows)
    window = ceil(stop / batch_size / WINDOWS) * batch_size
    trainer = Trainer(model.embedding, model.network, optimizer, window=window)
    history = trainer.fit(log.batches(0, stop, batch_size))
    return Trained(history, score(model, log, stop, end), model.embedding.feature_rate, model.embedding.num_live)


def score(model: ClickModel, log: MemoryLog, start: int, stop: int) -> Metrics:
    return predict(model, log.batches(start, stop, 4096)).metrics()


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return synthetic_log(SyntheticConfig(rows=20_000, cardinalities=(10, 100, 2_000)), seed=3)


def test_training_learns_and_the_history_covers_the_pass(log: MemoryLog) -> None:
    model, optimizer = plain(lr=1e-2).build(log)
    untrained = score(model, log, log.train_rows, len(log))
    trained = train(model, optimizer, log)
    assert trained.test.auc > 0.62
    assert untrained.auc < 0.58
    assert trained.test.log_loss < untrained.log_loss
    samples = [point.samples for point in trained.history]
    assert samples == sorted(set(samples))
    assert samples[-1] == log.train_rows
    assert WINDOWS // 2 <= len(samples) <= WINDOWS


def test_history_tests_each_sample_before_training_on_it(log: MemoryLog) -> None:
    # With one batch as the whole window, the first point must be that of the untrained model.
    config = plain(lr=1e-2, batch_size=log.train_rows)
    model, optimizer = config.build(log)
    untrained, _ = config.build(log)
    batch = next(log.batches(0, log.train_rows, log.train_rows))
    ids, labels = batch.keys, batch.labels
    before = evaluate(labels.numpy(), torch.sigmoid(untrained(ids).detach().double()).numpy())
    history = train(model, optimizer, log, batch_size=log.train_rows).history
    assert len(history) == 1
    assert history[0].auc == pytest.approx(before.auc, abs=1e-6)
    assert history[0].log_loss == pytest.approx(before.log_loss, abs=1e-6)


def test_more_l21_keeps_fewer_features_and_none_keeps_all(log: MemoryLog) -> None:
    rates = []
    for l21 in (0.0, 1e-4, 1e-3, 1e-2, 10.0):
        model, optimizer = plain(lr=1e-2, l21=l21).build(log)
        trained = train(model, optimizer, log)
        assert trained.live_rows == sum(len(keys) for keys, _ in model.embedding.items())
        assert trained.feature_rate == trained.live_rows / log.features
        rates.append(trained.feature_rate)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1
    assert rates[-1] == 0


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        *product(["dcn"], get_args(OptimizerName)),
        *product(["lr", "fm", "deepfm", "mlp", "opnn", "dcnv2", "xdeepfm"], ["adahessian"]),
    ],
)
def test_every_optimizer_trains_every_model_twice_the_same(log: MemoryLog, model: str, optimizer: str) -> None:
    dim = 1 if model == "lr" else 4
    config = plain(model=model, optimizer=optimizer, lr=1e-2, l21=1e-3, dim=dim, seed=5)
    results = []
    for _ in range(2):
        network, group_optimizer = config.build(log)
        trained = train(network, group_optimizer, log, rows=2_000)
        results.append((trained, network.state_dict()))
    (one, weights), (two, same) = results
    assert one == two
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert np.isfinite(one.test.log_loss)


def test_pruning_keeps_the_rows_of_largest_norm() -> None:
    embedding = HashEmbedding(2)
    keys = torch.arange(5)
    embedding.assign(keys, torch.tensor([[0.0, 3.0], [1.0, 1.0], [-4.0, 0.0], [0.0, 0.0], [2.0, 2.0]]))
    prune_rows(embedding, 2)
    torch.testing.assert_close(embedding.lookup(keys), torch.tensor([[0.0, 3.0], [0, 0], [-4.0, 0.0], [0, 0], [0, 0]]))
    with pytest.raises(ValueError, match=r"keep must be in \[0, 2\], got 6"):
        prune_rows(embedding, 6)


def test_a_saved_run_predicts_the_same(log: MemoryLog, tmp_path: Path) -> None:
    session = Session.begin(tmp_path / "run", Config.of(model="opnn", lr=1e-2, l21=1e-3, dim=4, selection="never"), log)
    summary = session.train()
    expected = predict(session.model, log.batches(log.train_rows, len(log), 4096)).probabilities()
    again = load_model(tmp_path / "run")
    np.testing.assert_array_equal(predict(again, log.batches(log.train_rows, len(log), 4096)).probabilities(), expected)
    run = load_run(tmp_path / "run")
    assert (run.config, run.summary, run.history) == (session.config, summary, session.trainer.history)
