"""From a log to a server, through the real command line, and the example that scores without this package."""

import csv
import json
import lzma
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli_cases import click_log
from command import Run
from data_cases import log_at
from endings import Refused
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


def by_package(model: Path, log: Path) -> np.ndarray:
    opened = open_trained(model)
    opened_log = open_log(log, whole=True, **opened.config.data.format_options)
    parts = predicted_rows(opened.model, opened_log, PredictionWindow())
    return np.concatenate([part["probability"] for part in parts])


def test_a_run_is_exported_and_scored(trained: Path, tmp_path: Path, ok: Run) -> None:
    log = trained / "log.csv"
    done = ok("export", trained / "run", "out", "--test", log, "--program")
    for word in ("feature rate", "before", "100 rows of", "onnx", "program", "→", "embeddings.safetensors"):
        assert word in done.stdout
    manifest = read_manifest(tmp_path / "out")
    assert manifest.test is not None
    assert set(manifest.test.scores) == {"training", "export", "onnx", "program"}
    before, after = manifest.test.scores["training"], manifest.test.scores["onnx"]
    assert abs(before.auc - after.auc) < 1e-4
    assert after.max_abs_difference < 1e-5
    summary = json.loads((trained / "run" / "summary.json").read_text())
    assert before.auc == pytest.approx(summary["test"]["auc"], abs=1e-6)
    assert manifest.live_rows == summary["live_rows"]


def check_scored_alone(ok: Run, log: Path, *options: object) -> None:
    ok("train", log, *options, "--selection", "never", "--no-baseline", "--out", "run")
    ok("export", "run", "out")
    said = scored_alone("out", log, "--out", "scores.csv")
    expected = by_package(Path("run"), log)
    assert f"{len(expected):,} rows, log loss" in said
    assert np.abs(column(Path("scores.csv"), "probability") - expected).max() < 1e-5


def test_a_schema_with_numbers_and_lists_scores_the_same_alone(tmp_path: Path, ok: Run) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text("{label: click, categorical: [user, né], multi: {words: '|'}, numeric: [age]}\n")
    lines = ["click,user,né,words,age"]
    lines += [f"{int(i % 5 == 0)},u{i % 9},é{i % 3},{'|'.join('abc'[: i % 4])},{i % 7 or ''}" for i in range(600)]
    log = tmp_path / "log.csv.xz"
    log.write_bytes(lzma.compress("\n".join([*lines, ""]).encode()))
    check_scored_alone(ok, log, "--schema", schema, "--lr", 0.05, "--l21", 1e-5)


def test_real_flights_score_the_same_alone(tmp_path: Path, ok: Run) -> None:
    with lzma.open(log_at("nycflights13.csv.xz"), "rt") as file:
        head = [line for line, _ in zip(file, range(5_001), strict=False)]
    (tmp_path / "flights.csv").write_text("".join(head))
    check_scored_alone(ok, tmp_path / "flights.csv", "--lr", 0.01, "--l21", 1e-4)


def test_the_next_days_delta_is_applied_and_an_export_keeps_what_it_builds_on(
    trained: Path, tmp_path: Path, ok: Run, refused: Refused
) -> None:
    log = click_log(tmp_path / "next.csv", 1_500)
    ok("train", log, "--continue", trained / "run", "--out", "run2")
    ok("export", trained / "run", "base", "--no-onnx", "--dtype", "int8")
    done = ok("export", "run2", "delta", "--since", "base", "--test", log)
    assert "upserts" in done.stdout
    assert "AUC" in done.stdout
    ok("export", "run2", "full", "--dtype", "int8", "--no-onnx")
    ok("apply", "base", "delta", "applied", "--no-onnx", "--test", log)
    for name in ("embeddings.safetensors", "network.safetensors"):
        assert (tmp_path / "applied" / name).read_bytes() == (tmp_path / "full" / name).read_bytes()
    around = refused("export", "run2", "base", "--since", "delta", "--overwrite")
    assert "cannot take the place of an export that it builds on" in around
    itself = refused("export", "full", "full", "--overwrite", "--no-onnx")
    assert "cannot take the place of what it is made of" in itself
    assert "run2: holds no export that could be overwritten" in refused("export", "run2", "run2", "--overwrite")
    (tmp_path / "full" / "NOTES.md").write_text("mine")
    foreign = refused("export", "run2", "full", "--overwrite", "--no-onnx")
    assert "full: holds NOTES.md, which is no part of an export" in foreign


