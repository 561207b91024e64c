"""From a log to a server, through the real command line, and the example that scores without this package."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli_cases import click_log, column, many_features, summary_of
from command import Run, call
from endings import Refused
from sparsegroup.serving import read_manifest

SCORE = Path(__file__).parents[2] / "examples" / "score_onnx.py"
WITHOUT = """
import runpy, sys
sys.modules["torch"] = sys.modules["sparsegroup"] = None  # so that importing them fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


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
    summary = summary_of(trained / "run")
    assert before.auc == pytest.approx(summary["test"]["auc"], abs=1e-6)
    assert manifest.live_rows == summary["live_rows"]


@pytest.fixture(scope="session")
def next_day(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a later log and the run that continues `trained` on it."""
    folder = tmp_path_factory.mktemp("next")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        click_log(folder / "log.csv", 1_500)
        assert call(patch, "train", "log.csv", "--continue", trained / "run", "--out", "run") == 0
    return folder


def test_the_next_days_delta_is_applied_and_an_export_keeps_what_it_builds_on(
    trained: Path, next_day: Path, tmp_path: Path, ok: Run, refused: Refused
) -> None:
    log, run = next_day / "log.csv", next_day / "run"
    ok("export", trained / "run", "base", "--no-onnx", "--dtype", "int8")
    done = ok("export", run, "delta", "--since", "base", "--test", log)
    assert "upserts" in done.stdout
    assert "AUC" in done.stdout
    ok("export", run, "full", "--dtype", "int8", "--no-onnx")
    ok("apply", "base", "delta", "applied", "--no-onnx", "--test", log)
    for name in ("embeddings.safetensors", "network.safetensors"):
        assert (tmp_path / "applied" / name).read_bytes() == (tmp_path / "full" / name).read_bytes()
    (tmp_path / "applied" / "NOTES.md").write_text("mine")
    for arguments, message in (
        ((run, "base", "--since", "delta"), "cannot take the place of an export that it builds on"),
        (("full", "full", "--no-onnx"), "cannot take the place of what it is made of"),
        ((run, run), "run: holds no export that could be overwritten"),
        ((run, "applied", "--no-onnx"), "applied: holds NOTES.md, which is no part of an export"),
    ):
        assert message in refused("export", *arguments, "--overwrite")


def test_an_export_without_keys(trained: Path, next_day: Path, tmp_path: Path, ok: Run, refused: Refused) -> None:
    log = trained / "log.csv"
    compact = ("--keys", "fingerprints", "--dtype", "int4")
    done = ok("export", trained / "run", "base", *compact, "--no-onnx", "--test", log)
    assert "false hits" in done.stdout
    manifest = read_manifest(tmp_path / "base")
    assert (manifest.keys, manifest.dtype) == ("fingerprints", "int4")
    assert manifest.test is not None
    before, after = (manifest.test.scores[name] for name in ("training", "export"))
    assert abs(before.auc - after.auc) < 0.01
    ok("export", next_day / "run", "delta", "--since", "base")
    applied = json.loads(ok("apply", "base", "delta", "applied", "--json").stdout)
    assert applied["keys"] == "fingerprints"
    assert applied["false_hits"] > 0
    for command in (("evaluate", log), ("inspect",), ("explain", log, "--row", "0")):
        ok(command[0], "applied", *command[1:])
    ok("predict", "applied", log, "--out", "scores.csv")
    alone = [sys.executable, "-c", WITHOUT, SCORE, "applied", log, "--out", "alone.csv"]
    scored = subprocess.run(alone, capture_output=True, text=True, timeout=120)
    assert scored.returncode == 0, scored.stderr
    assert "1,000 rows, log loss" in scored.stdout
    ours, theirs = (column(name, "probability") for name in ("scores.csv", "alone.csv"))
    assert np.abs(ours - theirs).max() < 1e-5
    for model, options, message in (
        (next_day / "run", ("--since", "base"), "its keys are fingerprints; a delta to full"),
        ("applied", (), "can only be exported with fingerprints"),
    ):
        assert message in refused("export", model, "other", "--keys", "full", *options)


def test_a_limit_of_bytes_chooses_rows_and_format(trained: Path, tmp_path: Path, ok: Run, refused: Refused) -> None:
    log, served = trained / "log.csv", trained / "served"
    network, table = ((served / f"{name}.safetensors").stat().st_size for name in ("network", "embeddings"))
    for limit in (2 * (network + table), network + table // 3):
        arguments = ("--bytes", limit, "--test", log, "--overwrite", "--no-onnx", "--json")
        found = json.loads(ok("export", trained / "run", "out", *arguments).stdout)
        written = sum((tmp_path / "out" / f"{name}.safetensors").stat().st_size for name in ("embeddings", "network"))
        candidates = found["candidates"]
        assert written == candidates[0]["bytes"] <= limit
        assert [one["loss"] for one in candidates] == sorted(one["loss"] for one in candidates)
        assert (found["dtype"], found["live_rows"]) == (candidates[0]["dtype"], candidates[0]["rows"])
        assert found["test_rows"] == 50
        rows = {one["dtype"]: one["rows"] for one in candidates}
        if limit > network + table:
            assert len(set(rows.values())) == 1
        else:
            assert rows["float32"] < rows["float16"] < rows["int8"] < rows["int4"]
    manifest = read_manifest(tmp_path / "out")
    of_tables = sum(table.live_rows + table.dropped_rows for table in manifest.tables.values())
    assert of_tables == found["live_rows"] + manifest.dropped_rows
    for limits, more, message in (
        ("1kB", ("--test", log), "the network and the files without a row take"),
        ("1MB", ("--test", log, "--dtype", "int8"), "--bytes chooses the format"),
        ("1MB", (), "give --test"),
        ("many", ("--test", log), "--bytes: a size must be"),
    ):
        assert message in refused("export", trained / "run", "none", "--bytes", limits, *more)
    assert not (tmp_path / "none").exists()


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


def test_an_export_sweeps_on_request(tmp_path: Path, ok: Run) -> None:
    """A λ that was raised for a second pass has reached the rows of that pass only, until a sweep."""
    log = many_features(tmp_path / "log.csv", 1_500)
    ok("train", log, "--lr", 0.05, "--batch-size", 64, "--selection", "never", "--l21", 1e-3, "--out", "run")
    (tmp_path / "short.csv").write_text("\n".join(log.read_text().splitlines()[:400]) + "\n")
    ok("train", "short.csv", "--continue", "run", "--out", "next", "--l21", 5e-2)
    unswept, swept = (
        json.loads(ok("export", "next", name, "--no-onnx", "--json", *options).stdout)["live_rows"]
        for name, options in (("unswept", ()), ("swept", ("--sweep",)))
    )
    assert 0 < swept < unswept
