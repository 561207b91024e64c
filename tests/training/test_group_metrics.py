"""gAUC and metrics by value against scikit-learn, group by group."""

import math

import numpy as np
import pytest
from sklearn.metrics import log_loss, mean_gamma_deviance, roc_auc_score

from sparsegroup.objectives import Gamma, Squared
from sparsegroup.training.metrics import evaluate, grouped_auc, metrics_by_value


def drawn(rows: int = 3_000, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Groups of very different sizes, labels, predictions with ties, weights."""
    random = np.random.default_rng(seed)
    groups = (random.zipf(1.3, rows) % 200) * 7_919 - 300_000
    probabilities = random.integers(1, 30, rows) / 31
    labels = (random.random(rows) < probabilities).astype(np.float64)
    return groups, labels, probabilities, random.integers(0, 4, rows).astype(np.float64)


@pytest.mark.parametrize("weighted", [False, True])
def test_auc_and_log_loss_are_those_of_scikit_learn(weighted: bool) -> None:
    _, labels, probabilities, drawn_weights = drawn()
    weights = drawn_weights.astype(np.float32) if weighted else None
    found = evaluate(labels, probabilities, weights)
    assert found.auc == pytest.approx(roc_auc_score(labels, probabilities, sample_weight=weights), abs=1e-14)
    assert found.log_loss == pytest.approx(log_loss(labels, probabilities, sample_weight=weights), abs=1e-14)


@pytest.mark.parametrize("weighted", [False, True])
def test_gauc_is_the_mean_of_the_users_own_weighted_by_their_rows(weighted: bool) -> None:
    groups, labels, probabilities, weights = drawn()
    if not weighted:
        weights = np.ones(len(groups))
    areas, sizes = [], []
    for group in np.unique(groups):
        rows = (groups == group) & (weights > 0)
        if 0 < labels[rows].sum() < rows.sum():
            areas.append(roc_auc_score(labels[rows], probabilities[rows], sample_weight=weights[rows]))
            sizes.append(weights[rows].sum())
    found = grouped_auc(groups, labels, probabilities, weights)
    assert found.auc == pytest.approx(np.average(areas, weights=sizes), abs=1e-12)
    assert found.users == len(areas) > 20
    assert found.share == pytest.approx(sum(sizes) / weights.sum())


def test_gauc_does_not_see_what_is_the_same_for_all_rows_of_a_user() -> None:
    groups, labels, probabilities, weights = drawn()
    shift = np.random.default_rng(1).permutation(np.unique(groups))[np.unique(groups, return_inverse=True)[1]]
    shifted = 1 / (1 + np.exp(-(np.log(probabilities / (1 - probabilities)) + np.round(shift / 1e5, 1))))
    plain = grouped_auc(groups, labels, probabilities, weights).auc
    assert grouped_auc(groups, labels, np.round(shifted, 12), weights).auc == pytest.approx(plain, abs=1e-9)


def test_without_users_of_both_classes_there_is_none() -> None:
    nobody = grouped_auc(np.arange(5), np.ones(5), np.full(5, 0.5), np.ones(5))
    assert (math.isnan(nobody.auc), nobody.users, nobody.share) == (True, 0, 0.0)
    assert math.isnan(grouped_auc(np.zeros(0, np.int64), *(np.zeros(0) for _ in range(3))).auc)


def test_metrics_of_a_value_are_those_of_its_rows() -> None:
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


def test_a_row_counts_for_each_of_its_values() -> None:
    keys, rows = np.array([7, 7, 8, 8]), np.array([0, 1, 1, 2])
    labels, probabilities, weights = np.array([1.0, 0, 1]), np.array([0.9, 0.2, 0.7]), np.ones(3)
    by_key = {one.key: one for one in metrics_by_value(keys, rows, labels, probabilities, weights)}
    assert by_key[7].predicted == pytest.approx(1.1)
    assert by_key[8].predicted == pytest.approx(0.9)
    assert (by_key[7].rows, by_key[7].positives, by_key[7].auc) == (2, 1, 1)


def test_few_rows_are_not_the_worst_by_chance_and_many_are_when_they_are_off() -> None:
    random = np.random.default_rng(0)
    keys = np.concatenate([np.repeat(np.arange(1_000), 5), np.full(4_000, -1)])
    probabilities = np.full(len(keys), 0.1)
    labels = (random.random(len(keys)) < np.where(keys < 0, 0.06, 0.1)).astype(np.float64)
    found = metrics_by_value(keys, np.arange(len(keys)), labels, probabilities, np.ones(len(keys)))
    assert [one.key for one in found].index(-1) == 1
    assert (found[0].rows, found[0].positives) == (5, 4)  # at 10 %, one of 1,000 values has 4 of 5 in half of all draws
    assert next(one for one in found if one.key == -1).surely_off_by > 0.2
    assert sum(one.surely_off_by > 0 for one in found) < 60


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    values, rows = 2_000, 200
    keys = np.repeat(np.arange(values), rows)
    probabilities = np.full(len(keys), 0.05)
    labels = (random.random(len(keys)) < probabilities).astype(np.float64)
    found = metrics_by_value(keys, np.arange(len(keys)), labels, probabilities, np.ones(len(keys)))
    held = np.mean([one.low <= 1 <= one.high for one in found])
    assert 0.93 < held < 0.98


def test_values_of_numbers_have_intervals_by_their_spread() -> None:
    random = np.random.default_rng(0)
    keys = np.repeat(np.arange(1_000), 60)
    predictions = np.full(len(keys), 8.0)
    labels = random.gamma(4.0, np.where(keys == 7, 3.0, 2.0))
    given = (keys, np.arange(len(keys)), labels, predictions, np.ones(len(keys)))
    found = metrics_by_value(*given, objective=Gamma())
    assert found[0].key == 7
    own = labels[keys == 7]
    assert found[0].calibration == pytest.approx(480 / own.sum())
    assert found[0].log_loss == pytest.approx(mean_gamma_deviance(own, predictions[:60]))
    assert math.isnan(found[0].auc)
    held = np.mean([one.low <= 1 <= one.high for one in found])
    assert 0.92 < held < 0.97
    negative = metrics_by_value(*given[:2], labels - 20, predictions, given[4], objective=Squared())
    assert all(one.surely_off_by == 0 for one in negative)  # a quotient of such sums says nothing
