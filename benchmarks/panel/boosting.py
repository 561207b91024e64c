"""LightGBM with native categories."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from panel.linear import Chosen, best_of, tag_lists, tail_of
from panel.logs import Kind

LEAVES = (15, 63)
MIN_DATA = (30, 200)
CATEGORIES = (200, 5_000)
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


def boosting(
    train: pl.DataFrame, test: pl.DataFrame, kinds: Mapping[str, Kind], label: str, quick: bool = False
) -> Chosen:
    """Boosted trees; leaves, rows of a leaf, how many categories are kept and what integers are is chosen.

    Early stopping says how many trees are best while choosing; as many are fitted to all training rows.
    """
    import lightgbm

    head, tail = tail_of(train)
    y, y_held = head[label].to_numpy(), tail[label].to_numpy()
    integers: tuple[Kind, ...] = ("number", "category") if "both" in kinds.values() else ("number",)
    views = [(most, one) for most in CATEGORIES for one in integers][: 1 if quick else None]
    tried: list[tuple[dict[str, Any], float]] = []

    def attempt(most: int, one: Kind, leaves: int, least: int) -> None:
        table = Table(head, kinds, most, one)
        inside, categories = table.matrix(head)
        data = lightgbm.Dataset(inside, y, categorical_feature=categories, params={"verbose": -1})
        held = data.create_valid(table.matrix(tail)[0], y_held)
        model = lightgbm.train(
            _parameters(leaves, least),
            data,
            20 if quick else ROUNDS,
            valid_sets=[held],
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
        )
        settings = {"most": most, "integers": one, "leaves": leaves, "least": least, "rounds": model.best_iteration}
        tried.append((settings, model.best_score["valid_0"]["binary_logloss"]))

    for most, one in views:
        attempt(most, one, LEAVES[0], MIN_DATA[1])
    view = best_of(tried)
    if not quick:
        for leaves, least in product(LEAVES, MIN_DATA):
            if (leaves, least) != (LEAVES[0], MIN_DATA[1]):
                attempt(view["most"], view["integers"], leaves, least)
    best = best_of(tried)
    table = Table(train, kinds, best["most"], best["integers"])
    inside, categories = table.matrix(train)
    data = lightgbm.Dataset(inside, train[label].to_numpy(), categorical_feature=categories, params={"verbose": -1})
    model = lightgbm.train(_parameters(best["leaves"], best["least"]), data, best["rounds"])
    return Chosen(model.predict(table.matrix(test)[0], num_threads=1), best)


def _parameters(leaves: int, least: int) -> dict[str, Any]:
    return {
        "objective": "binary",
        "metric": "binary_logloss",
        "learning_rate": 0.05,
        "num_leaves": leaves,
        "min_data_in_leaf": least,
        "feature_fraction": 0.8,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "num_threads": 1,
        "seed": 0,
        "verbose": -1,
    }
