import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from experiment_cases import outcome
from sparsegroup_paper.resampling import BLOCK, resampled_aucs, weights
from sparsegroup_paper.runs import Sample
from sparsegroup_paper.statistics import (
    Interval,
    at_rate,
    bootstrap_difference,
    count_significant,
    t_test,
    tally,
    verdict,
    versus,
)


def predictions(rows, decimals=None, seed=0):
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < 0.25).astype(np.int64)
    scores = generator.normal(size=rows) + labels
    return labels, scores if decimals is None else scores.round(decimals)


@pytest.mark.parametrize(("rows", "decimals"), [(300, 0), (2 * BLOCK + 37, 1), (BLOCK, None)])
def test_a_resampled_auc_is_the_auc_with_the_weights(rows, decimals):
    labels, scores = predictions(rows, decimals)
    aucs = resampled_aucs(labels, scores, replicates=7, seed=3)
    expected = [roc_auc_score(labels, scores, sample_weight=weights(rows, number, seed=3)) for number in range(7)]
    np.testing.assert_allclose(aucs, expected, rtol=0, atol=1e-14)
    assert resampled_aucs(labels, np.zeros_like(scores), 5).tolist() == [0.5] * 5  # all tie


def test_weights_are_poisson_and_depend_on_seed_replicate_and_row_alone():
    assert weights(1000, 4, seed=1)[:10].tolist() == weights(10, 4, seed=1).tolist()
    assert np.mean(weights(1000, 4, seed=2) == weights(1000, 4, seed=1)) < 0.5
    assert weights(12, 7, seed=5).tolist() == [0, 1, 0, 2, 1, 1, 1, 0, 1, 0, 1, 0]  # as results on disk have them
    drawn = np.array([weights(50_000, replicate) for replicate in range(10)])
    expected = stats.poisson.pmf(np.arange(12), 1)
    assert np.abs(np.bincount(drawn.ravel(), minlength=12) / drawn.size - expected).max() < 0.003
    assert np.abs(np.corrcoef(drawn) - np.eye(10)).max() < 0.025
    assert abs(np.corrcoef(drawn[:, 1:].ravel(), drawn[:, :-1].ravel())[0, 1]) < 0.01


def test_one_class_alone_has_no_auc_and_what_is_no_prediction_is_refused():
    assert np.isnan(resampled_aucs(np.ones(10), np.arange(10.0), 3)).all()
    assert np.isnan(resampled_aucs(np.array([]), np.array([]), 2)).all()
    some = resampled_aucs(np.array([0, 1]), np.array([0.1, 0.9]), 100)
    assert set(some[~np.isnan(some)]) == {1.0}
    assert 0 < np.isnan(some).sum() < 100
    for labels, scores, message in (
        ([0, 0, 0], [0.0] * 4, r"one shape \[rows\], got \(3,\) and \(4,\)"),
        ([0, 2], [0.0, 0.0], "0 or 1, got 2"),
        ([0, 0], [0.0, math.nan], "NaN in row 1"),
    ):
        with pytest.raises(ValueError, match=message):
            resampled_aucs(np.array(labels), np.array(scores))


def test_values_that_do_not_vary_are_sure_and_one_seed_has_no_p():
    assert t_test([0.8], [0.7], paired=True) is None
    assert t_test([0.7, 0.8], [0.7, 0.8], paired=True) == 1
    assert t_test([0.8, 0.7, 0.6], [0.7, 0.6, 0.5], paired=True) == 0
    assert t_test([0.8, 0.8], [0.8, 0.8, 0.8], paired=False) == 1
    assert t_test([0.8, 0.8], [0.7, 0.7], paired=False) == 0
    assert 0 < t_test([0.8, 0.8], [0.7, 0.71], paired=False) < 1


def test_the_interval_has_the_noise_of_seeds_and_rows_and_a_seed_alone_has_that_of_the_rows():
    rows = np.random.default_rng(0).normal(size=(2, 4000))
    interval = bootstrap_difference(rows[:1], rows[1:])
    np.testing.assert_array_equal(interval, np.quantile(rows[0] - rows[1], [0.025, 0.975]))
    generator = np.random.default_rng(1)
    of_seeds, of_rows = generator.normal(size=(200, 1)), generator.normal(size=(1, 20_000)) / 10
    low, high = bootstrap_difference(of_seeds + of_rows, np.zeros((200, 20_000)))
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(of_seeds.var() / 200 + 0.01), rel=0.05)
    seeds = np.linspace(0.6, 0.9, 5)[:, None] * np.ones(1000)
    paired, unpaired = bootstrap_difference(seeds + 0.01, seeds), bootstrap_difference(seeds + 0.01, seeds[:4])
    assert tuple(paired) == pytest.approx((0.01, 0.01))  # equal numbers of seeds are pairs
    assert unpaired.low < 0 < unpaired.high
    gap = np.array([[0.5, np.nan, 0.5]])
    assert tuple(bootstrap_difference(gap, np.zeros((1, 3)))) == (0.5, 0.5)
    assert np.isnan(bootstrap_difference(gap * np.nan, gap)).all()
    with pytest.raises(ValueError, match="equal replicates"):
        bootstrap_difference(gap, gap[:, :2])


