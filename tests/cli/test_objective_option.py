"""`--objective`: numbers, an order within groups, classes and several tasks from a CSV to a served model."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from command import Run
from endings import Refused

ROWS = 3_000
LEARN = ("--selection", "never", "--dim", 4, "--batch-size", 64)


Result = Callable[..., dict[str, Any]]


@pytest.fixture
def result(ok: Run) -> Result:
    """What a command prints with `--json`."""

    def of(*arguments: object) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ok(*arguments, "--json").stdout)
        return found

    return of


@dataclass
class Served:
    """What commands say of a run, its export, and the run that continues it; what both predict."""

    trained: dict[str, Any]
    measured: dict[str, Any]
    exported: dict[str, Any]
    more: dict[str, Any]
    report: str
    scores: pl.DataFrame


Serve = Callable[..., Served]


@pytest.fixture
def served(ok: Run, result: Result, pictures: None) -> Serve:
    """Write a log as `log.csv`, train on it, and export, score and continue the run."""

    def of(frame: pl.DataFrame, *options: object) -> Served:
        frame.write_csv("log.csv")
        trained = result("train", "log.csv", *options, *LEARN, "--out", "run")
        exported = result("export", "run", "out", "--no-onnx", "--test", "log.csv")
        for model in ("run", "out"):
            ok("predict", model, "log.csv", "--out", f"{model}.csv")
        first, second = (pl.read_csv(f"{model}.csv") for model in ("run", "out"))
        for name in first.columns:
            if first[name].dtype == pl.Float64:
                np.testing.assert_allclose(first[name], second[name], rtol=1e-4, atol=1e-5)
        more = result("train", "log.csv", "--continue", "run", "--out", "more")
        measured, report = result("evaluate", "run", "log.csv"), Path("run/report.html").read_text()
        return Served(trained, measured, exported, more, report, first)

    return of


def liked_films() -> tuple[np.random.Generator, pl.DataFrame, np.ndarray]:
    """Users and films, and how much each user likes the film."""
    draw = np.random.default_rng(2)
    users, films = draw.integers(40, size=ROWS), draw.integers(30, size=ROWS)
    frame = pl.DataFrame({"user": [f"u{user}" for user in users], "film": [f"f{film}" for film in films]})
    return draw, frame, draw.normal(size=40)[users] + draw.normal(size=30)[films]


def test_numbers_from_a_csv_to_a_served_model(ok: Run, refused: Refused, result: Result, served: Serve) -> None:
    _, frame, liked = liked_films()
    label = ("--label", "rating", "--objective", "squared")
    found = served(frame.with_columns(rating=np.clip(np.round(3 + liked), 1, 5)), *label, "--epochs", 3)
    assert found.trained["test_relative_loss"] < 0.5
    assert {"test_rmse", "test_mae", "baseline_rmse", "test_calibration"} <= found.trained.keys()
    assert "RMSE" in found.report
    assert "Labels by prediction" in found.report
    assert "AUC" not in found.report
    assert found.measured["metrics"]["rmse"] == pytest.approx(found.trained["test_rmse"], rel=1e-6)
    assert found.exported["export_rmse"] == pytest.approx(found.trained["test_rmse"], rel=1e-5)
    assert found.scores.columns == ["row", "prediction", "label"]
    assert found.more["test_relative_loss"] < 0.5

    sizes = result("path", "log.csv", *label, "--epochs", 3, "--batch-size", 64, "--rates", ".3", "--tolerance", ".5")
    whole, part = (point["test"] for point in sizes["points"])
    assert whole["relative_loss"] < part["relative_loss"] < 1
    assert sizes["no_loss_down_to"] < 0.5
    assert "test relative loss" in Path("paths/log/path.svg").read_text()
    searched = result("tune", "log.csv", *label, "--model", "lr", "--trials", 2, "--out", "study")
    assert searched["best"]["relative_loss"] < 1
    assert "relative_loss" in Path("study/trials.csv").read_text()
    columns = result("select", "log.csv", *label, "--epochs", 3, *LEARN[2:], "--seeds", 1)
    assert {one["name"]: one["is_kept"] for one in columns["columns"]} == {"user": True, "film": True}
    by = ok("evaluate", "run", "log.csv", "--by", "film").stdout
    assert "labels' sum" in by
    assert "AUC" not in by
    assert "--user is for labels 0 and 1" in refused("evaluate", "run", "log.csv", "--user", "user")


def test_an_order_within_groups_from_a_csv_to_a_served_model(refused: Refused, served: Serve) -> None:
    draw = np.random.default_rng(2)
    users, films = draw.integers(60, size=ROWS), draw.integers(30, size=ROWS)
    level, taste = 4 * draw.normal(size=60), draw.normal(size=30)
    rating = np.clip(np.round(5 + level[users] + taste[films] + draw.normal(0, 0.2, ROWS)), 0, 10)
    frame = {"user": [f"u{user}" for user in users], "film": [f"f{film}" for film in films], "rating": rating}
    ranking = ("--objective", "lambdarank", "--group", "user")
    found = served(pl.DataFrame(frame), "--label", "rating", "--epochs", 2, *ranking)
    assert found.trained["test_ndcg"] > found.trained["baseline_ndcg"]
    assert found.trained["test_gauc"] > 0.85
    assert found.trained["test_relative_loss"] < 0.5
    assert "test_calibration" not in found.trained
    assert "NDCG@10" in found.report
    assert "alibration" not in found.report
    assert found.measured["metrics"]["ndcg"] == pytest.approx(found.trained["test_ndcg"])
    assert found.exported["export_ndcg"] == pytest.approx(found.trained["test_ndcg"], rel=1e-5)
    assert found.scores.columns == ["row", "score", "label"]
    assert found.more["test_gauc"] > 0.85
    for wrong, words in (
        (ranking[:2], "lambdarank learns the order of rows within a group: give the field whose values"),
        ((*ranking[:3], "films"), "'films' is not a field; did you mean 'film'?"),
        (("--objective", "squared", *ranking[2:]), "choose the --objective pairwise or lambdarank, or leave --group"),
    ):
        assert words in refused("train", "log.csv", "--label", "rating", *wrong, "--out", "none")


def test_classes_from_a_csv_to_a_served_model(ok: Run, refused: Refused, served: Serve) -> None:
    _, frame, liked = liked_films()
    classes = ["bad", "fair", "good, really"]
    mood = np.array(classes)[np.digitize(liked, (-0.7, 0.7))]
    label = ("--label", "mood", "--objective", "softmax")
    found = served(frame.with_columns(mood=mood), *label, "--epochs", 3)
    assert found.trained["test_accuracy"] > 0.9 > found.trained["baseline_accuracy"]
    assert {"test_log_loss", "test_auc", "baseline_normalized_entropy"} <= found.trained.keys()
    for words in ("Accuracy", "share of right classes", "likeliest class is right in"):
        assert words in found.report
    assert found.measured["metrics"]["log_loss"] == pytest.approx(found.trained["test_log_loss"], rel=1e-6)
    assert found.measured["baseline"]["accuracy"] > 0.5
    assert found.exported["export_log_loss"] == pytest.approx(found.trained["test_log_loss"], rel=1e-5)
    assert json.loads(Path("out/manifest.json").read_text())["config"]["training"]["classes"] == classes
    scores = found.scores
    assert scores.columns == ["row", *(f"probability_{name}" for name in classes), "prediction", "label"]
    assert (scores["label"] == pl.Series(mood)).all()
    assert (scores["prediction"] == scores["label"]).mean() > 0.9
    ok("predict", "run", "log.csv", "--out", "run.parquet")
    assert pl.read_parquet("run.parquet").columns == scores.columns
    assert found.more["test_accuracy"] > 0.9
    for arguments, message in (
        (("explain", "run", "log.csv", "--row", 0), "a model of one output can be explained, and softmax (3 classes)"),
        (
            ("evaluate", "run", "log.csv", "--by", "user"),
            "--by is for probabilities and numbers; the model's objective",
        ),
        (("train", "log.csv", "--label", "user", "--labels", "classes"), "labels that are classes, and logistic takes"),
        (("evaluate", "run", "log.csv", "--label", "mood==bad"), "takes the classes bad, fair"),
    ):
        assert message in refused(*arguments)


def test_several_tasks_from_a_csv_to_a_served_model(ok: Run, refused: Refused, result: Result, served: Serve) -> None:
    draw, frame, liked = liked_films()
    click = draw.random(ROWS) < 1 / (1 + np.exp(-2 * liked))
    buy = click & (draw.random(ROWS) < 0.3)
    price = pl.Series(10 + 2 * (liked - liked.min())).round(2)
    frame = frame.with_columns(click=click.astype(int), buy=buy.astype(int), price=price)
    frame = frame.with_columns(price=pl.when(pl.col("buy") > 0).then("price"))
    three = ("--label", "click,buy,price", "--objective", "logistic,logistic,squared", "--task-weights", "1,1,.5")
    found = served(frame, *three, "--model", "mmoe", "--epochs", 4)
    tasks = found.trained["test_tasks"]
    assert tasks["click"]["auc"] > 0.8
    assert tasks["price"]["relative_loss"] < 0.5
    assert found.trained["baseline_tasks"].keys() == tasks.keys() == {"click", "buy", "price"}
    for words in ("weighted loss of the tasks", "Test AUC, click", "Test relative loss, price"):
        assert words in found.report
    in_log = found.measured["metrics"]["tasks"]["buy"]["log_loss"]
    assert in_log == pytest.approx(tasks["buy"]["log_loss"], rel=1e-6)
    shown = ok("evaluate", "run", "log.csv").stdout
    assert "click: AUC" in shown
    assert "price: RMSE" in shown
    assert found.exported["export_loss"] == pytest.approx(found.trained["test_loss"], rel=1e-5)
    names = ["click_probability", "buy_probability", "price_prediction"]
    assert found.scores.columns == ["row", *names, "click_label", "buy_label", "price_label"]
    assert found.scores["price_label"].is_nan().sum() == ROWS - buy.sum()
    assert found.more["test_relative_loss"] < 0.9

    esmm = ("--label", "click,buy", "--objective", "esmm", "--exclude", "price")
    both = result("train", "log.csv", *esmm, "--model", "ple", *LEARN, "--epochs", 4, "--out", "esmm")["test_tasks"]
    assert both["buy"]["auc"] > 0.65
    ok("predict", "esmm", "log.csv", "--out", "esmm.csv")
    of_both = pl.read_csv("esmm.csv")
    assert (of_both["buy_probability"] <= of_both["click_probability"]).all()
    for arguments, message in (
        (("explain", "run", "log.csv", "--row", 0), "a model of one output can be explained"),
        (("evaluate", "run", "log.csv", "--user", "user"), "--user is for labels 0 and 1; the model's objective is"),
        (("train", "log.csv", *esmm[:2], "--objective", "logistic,squared,huber"), "the 2 labels click, buy"),
        (("train", "log.csv", "--label", "click", *esmm[2:4]), "and `objective` is of 2 tasks"),
        (("train", "log.csv", "--label", "click,price", *esmm[2:4]), "label 'price' must be 0 or 1"),
    ):
        assert message in " ".join(refused(*arguments).split())


def test_a_log_of_sampled_negatives_gives_probabilities_of_the_whole_one(ok: Run, result: Result) -> None:
    draw = np.random.default_rng(3)
    values = draw.integers(20, size=20_000)
    label = (draw.random(20_000) < 0.01 + 0.01 * values).astype(int)
    whole = pl.DataFrame({"label": label, "value": [f"v{value}" for value in values]})
    whole.write_csv("whole.csv")
    whole.filter((pl.col("label") == 1) | pl.Series(draw.random(20_000) < 0.2)).write_csv("sampled.csv")
    calibrations = {}
    for kept in ("1", "20%"):
        options = ("--model", "lr", "--selection", "never", "--no-baseline", "--negatives-kept", kept)
        ok("train", "sampled.csv", *options, "--out", f"run {kept}")
        found = result("evaluate", f"run {kept}", "whole.csv", "--negatives-kept", "1")
        calibrations[kept] = found["metrics"]["calibration"]
    assert calibrations["1"] > 2
    assert calibrations["20%"] == pytest.approx(1, abs=0.1)
    assert result("evaluate", "run 20%", "sampled.csv")["metrics"]["calibration"] == pytest.approx(1, abs=0.2)
