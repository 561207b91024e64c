"""Settings that trials choose: only what is open, on training rows alone, the simplest of what is as good; pairs."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pair_logs import pair_log
from sparsegroup.data import MemoryLog, SyntheticConfig, synthetic_log
from sparsegroup.objectives import LOGISTIC, Gamma, Huber, Objective
from sparsegroup.reporting.run_record import Trial
from sparsegroup.rules import bind
from sparsegroup.training import Config, evaluate, settings_by_trials
from sparsegroup.training.selection import trials
from sparsegroup.training.selection.pair_gains import BETA, LR, Column, PairGains, pair_gains
from sparsegroup.training.selection.trials import HELD_OUT, MOST_EPOCHS

SLOW: dict[str, Any] = {"model": "lr", "lr": 0.003, "network_lr": 0.003}
"""Too slow to be done after a pass."""


def chosen_of(trials: tuple[Trial, ...]) -> Trial:
    (chosen,) = (one for one in trials if one.is_chosen)
    return chosen


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"selection": "never"}, 8_000),
        ({"validation": 0.1}, 8_000),
        ({"schedule": "linear"}, 8_000),
        ({"warmup": 0.1}, 8_000),
        ({}, 5_000),
        ({"epochs": 1, "l2": 0.0, "target_bytes": 1_000, "pairs": "none"}, 8_000),  # lr has no shorter vectors
    ],
    ids=str,
)
def test_nothing_is_tried_where_nothing_is_open(settings: dict[str, Any], rows: int) -> None:
    log, config = pair_log(0.0, rows), Config.of(model="lr", **settings)
    assert settings_by_trials(config, log) == (config.resolved_for(log), ())


def test_a_given_setting_is_in_every_trial_and_test_rows_are_not_read() -> None:
    log = pair_log(1.5, 8_000)
    labels = log.labels.copy()
    labels[log.train_rows :] = 1 - labels[log.train_rows :]
    other = MemoryLog("pairs", log.fields, log.keys, labels, log.train_rows)
    given = Config.of(model="lr", pairs="a*b", l2=1e-4, epochs=2)
    config, tried = settings_by_trials(given, log)
    assert settings_by_trials(given, other) == (config, tried)
    assert {(one.pairs, one.l2) for one in tried} == {(("a*b",), 1e-4)}
    assert (config.training.epochs, config.model.pairs, config.optimizer.l2) == (2, ("a*b",), 1e-4)
    assert chosen_of(tried).epochs == 2


def test_a_pair_that_is_no_better_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PairGains, "best", lambda self: [(0, 2)])
    config, tried = settings_by_trials(Config.of(model="lr", epochs=1, l2=0.0), pair_log(0.0, 8_000))
    assert [one.pairs for one in tried[:2]] == [(), ("a*c",)]
    assert config.model.pairs == ()
    assert len(set(tried)) == len(tried)


NARROW: dict[str, Any] = {"model": "dcn", "epochs": 1, "l2": 0.0, "pairs": "none", "target_bytes": 1_500}


@pytest.mark.parametrize(
    "settings",
    [{"target_bytes": 100_000}, {"dim": 8}, {"max_table_bytes": "1GB"}],
    ids=str,
)
def test_vectors_keep_their_length_where_more_features_fit_or_it_is_given(settings: dict[str, Any]) -> None:
    given = Config.of(**NARROW | settings)
    config, tried = settings_by_trials(given, synthetic_log(SyntheticConfig(rows=8_000)))
    assert len(tried) <= 1
    assert config.model.dims == given.model.dims


def test_a_trial_that_diverges_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    train = trials._Training.train

    def diverging(self: trials._Training, *arguments: Any) -> None:
        train(self, *arguments)
        if self.config.optimizer.l2 or self.config.model.pairs:
            self.scores.clear()
            raise FloatingPointError("diverged")

    monkeypatch.setattr(trials._Training, "train", diverging)
    config, tried = settings_by_trials(Config.of(model="lr", epochs=1), pair_log(1.5, 8_000))
    assert tried
    assert all(not one.l2 and not one.pairs for one in tried)
    assert (config.model.pairs, config.optimizer.l2) == ((), 0.0)


def test_of_a_long_log_only_pairs_are_tried_on_the_last_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MOST_ROWS", 8_000)
    monkeypatch.setattr(trials, "SAMPLE", 8_000)
    log = pair_log(1.5)
    config, found = settings_by_trials(Config.of(model="lr"), log)
    assert [(one.pairs, one.epochs, one.l2) for one in found] == [((), 1, 0.0), (("b*d",), 1, 0.0)]
    assert config.model.pairs == ("b*d",)
    labels = log.labels.copy()
    labels[: log.train_rows - 8_000] = 1 - labels[: log.train_rows - 8_000]
    other = MemoryLog("pairs", log.fields, log.keys, labels, log.train_rows)
    assert settings_by_trials(Config.of(model="lr"), other) == (config, found)


def test_a_model_that_needs_more_passes_gets_them_and_a_trial_is_the_run_of_its_settings() -> None:
    log = synthetic_log(SyntheticConfig(rows=8_000))
    given = Config.of(**SLOW, l2=0.0)
    chosen_config, tried = settings_by_trials(given, log)
    chosen = chosen_of(tried)
    assert 1 < chosen.epochs == chosen_config.training.epochs <= MOST_EPOCHS
    assert chosen.log_loss < tried[0].log_loss
    assert (chosen_config.given_keys, chosen_config.training.validation) == (given.given_keys, 0.0)
    for mode in ("train", "reset"):
        trial = next(one for one in tried if one.after_first_epoch == mode and one.epochs == 2)
        config = Config.of(**SLOW, epochs=2, validation=HELD_OUT, after_first_epoch=mode).resolved_for(log)
        plan = config.training.plan(log.train_rows)
        trainer = config.trainer(*config.build(log), plan)
        measured = trainer.fit(**plan.arguments(log))[-1]
        assert trial.auc == measured.validation_auc
        window = trainer.predictions(plan.arguments(log)["validation"](1))
        shifted = 1 / (1 + np.exp(-window.logits() - window.shift()))
        assert trial.log_loss == pytest.approx(evaluate(window.labels(), shifted).log_loss, rel=1e-9)
        assert trial.log_loss < measured.validation_log_loss


Float64s = npt.NDArray[np.float64]


def by_definition(
    left: list[int], right: list[int], logits: Float64s, labels: Float64s, objective: Objective
) -> tuple[Float64s, Float64s]:
    """The same, with a dictionary for each kind of weights."""
    parts: dict[tuple[str, int], list[float]] = {}
    pairs: dict[tuple[int, int], list[float]] = {}
    unseen = [0.0, 0.0]

    def learn(at: list[float], gradient: float) -> None:
        at[1] += gradient**2
        at[0] -= LR * gradient / (math.sqrt(at[1]) + BETA)

    residual = bind(type(objective).residual, np)

    def loss(score: float, label: float) -> float:
        both = (torch.tensor([one], dtype=torch.float64) for one in (score, label))
        return objective.losses(*both).item()

    gains, of_pair = [], []
    for a, b, logit, label in zip(left, right, logits, labels, strict=True):
        first, second = parts.setdefault(("left", a), [0.0, 0.0]), parts.setdefault(("right", b), [0.0, 0.0])
        weight = pairs.get((a, b), unseen)[0]
        plain = logit + first[0] + second[0]
        gains.append(loss(plain, label) - loss(plain + weight, label))
        of_pair.append(weight)
        error = residual(plain, label, objective.shape)
        learn(first, error)
        learn(second, error)
        error = residual(plain + weight, label, objective.shape)
        if (a, b) not in pairs:
            pairs[a, b] = [weight, 0.0]
            learn(unseen, error)
        learn(pairs[a, b], error)
    return np.array(gains), np.array(of_pair)


@pytest.mark.parametrize("objective", [LOGISTIC, Gamma(), Huber(delta=0.5)], ids=str)
def test_gains_are_those_of_the_definition_and_a_row_of_weight_0_teaches_nothing(objective: Objective) -> None:
    rng = np.random.default_rng(0)
    left, right = rng.integers(1 << 60, size=8)[rng.integers(8, size=300)], rng.integers(5, size=300)
    logits, labels = rng.normal(size=300), (rng.random(300) < 0.3).astype(float)
    labels = labels if objective.is_binary else labels + rng.gamma(2.0, size=300)
    counted = rng.random(300) < 0.8
    gains, of_pair = pair_gains(Column.of(left), Column.of(right), logits, labels, counted.astype(float), objective)
    rows = [one[counted] for one in (left, right, logits, labels)]
    expected, weights = by_definition(rows[0].tolist(), rows[1].tolist(), rows[2], rows[3], objective)
    np.testing.assert_allclose(of_pair[counted], weights, rtol=1e-12, atol=1e-15)
    kink = 0.01 if isinstance(objective, Huber) else 0  # where the integral is less exact
    np.testing.assert_allclose(gains[counted], expected, rtol=1e-6, atol=kink or 1e-9)
    assert not gains[~counted].any()


@pytest.mark.parametrize(("effect", "seed"), [(1.5, 0), (1.5, 1), *((0.0, seed) for seed in range(4))])
def test_a_pair_with_an_effect_is_found_and_no_other(effect: float, seed: int) -> None:
    log = pair_log(effect, seed=seed)
    config = Config.of(model="lr", lr=0.1).resolved_for(log)
    gains, plan = PairGains(), config.training.plan(log.train_rows)
    config.trainer(*config.build(log), plan, [gains]).fit(**plan.arguments(log))
    assert gains.best() == ([(1, 3)] if effect else [])
