"""`--objective`: numbers, an order within groups, classes and several tasks from a CSV to a served model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from command import Run

Result = Callable[..., dict[str, Any]]


@pytest.fixture
def result(run: Run) -> Result:
    """What a command prints with `--json`."""

    def of(*arguments: str) -> dict[str, Any]:
        done = run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return of


def test_numbers_from_a_csv_to_a_served_model(run: Run, result: Result, tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    users, films = draw.integers(40, size=3_000), draw.integers(30, size=3_000)
    rating = np.clip(np.round(3 + draw.normal(size=40)[users] + draw.normal(size=30)[films]), 1, 5)
    frame = {"user": [f"u{user}" for user in users], "film": [f"f{film}" for film in films], "rating": rating}
    pl.DataFrame(frame).write_csv(tmp_path / "ratings.csv")
    options = ("--selection", "never", "--epochs", "3", "--dim", "4", "--batch-size", "64")
    label = ("--label", "rating", "--objective", "squared")

    trained = result("train", "ratings.csv", *label, *options, "--out", "run")
    assert trained["test_relative_loss"] < 0.5
    assert {"test_rmse", "test_mae", "baseline_rmse", "test_calibration"} <= trained.keys()
    report = (tmp_path / "run" / "report.html").read_text()
    assert "RMSE" in report
    assert "Labels by prediction" in report
    assert "AUC" not in report
    measured = result("evaluate", "run", "ratings.csv")
    assert measured["metrics"]["rmse"] == pytest.approx(trained["test_rmse"], rel=1e-6)
    exported = result("export", "run", "out", "--onnx", "--test", "ratings.csv")
    assert exported["onnx_rmse"] == pytest.approx(trained["test_rmse"], rel=1e-5)
    for model in ("run", "out"):
        assert run("predict", model, "ratings.csv", "--out", f"{model}.csv").returncode == 0
    scores = [pl.read_csv(tmp_path / f"{model}.csv") for model in ("run", "out")]
    assert scores[0].columns == ["row", "prediction", "label"]
    np.testing.assert_allclose(scores[0]["prediction"], scores[1]["prediction"], rtol=1e-5)
    assert result("train", "ratings.csv", "--continue", "run", "--out", "more")["test_relative_loss"] < 0.5
    sizes = result(
        "path", "ratings.csv", *label, "--epochs", "3", "--batch-size", "64", "--rates", ".3", "--tolerance", ".5"
    )
    whole, part = (point["test"] for point in sizes["points"])
    assert whole["relative_loss"] < part["relative_loss"] < 1
    assert sizes["no_loss_down_to"] < 0.5
    assert "test relative loss" in (tmp_path / "paths" / "ratings" / "path.svg").read_text()
    searched = result("tune", "ratings.csv", *label, "--model", "lr", "--trials", "2", "--out", "study")
    assert searched["best"]["relative_loss"] < 1
    assert "relative_loss" in (tmp_path / "study" / "trials.csv").read_text()
    columns = result("select", "ratings.csv", *label, *options[2:], "--seeds", "1")
    assert {one["name"]: one["is_kept"] for one in columns["columns"]} == {"user": True, "film": True}
    assert "--user is for labels 0 and 1" in run("evaluate", "run", "ratings.csv", "--user", "user").stderr
    by = run("evaluate", "run", "ratings.csv", "--by", "film").stdout
    assert "labels' sum" in by
    assert "AUC" not in by


def test_an_order_within_groups_from_a_csv_to_a_served_model(run: Run, result: Result, tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    users, films = draw.integers(60, size=3_000), draw.integers(30, size=3_000)
    level, taste = 4 * draw.normal(size=60), draw.normal(size=30)
    rating = np.clip(np.round(5 + level[users] + taste[films] + draw.normal(0, 0.2, 3_000)), 0, 10)
    frame = {"user": [f"u{user}" for user in users], "film": [f"f{film}" for film in films], "rating": rating}
    pl.DataFrame(frame).write_csv(tmp_path / "ratings.csv")
    options = ("--label", "rating", "--selection", "never", "--epochs", "2", "--dim", "4", "--batch-size", "64")
    ranking = ("--objective", "lambdarank", "--group", "user")

    trained = result("train", "ratings.csv", *options, *ranking, "--out", "run")
    assert trained["test_ndcg"] > trained["baseline_ndcg"]
    assert trained["test_gauc"] > 0.85
    assert trained["test_relative_loss"] < 0.5
    assert "test_calibration" not in trained
    report = (tmp_path / "run" / "report.html").read_text()
    assert "NDCG@10" in report
    assert "alibration" not in report
    assert result("evaluate", "run", "ratings.csv")["metrics"]["ndcg"] == pytest.approx(trained["test_ndcg"])
    exported = result("export", "run", "out", "--onnx", "--test", "ratings.csv")
    assert exported["onnx_ndcg"] == pytest.approx(trained["test_ndcg"], rel=1e-5)
    for model in ("run", "out"):
        assert run("predict", model, "ratings.csv", "--out", f"{model}.csv").returncode == 0
    scores = [pl.read_csv(tmp_path / f"{model}.csv") for model in ("run", "out")]
    assert scores[0].columns == ["row", "score", "label"]
    np.testing.assert_allclose(scores[0]["score"], scores[1]["score"], rtol=1e-4, atol=1e-5)
    assert result("train", "ratings.csv", "--continue", "run", "--out", "more")["test_gauc"] > 0.85
    for wrong, words in (
        (ranking[:2], "lambdarank learns the order of rows within a group: give the field whose values"),
        ((*ranking[:3], "films"), "'films' is not a field; did you mean 'film'?"),
        (("--objective", "squared", *ranking[2:]), "choose the --objective pairwise or lambdarank, or leave --group"),
    ):
        refused = run("train", "ratings.csv", *options, *wrong, "--out", "none")
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr


def test_classes_from_a_csv_to_a_served_model(run: Run, result: Result, tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    users, films = draw.integers(40, size=3_000), draw.integers(30, size=3_000)
    liked = draw.normal(size=40)[users] + draw.normal(size=30)[films]
    mood = np.array(["bad", "fair", "good, really"])[np.digitize(liked, (-0.7, 0.7))]
    frame = {"user": [f"u{user}" for user in users], "film": [f"f{film}" for film in films], "mood": mood}
    pl.DataFrame(frame).write_csv(tmp_path / "moods.csv")
    options = ("--selection", "never", "--epochs", "3", "--dim", "4", "--batch-size", "64")

    trained = result("train", "moods.csv", "--label", "mood", "--objective", "softmax", *options, "--out", "run")
    assert trained["test_accuracy"] > 0.9 > trained["baseline_accuracy"]
    assert {"test_log_loss", "test_auc", "baseline_normalized_entropy"} <= trained.keys()
    report = (tmp_path / "run" / "report.html").read_text()
    assert {"Accuracy", "share of right classes", "likeliest class is right in"} == {
        one for one in ("Accuracy", "share of right classes", "likeliest class is right in") if one in report
    }
    measured = result("evaluate", "run", "moods.csv")
    assert measured["metrics"]["log_loss"] == pytest.approx(trained["test_log_loss"], rel=1e-6)
    assert measured["baseline"]["accuracy"] > 0.5
    exported = result("export", "run", "out", "--onnx", "--test", "moods.csv")
    assert exported["onnx_log_loss"] == pytest.approx(trained["test_log_loss"], rel=1e-5)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["config"]["training"]["classes"] == ["bad", "fair", "good, really"]
    for model in ("run", "out"):
        assert run("predict", model, "moods.csv", "--out", f"{model}.csv").returncode == 0
    scores = [pl.read_csv(tmp_path / f"{model}.csv") for model in ("run", "out")]
    probabilities = [f"probability_{name}" for name in ("bad", "fair", "good, really")]
    assert scores[0].columns == ["row", *probabilities, "prediction", "label"]
    np.testing.assert_allclose(*(one[probabilities].to_numpy() for one in scores), rtol=1e-4, atol=1e-6)
    assert (scores[0]["label"] == pl.Series(mood)).all()
    assert (scores[0]["prediction"] == scores[0]["label"]).mean() > 0.9
    assert run("predict", "run", "moods.csv", "--out", "run.parquet").returncode == 0
    assert pl.read_parquet(tmp_path / "run.parquet").columns == scores[0].columns
    assert result("train", "moods.csv", "--continue", "run", "--out", "more")["test_accuracy"] > 0.9
    assert result("export", "more", "delta", "--since", "out")["upserts"] > 0
    assert run("apply", "out", "delta", "whole", "--no-onnx").returncode == 0
    softmax = ("--objective", "softmax", "--label", "mood")
    sizes = result("path", "moods.csv", *softmax, "--epochs", "3", "--batch-size", "64", "--rates", ".3")
    assert {"auc", "accuracy"} <= sizes["points"][1]["test"].keys()
    for arguments, message in (
        (
            ("explain", "run", "moods.csv", "--row", "0"),
            "a model of one output can be explained, and softmax (3 classes)",
        ),
        (
            ("evaluate", "run", "moods.csv", "--by", "user"),
            "--by is for probabilities and numbers; the model's objective is softmax",
        ),
        (
            ("train", "moods.csv", "--label", "user", "--labels", "classes"),
            "labels that are classes, and logistic takes",
        ),
        (("evaluate", "run", "moods.csv", "--label", "mood==bad"), "takes the classes bad, fair"),
    ):
        refused = run(*arguments)
        assert (refused.returncode in (1, 2), message in " ".join(refused.stderr.split())) == (True, True), (
            refused.stderr
        )


def test_several_tasks_from_a_csv_to_a_served_model(run: Run, result: Result, tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    users, films = draw.integers(40, size=3_000), draw.integers(30, size=3_000)
    liked = draw.normal(size=40)[users] + draw.normal(size=30)[films]
    click = draw.random(3_000) < 1 / (1 + np.exp(-2 * liked))
    buy = click & (draw.random(3_000) < 0.3)
    price = pl.Series(10 + draw.normal(size=30)[films]).round(2)
    frame = pl.DataFrame({"user": [f"u{user}" for user in users], "film": [f"f{film}" for film in films]})
    frame = frame.with_columns(click=click.astype(int), buy=buy.astype(int), price=price)
    frame.with_columns(price=pl.when(pl.col("buy") > 0).then("price")).write_csv(tmp_path / "actions.csv")
    options = ("--selection", "never", "--epochs", "4", "--batch-size", "64")

    three = ("--label", "click,buy,price", "--objective", "logistic,logistic,squared", "--task-weights", "1,1,.5")
    trained = result("train", "actions.csv", *three, "--model", "mmoe", *options, "--out", "run")
    tasks, of_baseline = trained["test_tasks"], trained["baseline_tasks"]
    assert tasks["click"]["auc"] > 0.8
    assert tasks["price"]["relative_loss"] < 0.5
    assert of_baseline.keys() == tasks.keys() == {"click", "buy", "price"}
    report = (tmp_path / "run" / "report.html").read_text()
    for words in ("weighted loss of the tasks", "Test AUC, click", "Test relative loss, price"):
        assert words in report
    measured = result("evaluate", "run", "actions.csv")["metrics"]
    assert measured["tasks"]["buy"]["log_loss"] == pytest.approx(tasks["buy"]["log_loss"], rel=1e-6)
    shown = run("evaluate", "run", "actions.csv").stdout
    assert "click: AUC" in shown
    assert "price: RMSE" in shown
    exported = result("export", "run", "out", "--onnx", "--test", "actions.csv")
    assert exported["onnx_loss"] == pytest.approx(trained["test_loss"], rel=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime")
    outputs = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx").get_outputs()
    names = ["click_probability", "buy_probability", "price_prediction"]
    assert [one.name for one in outputs] == names
    for model in ("run", "out"):
        assert run("predict", model, "actions.csv", "--out", f"{model}.csv").returncode == 0
    scores = [pl.read_csv(tmp_path / f"{model}.csv") for model in ("run", "out")]
    assert scores[0].columns == ["row", *names, "click_label", "buy_label", "price_label"]
    np.testing.assert_allclose(*(one[names].to_numpy() for one in scores), rtol=1e-4)
    assert scores[0]["price_label"].is_nan().sum() == 3_000 - buy.sum()
    assert result("train", "actions.csv", "--continue", "run", "--out", "more")["test_relative_loss"] < 0.9
    assert result("export", "more", "delta", "--since", "out")["upserts"] > 0
    esmm = ("--label", "click,buy", "--objective", "esmm", "--exclude", "price", "--model", "ple")
    both = result("train", "actions.csv", *esmm, *options, "--out", "esmm")["test_tasks"]
    assert both["buy"]["auc"] > 0.7
    assert run("predict", "esmm", "actions.csv", "--out", "esmm.csv").returncode == 0
    of_both = pl.read_csv(tmp_path / "esmm.csv")
    assert (of_both["buy_probability"] <= of_both["click_probability"]).all()
    searched = result("tune", "actions.csv", *esmm[:6], "--model", "mlp", "--trials", "2", "--out", "study")
    assert searched["best"]["relative_loss"] > 0
    for arguments, message in (
        (("explain", "run", "actions.csv", "--row", "0"), "a model of one output can be explained"),
        (
            ("evaluate", "run", "actions.csv", "--user", "user"),
            "--user is for labels 0 and 1; the model's objective is",
        ),
        (
            ("train", "actions.csv", "--label", "click,buy", "--objective", "logistic,squared,huber"),
            "the 2 labels click, buy",
        ),
        (("train", "actions.csv", "--label", "click", "--objective", "esmm"), "and `objective` is of 2 tasks"),
        (("train", "actions.csv", "--label", "click,price", "--objective", "esmm"), "label 'price' must be 0 or 1"),
    ):
        refused = run(*arguments)
        assert (refused.returncode in (1, 2), message in " ".join(refused.stderr.split())) == (True, True), (
            refused.stderr
        )


def test_a_log_of_sampled_negatives_gives_probabilities_of_the_whole_one(run: Run, tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    values = draw.integers(20, size=20_000)
    label = (draw.random(20_000) < 0.01 + 0.01 * values).astype(int)
    whole = pl.DataFrame({"label": label, "value": [f"v{value}" for value in values]})
    whole.write_csv(tmp_path / "whole.csv")
    whole.filter((pl.col("label") == 1) | pl.Series(draw.random(20_000) < 0.2)).write_csv(tmp_path / "sampled.csv")
    calibrations = {}
    for kept in ("1", "20%"):
        options = ("--model", "lr", "--selection", "never", "--no-baseline", "--negatives-kept", kept)
        assert run("train", "sampled.csv", *options, "--out", f"run {kept}").returncode == 0
        done = run("evaluate", f"run {kept}", "whole.csv", "--negatives-kept", "1", "--json")
        calibrations[kept] = json.loads(done.stdout)["metrics"]["calibration"]
    own = json.loads(run("evaluate", "run 20%", "sampled.csv", "--json").stdout)["metrics"]["calibration"]
    assert calibrations["1"] > 2
    assert calibrations["20%"] == pytest.approx(1, abs=0.1)
    assert own == pytest.approx(1, abs=0.2)
