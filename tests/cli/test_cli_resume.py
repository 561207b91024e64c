"""Runs that are begun, replaced, continued, resumed or refused, and runs of several epochs."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from cli_cases import COMMAND, click_log, many_features, points_of, summary_of
from command import Run
from endings import Refused
from run_folders import state_of
from sparsegroup.models import XDeepFM
from sparsegroup.training import load_model, read_config
from sparsegroup.training.run_folder import RunFolder

FAST = ("--selection", "never", "--no-baseline", "--batch-size", 64)
SMALL = ("--batch-size", 100, "--set", "model.dim=2", "--set", "model.hidden=[4]", "--threads", 1)


def test_the_bits_depend_on_the_seed_and_not_on_the_process_or_its_threads(tmp_path: Path, ok: Run) -> None:
    """With several threads the next batch's keys are looked up ahead, but not before λ21 is set."""
    many_features(tmp_path / "log.csv", 5_000)
    arguments = ("train", "log.csv", "--model", "opnn", "--target-rate", 0.1, "--no-baseline", "--selection", "never")
    arguments += ("--batch-size", 2_048)
    here = [COMMAND, *map(str, arguments), "--threads", "1", "--seed", "1", "--out", "a"]
    subprocess.run(here, cwd=tmp_path, capture_output=True, check=True)
    for seed, threads, out in ((1, 3, "b"), (2, 1, "c")):
        ok(*arguments, "--seed", seed, "--threads", threads, "--out", out)
    one, same, other = (state_of(tmp_path / out) for out in "abc")
    assert one == same
    assert one != other


def test_a_file_of_settings_with_others_set_over_it(tmp_path: Path, ok: Run) -> None:
    click_log(tmp_path / "log.csv", 600)
    model = "model: {name: xdeepfm, dim: 4, hidden: [8], options: {cin: [6]}}\n"
    (tmp_path / "settings.yaml").write_text(
        f"data: {{log: log.csv, max_bad: 1%}}\n{model}optimizer: {{lr: 0.05, l21: 1e-4}}\n"
    )
    assigned = ("--set", "optimizer.options={betas: [0.8, 0.9]}", "--set", "training.windows=3")
    ok("train", "settings.yaml", "--l21", 2e-4, "--batch-size", 150, "--no-fallback", "--no-baseline", *assigned)
    folder = tmp_path / "runs" / "log" / "latest"
    config = read_config(folder / "config.yaml", {})
    assert (config.model.name, config.model.dim, config.model.hidden) == ("xdeepfm", 4, (8,))
    (network,) = (one for one in load_model(folder).modules() if isinstance(one, XDeepFM))
    assert [len(weight) for weight in network.cin.weights] == [6]
    assert (config.optimizer.lr, config.optimizer.l21) == (0.05, 2e-4)
    assert config.optimizer.options == {"betas": [0.8, 0.9]}
    assert (config.data.max_bad, config.model.fallback, config.training.baseline) == (0.01, False, False)
    assert len(points_of(folder)) == 2  # of 4 batches
    ok("train", folder / "config.yaml", "--out", "again")
    assert state_of(folder) == state_of(tmp_path / "again")


