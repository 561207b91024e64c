"""What the experiments choose: grids, λ, and the best of several."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from experiment_cases import BASE, outcome
from sparsegroup.training import Config
from sparsegroup_paper.choices import TOLERANCE, best, choose_l21, grid
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.runs import Sample


def sample_of(*aucs: float, rate: float = 1.0) -> Sample:
    return Sample(tuple(outcome(auc, rate) for auc in aucs))


@dataclass
class Stub:
    """A lab whose feature rate and validation AUC are functions of λ21."""

    rate: Any
    auc: Any = lambda value: 0.7
    recipe: str = "searched"
    workers: int = 1
    seeds: Sequence[int] = range(2)
    tried: list[float] = field(default_factory=list)
    trials: list[float] = field(default_factory=list)

    def plain(self, configs: Iterable[Config], name: str, seeds: Sequence[int]) -> list[Sample]:
        values = [config.optimizer.l21 for config in configs]
        self.tried += values
        return [sample_of(*[self.auc(value)] * len(seeds), rate=self.rate(value)) for value in values]

    def validated(self, configs: Iterable[Config], name: str, seeds: Sequence[int]) -> list[Sample]:
        given = list(configs)
        self.trials += [config.optimizer.l21 for config in given]
        return self.plain(given, name, seeds)


def grid_of(stub: Stub) -> tuple[float, ...]:
    return grid(cast(Lab, stub), BASE)


def falling(middle: float) -> Any:
    """A feature rate that is a half at `middle`."""
    return lambda value: 1 / (1 + value / middle)


PAPERS = (1e-4, 5e-4, 1e-3, 5e-3, 1e-2)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(
    ("middle", "expected"),
    [
        (1e-3, (1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1, 5e-1)),
        (1e-6, (1e-7, 5e-7, 1e-6, 5e-6, 1e-5, 5e-5, *PAPERS)),
        (1.0, (*PAPERS, 0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0)),
    ],
)
def test_a_grid_steps_through_1_and_5_of_each_decade_from_many_features_to_few(
    middle: float, expected: tuple[float, ...], workers: int
) -> None:
    stub = Stub(falling(middle), workers=workers)
    assert grid_of(stub) == expected
    assert stub.rate(expected[0]) >= 0.9
    assert stub.rate(expected[-1]) <= 0.005
    assert len(stub.tried) == len(set(stub.tried)) <= len(expected) + 2 * workers


def test_a_grid_ends_where_lambda_does_nothing_and_the_papers_recipe_has_the_papers() -> None:
    steps = [float(f"{digit}e{power}") for power in range(-8, 3) for digit in (1, 5)]
    assert grid_of(Stub(lambda value: 0.5)) == (*steps, 1e3)
    assert grid_of(Stub(lambda value: 0.5, recipe="paper")) == PAPERS


@pytest.mark.parametrize("limit", [1e-3, 5e-3, 1e-2, 1.0])
def test_l21_is_the_sparsest_that_costs_no_more_than_the_tolerance(limit: float) -> None:
    # Flat up to the limit, but for less than the tolerance; then it falls. The sparsest of all has diverged.
    stub = Stub(
        falling(1e-3),
        lambda value: math.nan if value > 0.09 else 0.7 - (0.9 * TOLERANCE if value <= limit else 2 * TOLERANCE),
    )
    chosen = choose_l21(cast(Lab, stub), BASE)
    assert 4 <= len(stub.trials) == len(set(stub.trials)) <= 5
    # They are spread over the feature rates that the grid covers.
    rates = np.log([stub.rate(value) for value in stub.trials])
    assert np.abs(np.diff(np.sort(rates))).max() < 2.5
    assert chosen == max(value for value in stub.trials if value <= min(limit, 0.09))


def test_the_best_of_many_is_not_one_that_diverged() -> None:
    trials = [(1.0, sample_of(0.6)), (2.0, sample_of(math.nan)), (3.0, sample_of(0.7, 0.6))]
    for order in itertools.permutations(trials):
        assert best(order) == 3.0
