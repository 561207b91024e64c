"""What the estimators share: settings as parameters, frames as logs, training, scores, exports."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import Parameter, Signature
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from sparsegroup.data.batches import MOST_WEIGHT, concatenated
from sparsegroup.data.frames import FrameLog, columns_of, feature_format, polars_frame
from sparsegroup.data.inference.columns import kinds_of
from sparsegroup.errors import ClickLogError, did_you_mean
from sparsegroup.reporting.run_record import HistoryPoint
from sparsegroup.serving import ExportManifest, TrainedModel, export_trained
from sparsegroup.settings.declared import DECLARED
from sparsegroup.settings.names import Dtype, ModelChoice
from sparsegroup.training.assessment.columns import MOST_ROWS, rises
from sparsegroup.training.build import Config
from sparsegroup.training.callbacks.progress import ProgressBar
from sparsegroup.training.model import ClickModel
from sparsegroup.training.plan import EpochPlan
from sparsegroup.training.predictions import EVALUATED, logits_in_float64
from sparsegroup.training.selection.trials import settings_by_trials
from sparsegroup.training.trainer import Callback, Trainer

Labels = npt.NDArray[np.float32]

_PARAMETERS = {
    "model": Parameter("model", Parameter.POSITIONAL_OR_KEYWORD, default="auto"),
    "columns": Parameter("columns", Parameter.KEYWORD_ONLY, default=None),
    **{
        one.short: Parameter(one.short, Parameter.KEYWORD_ONLY, default=None)
        for one in DECLARED.values()
        if one.key.split(".")[0] in ("model", "optimizer", "training")
        and one.short not in ("model", "seed", "windows", "baseline", "group")
    },
    "random_state": Parameter("random_state", Parameter.KEYWORD_ONLY, default=0),
    "verbose": Parameter("verbose", Parameter.KEYWORD_ONLY, default=0),
}
"""Of the constructor; a setting is a parameter when it is declared."""


class NetworkEstimator(BaseEstimator):  # type: ignore[misc]
    """A network over hashed features, trained on frames; `Classifier` and `Regressor` say what of."""

    _learns_classes = False
    columns: Mapping[str, str] | None
    random_state: int | np.random.RandomState | None
    epochs: int | None
    verbose: int

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
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def _scores(self, X: Any) -> npt.NDArray[np.float64]:
        """The network's outputs `[n]`, or of several classes `[n, k]`.

        Args:
            X: `[n, columns]` as in `fit`. Features that training has not seen have the fallback vector, or zero.

        Raises:
            NotFittedError: Nothing has been trained.
            ValueError: Other columns, or in another order; ClickLogError of values that cannot be read.
        """
        check_is_fitted(self)
        log = FrameLog(feature_frame(self, X, list(self.columns_)), columns=self.columns_, whole=True, name="X")
        logits = list(logits_in_float64(self.model_, log.batches(0, len(log), EVALUATED)))
        all_logits: npt.NDArray[np.float64] = torch.cat(logits).numpy()
        return all_logits

    @property
    def feature_rate_(self) -> float:
        """See above."""
        check_is_fitted(self)
        rate: float = self.model_.embedding.feature_rate
        return rate

    def export(
        self, out: str | Path, dtype: Dtype = "float32", *, onnx: bool = False, overwrite: bool = False
    ) -> ExportManifest:
        """Write an export as `sparsegroup export` does, of the probability of the second of two classes, or of each.

        See `sparsegroup.serving`.

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
        trained = TrainedModel(
            origin, "checkpoint", self.config_, log.columns_of_model, self.model_.eval(), vocabulary=None
        )
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
        labels: Labels,
        name: str | None,
        weight: Any,
        *,
        tries: bool,
        classes: Sequence[str] = (),
        **decided: Any,
    ) -> FrameLog:
        """Make the model for these rows and labels, with settings by trials if it `tries` them.

        `name`: the label's, if a file could have these rows; `classes`: see `FrameLog`; `decided`: settings where none
        are given.
        """
        kinds = _column_kinds(frame, self.columns or {})
        columns = kinds if name in (None, "", *kinds) else {**kinds, str(name): "label"}  # as in a file of these rows
        log = self._log(frame, labels, columns, weight, classes)
        if not log.fields and not log.numbers:
            raise ValueError(f"no column is left to train on, of {', '.join(kinds)}: give their kinds by columns={{…}}")
        state, own = self.random_state, ("columns", "random_state", "verbose")
        given = {name: one for name, one in self.get_params(deep=False).items() if name not in own and one is not None}
        seed = int(state) if isinstance(state, Integral) else check_random_state(state).randint(np.iinfo(np.int32).max)
        config = Config.of(**{**decided, **given}, seed=int(seed), baseline=False)
        if config.objective.takes_groups:
            raise ValueError(
                f"objective: {config.objective} learns an order of rows within groups, which scikit-learn's estimators "
                "do not have: take `Config`, as in docs/objectives.md, or `sparsegroup train`"
            )
        if self._learns_classes and not (config.objective.is_binary or config.objective.takes_classes):
            raise ValueError(f"objective: {config.objective} is for numbers: take Regressor")
        if not self._learns_classes and config.objective.takes_classes:
            raise ValueError(f"objective: {config.objective} is for classes: take Classifier")
        config.check_log(log)
        config = config.resolved_for(log).for_log(log)
        with _own_random_numbers():
            config, self.trials_ = settings_by_trials(config, log, self._reporting) if tries else (config, ())
            model, optimizer = config.build(log)
            self._random_numbers = torch.get_rng_state()
        self.columns_, self.config_ = kinds, config
        self.model_, self.optimizer_ = model, optimizer
        self.history_: list[HistoryPoint] = []
        return log

    def _fit(self, log: FrameLog) -> None:
        """Train the new model on all rows, and measure what the columns are worth to it on the way."""
        plan = self.config_.training.plan(log.train_rows)
        ahead = _Ahead(log, plan, self.model_)
        self._train(log, self.config_, plan, [ahead])
        self.feature_importances_ = np.array([ahead.importances.get(name, 0.0) for name in self.columns_])

    def _continue(self, log: FrameLog) -> None:
        """Train once over these rows, in their order, at constant learning rates."""
        plan = EpochPlan(log.train_rows, self.config_.training.batch_size)
        for group in self.optimizer_.param_groups:  # where a schedule has ended
            group["lr"] = group.get("initial_lr", group["lr"])
        self._train(log, self.config_.replace(schedule="constant", warmup=0.0, average=0.0), plan)

    def _log(
        self,
        frame: pl.DataFrame,
        labels: Labels,
        kinds: Mapping[str, str],
        weight: Any,
        classes: Sequence[str] = (),
    ) -> FrameLog:
        if len(labels) != len(frame):
            raise ClickLogError(f"X has {len(frame)} rows and y {len(labels)}: as many are expected")
        weights = _checked_weights(weight, len(frame))
        return FrameLog(frame, labels, columns=kinds, weights=weights, classes=classes, name="X")

    def _train(self, log: FrameLog, config: Config, plan: EpochPlan, callbacks: Sequence[Callback] = ()) -> None:
        with _own_random_numbers(self._random_numbers):
            with self._reporting(plan.samples, f"{config.model.name}, {config.optimizer.name}") as bar:
                callbacks = [*callbacks, *([] if bar is None else [bar])]
                trainer = config.trainer(self.model_, self.optimizer_, plan, callbacks)
                trainer.go_on_after(self.history_)
                trainer.fit_plan(plan, log)
            self._random_numbers = torch.get_rng_state()
        self.history_ = trainer.history
        self.model_.eval()

    def _reporting(self, samples: int, name: str) -> AbstractContextManager[Callback | None]:
        return nullcontext(ProgressBar(samples, name) if self.verbose else None)


