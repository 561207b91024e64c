"""From a log to a server, through the real command line, and the example that scores without this package."""

import csv
import json
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from cli_cases import click_log
from command import Run
from data_cases import log_at
from sparsegroup.data import open_log
from sparsegroup.serving import open_test_rows, open_trained, read_manifest
from sparsegroup.training import Config
from sparsegroup.training.predictions import PredictionWindow, predicted_rows

SCORE = Path(__file__).parents[2] / "examples" / "score_onnx.py"
WITHOUT = """
import runpy, sys
sys.modules["torch"] = sys.modules["sparsegroup"] = None  # so that importing them fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def scored_alone(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, SCORE, *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def column(path: Path, name: str) -> np.ndarray:
    with path.open(newline="") as file:
        return np.array([float(row[name]) for row in csv.DictReader(file)])


def by_package(model: Path, log: Path, rows: int) -> np.ndarray:
    opened = open_trained(model)
    opened_log = open_log(log, whole=True, **opened.config.data.format_options)
    parts = predicted_rows(opened.model, opened_log, PredictionWindow())
    return np.concatenate([part["probability"] for part in parts])[:rows]


def test_train_export_and_score(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    assert run("train", log, "--lr", 0.05, "--l21", 1e-4, "--out", "run").returncode == 0
    done = run("export", "run", "out", "--test", log, "--program")
    assert done.returncode == 0, done.stderr
    for word in ("feature rate", "before", "200 rows of", "onnx", "program", "→", "embeddings.safetensors"):
        assert word in done.stdout
    manifest = read_manifest(tmp_path / "out")
    assert manifest.test is not None
    assert set(manifest.test.scores) == {"training", "export", "onnx", "program"}
    before, after = manifest.test.scores["training"], manifest.test.scores["onnx"]
    assert abs(before.auc - after.auc) < 1e-4
    assert after.max_abs_difference < 1e-5
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert before.auc == pytest.approx(summary["test"]["auc"], abs=1e-6)
    assert manifest.live_rows == summary["live_rows"]
    said = scored_alone("out", log, "--out", "scores.csv")
    assert "2,000 rows, log loss" in said
    expected = by_package(tmp_path / "run", log, 2_000)
    assert np.abs(column(tmp_path / "scores.csv", "probability") - expected).max() < 1e-5


def test_a_schema_with_numbers_and_lists_scores_the_same_alone(tmp_path: Path, run: Run) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text("{label: click, categorical: [user, né], multi: {words: '|'}, numeric: [age]}\n")
    lines = ["click,user,né,words,age"]
    lines += [f"{int(i % 5 == 0)},u{i % 9},é{i % 3},{'|'.join('abc'[: i % 4])},{i % 7 or ''}" for i in range(900)]
    log = tmp_path / "log.csv.xz"
    log.write_bytes(lzma.compress("\n".join([*lines, ""]).encode()))
    assert run("train", log, "--schema", schema, "--lr", 0.05, "--l21", 1e-5, "--out", "run").returncode == 0
    done = run("export", "run", "out")
    assert done.returncode == 0, done.stderr
    said = scored_alone("out", log, "--out", "scores.csv")
    assert "900 rows" in said
    expected = by_package(tmp_path / "run", log, 900)
    assert np.abs(column(tmp_path / "scores.csv", "probability") - expected).max() < 1e-5


def test_real_flights_score_the_same_alone(tmp_path: Path, run: Run) -> None:
    whole = log_at("nycflights13.csv.xz")
    with lzma.open(whole, "rt") as file:
        head = [line for line, _ in zip(file, range(20_001), strict=False)]
    log = tmp_path / "flights.csv"
    log.write_text("".join(head))
    options = ("--lr", 0.01, "--l21", 1e-4, "--selection", "never")
    assert run("train", log, *options, "--out", "run").returncode == 0
    assert run("export", "run", "out", "--dtype", "float32").returncode == 0
    scored_alone("out", log, "--rows", 5_000, "--out", "scores.csv")
    found = column(tmp_path / "scores.csv", "probability")
    assert len(found) == 5_000
    assert np.abs(found - by_package(tmp_path / "run", log, 5_000)).max() < 1e-5


def test_the_next_days_delta_is_applied(tmp_path: Path, run: Run) -> None:
    log, next_log = click_log(tmp_path / "log.csv"), click_log(tmp_path / "next.csv", 3_000)
    assert run("train", log, "--lr", 0.05, "--l21", 1e-4, "--out", "run1").returncode == 0
    assert run("train", next_log, "--continue", "run1", "--out", "run2").returncode == 0
    assert run("export", "run1", "base", "--no-onnx", "--dtype", "int8").returncode == 0
    done = run("export", "run2", "delta", "--since", "base", "--test", next_log)
    assert done.returncode == 0, done.stderr
    assert "upserts" in done.stdout
    assert "AUC" in done.stdout
    assert run("export", "run2", "full", "--dtype", "int8", "--no-onnx").returncode == 0
    done = run("apply", "base", "delta", "applied", "--no-onnx", "--test", next_log)
    assert done.returncode == 0, done.stderr
    for name in ("embeddings.safetensors", "network.safetensors"):
        assert (tmp_path / "applied" / name).read_bytes() == (tmp_path / "full" / name).read_bytes()


def test_what_the_user_can_mend_is_one_line(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    assert run("train", log, "--lr", 0.05, "--out", "run").returncode == 0
    assert run("export", "run", "out", "--no-onnx").returncode == 0
    other = tmp_path / "other.csv"
    other.write_text("label,a,b\n" + "".join(f"{i % 2},{i},{i}\n" for i in range(50)))
    for arguments, said in (
        (("export", "run", "out"), "out: is not empty; give another folder, or --overwrite"),
        (("export", "run", "run", "--overwrite"), "run: holds no export that could be overwritten"),
        (("export", "nothing", "new"), "nothing: no run"),
        (("export", "run", "new", "--test", other), "other.csv:1: no column 'color'; the columns are label, a, b"),
        (("export", "run", "new", "--since", "run"), "run: no export (manifest.json is missing)"),
        (("export", "run", "new", "--since", "out", "--onnx"), "a delta holds no model"),
        (("apply", "out", "new"), "BASE DELTA... OUT"),
        (("apply", "out", "out", "new"), "out: a whole export, no delta"),
    ):
        done = run(*arguments)
        assert done.returncode == 2, arguments
        assert done.stderr.startswith("error: ")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_which_rows_are_the_test_set(tmp_path: Path) -> None:
    log, other = click_log(tmp_path / "log.csv"), click_log(tmp_path / "other.csv", 500)
    config = Config.of(log=str(log))
    own, alien = open_test_rows(log, config), open_test_rows(other, config)
    assert (own.start, len(own)) == (1_800, 200)
    assert (alien.start, len(alien)) == (0, 500)
    all_rows = open_test_rows(log, config.replace(test_fraction=0.0))
    assert (all_rows.start, len(all_rows)) == (0, 2_000)
    assert len(open_log(log)) == 2_000


def test_what_an_export_may_not_take_the_place_of(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv", 1_000)
    assert run("train", log, "--lr", 0.05, "--l21", 1e-4, "--out", "run").returncode == 0
    assert run("export", "run", "first", "--no-onnx").returncode == 0
    assert run("export", "run", "second", "--since", "first").returncode == 0
    around = run("export", "run", "first", "--since", "second", "--overwrite")
    assert (around.returncode, "cannot take the place of an export that it builds on" in around.stderr) == (2, True)
    itself = run("export", "first", "first", "--dtype", "int8", "--overwrite", "--no-onnx")
    assert (itself.returncode, "cannot take the place of what it is made of" in itself.stderr) == (2, True)
    (tmp_path / "first" / "NOTES.md").write_text("mine")
    foreign = run("export", "run", "first", "--overwrite", "--no-onnx")
    assert (foreign.returncode, "first: holds NOTES.md, which is no part of an export" in foreign.stderr) == (2, True)


def test_a_test_set_needs_labels(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv", 1_000)
    assert run("train", log, "--lr", 0.05, "--out", "run").returncode == 0
    (tmp_path / "other.csv").write_text("id,ts,color,size\n1,1,c1,2\n")
    done = run("export", "run", "out", "--no-onnx", "--test", "other.csv")
    assert (done.returncode, done.stderr) == (2, "error: other.csv: has no labels, which a test set needs\n")
    assert run("predict", "run", "other.csv").returncode == 0


def test_an_export_is_recalibrated_on_newer_rows(tmp_path: Path, run: Run) -> None:
    random = np.random.default_rng(0)
    for name, rate in (("log", 0.2), ("newer", 0.5)):
        lines = [f"{int(random.random() < rate)},{random.integers(20)},{random.integers(9)}" for _ in range(2_000)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["clicked,user,item", *lines]) + "\n")
    assert run("train", "log.csv", "--model", "lr", "--out", "run").returncode == 0
    before = (tmp_path / "run" / "summary.json").read_bytes()
    done = run("export", "run", "out", "--recalibrate", "newer.csv", "--no-onnx", "--json")
    assert done.returncode == 0, done.stderr
    shift = json.loads(done.stdout)["shift"]
    assert run("export", "run", "plain", "--no-onnx").returncode == 0
    scored = {}
    for name in ("out", "plain"):
        assert run("predict", name, "newer.csv", "--out", f"{name}.scores.csv").returncode == 0
        scores = pl.read_csv(f"{name}.scores.csv")
        scored[name] = scores["probability"].to_numpy()
        labels = scores["label"].to_numpy()
    assert scored["out"].sum() / labels.sum() == pytest.approx(1, abs=2e-3)
    assert scored["plain"].sum() / labels.sum() < 0.6
    logits = {name: np.log(one / (1 - one)) for name, one in scored.items()}
    np.testing.assert_allclose(logits["out"] - logits["plain"], shift, atol=1e-4)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
