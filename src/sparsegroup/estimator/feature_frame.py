"""What an estimator is given as X, as a frame of named columns."""

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from sparsegroup.data.frames import polars_frame


def feature_frame(estimator: BaseEstimator, given: Any, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """The rows of X, each column under its name; an array's columns are x0, x1, … where nothing else is known.

    Args:
        estimator: Is told how many features there are, and their names, if it is being fitted; else both are checked.
        given: A frame of pandas, Polars, Arrow, or whatever has Arrow's PyCapsule interface; or a 2-d array-like.
        columns: The columns that the estimator was fitted to, by their place; None: it is being fitted.

    Raises:
        ValueError: Other features than it was fitted to, or in another order; no rows, no columns, complex numbers.
        TypeError: A sparse matrix, or names of which only some are texts.
        ClickLogError: A column whose values are of several types.
    """
    reset = columns is None
    if not hasattr(given, "columns"):
        rows = validate_data(estimator, given, reset=reset, dtype=None, ensure_all_finite=False)
        return _frame_of(rows, columns or _numbered(rows.shape[1]))
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


def _frame_of(rows: npt.NDArray[Any], names: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame([_series(name, rows[:, place]) for place, name in enumerate(names)])


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
