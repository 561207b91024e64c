import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from sparsegroup_paper.resampling import BLOCK, resampled_aucs, weights
from sparsegroup_paper.statistics import Interval, bootstrap_difference, compare, share_significant, verdict


def predictions(rows, decimals=None, seed=0):
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < 0.25).astype(np.int64)
    scores = generator.normal(size=rows) + labels
    return labels, scores if decimals is None else scores.round(decimals)


@pytest.mark.parametrize(("rows", "decimals"), [(300, None), (300, 0), (2 * BLOCK + 37, 1), (BLOCK, None)])
def test_a_resampled_auc_is_the_auc_with_the_weights(rows, decimals):
    labels, scores = predictions(rows, decimals)
    aucs = resampled_aucs(labels, scores, replicates=7, seed=3)
    expected = [roc_auc_score(labels, scores, sample_weight=weights(rows, number, seed=3)) for number in range(7)]
    np.testing.assert_allclose(aucs, expected, rtol=0, atol=1e-14)


def test_scores_that_all_tie_have_an_auc_of_one_half():
    labels, scores = predictions(500)
    assert resampled_aucs(labels, np.zeros_like(scores), 5).tolist() == [0.5] * 5


def test_weights_depend_on_seed_replicate_and_row_alone():
    assert weights(1000, 4, seed=1)[:10].tolist() == weights(10, 4, seed=1).tolist()
    others = [weights(1000, 4, seed=2), weights(1000, 5, seed=1), weights(1001, 4, seed=1)[1:]]
    assert all(np.mean(other == weights(1000, 4, seed=1)) < 0.5 for other in others)
    labels, scores = predictions(400)
    assert resampled_aucs(labels, scores, 9).tolist() == resampled_aucs(labels, scores, 10)[:9].tolist()


def test_weights_are_poisson_and_independent():
    drawn = np.array([weights(50_000, replicate) for replicate in range(10)])
    expected = stats.poisson.pmf(np.arange(12), 1)
    assert np.abs(np.bincount(drawn.ravel(), minlength=12) / drawn.size - expected).max() < 0.003
    assert np.abs(np.corrcoef(drawn) - np.eye(10)).max() < 0.025
    assert abs(np.corrcoef(drawn[:, 1:].ravel(), drawn[:, :-1].ravel())[0, 1]) < 0.01


def test_the_spread_is_that_of_new_test_sets():
    labels, scores = predictions(2000)
    fresh = [roc_auc_score(*predictions(2000, seed=seed)) for seed in range(1, 200)]
    assert resampled_aucs(labels, scores, 1000).std() == pytest.approx(np.std(fresh), rel=0.2)


def test_one_class_alone_has_no_auc():
    assert np.isnan(resampled_aucs(np.ones(10), np.arange(10.0), 3)).all()
    assert np.isnan(resampled_aucs(np.array([]), np.array([]), 2)).all()
    some = resampled_aucs(np.array([0, 1]), np.array([0.1, 0.9]), 100)
    assert set(some[~np.isnan(some)]) == {1.0}
    assert 0 < np.isnan(some).sum() < 100


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        (np.zeros(3), np.zeros(4), r"one shape \[rows\], got \(3,\) and \(4,\)"),
        (np.array([0, 2]), np.zeros(2), "0 or 1, got 2"),
        (np.zeros(2), np.array([0.0, np.nan]), "NaN in row 1"),
    ],
)
def test_what_is_no_prediction_is_refused(labels, scores, message):
    with pytest.raises(ValueError, match=message):
        resampled_aucs(labels, scores)


A, B = [0.801, 0.803, 0.8, 0.802, 0.8015], [0.8, 0.8021, 0.7999, 0.8005, 0.8012]


def test_a_comparison_is_scipys():
    paired, welch = compare(A, B, paired=True), compare(A, B[:4], paired=False)
    for ours, theirs in ((paired, stats.ttest_rel(A, B)), (welch, stats.ttest_ind(A, B[:4], equal_var=False))):
        assert ours.p_value == pytest.approx(theirs.pvalue)
        assert tuple(ours.interval) == pytest.approx(tuple(theirs.confidence_interval()))
    assert paired.difference == pytest.approx(np.mean(A) - np.mean(B))
    assert (paired.test, welch.test) == ("paired t", "Welch t")


