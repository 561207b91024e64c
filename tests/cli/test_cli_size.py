"""Asking for a size through the real command line: train, resume, continue, export, path."""

import json
from pathlib import Path

import pytest
import yaml

from cli_cases import click_log, many_features, summary_of
from command import Run
from run_folders import state_of


def test_train_lands_at_the_rate_that_was_asked_for(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    done = run("train", log, "--lr", 0.05, "--target-rate", 0.03, "--batch-size", 64)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "log" / "latest"
    summary = summary_of(folder)
    assert summary["live_rows"] == pytest.approx(0.03 * summary["features_seen"], abs=1)  # type: ignore[operator]
    assert summary["test"]["auc"] > 0.9  # type: ignore[index]
    settings = yaml.safe_load((folder / "config.yaml").read_text())["optimizer"]
    assert (settings["penalty"], settings["l21"], settings["target_rate"]) == ("hard", 0.0, 0.03)
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scheduled = [point["scheduled_rate"] for point in points]
    assert scheduled == sorted(scheduled, reverse=True)
    assert scheduled[-1] == 0.03
    assert points[-1]["l21"] > 0
    page = (folder / "report.html").read_text()
    assert "λ21" in page
    assert "scheduled" in page
    assert "DCN with Group Adagrad, target rate 0.03" in page


def test_train_lands_at_the_bytes_that_were_asked_for(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    done = run("train", log, "--lr", 0.05, "--target-bytes", "4 kB", "--batch-size", 64, "--penalty", "mcp")
    assert done.returncode == 0, done.stderr
    live = summary_of(tmp_path / "runs" / "log" / "latest")["live_rows"]
    assert live == 4000 // (8 * 4 + 8)


def test_a_run_that_was_cut_off_ends_with_the_same_bits(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    options = [
        "--lr",
        0.05,
        "--target-rate",
        0.1,
        "--batch-size",
        64,
        "--checkpoint-steps",
        11,
        "--keep-checkpoints",
        9,
    ]
    assert run("train", log, *options, "--out", "whole").returncode == 0
    assert run("train", log, *options, "--out", "cut").returncode == 0
    cut = tmp_path / "cut"
    last = sorted((cut / "checkpoints").iterdir())[-1]
    for file in sorted(last.iterdir()):
        file.unlink()
    last.rmdir()
    (cut / "summary.json").unlink()
    resumed = run("train", "--resume", "cut")
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed at row" in resumed.stderr
    assert state_of(cut) == state_of(tmp_path / "whole")


def test_the_next_day_goes_on_at_the_rate_of_the_day_before(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    assert run("train", log, "--lr", 0.05, "--target-rate", 0.1, "--batch-size", 64).returncode == 0
    done = run("train", log, "--continue", "runs/log", "--out", "next")
    assert done.returncode == 0, done.stderr
    assert "l21 is" not in done.stderr
    points = [json.loads(line) for line in (tmp_path / "next" / "metrics.jsonl").read_text().splitlines()]
    second = [point for point in points if point["samples"] > 2_700]
    assert all(0.09 <= point["feature_rate"] <= 0.11 for point in second[-5:])
    assert max(point["scheduled_rate"] for point in second) < 0.2  # no ramp from all features


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target-rate", 0.1, "--l21", 0.5], "target_rate sets l21 during training"),
        (["--target-rate", 0.1, "--l21", 1e-3], "target_rate sets l21 during training"),
        (["--target-rate", 0.1, "--target-bytes", "1MB"], "exclude each other"),
        (["--target-rate", 1.5], "target_rate"),
        (["--target-bytes", "many"], "a size must be a number of bytes"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, run: Run, options: list[object], message: str) -> None:
    done = run("train", click_log(tmp_path / "log.csv"), *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_settings_file_may_ask_for_a_size(tmp_path: Path, run: Run) -> None:
    many_features(tmp_path / "log.csv")
    (tmp_path / "settings.yaml").write_text("data: {log: log.csv}\noptimizer: {lr: 0.05, target_rate: 0.2}\n")
    done = run("train", "settings.yaml", "--target-rate", 0.1, "--batch-size", 64)
    assert done.returncode == 0, done.stderr
    settings = yaml.safe_load((tmp_path / "runs" / "log" / "latest" / "config.yaml").read_text())["optimizer"]
    assert (settings["penalty"], settings["target_rate"]) == ("hard", 0.1)


def test_export_sweeps_if_asked(tmp_path: Path, run: Run) -> None:
    """A λ that was raised for a second pass has reached the rows of that pass alone, until a sweep."""
    log = many_features(tmp_path / "log.csv")
    assert run("train", log, "--lr", 0.05, "--l21", 1e-3, "--batch-size", 64).returncode == 0
    short = tmp_path / "short.csv"
    short.write_text("\n".join(log.read_text().splitlines()[:400]) + "\n")
    assert run("train", short, "--continue", "runs/log", "--out", "next", "--l21", 5e-2).returncode == 0
    for name, options in (("as-it-is", []), ("swept", ["--sweep"])):
        done = run("export", "next", name, "--no-onnx", *options)
        assert done.returncode == 0, done.stderr
    live = [
        json.loads((tmp_path / name / "manifest.json").read_text())["tables"]["embedding"]["live_rows"]
        for name in ("as-it-is", "swept")
    ]
    assert 0 < live[1] < live[0]


def test_path_shows_what_each_size_costs(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    done = run("path", log, "--rates", ".3,.05", "--lr", 0.05, "--batch-size", 64)
    assert done.returncode == 0, done.stderr
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


@pytest.mark.parametrize("rates", ["", "a", "0", ".1,1", ".1;.2", "-.1"])
def test_path_wants_rates(tmp_path: Path, run: Run, rates: str) -> None:
    done = run("path", click_log(tmp_path / "log.csv"), "--rates", rates)
    assert done.returncode == 2
    assert "--rates wants feature rates between 0 and 1" in done.stderr


def test_path_keeps_what_is_there(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv", 1_000)
    options = ("--rates", ".3", "--lr", 0.05, "--batch-size", 64, "--out", "here")
    assert run("path", log, *options).returncode == 0
    before = (tmp_path / "here" / "path.json").read_bytes()
    done = run("path", log, *options, "--seed", 1)
    assert done.returncode != 0
    assert "--overwrite" in done.stderr
    assert (tmp_path / "here" / "path.json").read_bytes() == before
    assert run("path", log, *options, "--seed", 1, "--overwrite").returncode == 0
    assert (tmp_path / "here" / "path.json").read_bytes() != before


def test_path_without_an_auc_draws_nothing(tmp_path: Path, run: Run) -> None:
    """The test rows are all of one class."""
    lines = many_features(tmp_path / "all.csv", 1_000).read_text().splitlines()
    log = tmp_path / "log.csv"
    log.write_text("\n".join([*lines[:901], *("0" + line[1:] for line in lines[901:])]) + "\n")
    done = run("path", log, "--rates", ".3", "--lr", 0.05, "--batch-size", 64)
    assert done.returncode == 0, done.stderr
    assert "all of one class" in done.stdout
    assert not (tmp_path / "paths" / "log" / "path.svg").exists()
    assert json.loads((tmp_path / "paths" / "log" / "path.json").read_text())["points"][0]["test"]["auc"] is None


def test_path_wants_a_test_set(tmp_path: Path, run: Run) -> None:
    done = run("path", click_log(tmp_path / "log.csv"), "--set", "data.test_fraction=0")
    assert done.returncode == 2
    assert "has no test rows" in done.stderr


def test_any_number_of_threads_leads_to_the_same_model(tmp_path: Path, run: Run) -> None:
    """With two threads the next batch's keys are looked up ahead, but not before λ21 is set."""
    log = many_features(tmp_path / "log.csv", 20_000)
    for threads in (1, 2):
        options = ["--target-rate", 0.1, "--batch-size", 2_048, "--threads", threads, "--out", f"run{threads}"]
        done = run("train", log, "--lr", 0.05, "--selection", "never", *options)
        assert done.returncode == 0, done.stderr
    assert state_of(tmp_path / "run1") == state_of(tmp_path / "run2")


def test_features_seen_once_get_no_row_if_asked(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    done = run("train", log, "--lr", 0.05, "--l21", 0, "--admit-after", 2, "--batch-size", 64, "--fallback")
    assert done.returncode == 0, done.stderr
    fields = summary_of(tmp_path / "runs" / "log" / "latest")["fields"]
    assert isinstance(fields, dict)
    assert fields["color"] == {"seen": 7, "rows": 7, "live": 7}
    assert fields["noise"]["rows"] < 0.1 * fields["noise"]["seen"]
    done = run("export", "runs/log", "served", "--no-onnx", "--test", log)
    assert done.returncode == 0, done.stderr


def test_what_is_set_to_no_is_heard(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv", 300)
    options = ("--target-rate", 0.5, "--no-fallback", "--no-baseline")
    assert run("train", log, *options, "--out", "run").returncode == 0
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert not settings["model"]["fallback"]
    assert not settings["training"]["baseline"]
