"""scikit-learn's own checks of an estimator."""

from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import check_classifiers_train, parametrize_with_checks

from sparsegroup.estimator import EXPECTED_FAILED_CHECKS, Classifier, Regressor

SETTINGS = {"dim": 2, "hidden": (8,), "lr": 0.05, "l21": 0.0, "batch_size": 32, "epochs": 8, "number_buckets": 8}
SMALL = Classifier(**SETTINGS)


@parametrize_with_checks(
    [SMALL, Regressor(**SETTINGS)],
    expected_failed_checks=lambda estimator: {**EXPECTED_FAILED_CHECKS},
    xfail_strict=True,
)
def test_scikit_learn_finds_an_estimator(estimator: BaseEstimator, check: Any) -> None:
    check(estimator)


def test_as_it_is_by_default_it_learns_less_of_300_rows_and_says_so() -> None:
    assert Classifier().__sklearn_tags__().classifier_tags.poor_score
    assert not SMALL.__sklearn_tags__().classifier_tags.poor_score
    check_classifiers_train("Classifier", Classifier())