def test_verdicts_at_their_boundaries():
    for low, high, expected in (
        (1e-6, 0.01, "better"),
        (0, 0.01, "within noise, non-inferior"),
        (-0.0009, 0.01, "within noise, non-inferior"),
        (-0.001, 0.01, "within noise"),
        (-0.0009, 0, "within noise, non-inferior"),
        (-0.0009, -1e-6, "worse, non-inferior"),
        (-0.001, -1e-6, "worse"),
        (math.nan, math.nan, "within noise"),
    ):
        assert verdict(Interval(low, high)) == expected, (low, high)


def test_only_differences_in_favour_count():
    cells = [(0.01, 1, 1), (0.01, 1, -1), (0.2, 1, 1), (None, 1, 1)]
    assert count_significant(cells, confidence=0.9) == (1, 4)
    assert math.isnan(count_significant([(0.01, 0.5, 1)], confidence=0.9, below=0.05).share)


def sample_of(*pairs):
    """AUC and feature rate of each seed."""
    return Sample(tuple(outcome(auc, rate) for auc, rate in pairs))


def test_between_two_points_auc_is_linear_in_the_logarithm_of_the_rate(monkeypatch):
    monkeypatch.setattr("sparsegroup_paper.statistics.WIDEST_GAP", 6.0)
    points = [
        sample_of((0.70, 0.04), (0.72, 0.04)),
        sample_of((0.60, 0.0), (0.60, 0.0)),  # nothing is left: no logarithm
        sample_of((0.80, 0.16), (0.76, 0.16)),
        sample_of((math.nan, 0.08), (0.99, 0.08)),  # diverged
        sample_of((0.90, 0.97), (0.90, 0.97)),  # more than six times as far
    ]
    for rate, share in ((0.04, 0.0), (0.16, 1.0), (0.08, 0.5), (0.04 * 2**0.5, 0.25)):
        found = at_rate(points, rate)
        assert found.each("auc") == pytest.approx([0.70 + 0.10 * share, 0.72 + 0.04 * share])
        assert found.each("feature_rate").tolist() == [rate, rate]
        np.testing.assert_allclose(found.each("resampled").mean(1), found.each("auc"), rtol=1e-6)
    assert [at_rate(points, rate) for rate in (0.039, 0.17, 0.5, 0.98)] == [None] * 4
    # A point that is as good as there needs no neighbour.
    assert at_rate(points[:2], 0.0401).each("auc") == pytest.approx([0.70, 0.72])
    assert at_rate(points[:2], 0.041) is None
    assert at_rate([sample_of((0.7, 0.5)), sample_of((0.8, 0.5))], 0.5).auc in (0.7, 0.8)


def test_the_cells_of_a_comparison():
    generator = np.random.default_rng(3)
    a, b = (
        Sample(tuple(outcome(auc, resampled=generator.normal(auc, 0.002, 500).astype(np.float32)) for auc in aucs))
        for aucs in ((0.710, 0.712, 0.711), (0.700, 0.703, 0.704))
    )
    aucs = a.each("auc"), b.each("auc")
    difference, low, high, p_value, test, word = versus(a, b).cells
    assert difference == pytest.approx(2.133 / 3 - 2.107 / 3)
    assert low < difference < high
    assert (p_value, test) == (pytest.approx(stats.ttest_rel(*aucs).pvalue), "paired t")
    assert word == verdict(Interval(low, high)) == "better"
    *_, p_value, test, _ = versus(a, b, paired=False).cells
    assert (p_value, test) == (
        pytest.approx(stats.ttest_ind(a.each("auc"), b.each("auc"), equal_var=False).pvalue),
        "Welch t",
    )
    assert versus(Sample(a.outcomes[:1]), Sample(b.outcomes[:1])).cells[3:5] == (None, "one seed")
    pairs = [versus(a, b), versus(b, a), versus(a, a)]
    assert tally(pairs) == "better at 1, within noise at 1, worse at 1 of 3; non-inferior at 2"
    well = sample_of((0.7, 0.1), (0.7, 0.1))
    nothing = np.full_like(well.outcomes[0].resampled, np.nan)
    diverged = versus(Sample((outcome(0.7, 0.1), outcome(math.nan, 1.0, resampled=nothing))), well)
    assert diverged.cells == (None, None, None, None, None, "diverged")
    words = "better at 0, within noise at 0, worse at 0, diverged at 1 of 1; non-inferior at 0"
    assert tally([diverged]) == words
