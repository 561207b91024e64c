"""The family of made-up logs: what a shape says is what its log is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from over import over
from panel.family import FAMILY, KEPT, UNSEEN, Shape, made, write
from sparsegroup.data import open_log

SMALL = Shape(4_000, (60, 40, 9), main=0.0, rate=0.5)


def shape_of(name: str) -> Shape:
    """A short log like that of the name."""
    shape = {**FAMILY, **KEPT, **UNSEEN}[name]
    return replace(shape, rows=6_000, rate=max(shape.rate, 0.02))


@over("name", [*FAMILY, *KEPT, *UNSEEN])
def test_labels_follow_the_probabilities_of_the_shape(name: str) -> None:
    shape = shape_of(name)
    frame, probabilities = made(shape)
    assert len(frame) == len(probabilities) == shape.rows
    assert probabilities.mean() == pytest.approx(shape.rate, abs=0.02 if not shape.jump else 0.05)
    assert frame["label"].mean() == pytest.approx(probabilities.mean(), abs=4 * 0.5 / shape.rows**0.5)
    assert roc_auc_score(frame["label"], probabilities) > 0.6
    assert frame.equals(made(shape)[0])
    assert not frame.equals(made(shape, seed=1)[0])
    assert sum(one.startswith("noise") for one in frame.columns) == shape.noise
    assert sum(one.startswith("copy") for one in frame.columns) == shape.copies


def auc_of_means(frame: pl.DataFrame, *columns: str) -> float:
    """AUC of the mean label of each value of the columns together, among those that are often there."""
    means = frame.with_columns(pl.col("label").mean().over(columns).alias("mean"), pl.len().over(columns).alias("n"))
    often = means.filter(pl.col("n") > 5)
    return float(roc_auc_score(often["label"], often["mean"]))


def test_a_taste_is_known_of_pairs_alone() -> None:
    plain, with_taste = (made(replace(SMALL, rows=20_000, taste=taste))[0] for taste in (0.0, 2.0))
    assert auc_of_means(with_taste, "f0", "f1") > auc_of_means(plain, "f0", "f1") + 0.05
    assert auc_of_means(with_taste, "f0") < 0.65


def test_the_rate_jumps_at_the_test_rows_and_drifts_before() -> None:
    _, still = made(replace(SMALL, jump=-1.0))
    assert np.unique(np.round(still, 9)).size == 2
    assert still[-400] < still[-401]
    _, drifting = made(replace(SMALL, drift=1.0))
    assert np.log(drifting / (1 - drifting)).std() == pytest.approx(1.0)


def test_a_column_as_people_write_it_is_read_as_what_it_is(tmp_path: Path) -> None:
    probabilities = write(shape_of("orders"), tmp_path / "orders.csv")
    log = open_log(tmp_path / "orders.csv")
    kinds = {
        "order_date": "time %d/%m/%Y %H:%M",
        "price": "amount comma",
        "rebate": "category, amount",
        "email": "domain",
        "title": "words",
    }
    assert {name: log.columns[name] for name in kinds} == kinds
    assert len(log) - log.train_rows == len(probabilities)
