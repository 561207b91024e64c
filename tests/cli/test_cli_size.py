"""A target size and a table of limited memory through the real command line: train, resume, continue, export, path."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_cases import click_log, many_features
from command import Run
from run_folders import state_of

LEARN = ("--lr", 0.05, "--batch-size", 64)
FAST = (*LEARN, "--selection", "never")


def summary_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def points_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_train_lands_at_the_target_rate_which_an_option_sets_over_a_file(tmp_path: Path, ok: Run) -> None:
    many_features(tmp_path / "log.csv")
    (tmp_path / "settings.yaml").write_text("data: {log: log.csv}\noptimizer: {lr: 0.05, target_rate: 0.2}\n")
    ok("train", "settings.yaml", "--target-rate", 0.03, "--batch-size", 64)
    folder = tmp_path / "runs" / "log" / "latest"
    summary = summary_of(folder)
    assert summary["live_rows"] == pytest.approx(0.03 * summary["features_seen"], abs=1)
    assert summary["test"]["auc"] > 0.9
    settings = yaml.safe_load((folder / "config.yaml").read_text())["optimizer"]
    assert (settings["penalty"], settings["l21"], settings["target_rate"]) == ("hard", 0.0, 0.03)
    scheduled = [point["scheduled_rate"] for point in points_of(folder)]
    assert scheduled == sorted(scheduled, reverse=True)
    assert scheduled[-1] == 0.03
    assert points_of(folder)[-1]["l21"] > 0
    page = (folder / "report.html").read_text()
    assert all(word in page for word in ("λ21", "scheduled", "DCN with Group Adagrad, target rate 0.03"))


def test_train_lands_at_the_target_bytes(tmp_path: Path, ok: Run) -> None:
    log = many_features(tmp_path / "log.csv", 1_500)
    ok("train", log, *FAST, "--target-bytes", "4 kB", "--penalty", "mcp", "--out", "run")
    assert summary_of(tmp_path / "run")["live_rows"] == 4000 // (8 * 4 + 8)


def test_the_next_day_continues_at_the_rate_of_the_day_before(tmp_path: Path, ok: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    ok("train", log, *FAST, "--target-rate", 0.1)
    assert "l21 is" not in ok("train", log, "--continue", "runs/log", "--out", "next").stderr
    second = [point for point in points_of(tmp_path / "next") if point["samples"] > 2_700]
    assert all(0.09 <= point["feature_rate"] <= 0.11 for point in second[-5:])
    assert max(point["scheduled_rate"] for point in second) < 0.2  # no ramp from all features


def test_export_sweeps_if_asked(tmp_path: Path, ok: Run) -> None:
    """A λ that was raised for a second pass has reached the rows of that pass alone, until a sweep."""
    log = many_features(tmp_path / "log.csv", 1_500)
    ok("train", log, *FAST, "--l21", 1e-3)
    (tmp_path / "short.csv").write_text("\n".join(log.read_text().splitlines()[:400]) + "\n")
    ok("train", "short.csv", "--continue", "runs/log", "--out", "next", "--l21", 5e-2)
    live = []
    for name, options in (("unswept", []), ("swept", ["--sweep"])):
        ok("export", "next", name, "--no-onnx", *options)
        live.append(json.loads((tmp_path / name / "manifest.json").read_text())["tables"]["embedding"]["live_rows"])
    assert 0 < live[1] < live[0]


def test_path_shows_what_each_size_costs(tmp_path: Path, ok: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    done = ok("path", log, "--rates", ".3,.05", *LEARN)
    content = json.loads((tmp_path / "paths" / "log" / "path.json").read_text())
    everything, *smaller = content["points"]
    assert (everything["asked"], everything["feature_rate"], everything["l21"]) == (None, 1.0, 0.0)
    assert [point["asked"] for point in smaller] == [0.3, 0.05]
    for point in smaller:
        assert point["feature_rate"] == pytest.approx(point["asked"], rel=0.02)
        assert point["bytes"] == point["live_rows"] * (8 * 4 + 8)
        assert f"{point['test']['auc']:.4f}" in done.stdout
    chosen = [line for line in done.stdout.splitlines() if "*" in line]
    assert len(chosen) == 2  # the row, and what the mark means
    (best,) = (point for point in content["points"] if point["feature_rate"] == content["no_loss_down_to"])
    assert f"{best['live_rows']:,}" in chosen[0]
    assert "*: the smallest size" in chosen[1]
    assert content["config"]["optimizer"]["penalty"] == "hard"
    assert (tmp_path / "paths" / "log" / "path.svg").read_text().startswith("<svg")


def test_path_takes_epochs_and_keeps_what_is_there(tmp_path: Path, ok: Run, run: Run) -> None:
    log = many_features(tmp_path / "log.csv", 600)
    options = ("--rates", ".3", *LEARN, "--epochs", 2, "--after-first-epoch", "reset", "--schedule", "cosine")
    ok("path", log, *options, "--out", "here")
    before = (tmp_path / "here" / "path.json").read_bytes()
    content = json.loads(before)
    assert content["config"]["training"]["after_first_epoch"] == "reset"
    assert content["points"][1]["feature_rate"] == pytest.approx(0.3, abs=0.01)
    again = run("path", log, *options, "--seed", 1, "--out", "here")
    assert (again.returncode, "--overwrite" in again.stderr) == (2, True)
    assert (tmp_path / "here" / "path.json").read_bytes() == before
    ok("path", log, *options, "--seed", 1, "--out", "here", "--overwrite")
    assert (tmp_path / "here" / "path.json").read_bytes() != before


def test_path_without_an_auc_draws_nothing(tmp_path: Path, ok: Run) -> None:
    """The test rows are all of one class."""
    lines = many_features(tmp_path / "all.csv", 600).read_text().splitlines()
    (tmp_path / "log.csv").write_text("\n".join([*lines[:541], *("0" + line[1:] for line in lines[541:])]) + "\n")
    assert "the labels of the test rows are all the same" in ok("path", "log.csv", "--rates", ".3", *LEARN).stdout
    folder = tmp_path / "paths" / "log"
    assert not (folder / "path.svg").exists()
    assert json.loads((folder / "path.json").read_text())["points"][0]["test"]["auc"] is None


def test_any_number_of_threads_leads_to_the_same_model(tmp_path: Path, ok: Run) -> None:
    """With two threads the next batch's keys are looked up ahead, but not before λ21 is set."""
    log = many_features(tmp_path / "log.csv", 9_000)
    for threads in (1, 2):
        options = ["--target-rate", 0.1, "--threads", threads, "--out", f"run{threads}", "--no-baseline"]
        ok("train", log, *FAST, "--batch-size", 2_048, *options)
    assert state_of(tmp_path / "run1") == state_of(tmp_path / "run2")


