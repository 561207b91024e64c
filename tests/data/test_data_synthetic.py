"""The synthetic log: reproducible, Zipf-distributed, and what it says is informative is."""

import numpy as np

from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.data.keys import fields_of
from sparsegroup.data.synthetic import bounded_zipf

SMALL = SyntheticConfig(rows=20_000, cardinalities=(10, 1_000, 30_000))


def test_the_same_seed_gives_the_same_log_and_another_another() -> None:
    one, same, other = synthetic_log(SMALL, 1), synthetic_log(SMALL, 1), synthetic_log(SMALL, 2)
    np.testing.assert_array_equal(one.keys, same.keys)
    np.testing.assert_array_equal(one.labels, same.labels)
    assert not np.array_equal(one.labels, other.labels)


def test_the_last_tenth_is_the_test_set_and_may_hold_unknown_features() -> None:
    log = synthetic_log(SMALL)
    assert (len(log), log.train_rows) == (20_000, 18_000)
    expected = np.unique(log.keys[:18_000])
    np.testing.assert_array_equal(np.sort(log.seen), expected)
    assert log.features == len(expected) < len(np.unique(log.keys))
    assert [np.unique(fields_of(column)).tolist() for column in log.keys.T] == [[0], [1], [2]]


def test_frequencies_follow_the_bounded_zipf_law() -> None:
    cardinality, exponent = 1_000, 1.1
    uniform = (np.arange(1_000_000) + 0.5) / 1_000_000
    ranks = bounded_zipf(uniform, cardinality, exponent)
    assert ranks.min() == 0
    assert ranks.max() < cardinality
    # P(rank <= r) = ((r + 1)^(1-a) - 1) / (c^(1-a) - 1), the distribution function on [1, c].
    for rank in (1, 10, 100):
        expected = ((rank + 1.0) ** (1 - exponent) - 1) / (cardinality ** (1 - exponent) - 1)
        assert abs((ranks < rank).mean() - expected) < 1e-5


def test_informative_features_move_the_label_and_the_others_do_not() -> None:
    log = synthetic_log(SyntheticConfig(rows=200_000, cardinalities=(40, 40), informative=0.5, effect=2.0))
    rate = {key: log.labels[(log.keys == key).any(axis=1)] for key in np.unique(log.keys)}
    deviations = {key: abs(labels.mean() - log.labels.mean()) for key, labels in rate.items() if len(labels) > 2_000}
    informative = [d for key, d in deviations.items() if log.are_informative(key)]
    noise = [d for key, d in deviations.items() if not log.are_informative(key)]
    assert np.mean(informative) > 4 * np.mean(noise)


def test_the_share_of_informative_features_is_the_configured_one() -> None:
    log = synthetic_log(SyntheticConfig(rows=100_000, informative=0.1))
    assert abs(log.are_informative(np.unique(log.keys)).mean() - 0.1) < 0.005
