"""A classifier and a regressor with scikit-learn's interface."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import assert_all_finite, column_or_1d

from sparsegroup.data.frames import FrameLog
from sparsegroup.estimator.base import Labels, NetworkEstimator, feature_frame, name_of
from sparsegroup.objectives import Objective

EXPECTED_FAILED_CHECKS: Mapping[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": (
        "it trains step by step on batches of rows: a row that comes twice, or is left out, makes other batches than "
        "one of weight 2 or 0, so that the models are near each other and not the same"
    ),
}
"""Name of a check of scikit-learn → why a `Classifier` fails it, for `check_estimator(expected_failed_checks=…)`."""


class Classifier(ClassifierMixin, NetworkEstimator):  # type: ignore[misc]
    """A network over hashed features with sparse group lasso, for two or more classes, in scikit-learn's conventions.

    It takes unchanged frames of pandas, Polars or Arrow: it infers categories, numbers, times and lists as
    `sparsegroup train` does from a file, and missing values need not be filled in. The same rules decide what is not
    given: `Classifier().fit(frame, y)` is the model that `sparsegroup train` makes of a file of these rows. For more
    than two classes the objective is softmax.

    Args:
        model: The network; "auto" leaves it to the rules.
        columns: Column → its kind, see `ColumnKind`, for columns that are not to be inferred from the rows; `"ignore"`
            leaves one out.
        random_state: The seed, of initialization, dropout and order; `sparsegroup train` takes 0. An int ≥ 0, or, for
            another one in each fit, a RandomState or None.
        verbose: 1 shows the progress of trials and training on standard error, see `ProgressBar`; 0 is silent.
        **settings: Settings of `model`, `optimizer` and `training` by their short names, as on the page of settings:
            `dim`, `lr`, `target_rate`, `epochs` and so on. None, the default of each, leaves it to the rules.

    Attributes:
        classes_: The different labels, ascending.
        columns_: Column → its kind, inferred or given.
        config_: All settings of the training.
        feature_rate_: Live features over features seen.
        feature_importances_: `[n_features_in_]` float64, of `fit`: by how much the log loss rises when a column is
            shuffled among the last tenth of the rows of the first pass, before they are trained on. About 0, or below,
            for a column that says nothing, and 0 if all rows are one batch. `sparsegroup.training.importances` measures
            them on other rows, with standard errors.
        history_: Points along the training, see `HistoryPoint`.
        trials_: The trials that chose settings, see `settings_by_trials`; none after `partial_fit`, or where nothing
            was tried.
        model_, optimizer_: The trained model, and its optimizer.
        n_features_in_, feature_names_in_: Number of columns of X, and their names if X was a frame.

    Examples:
        >>> import polars as pl
        >>> from sparsegroup.estimator import Classifier
        >>> frame = pl.DataFrame({"color": ["red", "blue", "green"] * 100, "price": [i / 8 for i in range(300)]})
        >>> bought = frame["color"] == "red"
        >>> model = Classifier(dim=4, hidden=(8,), l21=0.0, lr=0.05, batch_size=32).fit(frame, bought)
        >>> dict(model.columns_), model.predict_proba(frame).shape
        ({'color': 'category', 'price': 'number'}, (300, 2))
    """

    _learns_classes = True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = self.epochs is None  # the rules think of logs, not of some 300 rows
        return tags

    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Train a new model on all rows, in the order and for the epochs of the settings.

        Args:
            X: `[n, columns]`, a frame of pandas, Polars, Arrow, or of Arrow's PyCapsule interface; or an array, whose
                columns are x0, x1, …, with kinds as a frame's.
            y: `[n]` labels of two or more classes.
            sample_weight: `[n]`, ≥ 0; the loss is the mean over a batch of each row's times its weight.

        Raises:
            ValueError: Labels of one class, other lengths, no column to train on; SettingsError of
                settings that do not hold, ClickLogError of values that cannot be read as the columns' kind.
            FloatingPointError: The training has diverged. After any failure the earlier fit remains.
        """
        with self._restored_on_error():
            labels = _checked_labels(self, y)
            frame = feature_frame(self, X)
            self._fit(self._log_of(frame, y, labels, _classes_in(labels), sample_weight, tries=True))
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: npt.ArrayLike | None = None, sample_weight: npt.ArrayLike | None = None
    ) -> Self:
        """Continue training, once over these rows, in their order, at constant learning rates.

        The first call, if `fit` was not called before, makes the model: kinds of columns, the numbers' statistics and
        open settings are inferred from its rows. A target size is met at the end of each call, as by
        `sparsegroup train --continue`.

        Args:
            X, y, sample_weight: As `fit`; labels of one class will do.
            classes: All labels; needed in the first call, and the same ones later on.

        Raises:
            ValueError: As `fit`; no or other classes, or another label in y.
            FloatingPointError: The training has diverged. The model is lost then: this is no longer fitted. An export,
                or a copy by pickle, made before is not.
        """
        is_first = not hasattr(self, "model_")
        if is_first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit: all labels")
        given = None if classes is None else _classes_in(np.asarray(classes))
        if not is_first and given is not None and not np.array_equal(given, self.classes_):
            raise ValueError(f"classes {given.tolist()} are not those of the first call: {self.classes_.tolist()}")
        with self._restored_on_error(also_if_diverged=is_first):
            labels = _checked_labels(self, y)
            frame = feature_frame(self, X, None if is_first else list(self.columns_))
            if given is not None and is_first:
                log = self._log_of(frame, y, labels, given, sample_weight, tries=False)
            else:
                names = self.config_.training.classes or ()
                log = self._log(frame, _codes_of(labels, self.classes_), self.columns_, sample_weight, names)
            self._continue(log)
        return self

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Logits `[n]` of the second of two classes; of more, logarithms of their probabilities, `[n, k]`.

        Args:
            X: `[n, columns]` as in `fit`. Features that training has not seen have the fallback vector, or zero.

        Raises:
            NotFittedError: Nothing has been trained.
            ValueError: Other columns, or in another order; ClickLogError of values that cannot be read.
        """
        scores = self._scores(X)
        if scores.ndim == 1:
            return scores
        logarithms: npt.NDArray[np.float64] = torch.from_numpy(scores).log_softmax(1).numpy()
        return logarithms[:, 1] - logarithms[:, 0] if logarithms.shape[1] == 2 else logarithms

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities `[n, k]` of the classes, in the order of `classes_`; raises as `decision_function`."""
        logits = torch.from_numpy(self.decision_function(X))
        found = logits.exp() if logits.ndim > 1 else torch.stack([-logits, logits], dim=1).sigmoid()
        probabilities: npt.NDArray[np.float64] = found.numpy()
        return probabilities

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most probable class of each row, `[n]`; raises as `decision_function`."""
        found = self.decision_function(X)
        classes: npt.NDArray[Any] = self.classes_[found.argmax(1) if found.ndim > 1 else (found > 0).astype(np.intp)]
        return classes

    def _log_of(
        self,
        frame: pl.DataFrame,
        y: Any,
        labels: npt.NDArray[Any],
        classes: npt.NDArray[Any],
        weight: Any,
        *,
        tries: bool,
    ) -> FrameLog:
        """The rows as a log, for which the model is made."""
        name = name_of(y) if classes.tolist() == [0, 1] else None
        more: dict[str, Any] = {"tries": tries}
        if len(classes) > 2 or (self.objective is not None and Objective.of(self.objective).takes_classes):
            more |= {"classes": list(map(str, classes.tolist())), "objective": "softmax"}
        log = self._begin(frame, _codes_of(labels, classes), name, weight, **more)
        self.classes_ = classes
        return log


class Regressor(RegressorMixin, NetworkEstimator):  # type: ignore[misc]
    """A network over hashed features with sparse group lasso, for numbers, in scikit-learn's conventions.

    See `Classifier`, whose parameters it has. `objective` is what it learns: "squared" if not given, or another of
    `sparsegroup.objectives`, by its name, as a mapping such as `{"name": "quantile", "alpha": 0.9}`, or as an object.

    Attributes:
        columns_, config_, feature_rate_, feature_importances_, history_, trials_: See `Classifier`.
        model_, optimizer_, n_features_in_, feature_names_in_: See `Classifier`.

    Examples:
        >>> import polars as pl
        >>> from sparsegroup.estimator import Regressor
        >>> frame = pl.DataFrame({"color": ["red", "blue", "green"] * 100})
        >>> price = [9.0, 3.0, 6.0] * 100
        >>> model = Regressor("lr", l21=0.0, lr=0.1, batch_size=32, epochs=10).fit(frame, price)
        >>> model.predict(frame[:3]).round(1).tolist()
        [9.0, 3.0, 6.0]
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = self.epochs is None
        return tags

    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Train a new model on all rows, in the order and for the epochs of the settings.

        Args:
            X, sample_weight: As for `Classifier.fit`.
            y: `[n]` numbers, kept as float32.

        Raises:
            ValueError: Labels that the objective does not take, other lengths, no column to train on; and as
                `Classifier.fit`.
            FloatingPointError: The training has diverged. After any failure the earlier fit remains.
        """
        with self._restored_on_error():
            labels = _numbers(self, y)
            frame = feature_frame(self, X)
            log = self._begin(frame, labels, name_of(y), sample_weight, tries=True, objective="squared")
            self._fit(log)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Continue training, once over these rows, in their order; see `Classifier.partial_fit`.

        The first call, if `fit` was not called before, makes the model, whose unit is that of the labels in it.
        """
        is_first = not hasattr(self, "model_")
        with self._restored_on_error(also_if_diverged=is_first):
            labels = _numbers(self, y)
            frame = feature_frame(self, X, None if is_first else list(self.columns_))
            if is_first:
                log = self._begin(frame, labels, name_of(y), sample_weight, tries=False, objective="squared")
            else:
                log = self._log(frame, labels, self.columns_, sample_weight)
            self._continue(log)
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Predictions `[n]`.

        Args:
            X: `[n, columns]` as in `fit`. Features that training has not seen have the fallback vector, or zero.

        Raises:
            NotFittedError: Nothing has been trained.
            ValueError: Other columns, or in another order; ClickLogError of values that cannot be read.
        """
        scores = torch.from_numpy(self._scores(X))
        predictions: npt.NDArray[np.float64] = self.config_.objective.predict(scores).numpy()
        return predictions


def _numbers(estimator: BaseEstimator, y: Any) -> Labels:
    """Labels `[n]`; ValueError for missing ones, and other things than numbers."""
    _check_given(estimator, y)
    numbers = column_or_1d(y, warn=True)
    if numbers.dtype.kind == "O":
        numbers = numbers.astype(np.float64)
    assert_all_finite(numbers, input_name="y")
    return np.asarray(numbers, np.float32)


def _check_given(estimator: BaseEstimator, y: Any) -> None:
    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")


def _checked_labels(estimator: BaseEstimator, y: Any) -> npt.NDArray[Any]:
    """Labels `[n]`; ValueError for missing or continuous ones, or several of a row."""
    _check_given(estimator, y)
    labels = column_or_1d(y, warn=True)
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    kind = type_of_target(labels, input_name="y", raise_unknown=True)
    if kind not in ("binary", "multiclass"):
        raise ValueError(f"Labels of one class a row are expected. The type of the target is {kind}.")
    return np.asarray(labels)


def _classes_in(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The different labels, ascending; ValueError if they are not two or more."""
    classes = np.unique(labels)
    if len(classes) < 2:
        shown = ", ".join(map(repr, classes.tolist()))
        raise ValueError(f"y needs labels of two or more classes; it contains one class: {shown}")
    return classes


def _codes_of(labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The number of each label's class, from 0, `[n]`; ValueError for a label of none."""
    strange = ~np.isin(labels, classes)
    if strange.any():
        raise ValueError(f"y contains {labels[strange][:1].tolist()[0]!r}; the classes are {classes.tolist()}")
    return np.searchsorted(classes, labels).astype(np.float32)
