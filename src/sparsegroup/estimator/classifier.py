"""A click model with scikit-learn's interface."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import assert_all_finite, check_is_fitted, column_or_1d, validate_data

from sparsegroup.data.frames import FrameLog, columns_of, feature_format, polars_frame
from sparsegroup.data.inference import kinds_of
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import ClickLogError, did_you_mean
from sparsegroup.reporting.run_record import HistoryPoint
from sparsegroup.serving import ExportManifest, TrainedModel, export_trained
from sparsegroup.settings.declared import DECLARED
from sparsegroup.settings.names import Dtype, ModelChoice
from sparsegroup.training.build import Config
from sparsegroup.training.plan import EpochPlan
from sparsegroup.training.predictions import EVALUATED, logits_in_float64
from sparsegroup.training.selection.trials import settings_by_trials

EXPECTED_FAILED_CHECKS: Mapping[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": (
        "it trains step by step on batches of rows: a row that comes twice, or is left out, makes other batches than "
        "one of weight 2 or 0, so that the models are near each other and not the same"
    ),
}
"""Name of a check of scikit-learn → why a `Classifier` fails it, for `check_estimator(expected_failed_checks=…)`."""

_PARAMETERS = {
    "model": Parameter("model", Parameter.POSITIONAL_OR_KEYWORD, default="auto"),
    "columns": Parameter("columns", Parameter.KEYWORD_ONLY, default=None),
    **{
        one.short: Parameter(one.short, Parameter.KEYWORD_ONLY, default=None)
        for one in DECLARED.values()
        if one.key.split(".")[0] in ("model", "optimizer", "training")
        and one.short not in ("model", "seed", "windows", "baseline")
    },
    "random_state": Parameter("random_state", Parameter.KEYWORD_ONLY, default=0),
}
"""Of the constructor; a setting is a parameter when it is declared."""


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network over hashed features with sparse group lasso, for two classes, in scikit-learn's conventions.

    It takes unchanged frames of pandas, Polars or Arrow: it infers categories, numbers, times and lists as
    `sparsegroup train` does from a file, and missing values need not be filled in. The same rules decide what is not
    given: `Classifier().fit(frame, y)` is the model that `sparsegroup train` makes of a file of these rows.

    Args:
        model: The network; "auto" leaves it to the rules.
        columns: Column → its kind, see `ColumnKind`, for columns that are not to be inferred from the rows; `"ignore"`
            leaves one out.
        random_state: The seed, of initialization, dropout and order; `sparsegroup train` takes 0. An int ≥ 0, or, for
            another one in each fit, a RandomState or None.
        **settings: Settings of `model`, `optimizer` and `training` by their short names, as on the page of settings:
            `dim`, `lr`, `target_rate`, `epochs` and so on. None, the default of each, leaves it to the rules.

    Attributes:
        classes_: The two labels, ascending.
        columns_: Column → its kind, inferred or given.
        config_: All settings of the training.
        feature_rate_: Live features over features seen.
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

    columns: Mapping[str, str] | None
    random_state: int | np.random.RandomState | None
    epochs: int | None

    def __init__(self, model: ModelChoice = "auto", **settings: Any) -> None:
        values = {**{name: one.default for name, one in _PARAMETERS.items()}, "model": model}
        if unknown := [name for name in settings if name not in values]:
            hint = did_you_mean(unknown[0], values)
            raise TypeError(f"{type(self).__name__} has no parameter {unknown[0]!r}{hint and f'; {hint}'}")
        for name, value in {**values, **settings}.items():
            setattr(self, name, value)

    __init__.__signature__ = Signature(  # type: ignore[attr-defined]  # of which scikit-learn makes get_params and clone
        [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *_PARAMETERS.values()]
    )

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = self.epochs is None  # the rules think of logs, not of some 300 rows
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Train a new model on all rows, in the order and for the epochs of the settings.

        Args:
            X: `[n, columns]`, a frame of pandas, Polars, Arrow, or of Arrow's PyCapsule interface; or an array, whose
                columns are x0, x1, …, with kinds as a frame's.
            y: `[n]` labels of two classes.
            sample_weight: `[n]`, ≥ 0; the loss is the mean over a batch of each row's times its weight.

        Raises:
            ValueError: Labels of other than two classes, other lengths, no column to train on; SettingsError of
                settings that do not hold, ClickLogError of values that cannot be read as the columns' kind.
            FloatingPointError: The training has diverged. After any failure the earlier fit remains.
        """
        with self._restored_on_error():
            labels = _checked_labels(self, y)
            frame = _feature_frame(self, X)
            log = self._begin(frame, y, labels, _two_classes(labels), sample_weight, tries=True)
            self._train(log, self.config_, self.config_.training.plan(log.train_rows))
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
            classes: Both labels; needed in the first call, and the same ones later on.

        Raises:
            ValueError: As `fit`; no or other classes, or another label in y.
            FloatingPointError: The training has diverged. The model is lost then: this is no longer fitted. An export,
                or a copy by pickle, made before is not.
        """
        is_first = not hasattr(self, "model_")
        if is_first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit: both labels")
        given = None if classes is None else _two_classes(np.asarray(classes))
        if not is_first and given is not None and not np.array_equal(given, self.classes_):
            raise ValueError(f"classes {given.tolist()} are not those of the first call: {self.classes_.tolist()}")
        with self._restored_on_error(also_if_diverged=is_first):
            labels = _checked_labels(self, y)
            frame = _feature_frame(self, X, None if is_first else list(self.columns_))
            if given is not None and is_first:
                log = self._begin(frame, y, labels, given, sample_weight, tries=False)
            else:
                log = self._log(frame, _codes_of(labels, self.classes_), self.columns_, sample_weight)
            plan = EpochPlan(log.train_rows, self.config_.training.batch_size)
            for group in self.optimizer_.param_groups:  # where a schedule has ended
                group["lr"] = group.get("initial_lr", group["lr"])
            self._train(log, self.config_.replace(schedule="constant", warmup=0.0, average=0.0), plan)
        return self

    def decision_function(self, X: Any) -> npt.NDArray[np.float64]:
        """Logits `[n]` of the second class.

        Args:
            X: `[n, columns]` as in `fit`. Features that training has not seen have the fallback vector, or zero.

        Raises:
            NotFittedError: Nothing has been trained.
            ValueError: Other columns, or in another order; ClickLogError of values that cannot be read.
        """
        check_is_fitted(self)
        log = FrameLog(_feature_frame(self, X, list(self.columns_)), columns=self.columns_, whole=True, name="X")
        logits = list(logits_in_float64(self.model_, log.batches(0, len(log), EVALUATED)))
        all_logits: npt.NDArray[np.float64] = torch.cat(logits).numpy()
        return all_logits

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Probabilities `[n, 2]` of the classes, in the order of `classes_`; raises as `decision_function`."""
        logits = torch.from_numpy(self.decision_function(X))
        probabilities: npt.NDArray[np.float64] = torch.stack([-logits, logits], dim=1).sigmoid().numpy()
        return probabilities

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The more probable class of each row, `[n]`; raises as `decision_function`."""
        second = self.decision_function(X) > 0
        classes: npt.NDArray[Any] = self.classes_
        return classes[second.astype(np.intp)]

    @property
    def feature_rate_(self) -> float:
        """See above."""
        check_is_fitted(self)
        rate: float = self.model_.embedding.feature_rate
        return rate

    def export(
        self, out: str | Path, dtype: Dtype = "float32", *, onnx: bool = False, overwrite: bool = False
    ) -> ExportManifest:
        """Write an export as `sparsegroup export` does, of the second class's probability. See `sparsegroup.serving`.

        Args:
            out: Its folder; it appears when it is complete.
            dtype: Format of the vectors.
            onnx: Whether to also write `model.onnx`.
            overwrite: Replace an export that is there.

        Raises:
            NotFittedError: Nothing has been trained.
            ExportError: The folder is taken; ONNX's packages are missing; vectors that the format does not have.
        """
        check_is_fitted(self)
        log, origin = feature_format(self.columns_), Path(f"<{type(self).__name__}>")
        schema = LogSchema(log.fields, tuple(log.lists), log.numbers)
        trained = TrainedModel(origin, "checkpoint", self.config_, schema, self.model_.eval(), vocabulary=None)
        return export_trained(trained, out, dtype, ["onnx"] if onnx else [], overwrite=overwrite)

    @contextmanager
    def _restored_on_error(self, *, also_if_diverged: bool = True) -> Iterator[None]:
        """An error leaves the attributes as they were; a model that was there and has diverged in place goes."""
        before = dict(vars(self))
        try:
            yield
        except BaseException as error:
            lost = isinstance(error, FloatingPointError) and not also_if_diverged
            self.__dict__ = self.get_params(deep=False) if lost else before
            raise

    def _begin(
        self,
        frame: pl.DataFrame,
        y: Any,
        labels: npt.NDArray[Any],
        classes: npt.NDArray[Any],
        weight: Any,
        *,
        tries: bool,
    ) -> FrameLog:
        """Make the model for these rows, with settings by trials if it `tries` them."""
        kinds = _column_kinds(frame, self.columns or {})
        name = getattr(y, "name", None)
        is_named = isinstance(name, str) and name not in ("", *kinds) and classes.tolist() == [0, 1]
        columns = {**kinds, str(name): "label"} if is_named else kinds  # as in a file of these rows
        log = self._log(frame, _codes_of(labels, classes), columns, weight)
        if not log.fields and not log.numbers:
            raise ValueError(f"no column is left to train on, of {', '.join(kinds)}: give their kinds by columns={{…}}")
        state, own = self.random_state, ("columns", "random_state")
        given = {name: one for name, one in self.get_params(deep=False).items() if name not in own and one is not None}
        seed = int(state) if isinstance(state, Integral) else check_random_state(state).randint(np.iinfo(np.int32).max)
        config = Config.of(**given, seed=int(seed), baseline=False)
        config.check_log(log)
        config = config.resolved_for(log).for_log(log)
        with _own_random_numbers():
            config, self.trials_ = settings_by_trials(config, log) if tries else (config, ())
            model, optimizer = config.build(log)
            self._random_numbers = torch.get_rng_state()
        self.classes_, self.columns_, self.config_ = classes, kinds, config
        self.model_, self.optimizer_ = model, optimizer
        self.history_: list[HistoryPoint] = []
        return log

    def _log(self, frame: pl.DataFrame, codes: npt.NDArray[Any], kinds: Mapping[str, str], weight: Any) -> FrameLog:
        if len(codes) != len(frame):
            raise ClickLogError(f"X has {len(frame)} rows and y {len(codes)}: as many are expected")
        return FrameLog(frame, codes, columns=kinds, weights=_checked_weights(weight, len(frame)), name="X")

    def _train(self, log: FrameLog, config: Config, plan: EpochPlan) -> None:
        with _own_random_numbers(self._random_numbers):
            trainer = config.trainer(self.model_, self.optimizer_, plan)
            trainer.go_on_after(self.history_)
            trainer.fit_plan(plan, log)
            self._random_numbers = torch.get_rng_state()
        self.history_ = trainer.history
        self.model_.eval()


@contextmanager
def _own_random_numbers(state: torch.Tensor | None = None) -> Iterator[None]:
    """While it lasts, torch draws other random numbers, from this state of its generator; the caller's stay."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(list(devices)):
        if state is not None:
            torch.set_rng_state(state)
        yield