def test_an_export_without_keys(trained: Path, tmp_path: Path, ok: Run, refused: Refused) -> None:
    log = trained / "log.csv"
    done = ok("export", trained / "run", "base", "--keys", "fingerprints", "--dtype", "int4", "--test", log)
    assert "false hits" in done.stdout
    manifest = read_manifest(tmp_path / "base")
    assert (manifest.keys, manifest.dtype) == ("fingerprints", "int4")
    assert manifest.test is not None
    assert set(manifest.test.scores) == {"training", "export", "onnx"}
    assert manifest.test.scores["onnx"].max_abs_difference < 1e-5
    before, after = (manifest.test.scores[name] for name in ("training", "export"))
    assert abs(before.auc - after.auc) < 0.01
    ok("train", click_log(tmp_path / "next.csv", 1_500), "--continue", trained / "run", "--out", "run2")
    ok("export", "run2", "delta", "--since", "base")
    applied = json.loads(ok("apply", "base", "delta", "applied", "--json").stdout)
    assert applied["keys"] == "fingerprints"
    assert applied["false_hits"] > 0
    for command in (("predict",), ("evaluate",), ("inspect",), ("explain", "--row", "0")):
        ok(command[0], "applied", *(() if command[0] == "inspect" else (log,)), *command[1:])
    said = scored_alone("applied", log, "--out", "scores.csv")
    assert "rows, log loss" in said
    assert np.abs(column(Path("scores.csv"), "probability") - by_package(Path("applied"), log)).max() < 1e-5
    assert "its keys are fingerprints; a delta to full" in refused(
        "export", "run2", "other", "--since", "base", "--keys", "full"
    )
    assert "can only be exported with fingerprints" in refused("export", "applied", "other", "--keys", "full")


def test_a_limit_of_bytes_chooses_rows_and_format(trained: Path, tmp_path: Path, ok: Run, refused: Refused) -> None:
    log = trained / "log.csv"
    ok("export", trained / "run", "full", "--no-onnx")
    network = (tmp_path / "full" / "network.safetensors").stat().st_size
    whole = network + (tmp_path / "full" / "embeddings.safetensors").stat().st_size
    for limit in (2 * whole, network + (whole - network) // 3):
        found = json.loads(
            ok("export", trained / "run", "out", "--bytes", limit, "--test", log, "--overwrite", "--json").stdout
        )
        written = sum((tmp_path / "out" / f"{name}.safetensors").stat().st_size for name in ("embeddings", "network"))
        candidates = found["candidates"]
        assert [one["dtype"] for one in sorted(candidates, key=lambda one: -one["bytes"] / one["rows"])] == [
            *("float32", "float16", "int8", "int4")
        ]
        assert written == candidates[0]["bytes"] <= limit
        assert [one["loss"] for one in candidates] == sorted(one["loss"] for one in candidates)
        assert found["dtype"] == candidates[0]["dtype"]
        assert found["live_rows"] == candidates[0]["rows"]
        assert found["test_rows"] == 50
        fewer = {one["dtype"]: one["rows"] for one in candidates}
        if limit > whole:
            assert len(set(fewer.values())) == 1
        else:
            assert fewer["float32"] < fewer["float16"] < fewer["int8"] < fewer["int4"]
    manifest = read_manifest(tmp_path / "out")
    assert sum(table.live_rows + table.dropped_rows for table in manifest.tables.values()) == found["live_rows"] + (
        manifest.dropped_rows
    )
    assert "the network and the files without a row take" in refused(
        "export", trained / "run", "none", "--bytes", "1kB", "--test", log
    )
    for more, message in (
        (("--test", log, "--dtype", "int8"), "--bytes chooses the format"),
        (("--test", log, "--since", "full"), "--bytes chooses the format"),
        ((), "give --test"),
        (("--bytes", "many", "--test", log), "--bytes: a size must be"),
    ):
        assert message in refused("export", trained / "run", "none", "--bytes", "1MB", *more)
    assert not (tmp_path / "none").exists()


def test_which_rows_are_the_test_set(tmp_path: Path) -> None:
    log, other = click_log(tmp_path / "log.csv", 400), click_log(tmp_path / "other.csv", 100)
    config = Config.of(log=str(log))
    for path, settings, expected in (
        (log, config, (360, 40)),
        (other, config, (0, 100)),
        (log, config.replace(test_fraction=0.0), (0, 400)),
    ):
        rows = open_test_rows(path, settings)
        assert (rows.start, len(rows)) == expected
    assert len(open_log(log)) == 400


def test_an_export_is_recalibrated_on_newer_rows(tmp_path: Path, ok: Run) -> None:
    random = np.random.default_rng(0)
    for name, rate in (("log", 0.2), ("newer", 0.5)):
        lines = [f"{int(random.random() < rate)},{random.integers(20)},{random.integers(9)}" for _ in range(2_000)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["clicked,user,item", *lines]) + "\n")
    ok("train", "log.csv", "--model", "lr", "--selection", "never", "--out", "run")
    before = (tmp_path / "run" / "summary.json").read_bytes()
    shift = json.loads(ok("export", "run", "out", "--recalibrate", "newer.csv", "--no-onnx", "--json").stdout)["shift"]
    ok("export", "run", "plain", "--no-onnx")
    scored = {}
    for name in ("out", "plain"):
        ok("predict", name, "newer.csv", "--out", f"{name}.scores.csv")
        scored[name] = column(Path(f"{name}.scores.csv"), "probability")
    positives = column(Path("out.scores.csv"), "label").sum()
    assert scored["out"].sum() / positives == pytest.approx(1, abs=2e-3)
    assert scored["plain"].sum() / positives < 0.6
    logits = {name: np.log(one / (1 - one)) for name, one in scored.items()}
    np.testing.assert_allclose(logits["out"] - logits["plain"], shift, atol=1e-4)
    assert (tmp_path / "run" / "summary.json").read_bytes() == before
