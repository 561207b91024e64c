"""Objectives: their derivatives, links and deviances against autograd and scikit-learn, and training with each."""

import numpy as np
import polars as pl
import pytest
import sklearn.metrics
import torch

from log_cosh import LogCosh
from over import over
from sparsegroup import HashEmbedding
from sparsegroup.data import FrameLog
from sparsegroup.models import LR, OPNN
from sparsegroup.objectives import (
    LOGISTIC,
    Binomial,
    FakeNegatives,
    Gamma,
    Huber,
    Objective,
    Poisson,
    Quantile,
    Softmax,
    Squared,
    Tweedie,
)
from sparsegroup.optim import GroupAdagrad
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Config, Trainer, network_step
from sparsegroup.training.baseline import LinearBaseline
from sparsegroup.training.metrics import measure
from sparsegroup.training.network_step import NetworkStep, has_compiler
from sparsegroup.training.predictions import as_batch
from sparsegroup.training.ranks import GlobalBatch

OBJECTIVES = [
    LOGISTIC, Squared(scale=3.0), Huber(delta=0.4, scale=3.0), Quantile(alpha=0.8, scale=3.0), Poisson(), Gamma(),
    Tweedie(power=1.3), LogCosh(scale=3.0), Binomial(),
]  # fmt: skip
DRAW = np.random.default_rng(0)
NUMBERS, WEIGHTS = DRAW.gamma(2.0, 3.0, 400), DRAW.random(400) + 0.1


def labels_for(objective: Objective) -> np.ndarray:
    if isinstance(objective, Binomial):
        return NUMBERS / (1 + NUMBERS.max())
    return (NUMBERS > 5).astype(float) if objective.is_binary else NUMBERS


def test_positives_that_come_later_correct_their_negatives() -> None:
    """Each row is a negative, a share p of them later a positive as well: the derivative is 0 at p alone."""
    objective, p = FakeNegatives(), 0.2
    scores = torch.tensor([-3.0, float(np.log(p / (1 - p))), 0.0], dtype=torch.float64)
    sums = objective.gradient(scores, torch.zeros(3)) + p * objective.gradient(scores, torch.ones(3))
    assert sums[0] < 0 < sums[2]
    assert abs(float(sums[1])) < 1e-15
    labels, weights = np.repeat([0.0, 1.0], [10_000, 2_000]), np.ones(12_000)
    assert abs(objective.best_constant(labels, weights) - p) < 1e-3
    assert abs(1 / (1 + np.exp(-objective.shift(np.zeros(12_000), labels, weights))) - p) < 1e-9


