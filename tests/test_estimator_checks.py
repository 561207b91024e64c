"""scikit-learn's own checks of an estimator."""

from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from sparsegroup.estimator import EXPECTED_FAILED_CHECKS, Classifier

SMALL = Classifier(dim=2, hidden=(8,), lr=0.05, l21=0.0, batch_size=32, epochs=8, number_buckets=8)


@parametrize_with_checks(
    [SMALL], expected_failed_checks=lambda estimator: {**EXPECTED_FAILED_CHECKS}, xfail_strict=True
)
def test_scikit_learn_finds_an_estimator(estimator: BaseEstimator, check: Any) -> None:
    check(estimator)
