"""AUC, gAUC, metrics by value and curves: against scikit-learn, and by known answers."""

import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import auc, log_loss, mean_gamma_deviance, roc_auc_score

from sparsegroup.objectives import Gamma, Squared
from sparsegroup.training.metrics import curves_of, evaluate, gains_of, grouped_auc, metrics_by_value, reliability_of


def drawn(rows: int = 3_000) -> tuple[np.ndarray, ...]:
    """Groups of very different sizes, labels, predictions with ties, weights."""
    random = np.random.default_rng(0)
    groups = (random.zipf(1.3, rows) % 200) * 7_919 - 300_000
    probabilities = random.integers(1, 30, rows) / 31
    labels = (random.random(rows) < probabilities).astype(np.float64)
    return groups, labels, probabilities, random.integers(0, 4, rows).astype(np.float64)


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_log_loss_and_gauc_are_those_of_scikit_learn(weighted: bool) -> None:
    groups, labels, probabilities, weights = drawn()
    if not weighted:
        weights = np.ones(len(groups))
    given = weights.astype(np.float32) if weighted else None
    found = evaluate(labels, probabilities, given)
    assert found.auc == pytest.approx(roc_auc_score(labels, probabilities, sample_weight=given), abs=1e-14)
    assert found.log_loss == pytest.approx(log_loss(labels, probabilities, sample_weight=given), abs=1e-14)
    areas, sizes = [], []
    for group in np.unique(groups):
        rows = (groups == group) & (weights > 0)
        if 0 < labels[rows].sum() < rows.sum():
            areas.append(roc_auc_score(labels[rows], probabilities[rows], sample_weight=weights[rows]))
            sizes.append(weights[rows].sum())
    grouped = grouped_auc(groups, labels, probabilities, weights)
    assert grouped.auc == pytest.approx(np.average(areas, weights=sizes), abs=1e-12)  # users' own, by their rows
    assert grouped.users == len(areas) > 20
    assert grouped.share == pytest.approx(sum(sizes) / weights.sum())


def test_without_users_of_both_classes_there_is_no_gauc() -> None:
    nobody = grouped_auc(np.arange(5), np.ones(5), np.full(5, 0.5), np.ones(5))
    assert (math.isnan(nobody.auc), nobody.users, nobody.share) == (True, 0, 0.0)
    assert math.isnan(grouped_auc(np.zeros(0, np.int64), *(np.zeros(0) for _ in range(3))).auc)


def test_metrics_of_a_value_are_those_of_its_rows_and_a_row_counts_for_each_value() -> None:
    groups, labels, probabilities, weights = drawn()
    found = metrics_by_value(groups, np.arange(len(groups)), labels, probabilities, weights, least_rows=20)
    counts = dict(zip(*np.unique(groups, return_counts=True), strict=True))
    assert {one.key for one in found} == {key for key, count in counts.items() if count >= 20}
    for one in found:
        rows = groups == one.key
        w, y, p = weights[rows], labels[rows], probabilities[rows]
        assert one.rows == counts[one.key]
        assert one.auc == pytest.approx(roc_auc_score(y, p, sample_weight=w))
        assert one.log_loss == pytest.approx(log_loss(y, p, sample_weight=w))
        assert one.calibration == pytest.approx((w @ p) / (w @ y))
        assert one.low < one.calibration < one.high
    off = [one.surely_off_by for one in found]
    assert off == sorted(off, reverse=True)
    keys, rows = np.array([7, 7, 8, 8]), np.array([0, 1, 1, 2])
    few = metrics_by_value(keys, rows, np.array([1.0, 0, 1]), np.array([0.9, 0.2, 0.7]), np.ones(3))
    by_key = {one.key: one for one in few}
    assert (by_key[7].predicted, by_key[8].predicted) == (pytest.approx(1.1), pytest.approx(0.9))
    assert (by_key[7].rows, by_key[7].positives, by_key[7].auc) == (2, 1, 1)


