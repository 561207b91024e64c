"""The estimators by scikit-learn's own checks, and in its pipelines, searches and folds; copied and kept."""

import copy
import io
from collections.abc import Callable
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.feature_selection import SelectFromModel
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_train, parametrize_with_checks

from estimator_cases import rows, small
from sparsegroup.estimator import EXPECTED_FAILED_CHECKS, Classifier, Regressor

POLARS, SERIES = rows()
FRAME, LABELS = POLARS.to_pandas(), SERIES.to_pandas()


def without_tags(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop(columns="tags")


def test_it_is_searched_in_folds_calibrated_and_ends_a_pipeline() -> None:
    search = GridSearchCV(small(), {"lr": [1e-6, 0.05], "epochs": [3]}, cv=2, scoring="roc_auc").fit(FRAME, LABELS)
    assert search.best_params_ == {"lr": 0.05, "epochs": 3}
    assert search.best_score_ > 0.6
    calibrated = CalibratedClassifierCV(small(), cv=2).fit(FRAME, LABELS)
    assert search.predict_proba(FRAME).shape == calibrated.predict_proba(FRAME).shape == (len(FRAME), 2)
    pipeline = make_pipeline(FunctionTransformer(without_tags), small()).fit(FRAME, LABELS)
    alone = small().fit(without_tags(FRAME), LABELS)
    np.testing.assert_array_equal(pipeline.predict_proba(FRAME), alone.predict_proba(without_tags(FRAME)))
    scaled = ColumnTransformer([("price", StandardScaler(), ["price"])], remainder="passthrough")
    frame = pipeline.set_params(functiontransformer=scaled.set_output(transform="pandas")).fit(FRAME, LABELS)
    assert frame[-1].columns_["remainder__color"] == "category"


def by_joblib(model: Classifier) -> Any:
    file = io.BytesIO()
    joblib.dump(model, file)
    return joblib.load(io.BytesIO(file.getvalue()))


@pytest.mark.parametrize("copied", [copy.deepcopy, by_joblib])
def test_a_copy_predicts_and_learns_the_same(copied: Callable[[Classifier], Any]) -> None:
    model = small(target_rate=0.3, l21=None, dropout=0.2).fit(FRAME, LABELS)
    other = copied(model)
    before = model.predict_proba(FRAME)
    np.testing.assert_array_equal(other.predict_proba(FRAME), before)
    for one in (model, other):
        one.partial_fit(FRAME, LABELS)
    np.testing.assert_array_equal(other.predict_proba(FRAME), model.predict_proba(FRAME))
    assert abs(before - model.predict_proba(FRAME)).max() > 1e-4


def test_an_estimator_shows_its_progress_only_if_it_is_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    quiet, verbose = small(), small(verbose=1)
    quiet.fit(FRAME, LABELS)
    assert capsys.readouterr() == ("", "")
    verbose.fit(FRAME, LABELS)
    shown = capsys.readouterr()
    assert (shown.out, "(100.0%)" in shown.err, "loss" in shown.err) == ("", True, True)
    assert verbose.predict_proba(FRAME).tolist() == quiet.predict_proba(FRAME).tolist()
    assert copy.deepcopy(verbose).get_params()["verbose"] == 1


def test_the_columns_that_say_something_are_chosen_by_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    place, number = draw.integers(20, size=4_000), draw.normal(size=4_000)
    odds = draw.normal(0, 2, 20)[place] + number
    y = draw.random(4_000) < 1 / (1 + np.exp(-odds))
    noise = {f"noise{one}": draw.integers(300, size=4_000).astype(str) for one in range(3)}
    X = pl.DataFrame({**noise, "color": place.astype(str), "size": number}).to_pandas()
    model = Classifier(columns=dict.fromkeys([*noise, "color"], "category"), epochs=2)
    chosen = SelectFromModel(model, threshold=0.01).fit(X, y)
    assert chosen.get_feature_names_out().tolist() == ["color", "size"]
    whole = Classifier(columns=model.columns, epochs=2).fit(X, y)
    assert whole.feature_importances_.tolist() == chosen.estimator_.feature_importances_.tolist()
    with pytest.MonkeyPatch.context() as patch:  # measured on the way, which changes no bit
        patch.setattr("sparsegroup.estimator.base._Ahead.between_batches", lambda *_: None)
        apart = Classifier(columns=model.columns, epochs=2).fit(X, y)
    assert apart.predict_proba(X).tolist() == whole.predict_proba(X).tolist()
    assert not apart.feature_importances_.any()


CHECKED = {"dim": 2, "hidden": (8,), "lr": 0.1, "l21": 0.0, "batch_size": 32, "epochs": 2, "number_buckets": 8}
MODEL = Classifier(**CHECKED)


@parametrize_with_checks(
    [MODEL, Regressor(**CHECKED)],
    expected_failed_checks=lambda estimator: {**EXPECTED_FAILED_CHECKS},
    xfail_strict=True,
)
def test_scikit_learn_finds_an_estimator(estimator: BaseEstimator, check: Any) -> None:
    check(estimator)


def test_as_it_is_by_default_it_learns_less_of_300_rows_and_says_so() -> None:
    assert Classifier().__sklearn_tags__().classifier_tags.poor_score
    assert not MODEL.__sklearn_tags__().classifier_tags.poor_score
    check_classifiers_train("Classifier", Classifier())