def _feature_frame(estimator: BaseEstimator, given: Any, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """The rows of X, each column under its name; an array's columns are x0, x1, … where nothing else is known.

    `columns` are the columns of the fit, by their place; None while it is being fitted, which notes the
    number of features and their names. Raises ValueError for other features than it was fitted to, no rows, no columns
    or complex numbers; TypeError for a sparse matrix, or names of which only some are texts; ClickLogError for a column
    whose values are of several types.
    """
    reset = columns is None
    if not hasattr(given, "columns"):
        rows = validate_data(estimator, given, reset=reset, dtype=None, ensure_all_finite=False)
        names = columns or _numbered(rows.shape[1])
        return pl.DataFrame([_series(name, rows[:, place]) for place, name in enumerate(names)])
    is_pandas = type(given).__module__.partition(".")[0] == "pandas"
    frame: Any = given if is_pandas else polars_frame(given)
    if not len(frame) or not frame.shape[1]:
        what = "sample(s)" if frame.shape[1] else "feature(s)"
        raise ValueError(f"Found array with 0 {what} (shape={tuple(frame.shape)}) while a minimum of 1 is required.")
    validate_data(estimator, frame, reset=reset, skip_check_array=True)
    if is_pandas and not all(isinstance(name, str) for name in frame.columns):
        frame = frame.set_axis(_numbered(frame.shape[1]), axis=1)
    named = polars_frame(frame)
    return named if columns is None else named.rename(dict(zip(named.columns, columns, strict=True)))


def _numbered(width: int) -> list[str]:
    return [f"x{place}" for place in range(width)]


def _series(name: str, values: npt.NDArray[Any]) -> pl.Series:
    if values.dtype.kind not in "OSU":
        return pl.Series(name, np.ascontiguousarray(values))
    present = [value for value in values if not _is_missing(value)]
    if all(isinstance(value, Integral) for value in present):
        read: Callable[[Any], Any] = int
    else:
        read = float if all(isinstance(value, Real | np.bool_) for value in present) else str
    return pl.Series(name, [None if _is_missing(value) else read(value) for value in values])


def _is_missing(value: Any) -> bool:
    """Whether it is None, NaN, or pandas' NaT or NA, which cannot be compared."""
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):
        return type(value).__name__ == "NAType"