def test_the_interval_holds_the_truth_as_often_as_it_says_also_of_numbers() -> None:
    random = np.random.default_rng(0)
    keys, probabilities = np.repeat(np.arange(2_000), 200), np.full(400_000, 0.05)
    labels = (random.random(len(keys)) < probabilities).astype(np.float64)
    found = metrics_by_value(keys, np.arange(len(keys)), labels, probabilities, np.ones(len(keys)))
    assert 0.93 < np.mean([one.low <= 1 <= one.high for one in found]) < 0.98
    keys, predictions = np.repeat(np.arange(1_000), 60), np.full(60_000, 8.0)
    labels = random.gamma(4.0, np.where(keys == 7, 3.0, 2.0))
    given = (keys, np.arange(len(keys)), labels, predictions, np.ones(len(keys)))
    found = metrics_by_value(*given, objective=Gamma())
    assert 0.92 < np.mean([one.low <= 1 <= one.high for one in found]) < 0.97
    own = labels[keys == 7]
    assert found[0].key == 7
    assert found[0].calibration == pytest.approx(480 / own.sum())
    assert found[0].log_loss == pytest.approx(mean_gamma_deviance(own, predictions[:60]))
    assert math.isnan(found[0].auc)
    negative = metrics_by_value(*given[:2], labels - 20, predictions, given[4], objective=Squared())
    assert all(one.surely_off_by == 0 for one in negative)  # a quotient of such sums says nothing


def test_curves_count_a_weight_as_copies_and_equal_predictions_together() -> None:
    random = np.random.default_rng(0)
    probabilities = random.integers(1, 8, 500) / 9
    labels = (random.random(500) < probabilities).astype(np.float64)
    weights, shuffled = random.integers(0, 4, 500), random.permutation(500)
    weighted = curves_of(labels, probabilities, weights)
    copied = curves_of(labels.repeat(weights), probabilities.repeat(weights))
    again = curves_of(labels[shuffled], probabilities[shuffled], weights[shuffled])
    for ours, theirs in zip(weighted.reliability, copied.reliability, strict=True):
        assert vars(ours) == pytest.approx(vars(theirs))
    for one, *others in zip(weighted.gains, copied.gains, again.gains, strict=True):
        assert all(vars(one) == pytest.approx(vars(other)) for other in others)
    predicted = [one.predicted for one in weighted.reliability]
    assert len(predicted) == len(set(np.round(predicted, 9))) == 7


def test_reliability_and_gains_are_those_of_scikit_learn_and_of_known_orders() -> None:
    random = np.random.default_rng(0)
    scores = 1 / (1 + np.exp(-random.normal(-1.5, 1.0, 10_000)))
    truth = (random.random(10_000) < scores).astype(np.float64)
    bins = reliability_of(truth, scores, np.ones(10_000), 10)
    actual, predicted = calibration_curve(truth, scores, n_bins=10, strategy="quantile")
    np.testing.assert_allclose([one.predicted for one in bins], predicted, atol=1e-3)
    np.testing.assert_allclose([one.actual for one in bins], actual, atol=2e-3)
    assert sum(one.share for one in bins) == pytest.approx(1)
    fine = np.linspace(0.0005, 1, 2_000)
    gains = gains_of(truth, scores, np.ones(10_000), tuple(fine))
    area, rate = auc([0, *fine], [0, *(point.captured for point in gains)]), truth.mean()
    assert area == pytest.approx(rate / 2 + (1 - rate) * evaluate(truth, scores).auc, abs=1e-4)
    labels, shares = np.arange(1_000) < 100, (0.05, 0.1, 0.5, 1.0)
    best = gains_of(labels.astype(float), 1.0 * labels, np.ones(1_000), shares)
    assert [point.captured for point in best] == pytest.approx([0.5, 1, 1, 1])
    blind = gains_of(labels.astype(float), np.full(1_000, 0.3), np.ones(1_000), shares)
    assert [point.captured for point in blind] == pytest.approx(shares)
