"""What the experiments choose and compare: excerpts of a log, points at one feature rate, grids and λ."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

from experiment_cases import (
    BASE,
    assert_same,
    outcome,
    result_of,
)
from sparsegroup.data import MemoryLog
from sparsegroup.training import Config
from sparsegroup_paper.choices import TOLERANCE, best, choose_l21, grid
from sparsegroup_paper.datasets import Excerpt, excerpt
from sparsegroup_paper.execution import Worker
from sparsegroup_paper.frontier import L2S
from sparsegroup_paper.lab import Lab, Sample
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import Method, Run
from sparsegroup_paper.statistics import Interval, verdict
from sparsegroup_paper.versus import at_rate, tally, versus

# Excerpts


def test_an_excerpt_is_the_rows_around_the_test_set(log: MemoryLog) -> None:
    part = excerpt(log, 1_000)
    assert (part.train_rows, part.test_rows, len(part), part.features) == (900, 100, 1_000, None)
    assert (part.name, part.fields, part.lists, part.numbers) == (log.name, log.fields, (), ())
    for start, stop in ((0, 1_000), (850, 950), (899, 900), (900, 900)):
        batches = list(part.batches(start, stop, 300))
        keys = [key for batch in batches for key in batch.keys.flatten().tolist()]
        assert keys == log.keys[1_800 + start : 1_800 + stop].flatten().tolist()
        labels = [label for batch in batches for label in batch.labels.tolist()]
        assert labels == log.labels[1_800 + start : 1_800 + stop].tolist()


def test_training_on_an_excerpt_is_training_on_its_rows(log: MemoryLog) -> None:
    rows = MemoryLog("rows", log.fields, log.keys[1_800:2_800], log.labels[1_800:2_800], 900, log.informative)
    ours = result_of(Worker(excerpt(log, 1_000)), Run(BASE))
    assert_same(ours, result_of(Worker(rows), Run(BASE)))


def test_an_excerpt_of_all_rows_is_the_log(log: MemoryLog) -> None:
    whole = excerpt(log, 3_000)
    assert (whole.train_rows, len(whole), whole.features) == (2_700, 3_000, log.features)
    assert len(excerpt(log, 10_000)) == 3_000


@pytest.mark.parametrize(("train_rows", "test_rows"), [(0, 10), (2_701, 0), (10, -1), (10, 301)])
def test_an_excerpt_must_be_in_the_log(log: MemoryLog, train_rows: int, test_rows: int) -> None:
    message = f"has 2,700 training and 300 test rows, got train_rows={train_rows:,}, test_rows={test_rows:,}"
    with pytest.raises(ValueError, match=message):
        Excerpt(log, train_rows, test_rows)


# Comparisons


def sample_of(*pairs: tuple[float, float]) -> Sample:
    """AUC and feature rate of each seed."""
    return Sample(tuple(outcome(auc, rate) for auc, rate in pairs))


def test_between_two_points_auc_is_linear_in_the_logarithm_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegroup_paper.versus.WIDEST_GAP", 6.0)
    points = [
        sample_of((0.70, 0.04), (0.72, 0.04)),
        sample_of((0.60, 0.0), (0.60, 0.0)),  # nothing is left: no logarithm
        sample_of((0.80, 0.16), (0.76, 0.16)),
        sample_of((math.nan, 0.08), (0.99, 0.08)),  # diverged
        sample_of((0.90, 0.97), (0.90, 0.97)),  # more than six times as far
    ]
    for rate, share in ((0.04, 0.0), (0.16, 1.0), (0.08, 0.5), (0.04 * 2**0.5, 0.25)):
        found = at_rate(points, rate)
        assert found is not None
        assert found.aucs == pytest.approx([0.70 + 0.10 * share, 0.72 + 0.04 * share])
        assert found.rates.tolist() == [rate, rate]
        np.testing.assert_allclose(found.resampled.mean(1), found.aucs, rtol=1e-6)
    for rate in (0.039, 0.17, 0.5, 0.98):
        assert at_rate(points, rate) is None
    alone = at_rate(points[:2], 0.0401)  # a point that is as good as there needs no neighbour
    assert alone is not None
    assert alone.aucs == pytest.approx([0.70, 0.72])
    assert at_rate(points[:2], 0.041) is None


def test_points_of_one_rate_are_no_trouble() -> None:
    found = at_rate([sample_of((0.7, 0.5)), sample_of((0.8, 0.5))], 0.5)
    assert found is not None
    assert found.auc in (0.7, 0.8)


def test_the_cells_of_a_comparison() -> None:
    generator = np.random.default_rng(3)
    a, b = (
        Sample(tuple(outcome(auc, resampled=generator.normal(auc, 0.002, 500).astype(np.float32)) for auc in aucs))
        for aucs in ((0.710, 0.712, 0.711), (0.700, 0.703, 0.704))
    )
    difference, low, high, p_value, test, word = versus(a, b).cells
    assert difference == pytest.approx(2.133 / 3 - 2.107 / 3)
    assert cast(float, low) < 2.133 / 3 - 2.107 / 3 < cast(float, high)
    assert p_value == pytest.approx(stats.ttest_rel(a.aucs, b.aucs).pvalue)
    assert (test, word) == ("paired t", "better")
    assert word == verdict(Interval(cast(float, low), cast(float, high)))
    _, _, _, p_value, test, _ = versus(a, b, paired=False).cells
    assert p_value == pytest.approx(stats.ttest_ind(a.aucs, b.aucs, equal_var=False).pvalue)
    assert test == "Welch t"
    assert versus(Sample(a.outcomes[:1]), Sample(b.outcomes[:1])).cells[3:5] == (None, "one seed")
    pairs = [versus(a, b), versus(b, a), versus(a, a)]
    assert tally(pairs) == "better at 1, within noise at 1, worse at 1 of 3; non-inferior at 2"


def test_a_method_that_diverged_is_said_to_have() -> None:
    well = Sample((outcome(0.7, 0.1), outcome(0.7, 0.1)))
    nothing = np.full_like(well.resampled[0], np.nan)
    diverged = Sample((outcome(0.7, 0.1), outcome(math.nan, 1.0, resampled=nothing)))
    one = versus(diverged, well)
    assert one.cells == (None, None, None, None, None, "diverged")
    assert tally([one]) == "better at 0, within noise at 0, worse at 0, diverged at 1 of 1; non-inferior at 0"


# Choices


@dataclass
class Stub:
    """A lab whose feature rate and validation AUC are functions of λ21."""

    rate: Any
    auc: Any = None
    recipe: str = "searched"
    workers: int = 1
    seeds: Sequence[int] = range(2)
    tried: list[float] = field(default_factory=list)
    validated: list[float] = field(default_factory=list)

    def samples(
        self, wanted: Iterable[tuple[Config, Method]], *, validate: bool = False, name: str, seeds: Sequence[int]
    ) -> list[Sample]:
        values = [config.optimizer.l21 for config, _ in wanted]
        (self.validated if validate else self.tried).extend(values)
        return [sample_of(*[(self.auc(value) if self.auc else 0.7, self.rate(value))] * len(seeds)) for value in values]


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


def test_a_grid_ends_where_lambda_does_nothing() -> None:
    stub = Stub(lambda value: 0.5)
    steps = [float(f"{digit}e{power}") for power in range(-8, 3) for digit in (1, 5)]
    assert grid_of(stub) == (*steps, 1e3)


def test_the_papers_recipe_has_the_papers_grid() -> None:
    assert grid_of(Stub(lambda value: 0.5, recipe="paper")) == PAPERS


@pytest.mark.parametrize("limit", [1e-3, 5e-3, 1e-2, 1.0])
def test_l21_is_the_sparsest_that_costs_no_more_than_the_tolerance(limit: float) -> None:
    # Flat up to the limit, but for less than the tolerance; then it falls. The sparsest of all has diverged.
    stub = Stub(
        falling(1e-3),
        lambda value: math.nan if value > 0.09 else 0.7 - (0.9 * TOLERANCE if value <= limit else 2 * TOLERANCE),
    )
    chosen = choose_l21(cast(Lab, stub), BASE)
    assert len(stub.validated) == len(set(stub.validated)) <= 5
    assert len(stub.validated) >= 4
    # They are spread over the feature rates that the grid covers.
    rates = np.log([stub.rate(value) for value in stub.validated])
    assert np.abs(np.diff(np.sort(rates))).max() < 2.5
    assert chosen == max(value for value in stub.validated if value <= min(limit, 0.09))


def test_the_best_of_many_is_not_one_that_diverged() -> None:
    trials = [(1.0, sample_of((0.6, 1))), (2.0, sample_of((math.nan, 1))), (3.0, sample_of((0.7, 1), (0.6, 1)))]
    for order in itertools.permutations(trials):
        assert best(order) == 3.0


def test_pruning_has_as_many_trials_of_a_schedule_as_the_others_have_of_l2() -> None:
    assert len(L2S) == len(published().setup.fine_tune_shares)
    assert len(set(L2S)) == len(L2S)
    assert published().setup.default_l2 in L2S