def test_features_seen_once_get_no_row_if_asked(tmp_path: Path, ok: Run) -> None:
    log = many_features(tmp_path / "log.csv", 1_500)
    ok("train", log, *FAST, "--l21", 0, "--admit-after", 2, "--fallback")
    fields = summary_of(tmp_path / "runs" / "log" / "latest")["fields"]
    assert fields["color"] == {"seen": 7, "rows": 7, "live": 7}
    assert fields["noise"]["rows"] < 0.1 * fields["noise"]["seen"]
    ok("export", "runs/log", "served", "--no-onnx", "--test", log)


# A table of limited memory

ROWS = 4_000
OPTIONS = (*FAST, "--target-rate", 0.05)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 6,500 features, most of which appear once; few predict anything, and a tenth of the labels is wrong."""
    path = tmp_path_factory.mktemp("logs") / "log.csv"
    lines = ["label,ts,color,noise,user,item"]
    labels = [int((i % 7 in (1, 3)) ^ (i * 40503 % 101 < 10)) for i in range(ROWS)]
    noise = [i * 7919 % 1_000_003 if i % 50 else 0 for i in range(ROWS)]  # a column that never repeats is left out
    lines += [f"{label},{i},c{i % 7},n{noise[i]},u{i // 20},t{i * 31 % 2503}" for i, label in enumerate(labels)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_keeps_to_its_limit(log: Path, tmp_path: Path, ok: Run) -> None:
    done = ok("train", log, *OPTIONS, "--max-table-bytes", "3.8MB")
    folder = tmp_path / "runs" / "log" / "latest"
    assert max(point["table_bytes"] for point in points_of(folder)) <= 3_800_000
    summary = summary_of(folder)
    assert summary["evicted_rows"] > 0
    assert summary["features_seen"] == pytest.approx(ROWS * 0.9 * (1 + 1 / 20) + 2503, rel=0.05)
    assert summary["test"]["auc"] > 0.8
    assert f"{summary['evicted_rows']:,} rows" in done.stdout
    assert "rows evicted" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    "limits",
    [
        ("--max-table-bytes", "3.73MB", "--state-dtype", "bfloat16"),
        ("--max-table-bytes", "9MB", "--evict-unseen", "10min", "--admit-after", 2, "--admit-sketch", "4KiB"),
    ],
)
def test_a_run_under_limits_is_resumed_to_the_same_bits(
    log: Path, tmp_path: Path, ok: Run, limits: tuple[object, ...]
) -> None:
    options = (*OPTIONS, "--fallback", *limits, "--checkpoint-steps", 12, "--keep-checkpoints", 9)
    ok("train", log, *options, "--out", "whole")
    cut = shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for late in sorted((cut / "checkpoints").iterdir())[2:]:
        shutil.rmtree(late)
    (cut / "summary.json").unlink()
    assert "resumed at row" in ok("train", "--resume", "cut").stderr
    assert state_of(tmp_path / "whole") == state_of(cut)
    first, second = (summary_of(tmp_path / name) for name in ("whole", "cut"))
    for name in ("features_seen", "live_rows", "evicted_rows", "refused_rows", "table_bytes", "test"):
        assert first[name] == second[name], name
    assert first["evicted_rows"] > 0


def test_deltas_name_what_was_evicted(log: Path, tmp_path: Path, ok: Run) -> None:
    """Live features that lose their row are gone from the server too."""
    ok("train", log, *FAST, "--l21", 0, "--out", "first")
    ok("export", "first", "served", "--no-onnx")
    ok("train", log, "--continue", "first", "--out", "second", "--max-table-bytes", "3.8MB")
    ok("export", "second", "change", "--since", "served")
    assert json.loads((tmp_path / "change" / "manifest.json").read_text())["changes"]["tombstones"] > 0
    ok("apply", "served", "change", "applied", "--no-onnx")


def test_features_go_when_the_logs_own_time_has_come(log: Path, tmp_path: Path, ok: Run) -> None:
    """A row of this log a second: 640 seconds are 10 batches."""
    ok("prepare", log, "prepared")
    evicted = []
    for number, (source, age) in enumerate(((log, 10), (log, "640s"), ("prepared", "640s"))):
        ok("train", source, *OPTIONS, "--evict-unseen", age, "--shuffle-buffer", 0, "--out", f"run{number}")
        evicted.append(summary_of(tmp_path / f"run{number}")["evicted_rows"])
    steps, raw, prepared = evicted
    assert raw == prepared > 1_000
    assert raw == pytest.approx(steps, rel=0.1)


def test_a_log_without_a_clock_has_no_ages_in_seconds(tmp_path: Path, ok: Run, run: Run) -> None:
    log = click_log(tmp_path / "timeless.csv", 300)
    log.write_text(log.read_text().replace(",ts,", ",when,"))
    ok("train", log, "--exclude", "when", *FAST, "--out", "first")
    done = run("train", log, "--continue", "first", "--evict-unseen", "7d", "--out", "next")
    assert (done.returncode, "has no column of times" in done.stderr) == (2, True)
    assert not (tmp_path / "next").exists()
