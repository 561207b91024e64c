"""LightGBM, XGBoost and CatBoost, each with its own way with categories."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from panel.linear import Chosen, best_of, tag_lists, tail_of
from panel.logs import Kind

ROUNDS = 600
PATIENCE = 40
TAGS = 50


class Table:
    """Makes a matrix of numbers and codes of a frame, by what it knows of the training rows' columns.

    Args:
        frame: Training rows.
        kinds: Column → kind.
        most: Categories of a column that are kept, the most frequent ones; the others are merged into one.
        integers: What an integer is that may be a name or a measure.
    """

    def __init__(self, frame: pl.DataFrame, kinds: Mapping[str, Kind], most: int, integers: Kind) -> None:
        self._kinds = {name: integers if kind == "both" else kind for name, kind in kinds.items()}
        self._codes: dict[str, dict[str, int]] = {}
        for name, kind in self._kinds.items():
            if kind in ("category", "tags"):
                cells = frame[name].cast(pl.String).fill_null("") if kind == "category" else tag_lists(frame[name])
                cells = cells if kind == "category" else cells.explode().drop_nulls()
                counts = cells.value_counts(sort=True, name="count")[: most if kind == "category" else TAGS]
                self._codes[name] = {value: code for code, value in enumerate(counts[name].to_list())}

    def matrix(self, frame: pl.DataFrame) -> tuple[np.ndarray, list[int]]:
        """`[rows, columns]` float64, and which columns hold codes of categories."""
        columns: list[np.ndarray] = []
        categories: list[int] = []
        for name, kind in self._kinds.items():
            cells, codes = frame[name], self._codes.get(name, {})
            if kind == "category":
                categories.append(len(columns))
                merged = (
                    cells.cast(pl.String).fill_null("").replace_strict(codes, default=len(codes), return_dtype=pl.Int64)
                )
                columns.append(merged.to_numpy())
            elif kind == "time":
                columns += [cells.dt.hour().to_numpy(), cells.dt.weekday().to_numpy()]
            elif kind == "tags":
                tags = tag_lists(cells)
                columns += [tags.list.contains(tag).fill_null(False).to_numpy() for tag in codes]
            else:
                columns.append(cells.cast(pl.Float64).to_numpy())
        return np.column_stack([column.astype(np.float64) for column in columns]), categories


class Fitted(NamedTuple):
    """Boosted trees."""

    predict: Callable[[np.ndarray], np.ndarray]  # from a matrix of `Table` to [rows] probabilities
    rounds: int  # trees up to the best one on the rows that were held out
    loss: float  # the log loss there; NaN where no rows were
    saved: Callable[[], bytes]  # the model in the format of its library


Rows = tuple[np.ndarray, np.ndarray]
"""A matrix of `Table`, and labels."""


class Library(NamedTuple):
    """A library of boosted trees."""

    fit: Callable[[Rows, list[int], Mapping[str, Any], int, Rows | None], Fitted]
    """Training rows, which columns are categories, settings, rounds, rows held out for early stopping → trees."""
    most: Sequence[int]  # how many categories of a column are kept, to choose from
    settings: Sequence[Mapping[str, Any]]  # to choose from; the first are tried with all views of the columns


def boosting(
    train: pl.DataFrame,
    test: pl.DataFrame,
    kinds: Mapping[str, Kind],
    label: str,
    quick: bool = False,
    *,
    library: Library,
) -> Chosen:
    """Boosted trees; their settings, how many categories are kept and what integers are is chosen.

    Early stopping says how many trees are best on the rows that are held out; as many are fitted to all training rows.
    """
    head, tail = tail_of(train)
    integers: tuple[Kind, ...] = ("number", "category") if "both" in kinds.values() else ("number",)
    views = list(product(library.most, integers))[: 1 if quick else None]
    tried: list[tuple[dict[str, Any], float]] = []

    def attempt(most: int, one: Kind, settings: Mapping[str, Any], of: pl.DataFrame = head) -> int:
        table = Table(of, kinds, most, one)
        inside, categories = table.matrix(of)
        held = (table.matrix(tail)[0], tail[label].to_numpy())
        rounds = 20 if quick else ROUNDS
        fitted = library.fit((inside, of[label].to_numpy()), categories, settings, rounds, held)
        tried.append(({"most": most, "integers": one, **settings, "rounds": fitted.rounds}, fitted.loss))
        return fitted.rounds

    for most, one in views:
        attempt(most, one, library.settings[0])
    view = best_of(tried)
    for settings in library.settings[1:] if not quick else ():
        attempt(view["most"], view["integers"], settings)
    best = best_of(tried)
    chosen = {name: best[name] for name in library.settings[0]}
    if len(head) + len(tail) < len(train):  # more rows are worth more trees
        whole = train[: len(train) - len(tail)]
        best = {**best, "rounds": attempt(best["most"], best["integers"], chosen, whole)}
    table = Table(train, kinds, best["most"], best["integers"])
    inside, categories = table.matrix(train)
    fitted = library.fit((inside, train[label].to_numpy()), categories, chosen, best["rounds"], None)
    return Chosen(fitted.predict(table.matrix(test)[0]), best, len(fitted.saved()))


def _lightgbm(rows: Rows, categories: list[int], settings: Mapping[str, Any], rounds: int, held: Rows | None) -> Fitted:
    import lightgbm

    parameters = {
        "objective": "binary",
        "metric": "binary_logloss",
        "learning_rate": 0.05,
        "feature_fraction": 0.8,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "num_threads": 1,
        "seed": 0,
        "verbose": -1,
        **settings,
    }
    data = lightgbm.Dataset(*rows, categorical_feature=categories, params={"verbose": -1})
    stopping: dict[str, Any] = {}
    if held is not None:
        stopping["valid_sets"] = [data.create_valid(*held)]
        stopping["callbacks"] = [lightgbm.early_stopping(PATIENCE, verbose=False)]
    model = lightgbm.train(parameters, data, rounds, **stopping)
    best, loss = rounds, nan
    if held is not None:
        best, loss = model.best_iteration, model.best_score["valid_0"]["binary_logloss"]
    return Fitted(partial(model.predict, num_threads=1), best, loss, lambda: model.model_to_string().encode())


def _xgboost(rows: Rows, categories: list[int], settings: Mapping[str, Any], rounds: int, held: Rows | None) -> Fitted:
    import xgboost

    def data(matrix: np.ndarray, labels: np.ndarray | None = None) -> Any:
        types = ["c" if column in categories else "q" for column in range(matrix.shape[1])]
        return xgboost.DMatrix(matrix, labels, feature_types=types, enable_categorical=True, nthread=1)

    parameters = {
        "objective": "binary:logistic",
        "eval_metric": "logloss",
        "learning_rate": 0.05,
        "subsample": 0.8,
        "colsample_bytree": 0.8,
        "nthread": 1,
        "seed": 0,
        **settings,
    }
    stopping: dict[str, Any] = {}
    if held is not None:
        stopping = {"evals": [(data(*held), "held")], "early_stopping_rounds": PATIENCE, "verbose_eval": False}
    model = xgboost.train(parameters, data(*rows), rounds, **stopping)
    best, loss = (rounds, nan) if held is None else (model.best_iteration + 1, float(model.best_score))
    return Fitted(lambda matrix: model.predict(data(matrix)), best, loss, model.save_raw)


def _catboost(rows: Rows, categories: list[int], settings: Mapping[str, Any], rounds: int, held: Rows | None) -> Fitted:
    import catboost

    def data(matrix: np.ndarray, labels: np.ndarray | None = None) -> Any:
        numbers = [column for column in range(matrix.shape[1]) if column not in categories]
        codes = matrix[:, categories].astype(np.int64).astype(str).astype(object)
        features = catboost.FeaturesData(
            num_feature_data=np.ascontiguousarray(matrix[:, numbers], np.float32) if numbers else None,
            cat_feature_data=np.char.encode(codes.astype(str)).astype(object) if categories else None,
        )
        return catboost.Pool(features, labels, thread_count=1)

    model = catboost.CatBoostClassifier(
        iterations=rounds, learning_rate=0.1, thread_count=1, random_seed=0, allow_writing_files=False, verbose=False,
        **settings,
    )  # fmt: skip

    def saved() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            model.save_model(f"{folder}/model.cbm")
            return Path(folder, "model.cbm").read_bytes()

    best, loss = rounds, nan
    if held is None:
        model.fit(data(*rows))
    else:
        model.fit(data(*rows), eval_set=data(*held), early_stopping_rounds=PATIENCE, use_best_model=True)
        best, loss = model.get_best_iteration() + 1, model.get_best_score()["validation"]["Logloss"]
    return Fitted(lambda matrix: model.predict_proba(data(matrix), thread_count=1)[:, 1], best, loss, saved)


LIGHTGBM = Library(
    _lightgbm,
    (200, 5_000),
    [{"num_leaves": leaves, "min_data_in_leaf": least} for leaves, least in ((15, 200), (15, 30), (63, 30), (63, 200))],
)
XGBOOST = Library(
    _xgboost,
    (200, 5_000),
    [{"max_depth": depth, "min_child_weight": least} for depth, least in ((5, 10), (5, 1), (9, 1), (9, 10))],
)
CATBOOST = Library(
    _catboost, (1 << 30,), [{"depth": 6, "l2_leaf_reg": l2} for l2 in (3, 30)] + [{"depth": 4, "l2_leaf_reg": 3}]
)
"""LightGBM and XGBoost split a column's categories in two sets; CatBoost makes statistics of them, also of pairs."""