def test_a_run_is_overwritten_on_request_once_the_new_one_is_complete(
    tmp_path: Path, ok: Run, run: Run, refused: Refused
) -> None:
    log, folder = click_log(tmp_path / "log.csv", 600), tmp_path / "run"
    ok("train", log, "--out", "run", *FAST)
    (folder / "vocabulary.parquet").write_bytes(b"of the old run")
    (folder / "mine.txt").write_text("not the run's")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    names = {path.name for path in folder.iterdir()}
    again = refused("train", log, "--out", "run", "--seed", 1)
    assert again == "error: run is not empty; give another --out, or --overwrite\n"
    diverged = run("train", log, "--out", "run", "--overwrite", "--lr", 1e30, *FAST)
    assert diverged.returncode == 2
    assert "\nerror: training has diverged after 64 samples: the loss of the next batch is nan. " in diverged.stderr
    assert diverged.stderr.endswith("Lower the learning rate\n")
    assert {path: path.read_bytes() for path in before} == before
    ok("train", log, "--seed", 1, "--out", "run", "--overwrite", *FAST)
    assert {path.name for path in folder.iterdir()} == names - {"vocabulary.parquet"}
    assert (folder / "summary.json").read_bytes() != before[folder / "summary.json"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


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
    summary = summary_of(tmp_path / "day1")
    day0 = Path("runs", "day0", os.readlink(tmp_path / "runs" / "day0" / "latest"))
    assert (summary["samples"], summary["continued_from"], summary["test"]) == (1024, str(day0), None)
    assert [point["samples"] for point in points_of(tmp_path / "day1")] == [256, 512, 768, 1024]


def test_other_settings_continue_a_run_and_are_reported(trained: Path, tmp_path: Path, ok: Run) -> None:
    log, run = trained / "log.csv", Path(shutil.copytree(trained / "run", tmp_path / "run"))
    metrics = run / "metrics.jsonl"  # which is written for people, and not read
    metrics.write_text(metrics.read_text()[:40])
    other = ok("train", log, "--continue", "run", "--out", "a", "--optimizer", "adagrad")
    assert "the optimizer was adam and is adagrad: the weights are kept; u and the moments start afresh" in other.stderr
    assert read_config(tmp_path / "a" / "config.yaml", {}).optimizer.lr is None  # Adam's is not Adagrad's
    assert (tmp_path / "a" / "metrics.jsonl").read_text().startswith(metrics.read_text())
    stricter = ok("train", log, "--continue", "run", "--out", "b", "--l21", 100)
    assert (
        "l21 is 0.0001 in the checkpoint and 100.0 here: that is taken; u and the moments are kept" in stricter.stderr
    )
    assert "(0 of 104 features)" in stricter.stdout


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
    said = refused("train", trained / "log.csv", "--continue", "run", "--out", "next")
    assert said.startswith("error: run: a run that did not finish; `sparsegroup train --resume` completes it")
    assert f"run/checkpoints/{checkpoint.name}" in said


def test_inspect_looks_into_the_last_checkpoint_of_an_unfinished_run(trained: Path, tmp_path: Path, ok: Run) -> None:
    shutil.copytree(trained / "run", tmp_path / "run")
    expected = json.loads(ok("inspect", "run", "--json").stdout)
    Path("run/summary.json").unlink()
    done = ok("inspect", "run", "--json")
    assert json.loads(done.stdout)["norms"] == expected["norms"]
    assert "did not finish" in done.stderr


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


@pytest.mark.usefixtures("pictures")
def test_a_run_of_several_epochs_reports_the_best(tmp_path: Path, ok: Run) -> None:
    draw = np.random.default_rng(0)  # labels without a cause, which can only be memorized
    lines = [f"{draw.integers(2)},u{draw.integers(700)},i{draw.integers(5)}" for _ in range(3_000)]
    (tmp_path / "log.csv").write_text("\n".join(["label,user,item", *lines]) + "\n")
    epochs = ["--epochs", 5, "--validation", ".1", "--patience", 1, "--shuffle-buffer", 700]
    rates = ["--lr", 0.3, "--l21", 0, "--network-lr", 0.01, "--schedule", "linear", "--warmup", "5%"]
    done = ok("train", "log.csv", *epochs, *rates, *SMALL)
    assert "2,430 training, 270 validation and 300 test rows" in done.stderr
    folder = tmp_path / "runs" / "log" / "latest"
    summary = summary_of(folder)
    best, count = summary["best_epoch"], summary["epochs"]
    assert best < count < 5
    assert f"{count}  (the best, epoch {best}, is kept)" in done.stdout
    assert (summary["samples"], summary["validation_rows"]) == (2_430 * count, 270)
    measured = {one["epoch"]: one["validation_log_loss"] for one in points_of(folder) if one["validation_log_loss"]}
    assert list(measured) == list(range(1, count + 1))
    assert summary["validation"]["log_loss"] == min(measured.values()) == measured[best]
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert (settings["training"]["epochs"], settings["training"]["shuffle_buffer"]) == (5, 700)
    assert (settings["optimizer"]["network_lr"], settings["optimizer"]["warmup"]) == (0.01, 0.05)
    report = (folder / "report.html").read_text()
    assert f"{count}, the best of them {best}" in report
    assert "validation, after each epoch" in report
