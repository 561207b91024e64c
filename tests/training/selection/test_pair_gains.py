"""Which pairs of fields tell more than their parts: the weights as defined, and what they find."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pair_logs import pair_log
from sparsegroup.objectives import LOGISTIC, Gamma, Huber, Objective
from sparsegroup.rules import bind
from sparsegroup.training import Config
from sparsegroup.training.selection.pair_gains import BETA, LR, Column, PairGains, pair_gains

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
