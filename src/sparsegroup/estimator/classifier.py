"""A click model with scikit-learn's interface."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, Signature
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from sparsegroup.data.frames import FrameLog, columns_of, feature_format
from sparsegroup.data.inference import kinds_of
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import did_you_mean
from sparsegroup.estimator.binary_target import checked_labels, checked_weights, codes_of, label_column, two_classes
from sparsegroup.estimator.feature_frame import feature_frame
from sparsegroup.estimator.random_numbers import own_random_numbers
from sparsegroup.estimator.row_logits import row_logits
from sparsegroup.reporting.run_record import HistoryPoint
from sparsegroup.serving import ExportManifest, ExportRequest, TrainedModel, export_trained
from sparsegroup.settings.declared import DECLARED
from sparsegroup.settings.names import Dtype, ModelChoice
from sparsegroup.training.build import Config
from sparsegroup.training.log_pass import trainer_for
from sparsegroup.training.plan import EpochPlan

_NO_SETTINGS = ("columns", "random_state")
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

    It takes frames of pandas, Polars or Arrow as they are: it tells categories, numbers, times and lists as
    `sparsegroup train` tells them of a file, and missing values need not be filled in. The same rules decide what is
    not given: `Classifier().fit(frame, y)` is the model that `sparsegroup train` makes of a file of these rows.

    Args:
        model: The network; "auto" leaves it to the rules.
        columns: Column → its kind, see `ColumnKind`, for those that are not to be inferred from the rows; `"ignore"`
            leaves one out.
        random_state: The seed, of initialization, dropout and order; `sparsegroup train` takes 0. An int ≥ 0, or, for
            another one in each fit, a RandomState or None.
        **settings: Settings of `model`, `optimizer` and `training` by their short names, as on the page of settings:
            `dim`, `lr`, `target_rate`, `epochs` and so on. None, the default of each, leaves it to the rules.

    Attributes:
        classes_: The two labels, ascending.
        columns_: Column → its kind, as it was told or given.
        config_: All settings of the training.
        feature_rate_: Live features over features seen.
        history_: Points along the training, see `HistoryPoint`.
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
        """Train a new model on all rows, in the order and as often as the settings say.

        Args:
            X: `[n, columns]`, a frame of pandas, Polars, Arrow, or of Arrow's PyCapsule interface; or an array, whose
                columns are x0, x1, … and told as a frame's.
            y: `[n]` labels of two classes.
            sample_weight: `[n]`, ≥ 0; the loss is the mean over a batch of each row's times its weight.

        Raises:
            ValueError: Labels of other than two classes, other lengths, no column to train on; SettingsError of
                settings that do not hold, ClickLogError of values that cannot be read as the columns' kind.
            FloatingPointError: The training has diverged. Whatever fails, what was fitted before stays.
        """
        with self._as_before_if_it_fails():
            labels = checked_labels(self, y)
            frame = feature_frame(self, X)
            log = self._begin(frame, y, labels, two_classes(labels), sample_weight)
            self._train(log, self.config_, self.config_.training.plan(log.train_rows))
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: npt.ArrayLike | None = None, sample_weight: npt.ArrayLike | None = None
    ) -> Self:
        """Go on with the model, its table and optimizer: once over these rows, in their order, at constant rates.

        The first call, if `fit` was not called before, makes the model: what the columns are, the numbers' statistics
        and what the settings leave open are told from its rows. A size that is asked for is met at the end of each
        call, as `sparsegroup train --continue` has it.

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
        given = None if classes is None else two_classes(np.asarray(classes))
        if not is_first and given is not None and not np.array_equal(given, self.classes_):
            raise ValueError(f"classes {given.tolist()} are not those of the first call: {self.classes_.tolist()}")
        with self._as_before_if_it_fails(also_if_diverged=is_first):
            labels = checked_labels(self, y)
            frame = feature_frame(self, X, None if is_first else list(self.columns_))
            if is_first:
                assert given is not None
                log = self._begin(frame, y, labels, given, sample_weight)
            else:
                log = self._log(frame, codes_of(labels, self.classes_), self.columns_, sample_weight)
            plan = EpochPlan(log.train_rows, self.config_.training.batch_size)
            for group in self.optimizer_.param_groups:  # where a schedule has ended
                group["lr"] = group.get("initial_lr", group["lr"])
            self._train(log, self.config_.replace(schedule="constant", warmup=0.0), plan)
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
        frame = feature_frame(self, X, list(self.columns_))
        log = FrameLog(frame, columns=self.columns_, whole=True, name="X")
        return row_logits(self.model_, log)

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
        """Write an export as `sparsegroup export` does: `sparsegroup predict OUT LOG` scores by it.

        It gives the probability of the second class. See `sparsegroup.serving`.

        Args:
            out: Its folder; it appears when it is complete.
            dtype: Format of the vectors.
            onnx: Whether to write `model.onnx`, too.
            overwrite: Replace an export that is there.

        Raises:
            NotFittedError: Nothing has been trained.
            ExportError: The folder is taken; ONNX's packages are missing; vectors that the format does not have.
        """
        check_is_fitted(self)
        log, origin = feature_format(self.columns_), Path(f"<{type(self).__name__}>")
        schema = LogSchema(log.fields, tuple(log.lists), log.numbers)
        trained = TrainedModel(origin, "checkpoint", self.config_, schema, self.model_.eval(), vocabulary=None)
        return export_trained(trained, out, dtype, ExportRequest(onnx=onnx), overwrite=overwrite)

    # How both ways of fitting train

    @contextmanager
    def _as_before_if_it_fails(self, *, also_if_diverged: bool = True) -> Iterator[None]:
        """What fails leaves the attributes as they were; a model that was there and has diverged in place goes."""
        before = dict(vars(self))
        try:
            yield
        except BaseException as error:
            lost = isinstance(error, FloatingPointError) and not also_if_diverged
            self.__dict__ = self.get_params(deep=False) if lost else before
            raise

    def _begin(
        self, frame: pl.DataFrame, y: Any, labels: npt.NDArray[Any], classes: npt.NDArray[Any], weight: Any
    ) -> FrameLog:
        """Make the model for these rows."""
        kinds = self._kinds(frame)
        log = self._log(frame, codes_of(labels, classes), {**kinds, **label_column(y, classes, kinds)}, weight)
        if not log.fields and not log.numbers:
            raise ValueError(
                f"no column is left to train on, of {', '.join(kinds)}: say what they are by columns={{…}}"
            )
        config = self._config()
        config.check_log(log)
        config = config.resolved_for(log).for_log(log)
        with own_random_numbers():
            model, optimizer = config.build(log)
            self._random_numbers = torch.get_rng_state()
        self.classes_, self.columns_, self.config_ = classes, kinds, config
        self.model_, self.optimizer_ = model, optimizer
        self.history_: list[HistoryPoint] = []
        return log

    def _config(self) -> Config:
        given = {name: value for name, value in self.get_params(deep=False).items() if value is not None}
        settings = {name: value for name, value in given.items() if name not in _NO_SETTINGS}
        state = self.random_state
        seed = int(state) if isinstance(state, Integral) else check_random_state(state).randint(np.iinfo(np.int32).max)
        return Config.of(**settings, seed=int(seed), baseline=False)

    def _kinds(self, frame: pl.DataFrame) -> dict[str, str]:
        given = self.columns or {}
        if unknown := [name for name in given if name not in frame.columns]:
            raise ValueError(f"columns: X has no column {unknown[0]!r}; it has {', '.join(frame.columns)}")
        if weight := next((name for name, kind in given.items() if kind == "weight"), None):
            raise ValueError(f"columns: give the values of {weight!r} as sample_weight, and leave it out of X")
        return {**kinds_of(columns_of(frame, exclude=given)), **given}

    def _log(self, frame: pl.DataFrame, codes: npt.NDArray[Any], kinds: Mapping[str, str], weight: Any) -> FrameLog:
        if len(codes) != len(frame):
            raise ClickLogError(f"X has {len(frame)} rows and y {len(codes)}: as many are expected")
        return FrameLog(frame, codes, columns=kinds, weights=checked_weights(weight, len(frame)), name="X")

    def _train(self, log: FrameLog, config: Config, plan: EpochPlan) -> None:
        with own_random_numbers(self._random_numbers):
            trainer = trainer_for(config, self.model_, self.optimizer_, log, plan)
            trainer.go_on_after(self.history_)
            trainer.fit(lambda epoch: plan.batches(log, epoch), **plan.arguments(log))
            self._random_numbers = torch.get_rng_state()
        self.history_ = trainer.history
        self.model_.eval()
