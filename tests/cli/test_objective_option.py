"""`--objective`: numbers, and an order within groups, from a CSV to a served model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from command import Run


def test_numbers_from_a_csv_to_a_served_model(run: Run, tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    users, films = draw.integers(40, size=3_000), draw.integers(30, size=3_000)
    rating = np.clip(np.round(3 + draw.normal(size=40)[users] + draw.normal(size=30)[films]), 1, 5)
    frame = {"user": [f"u{user}" for user in users], "film": [f"f{film}" for film in films], "rating": rating}
    pl.DataFrame(frame).write_csv(tmp_path / "ratings.csv")
    options = ("--selection", "never", "--epochs", "3", "--dim", "4", "--batch-size", "64")
    label = ("--label", "rating", "--objective", "squared")

    def result(*arguments: str) -> dict[str, float]:
        done = run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, float] = json.loads(done.stdout)
        return found

    trained = result("train", "ratings.csv", *label, *options, "--out", "run")
    assert trained["test_relative_loss"] < 0.5
    assert {"test_rmse", "test_mae", "baseline_rmse", "test_calibration"} <= trained.keys()
    report = (tmp_path / "run" / "report.html").read_text()
    assert "RMSE" in report
    assert "Labels by prediction" in report
    assert "AUC" not in report
    measured = result("evaluate", "run", "ratings.csv")
    assert measured["metrics"]["rmse"] == pytest.approx(trained["test_rmse"], rel=1e-6)  # type: ignore[index]
    exported = result("export", "run", "out", "--onnx", "--test", "ratings.csv")
    assert exported["onnx_rmse"] == pytest.approx(trained["test_rmse"], rel=1e-5)
    for model in ("run", "out"):
        assert run("predict", model, "ratings.csv", "--out", f"{model}.csv").returncode == 0
    scores = [pl.read_csv(tmp_path / f"{model}.csv") for model in ("run", "out")]
    assert scores[0].columns == ["row", "prediction", "label"]
    np.testing.assert_allclose(scores[0]["prediction"], scores[1]["prediction"], rtol=1e-5)
    assert result("train", "ratings.csv", "--continue", "run", "--out", "more")["test_relative_loss"] < 0.5
    sizes = result("path", "ratings.csv", *label, "--epochs", "3", "--batch-size", "64", "--rates", ".3", "--tolerance", ".5")
    whole, part = (point["test"] for point in sizes["points"])  # type: ignore[attr-defined]
    assert whole["relative_loss"] < part["relative_loss"] < 1
    assert sizes["no_loss_down_to"] < 0.5
    assert "test relative loss" in (tmp_path / "paths" / "ratings" / "path.svg").read_text()
    searched = result("tune", "ratings.csv", *label, "--model", "lr", "--trials", "2", "--out", "study")
    assert searched["best"]["relative_loss"] < 1  # type: ignore[index]
    assert "relative_loss" in (tmp_path / "study" / "trials.csv").read_text()
    columns = result("select", "ratings.csv", *label, *options[2:], "--seeds", "1")
    assert {one["name"]: one["is_kept"] for one in columns["columns"]} == {"user": True, "film": True}  # type: ignore[attr-defined]
    assert "--user is for labels 0 and 1" in run("evaluate", "run", "ratings.csv", "--user", "user").stderr


def test_an_order_within_groups_from_a_csv_to_a_served_model(run: Run, tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    users, films = draw.integers(60, size=3_000), draw.integers(30, size=3_000)
    level, taste = 4 * draw.normal(size=60), draw.normal(size=30)
    rating = np.clip(np.round(5 + level[users] + taste[films] + draw.normal(0, 0.2, 3_000)), 0, 10)
    frame = {"user": [f"u{user}" for user in users], "film": [f"f{film}" for film in films], "rating": rating}
    pl.DataFrame(frame).write_csv(tmp_path / "ratings.csv")
    options = ("--label", "rating", "--selection", "never", "--epochs", "2", "--dim", "4", "--batch-size", "64")
    ranking = ("--objective", "lambdarank", "--group", "user")

    def result(*arguments: str) -> dict[str, Any]:
        done = run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

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
