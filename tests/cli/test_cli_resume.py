"""Runs that are continued, resumed or refused, and runs of several epochs, through the real command line."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import yaml

from cli_cases import COMMAND, click_log, many_features, summary_of
from command import Run
from endings import Refused
from run_folders import state_of
from sparsegroup.training.build import read_config
from sparsegroup.training.run_folder import RunFolder

FAST = ("--selection", "never", "--no-baseline", "--batch-size", 64)
SMALL = ("--batch-size", 100, "--set", "model.dim=2", "--set", "model.hidden=[4]", "--threads", 1)


def points_of(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_that_diverges_keeps_its_last_good_checkpoint(tmp_path: Path, ok: Run, run: Run) -> None:
    log = click_log(tmp_path / "log.csv", 1_000)
    options = ("--checkpoint-steps", 1, "--keep-checkpoints", 9, "--optimizer", "sgd", *FAST)
    done = run("train", log, *options, "--lr", 3e7, "--out", "run")
    assert done.returncode == 2
    kept = Path(done.stderr.rpartition("the last good checkpoint is ")[2].strip())
    assert kept == sorted((tmp_path / "run" / "checkpoints").iterdir())[-1].relative_to(tmp_path)
    scored = ok("predict", kept, log).stdout
    assert all(0 <= float(line.split(",")[1]) <= 1 for line in scored.splitlines()[1:])


def test_the_next_day_continues_the_first(tmp_path: Path, ok: Run) -> None:
    header, *rows = click_log(tmp_path / "both.csv", 1_024).read_text().splitlines()
    for day, part in enumerate((rows[:512], rows[512:])):
        (tmp_path / f"day{day}.csv").write_text("\n".join([header, *part]) + "\n")
    # opnn has dropout: the random numbers continue. The base rate would differ by day.
    options = ("--model", "opnn", "--test-fraction", 0, "--lr", 0.05, "--l21", 1e-4, "--batch-size", 256)
    options += ("--shuffle-buffer", 0, "--set", "model.base_rate=false", "--columns", "categorical")
    ok("train", "both.csv", *options)
    ok("train", "day0.csv", *options)
    ok("prepare", "day1.csv", "prepared", "--test-fraction", 0, "--columns", "categorical")
    for log, out in (("day1.csv", "day1"), ("prepared", "next")):  # a prepared log after a raw one
        done = ok("train", log, "--continue", "runs/day0", "--out", out)
        assert "continuing after 512 samples" in done.stderr
        assert "test AUC" not in done.stdout
        assert state_of(tmp_path / out) == state_of(tmp_path / "runs" / "both" / "latest")
    day1 = tmp_path / "day1"
    summary = json.loads((day1 / "summary.json").read_text())
    day0 = Path("runs", "day0", os.readlink(tmp_path / "runs" / "day0" / "latest"))
    assert (summary["samples"], summary["continued_from"], summary["test"]) == (1024, str(day0), None)
    assert [point["samples"] for point in points_of(day1)] == [256, 512, 768, 1024]
    other = ok("train", "day1.csv", "--continue", "day1", "--l21", 1.0, "--out", "other")
    assert "(0 of 104 features)" in other.stdout


def test_other_settings_continue_a_run_and_are_reported(tmp_path: Path, ok: Run) -> None:
    click_log(tmp_path / "log.csv", 600)
    ok("train", "log.csv", "--out", "run", *FAST, "--optimizer", "adam", "--lr", 1e-4, "--l21", 1e-3)
    metrics = tmp_path / "run" / "metrics.jsonl"  # which is written for people, and not read
    metrics.write_text(metrics.read_text()[:40])
    other = ok("train", "log.csv", "--continue", "run", "--out", "a", "--optimizer", "adagrad")
    assert "the optimizer was adam and is adagrad: the weights are kept; u and the moments start afresh" in other.stderr
    assert read_config(tmp_path / "a" / "config.yaml", {}).optimizer.lr is None  # Adam's is not Adagrad's
    assert (tmp_path / "a" / "metrics.jsonl").read_text().startswith(metrics.read_text())
    stricter = ok("train", "log.csv", "--continue", "run", "--out", "b", "--l21", 0.1)
    assert "l21 is 0.001 in the checkpoint and 0.1 here: that is taken; u and the moments are kept" in stricter.stderr


def test_a_damaged_or_unfinished_run_is_named(trained: Path, tmp_path: Path, refused: Refused) -> None:
    run = Path(shutil.copytree(trained / "run", tmp_path / "run"))
    (checkpoint,) = (run / "checkpoints").iterdir()
    names = ("table-embedding.safetensors", "state.safetensors", "checkpoint.json")
    for path in (*(checkpoint / name for name in names), run / "columns.json"):
        whole = path.read_bytes()
        path.write_bytes(whole[:40])
        said = refused("train", trained / "log.csv", "--continue", "run", "--out", "next")
        assert f"error: {path.relative_to(tmp_path)}: damaged (" in said
        path.write_bytes(whole)
    (run / "summary.json").unlink()
    assert refused("train", trained / "log.csv", "--continue", "run", "--out", "next") == (
        "error: run: a run that did not finish; `sparsegroup train --resume` completes it (summary.json is missing)\n"
    )


def test_weights_and_fields_of_several_values_are_trained_on_raw_or_prepared(
    tmp_path: Path, ok: Run, refused: Refused
) -> None:
    lines = ["label,user,genres,price,weight"]
    lines += [f"{int(i % 5 < 2)},u{i % 40},g{i % 5}|h{i % 3},{i % 7},{1 + i % 2}" for i in range(800)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "schema.yaml").write_text(
        "label: label\ncategorical: [user]\nmulti: {genres: '|'}\nnumeric: [price]\nweight: weight\n"
    )
    ok("train", "log.csv", "--schema", "schema.yaml", "--out", "raw", "--lr", 0.05, "--l21", 1e-4, *FAST)
    ok("prepare", "log.csv", "folder", "--schema", "schema.yaml")
    ok("train", "folder", "--out", "prepared", "--lr", 0.05, "--l21", 1e-4, *FAST)
    assert state_of(tmp_path / "raw") == state_of(tmp_path / "prepared")
    assert summary_of(tmp_path / "raw")["test"]["auc"] > 0.95  # type: ignore[index]
    mixed = refused("train", "folder", "--label", "label", "--out", "mixed")
    assert "--label is for raw logs; folder is a folder" in mixed


def test_a_run_is_resumed_by_one_process_with_the_settings_it_began_with(
    trained: Path, tmp_path: Path, ok: Run, run: Run, refused: Refused
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "new").mkdir()
    with RunFolder(tmp_path / "run").lock(), RunFolder(tmp_path / "new").lock():
        assert refused("train", "--resume", "run") == "error: run: another process is training this run\n"
        began = run("train", "log.csv", "--out", "new")
        assert began.returncode == 2
        assert began.stderr.endswith("error: new: another process is training this run\n")
    assert not any((tmp_path / "new").iterdir())
    config = tmp_path / "run" / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("batch_size: 64", "batch_size: 100"))
    assert refused("train", "--resume", "run") == (
        "error: run/config.yaml: training.batch_size is 100, but the run was begun with 64; put it back, or begin "
        "another run\n"
    )
    config.write_text(text)
    ok("train", "--resume", "run")


def test_surroundings_that_say_nothing_are_no_reason_to_fail() -> None:
    """A number of local ranks that is no number, and an encoding without λ."""
    environment = {**os.environ, "LOCAL_WORLD_SIZE": "two", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([COMMAND, "train", "--help"], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_next_log_is_shuffled_by_its_length(tmp_path: Path, ok: Run) -> None:
    short, long = click_log(tmp_path / "short.csv", 300), click_log(tmp_path / "long.csv", 500)
    ok("train", short, "--model", "lr", *FAST, "--out", "run")
    assert read_config(tmp_path / "run" / "config.yaml", {}).training.shuffle_buffer == 270
    ok("train", long, "--continue", "run", "--out", "next")
    after = read_config(tmp_path / "next" / "config.yaml", {}).training
    assert (after.batch_size, after.shuffle_buffer) == (64, 450)


def test_a_run_of_several_epochs_reports_the_best(tmp_path: Path, ok: Run) -> None:
    draw = np.random.default_rng(0)  # labels without a cause, which can only be memorized
    lines = [f"{draw.integers(2)},u{draw.integers(700)},i{draw.integers(5)}" for _ in range(3_000)]
    (tmp_path / "log.csv").write_text("\n".join(["label,user,item", *lines]) + "\n")
    epochs = ["--epochs", 5, "--validation", ".1", "--patience", 1, "--shuffle-buffer", 700]
    rates = ["--lr", 0.3, "--l21", 0, "--network-lr", 0.01, "--schedule", "linear", "--warmup", "5%"]
    done = ok("train", "log.csv", *epochs, *rates, *SMALL)
    assert "2,430 training, 270 validation and 300 test rows" in done.stderr
    folder = tmp_path / "runs" / "log" / "latest"
    summary = json.loads((folder / "summary.json").read_text())
    best, count = summary["best_epoch"], summary["epochs"]
    assert best < count < 5
    assert f"{count}  (the best, epoch {best}, is kept)" in done.stdout
    assert (summary["samples"], summary["validation_rows"]) == (2_430 * count, 270)
    measured = {one["epoch"]: one["validation_log_loss"] for one in points_of(folder) if one["validation_log_loss"]}
    assert list(measured) == list(range(1, count + 1))
    assert summary["validation"]["log_loss"] == min(measured.values()) == measured[best]  # type: ignore[type-var]
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert (settings["training"]["epochs"], settings["training"]["shuffle_buffer"]) == (5, 700)
    assert (settings["optimizer"]["network_lr"], settings["optimizer"]["warmup"]) == (0.01, 0.05)
    report = (folder / "report.html").read_text()
    assert f"{count}, the best of them {best}" in report
    assert "validation, after each epoch" in report


def test_a_run_of_two_epochs_is_continued_for_two_unless_they_undo_it(
    tmp_path: Path, ok: Run, refused: Refused
) -> None:
    log = many_features(tmp_path / "log.csv", 500)
    epochs = ("--epochs", 2, "--target-rate", 0.2, "--after-first-epoch", "reset", "--validation", 0.2)
    ok("train", log, "--out", "run", *epochs, "--no-baseline", *SMALL)
    assert "reset would undo" in refused("train", log, "--continue", "run", "--out", "next")
    assert not (tmp_path / "next").exists()
    ok("train", log, "--continue", "run", "--after-first-epoch", "train", "--out", "next")
    assert yaml.safe_load((tmp_path / "next" / "config.yaml").read_text())["training"]["epochs"] == 2