def _column_kinds(frame: pl.DataFrame, given: Mapping[str, str]) -> dict[str, str]:
    """Column → its kind, given or inferred; ValueError for an unknown column, or one of weights."""
    if unknown := [name for name in given if name not in frame.columns]:
        raise ValueError(f"columns: X has no column {unknown[0]!r}; it has {', '.join(frame.columns)}")
    if weight := next((name for name, kind in given.items() if kind == "weight"), None):
        raise ValueError(f"columns: give the values of {weight!r} as sample_weight, and leave it out of X")
    return {**kinds_of(columns_of(frame, exclude=given)), **given}


def _checked_labels(estimator: BaseEstimator, y: Any) -> npt.NDArray[Any]:
    """Labels `[n]` of at most two classes; ValueError for others, missing or continuous ones."""
    if y is None:
        name = type(estimator).__name__
        raise ValueError(f"This {name} estimator requires y to be passed, but the target y is None.")
    labels = column_or_1d(y, warn=True)
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    kind = type_of_target(labels, input_name="y", raise_unknown=True)
    if kind != "binary":
        raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
    return np.asarray(labels)


def _two_classes(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The different labels, ascending; ValueError if they are not two."""
    classes = np.unique(labels)
    if len(classes) != 2:
        found = "one class" if len(classes) == 1 else f"{len(classes)} classes"
        shown = ", ".join(map(repr, classes[:5].tolist()))
        raise ValueError(f"y needs labels of two classes; it contains {found}: {shown}")
    return classes


def _codes_of(labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """0 for the first class, 1 for the second, `[n]`; ValueError for a label of neither."""
    strange = ~np.isin(labels, classes)
    if strange.any():
        raise ValueError(f"y contains {labels[strange][:1].tolist()[0]!r}; the classes are {classes.tolist()}")
    return np.asarray(labels == classes[1], np.float32)


def _checked_weights(given: Any, rows: int) -> npt.NDArray[np.float32] | None:
    """Weights `[rows]`, or None where every row counts the same; ValueError unless they are ≥ 0 and not all 0."""
    if given is None:
        return None
    weights = np.asarray(given, np.float64)
    if weights.ndim != 1:
        raise ValueError("Sample weights must be 1D array or scalar")
    if len(weights) != rows:
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(rows,)}!")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError("sample_weight must be finite and >= 0")
    if not weights.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return weights.astype(np.float32)