@over("objective", [*OBJECTIVES, FakeNegatives()])
def test_the_gradient_is_the_derivative_of_the_loss(objective: Objective) -> None:
    labels, scores = torch.tensor(labels_for(objective)), torch.randn(400, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(objective.losses(scores, labels).sum(), scores)
    torch.testing.assert_close(objective.gradient(scores.detach(), labels), expected, rtol=1e-12, atol=1e-12)
    weighted = objective.mean_loss(scores, labels, torch.tensor(WEIGHTS))
    torch.testing.assert_close(weighted, (objective.losses(scores, labels) * torch.tensor(WEIGHTS)).mean())


@over("objective", OBJECTIVES)
def test_losses_differ_as_deviances_do_in_their_unit(objective: Objective) -> None:
    labels, scores = labels_for(objective)[:50], DRAW.normal(size=(2, 50))
    losses = [objective.losses(torch.tensor(one), torch.tensor(labels)).numpy() for one in scores]
    deviances = [objective.deviance(labels, objective.predict(torch.tensor(one)).numpy()) for one in scores]
    np.testing.assert_allclose(losses[1] - losses[0], (deviances[1] - deviances[0]) / objective.loss_unit, atol=1e-10)


@over("objective", OBJECTIVES)
def test_the_best_constant_and_the_shift_have_the_lowest_loss(objective: Objective) -> None:
    labels, weights = labels_for(objective), WEIGHTS * (100 if isinstance(objective, Binomial) else 1)  # of many tries
    best = objective.best_constant(labels, weights)
    losses = [float(weights @ objective.deviance(labels, np.full(400, best * factor))) for factor in (0.99, 1, 1.01)]
    assert losses[1] == min(losses)
    scores = DRAW.normal(size=400)
    shift = objective.shift(scores, labels, weights)

    def loss(at: float) -> float:
        every = objective.losses(torch.tensor(scores + at), torch.tensor(labels))
        return float((every * torch.tensor(weights)).sum())

    assert loss(shift) <= min(loss(shift - 0.02), loss(shift + 0.02))
    if objective.name in ("squared", "poisson"):
        shifted = objective.predict(torch.tensor(scores + shift)).numpy()
        assert objective.calibration(labels, shifted, weights) == pytest.approx(1)


def test_deviances_are_scikit_learns() -> None:
    y, mu, metrics = NUMBERS, NUMBERS[::-1] + 0.5, sklearn.metrics
    expected = {
        Squared(): metrics.mean_squared_error(y, mu),
        Quantile(alpha=0.8): metrics.mean_pinball_loss(y, mu, alpha=0.8),
        Poisson(): metrics.mean_poisson_deviance(y, mu),
        Gamma(): metrics.mean_gamma_deviance(y, mu),
        Tweedie(power=1.3): metrics.mean_tweedie_deviance(y, mu, power=1.3),
    }
    for objective, value in expected.items():
        assert objective.deviance(y, mu).mean() == pytest.approx(value), objective
    found = measure(Squared(), y, mu, WEIGHTS.astype(np.float32))
    assert found.relative_loss == pytest.approx(1 - metrics.r2_score(y, mu, sample_weight=WEIGHTS.astype(np.float32)))
    assert measure(Quantile(alpha=0.8), y, np.full(400, np.quantile(y, 0.8))).calibration == pytest.approx(1, abs=0.01)


def test_a_share_of_tries_is_as_many_rows_of_0_and_1() -> None:
    some, tries, scores = DRAW.integers(5, size=50), DRAW.integers(5, 9, size=50), DRAW.normal(size=50)
    labels = np.concatenate([np.repeat([1.0, 0.0], [one, all_ - one]) for one, all_ in zip(some, tries, strict=True)])
    each, ours, rows = np.repeat(scores, tries), Binomial(), torch.from_numpy
    shares, weights = some / tries, tries.astype(float)
    loss = ours.mean_loss(rows(scores), rows(shares), rows(weights), total=True)
    assert loss.item() == pytest.approx(LOGISTIC.losses(rows(each), rows(labels)).sum().item())
    assert ours.start(shares, weights) == pytest.approx(LOGISTIC.start(labels, np.ones(len(labels))))
    p = 1 / (1 + np.exp(-scores))
    entropy = sklearn.metrics.log_loss(labels, np.repeat(shares, tries)) * len(labels)
    expected = sklearn.metrics.log_loss(labels, np.repeat(p, tries)) * len(labels) - entropy
    assert weights @ ours.deviance(shares, p) == pytest.approx(expected)


@pytest.mark.whole
@pytest.mark.parametrize(("objective", "outputs"), [(Poisson(), 1), (Softmax(classes=4), 4)])
def test_parts_of_a_batch_and_compiled_passes_have_the_gradients_of_the_whole(
    objective: Objective, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = torch.tensor(NUMBERS[:64] % 4, dtype=torch.float32).floor()
    batch, found, compiled = as_batch((torch.zeros(64, 3, dtype=torch.int64), labels)), [], []
    object.__setattr__(batch, "weights", torch.tensor(WEIGHTS[:64], dtype=torch.float32))
    for work, compiles in ((network_step.MIN_WORK_TO_SPLIT, False), (5, False), (network_step.MIN_WORK_TO_SPLIT, True)):
        monkeypatch.setattr(network_step, "MIN_WORK_TO_SPLIT", work)
        torch.manual_seed(1)
        network, vectors = (
            OPNN(3, 4, hidden=(8,), dropout=0.0, outputs=outputs),
            torch.randn(64, 3, 4, requires_grad=True),
        )
        step = NetworkStep(network, objective=objective, compile=compiles)
        logits, loss = step.backward(vectors, None, GlobalBatch(batch, 64))
        found.append([logits, loss, vectors.grad, *(parameter.grad for parameter in network.parameters())])
        compiled.append(step._compiled_passes is not None and step._compiles)
    assert compiled == [False, False, has_compiler()]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[2], found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("objective", [OBJECTIVES[number] for number in (3, 7)], ids=str)
def test_a_model_and_its_baseline_learn_what_a_value_means(objective: Objective) -> None:
    """Of a log of one field, the best prediction for each value is that of a constant for its rows."""
    draw = np.random.default_rng(1)
    values = draw.integers(4, size=4_000)
    numbers = (draw.gamma(4, 0.5, 4_000) * (values + 1) + 0.1).astype(np.float32)
    log = FrameLog(pl.DataFrame({"value": [f"v{value}" for value in values]}), numbers)
    config = Config.of(model="lr", objective=objective, l21=0.0, optimizer="adagrad", lr=0.3, batch_size=100, epochs=8)
    config = config.replace(fallback=False).resolved_for(log)
    model, optimizer = config.build(log)
    plan = config.training.plan(log.train_rows)
    trainer = config.trainer(model, optimizer, plan)
    trainer.fit_plan(plan, log)
    baseline = LinearBaseline(objective=config.objective)
    for batch in (one for _ in range(3) for one in log.batches(0, 4_000, 500)):
        baseline.learn(batch)
    (whole,) = log.batches(0, 4_000, 4_000)
    of_baseline = config.objective.predict(baseline.predict(whole).double()).numpy()
    of_model = trainer.predict([whole])
    for value in range(4):
        own = values == value
        best = config.objective.best_constant(numbers[own].astype(float), np.ones(own.sum()))
        assert of_model[own][0] == pytest.approx(best, rel=0.06), value
    losses = [measure(config.objective, numbers, one).loss for one in (of_model, of_baseline)]
    assert losses[0] <= losses[1] < 1.2 * losses[0]  # which is one row at a time, at a high rate


def test_labels_that_an_objective_does_not_take_are_named() -> None:
    table, network = HashEmbedding(1), LR(1)
    optimizer = GroupAdagrad([*table.parameters(), *network.parameters()], lr=0.1)
    batch = (torch.zeros(2, 1, dtype=torch.int64), torch.tensor([1.0, -1.0]))
    for objective, words in (
        (Gamma(), "finite numbers > 0"),
        (Poisson(), "finite numbers >= 0"),
        (Binomial(), r"shares in \[0, 1\]"),
        (LOGISTIC, "0 or 1"),
    ):
        with pytest.raises(ValueError, match=f"labels must be {words}, got -1 in row 1 of batch 0"):
            Trainer(table, network, optimizer, objective=objective).fit([batch])
    log = FrameLog(pl.DataFrame({"a": ["x", "y"] * 50}), [1.0, 2.5] * 50)
    with pytest.raises(SettingsError, match=r"labels that are numbers, and logistic takes 0 and 1: choose"):
        Config().build(log)
    with pytest.raises(SettingsError, match="objective: objective must be one of 'logistic', 'binomial'"):
        Config.of(objective="rank")