class _Ahead(Callback):
    """Measures a model's columns on the last tenth of the rows of the first pass, before they are trained on.

    Attributes:
        importances: Column → its importance there; empty before.
    """

    def __init__(self, log: FrameLog, plan: EpochPlan, model: ClickModel) -> None:
        self.log, self.plan, self.model = log, plan, model
        self.importances: dict[str, float] = {}

    def between_batches(self, trainer: Trainer) -> None:
        """See `Callback`."""
        progress, plan = trainer.progress, self.plan
        ahead = plan.rows - progress.position
        if self.importances or progress.epoch or not 0 < ahead <= max(plan.rows // 10, plan.batch_size):
            return
        rows = concatenated(list(plan.batches(self.log, 0, progress.position)))[:MOST_ROWS]
        found = rises(self.model, self.log, rows, shuffles=1)
        self.importances = {name: one.importance.loss for name, one in found.items()}
        self.model.train()


@contextmanager
def _own_random_numbers(state: torch.Tensor | None = None) -> Iterator[None]:
    """While it lasts, torch draws other random numbers, from this state of its generator; the caller's stay."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(list(devices)):
        if state is not None:
            torch.set_rng_state(state)
        yield


def feature_frame(estimator: BaseEstimator, given: Any, columns: Sequence[str] | None = None) -> pl.DataFrame:
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


def name_of(y: Any) -> str | None:
    """The name of a column of labels, if it has one."""
    name = getattr(y, "name", None)
    return name if isinstance(name, str) else None


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


def _checked_weights(given: Any, rows: int) -> npt.NDArray[np.float32] | None:
    """Weights `[rows]`, or None where every row counts the same; ValueError unless they are ≥ 0 and not all 0."""
    if given is None:
        return None
    weights = np.asarray(given, np.float64)
    if weights.ndim != 1:
        raise ValueError("Sample weights must be 1D array or scalar")
    if len(weights) != rows:
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(rows,)}!")
    if (wrong := ~((weights >= 0) & (weights <= MOST_WEIGHT))).any():
        row = int(wrong.argmax())
        raise ValueError(
            f"sample_weight must be finite and >= 0, at most {MOST_WEIGHT:g}; got {weights[row]} in row {row} (from 0)"
        )
    if not weights.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return weights.astype(np.float32)