@pytest.mark.parametrize("paired", [True, False])
def test_one_seed_has_neither_interval_nor_p(paired):
    result = compare([0.8], [0.7], paired)
    assert (result.interval, result.p_value) == (None, None)
    assert result.difference == pytest.approx(0.1)


def test_values_that_do_not_vary_are_sure():
    same, other = compare([0.7, 0.8], [0.7, 0.8], paired=True), compare([0.8, 0.7, 0.6], [0.7, 0.6, 0.5], paired=True)
    assert (same.p_value, same.interval) == (1, (0, 0))
    assert (other.p_value, other.interval) == (0, (other.difference, other.difference))
    assert compare([0.8, 0.8], [0.8, 0.8, 0.8], paired=False).p_value == 1
    assert compare([0.8, 0.8], [0.7, 0.7], paired=False).p_value == 0
    assert 0 < compare([0.8, 0.8], [0.7, 0.71], paired=False).p_value < 1


@pytest.mark.parametrize(
    ("a", "b", "paired", "message"), [([1, 2], [1], True, "equal number, got 2 and 1"), ([], [1], False, "got 0 and 1")]
)
def test_comparisons_of_nothing_are_refused(a, b, paired, message):
    with pytest.raises(ValueError, match=message):
        compare(a, b, paired)


def test_equal_numbers_of_seeds_are_paired():
    seeds = np.linspace(0.6, 0.9, 5)[:, None] * np.ones(1000)
    paired, unpaired = bootstrap_difference(seeds + 0.01, seeds), bootstrap_difference(seeds + 0.01, seeds[:4])
    assert tuple(paired) == pytest.approx((0.01, 0.01))
    assert unpaired.low < 0 < unpaired.high


def test_a_seed_alone_leaves_the_noise_of_the_rows():
    rows = np.random.default_rng(0).normal(size=(2, 4000))
    interval = bootstrap_difference(rows[:1], rows[1:])
    np.testing.assert_array_equal(interval, np.quantile(rows[0] - rows[1], [0.025, 0.975]))
    assert bootstrap_difference(rows[:1], rows[:1]) == (0, 0)


def test_the_noise_of_seeds_and_rows_adds_up():
    generator = np.random.default_rng(1)
    of_seeds, of_rows = generator.normal(size=(200, 1)), generator.normal(size=(1, 20_000)) / 10
    low, high = bootstrap_difference(of_seeds + of_rows, np.zeros((200, 20_000)))
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(of_seeds.var() / 200 + 0.01), rel=0.05)


def test_replicates_without_an_auc_are_left_out():
    a = np.array([[0.5, np.nan, 0.7]])
    assert tuple(bootstrap_difference(a, np.zeros((1, 3)), level=1)) == (0.5, 0.7)
    assert np.isnan(bootstrap_difference(a * np.nan, a)).all()
    with pytest.raises(ValueError, match="equal replicates"):
        bootstrap_difference(a, a[:, :2])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1e-6, 0.01, "better"),
        (0, 0.01, "within noise, non-inferior"),
        (-0.0009, 0.01, "within noise, non-inferior"),
        (-0.001, 0.01, "within noise"),
        (-0.002, 0, "within noise"),
        (-0.0009, 0, "within noise, non-inferior"),
        (-0.0009, -1e-6, "worse, non-inferior"),
        (-0.001, -1e-6, "worse"),
        (0, 0, "within noise, non-inferior"),
        (math.nan, math.nan, "within noise"),
    ],
)
def test_verdicts_at_their_boundaries(low, high, expected):
    assert verdict(Interval(low, high)) == expected


def test_only_differences_in_favour_count():
    assert share_significant([0.01, 0.01, 0.2, None], [1, 1, 1, 1], [1, -1, 1, 1]) == (1, 4)
    assert math.isnan(share_significant([0.01], [0.5], [1], below=0.05).share)
