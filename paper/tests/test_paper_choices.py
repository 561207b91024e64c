"""What the experiments choose: grids, λ, the best of several; and the paper's numbers, which agree with its text."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from experiment_cases import BASE, outcome
from sparsegroup_paper.choices import TOLERANCE, best, choose_l21, grid
from sparsegroup_paper.frontier import L2S
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import Sample
from sparsegroup_paper.statistics import count_significant


def sample_of(*aucs, rate=1.0):
    return Sample(tuple(outcome(auc, rate) for auc in aucs))


@dataclass
class Stub:
    """A lab whose feature rate and validation AUC are functions of λ21."""

    rate: Any
    auc: Any = lambda value: 0.7
    recipe: str = "searched"
    workers: int = 1
    seeds: Any = range(2)
    tried: list[float] = field(default_factory=list)
    trials: list[float] = field(default_factory=list)

    def plain(self, configs, name, seeds):
        values = [config.optimizer.l21 for config in configs]
        self.tried += values
        return [sample_of(*[self.auc(value)] * len(seeds), rate=self.rate(value)) for value in values]

    def validated(self, configs, name, seeds):
        self.trials += [config.optimizer.l21 for config in configs]
        return self.plain(configs, name, seeds)


def falling(middle):
    """A feature rate that is a half at `middle`."""
    return lambda value: 1 / (1 + value / middle)


PAPERS = (1e-4, 5e-4, 1e-3, 5e-3, 1e-2)


@pytest.mark.parametrize("workers", [1, 5])
def test_a_grid_steps_through_1_and_5_of_each_decade_from_many_features_to_few(workers):
    for middle, expected in (
        (1e-3, (1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1, 5e-1)),
        (1e-6, (1e-7, 5e-7, 1e-6, 5e-6, 1e-5, 5e-5, *PAPERS)),
        (1.0, (*PAPERS, 0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0)),
    ):
        stub = Stub(falling(middle), workers=workers)
        assert grid(stub, BASE) == expected
        assert len(stub.tried) == len(set(stub.tried)) <= len(expected) + 2 * workers


def test_a_grid_ends_where_lambda_does_nothing_and_the_papers_recipe_has_the_papers():
    steps = [float(f"{digit}e{power}") for power in range(-8, 3) for digit in (1, 5)]
    assert grid(Stub(lambda value: 0.5), BASE) == (*steps, 1e3)
    assert grid(Stub(lambda value: 0.5, recipe="paper"), BASE) == PAPERS


@pytest.mark.parametrize("limit", [1e-3, 1e-2, 1.0])
def test_l21_is_the_sparsest_that_costs_no_more_than_the_tolerance(limit):
    def auc(value):
        """Falls by less than the tolerance up to the limit, then by more; the sparsest of all has diverged."""
        return math.nan if value > 0.09 else 0.7 - TOLERANCE * (0 if value <= 1e-3 else 0.9 if value <= limit else 2)

    stub = Stub(falling(1e-3), auc)
    chosen = choose_l21(stub, BASE)
    assert 4 <= len(stub.trials) == len(set(stub.trials)) <= 5
    rates = np.log([stub.rate(value) for value in stub.trials])
    assert np.abs(np.diff(np.sort(rates))).max() < 2.5  # spread over those of the grid
    assert chosen == max(value for value in stub.trials if value <= min(limit, 0.09))


def test_the_best_of_many_is_not_one_that_diverged():
    trials = [(1.0, sample_of(0.6)), (2.0, sample_of(math.nan)), (3.0, sample_of(0.7, 0.6))]
    assert {best(order) for order in itertools.permutations(trials)} == {3.0}


NETWORKS = ("mlp", "opnn", "dcn")
DISAGREEING = {("dcn", 0.518): (0.8018, 0.8019), ("dcn", 0.062): (0.8017, 0.8018)}  # Table 2, Table 8: as printed


def test_claims_follow_from_table_2():
    points, claims = [point for of in published()["sparsity"].values() for point in of], published()["claims"]
    cells = [(point["p_value"], point["feature_rate"], point["group_adam_auc"] - point["adam_auc"]) for point in points]
    everywhere = count_significant(cells, claims["confidence"])
    at_low_rate = count_significant(cells, claims["confidence"], below=claims["low_feature_rate"])
    assert (everywhere, everywhere.share) == ((9, 15), claims["share_significant"])
    assert (at_low_rate, at_low_rate.share) == ((7, 8), claims["share_significant_at_low_rate"])


def test_the_papers_tables_agree_and_its_grids_are_whole():
    paper, setup = published(), published()["setup"]
    for network in NETWORKS:
        points = paper["sparsity"][network]
        assert [point["l21"] for point in points] == list(PAPERS)
        rates = [point["feature_rate"] for point in points]
        assert rates == sorted(rates, reverse=True)
        for pruned, point in zip(paper["fine_tune"][network], points, strict=True):
            assert pruned["feature_rate"] == point["feature_rate"]
            assert set(pruned["aucs"]) == set(setup["fine_tune_shares"])
            best = max(pruned["aucs"].values())
            assert (point["adam_auc"], best) == DISAGREEING.get((network, point["feature_rate"]), (best, best))
    assert {rate for of in paper["learning_rates"].values() for rate in of.values()} <= set(setup["learning_rate_grid"])
    assert [len(grid) for grid in paper["norm_grids"].values()] == [10, 10]
    # Pruning has as many trials as the others.
    assert setup["default_l2"] in L2S
    assert len(set(L2S)) == len(L2S) == len(setup["fine_tune_shares"])
