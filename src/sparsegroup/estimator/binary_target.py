"""The labels of two classes and the weights that an estimator is given, checked."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import assert_all_finite, column_or_1d


def checked_labels(estimator: BaseEstimator, y: Any) -> npt.NDArray[Any]:
    """Labels `[n]` of at most two classes.

    Raises:
        ValueError: None are given, or not one per row; they are missing, continuous, or of more classes.
    """
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
    """The different labels, ascending.

    Raises:
        ValueError: They are not two.
    """
    classes = np.unique(labels)
    if len(classes) != 2:
        found = "one class" if len(classes) == 1 else f"{len(classes)} classes"
        shown = ", ".join(map(repr, classes[:5].tolist()))
        raise ValueError(f"y needs labels of two classes; it contains {found}: {shown}")
    return classes


def codes_of(labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """0 for the first class, 1 for the second, `[n]`.

    Raises:
        ValueError: A label of neither.
    """
    strange = ~np.isin(labels, classes)
    if strange.any():
        raise ValueError(f"y contains {labels[strange][:1].tolist()[0]!r}; the classes are {classes.tolist()}")
    codes: npt.NDArray[np.float32] = (labels == classes[1]).astype(np.float32)
    return codes


def label_column(y: Any, classes: npt.NDArray[Any], kinds: Mapping[str, str]) -> dict[str, str]:
    """The column of a log that y is, and its kind: of a y with a name and with labels as a log has them; else nothing.

    Args:
        y: Labels, such as a series.
        classes: The two of them.
        kinds: Column → its kind, of the features, of which none has that name.
    """
    name = getattr(y, "name", None)
    is_label = isinstance(name, str) and name not in ("", *kinds) and classes.tolist() == [0, 1]
    return {str(name): "label"} if is_label else {}


def checked_weights(given: Any, rows: int) -> npt.NDArray[np.float32] | None:
    """Weights `[rows]`, or None where every row counts the same.

    Raises:
        ValueError: Not a number ≥ 0 for each row, or nothing but zeros.
    """
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
