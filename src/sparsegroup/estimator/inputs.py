"""The arguments of an estimator, checked: X as a frame of named columns, labels of two classes, weights."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import assert_all_finite, column_or_1d, validate_data

from sparsegroup.data.frames import columns_of, polars_frame
from sparsegroup.data.inference import kinds_of


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


def column_kinds(frame: pl.DataFrame, given: Mapping[str, str]) -> dict[str, str]:
    """Column → its kind, given or inferred; ValueError for an unknown column, or one of weights."""
    if unknown := [name for name in given if name not in frame.columns]:
        raise ValueError(f"columns: X has no column {unknown[0]!r}; it has {', '.join(frame.columns)}")
    if weight := next((name for name, kind in given.items() if kind == "weight"), None):
        raise ValueError(f"columns: give the values of {weight!r} as sample_weight, and leave it out of X")
    return {**kinds_of(columns_of(frame, exclude=given)), **given}


def checked_labels(estimator: BaseEstimator, y: Any) -> npt.NDArray[Any]:
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


def two_classes(labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The different labels, ascending; ValueError if they are not two."""
    classes = np.unique(labels)
    if len(classes) != 2:
        found = "one class" if len(classes) == 1 else f"{len(classes)} classes"
        shown = ", ".join(map(repr, classes[:5].tolist()))
        raise ValueError(f"y needs labels of two classes; it contains {found}: {shown}")
    return classes


def codes_of(labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """0 for the first class, 1 for the second, `[n]`; ValueError for a label of neither."""
    strange = ~np.isin(labels, classes)
    if strange.any():
        raise ValueError(f"y contains {labels[strange][:1].tolist()[0]!r}; the classes are {classes.tolist()}")
    return np.asarray(labels == classes[1], np.float32)


def label_column(y: Any, classes: npt.NDArray[Any], kinds: Mapping[str, str]) -> dict[str, str]:
    """The column of a log that a named y of 0 and 1 is, and its kind; nothing for another y, or a feature's name."""
    name = getattr(y, "name", None)
    is_label = isinstance(name, str) and name not in ("", *kinds) and classes.tolist() == [0, 1]
    return {str(name): "label"} if is_label else {}


def checked_weights(given: Any, rows: int) -> npt.NDArray[np.float32] | None:
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
