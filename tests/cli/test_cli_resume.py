"""Runs that are continued, resumed or refused, through the real command line."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from cli_cases import COMMAND, click_log
from command import Run
from run_folders import state_of
from sparsegroup.training.build import read_config
from sparsegroup.training.run_folder import RunFolder


def test_going_on_wants_a_log_and_takes_a_prepared_one_after_a_raw_one(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    assert run("train", log, "--test-fraction", 0).returncode == 0
    none = run("train", "--continue", "runs/log", "--out", "next")
    assert (none.returncode, none.stderr) == (2, "error: --continue needs the log to train on next\n")
    assert run("prepare", log, "folder").returncode == 0
    done = run("train", "folder", "--continue", "runs/log", "--out", "next")
    assert done.returncode == 0, done.stderr


def test_a_run_that_diverges_says_so(tmp_path: Path, run: Run) -> None:
    done = run("train", click_log(tmp_path / "log.csv"), "--lr", 1e30)
    assert done.returncode == 2
    assert ("\nerror: training has diverged after 128 samples: the loss of the next batch is nan. ") in done.stderr
    assert done.stderr.endswith("Lower the learning rate\n")


def test_a_run_that_diverges_keeps_its_last_good_checkpoint(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    options = ("--checkpoint-steps", 1, "--keep-checkpoints", 9, "--optimizer", "sgd", "--batch-size", 100)
    done = run("train", log, *options, "--lr", 3e7, "--out", "run")
    assert done.returncode == 2
    kept = Path(done.stderr.rpartition("the last good checkpoint is ")[2].strip())
    assert kept == sorted((tmp_path / "run" / "checkpoints").iterdir())[-1].relative_to(tmp_path)
    scored = run("predict", kept, log)
    assert scored.returncode == 0, scored.stderr
    probabilities = [float(line.split(",")[1]) for line in scored.stdout.splitlines()[1:]]
    assert all(0 <= probability <= 1 for probability in probabilities)


def test_adahessian_is_not_compiled(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv", 600)
    done = run("train", log, "--optimizer", "adahessian", "--set", "training.compile=always")
    assert done.returncode == 0, done.stderr


def test_a_test_set_of_one_class_has_no_auc_and_an_empty_section_has_its_defaults(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text("label,a\n" + "1,x\n" * 50)
    (tmp_path / "settings.yaml").write_text("data: {log: log.csv}\noptimizer:\n")
    done = run("train", "settings.yaml")
    assert done.returncode == 0, done.stderr
    assert "test AUC       – (one class only)" in done.stdout
    assert json.loads((tmp_path / "runs" / "log" / "latest" / "summary.json").read_text())["test"]["auc"] is None
    assert "nan" not in (tmp_path / "runs" / "log" / "latest" / "report.html").read_text()


def test_the_next_day_is_gone_on_with(tmp_path: Path, run: Run) -> None:
    header, *rows = click_log(tmp_path / "both.csv", 2_048).read_text().splitlines()
    for day, part in enumerate((rows[:1024], rows[1024:])):
        (tmp_path / f"day{day}.csv").write_text("\n".join([header, *part]) + "\n")
    # opnn has dropout: the random numbers go on, too.
    options = ["--test-fraction", 0, "--lr", 0.05, "--l21", 1e-4, "--batch-size", 512, "--shuffle-buffer", 0]
    options += ["--set", "model.base_rate=false"]  # which differs by day
    assert run("train", "both.csv", "--model", "opnn", *options).returncode == 0
    assert run("train", "day0.csv", "--model", "opnn", *options).returncode == 0
    done = run("train", "day1.csv", "--continue", "runs/day0")
    assert done.returncode == 0, done.stderr
    assert "continuing after 1,024 samples" in done.stderr
    assert "test AUC" not in done.stdout
    both, day1 = tmp_path / "runs" / "both" / "latest", tmp_path / "runs" / "day1" / "latest"
    assert state_of(both) == state_of(day1)
    summary = json.loads((day1 / "summary.json").read_text())
    day0 = Path("runs", "day0", os.readlink(tmp_path / "runs" / "day0" / "latest"))
    assert (summary["samples"], summary["continued_from"], summary["test"]) == (2048, str(day0), None)
    points = [json.loads(line)["samples"] for line in (day1 / "metrics.jsonl").read_text().splitlines()]
    assert points == [512, 1024, 1536, 2048]
    other = run("train", "day1.csv", "--continue", "runs/day1", "--l21", 1.0, "--out", "other")
    assert other.returncode == 0, other.stderr
    assert "(0 of 104 features)" in other.stdout


def test_other_settings_are_gone_on_with_and_said(tmp_path: Path, run: Run) -> None:
    click_log(tmp_path / "log.csv", 1_000)
    before = ("--optimizer", "adam", "--lr", 1e-4, "--l21", 1e-3)
    assert run("train", "log.csv", "--out", "runs/log", *before).returncode == 0
    other = run("train", "log.csv", "--continue", "runs/log", "--out", "a", "--optimizer", "adagrad")
    assert "the optimizer was adam and is adagrad: the weights are kept; u and the moments start afresh" in other.stderr
    assert read_config(tmp_path / "a" / "config.yaml", {}).optimizer.lr is None  # Adam's is not Adagrad's
    stricter = run("train", "log.csv", "--continue", "runs/log", "--out", "b", "--l21", 0.1)
    assert "l21 is 0.001 in the checkpoint and 0.1 here: that is taken; u and the moments are kept" in stricter.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "mlp"], "model.name cannot change to mlp: the run to continue has dcn"),
        (["--exclude", "size"], "log.csv: its fields are color; the run was trained with color, size"),
        (["--out", "runs/log", "--overwrite"], "runs/log is the run to continue; give another --out"),
    ],
)
def test_what_does_not_fit_a_run_is_not_gone_on_with(
    tmp_path: Path, run: Run, arguments: list[str], message: str
) -> None:
    click_log(tmp_path / "log.csv", 1_000)
    assert run("train", "log.csv", "--out", "runs/log").returncode == 0
    before = {path: path.read_bytes() for path in (tmp_path / "runs" / "log").rglob("*.*")}
    done = run("train", "log.csv", "--continue", "runs/log", "--out", "next", *arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "runs" / "log").rglob("*.*")} == before
    assert not (tmp_path / "next").exists()


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/step-000000000002/table-embedding.safetensors",
        "checkpoints/step-000000000002/state.safetensors",
        "checkpoints/step-000000000002/checkpoint.json",
        "columns.json",
    ],
)
def test_a_damaged_run_is_named(tmp_path: Path, run: Run, name: str) -> None:
    click_log(tmp_path / "log.csv", 1_000)
    assert run("train", "log.csv", "--out", "runs/log", "--batch-size", 512).returncode == 0
    path = tmp_path / "runs" / "log" / name
    path.write_bytes(path.read_bytes()[:40])
    done = run("train", "log.csv", "--continue", "runs/log", "--out", "next")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: runs/log/{name}: damaged (")


def test_the_points_of_a_run_are_written_for_people_and_not_read(tmp_path: Path, run: Run) -> None:
    click_log(tmp_path / "log.csv", 1_000)
    assert run("train", "log.csv", "--out", "runs/log", "--batch-size", 512).returncode == 0
    points = (tmp_path / "runs" / "log" / "metrics.jsonl").read_text()
    (tmp_path / "runs" / "log" / "metrics.jsonl").write_text(points[:40])
    assert run("train", "log.csv", "--continue", "runs/log", "--out", "next").returncode == 0
    assert (tmp_path / "next" / "metrics.jsonl").read_text().startswith(points[:40])


def test_a_run_that_was_cut_off_says_so(tmp_path: Path, run: Run) -> None:
    click_log(tmp_path / "log.csv", 1_000)
    assert run("train", "log.csv", "--out", "runs/log").returncode == 0
    (tmp_path / "runs" / "log" / "summary.json").unlink()
    done = run("train", "log.csv", "--continue", "runs/log", "--out", "next")
    assert (done.returncode, done.stderr) == (
        2,
        "error: runs/log: a run that did not finish; `sparsegroup train --resume` completes it "
        "(summary.json is missing)\n",
    )


def test_weights_and_fields_of_several_values_are_trained_on_raw_or_prepared(tmp_path: Path, run: Run) -> None:
    lines = ["label,user,genres,price,weight"]
    lines += [f"{int(i % 5 < 2)},u{i % 40},g{i % 5}|h{i % 3},{i % 7},{1 + i % 2}" for i in range(2_000)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "schema.yaml").write_text(
        "label: label\ncategorical: [user]\nmulti: {genres: '|'}\nnumeric: [price]\nweight: weight\n"
    )
    options = ["--lr", 0.05, "--l21", 1e-4]
    raw = run("train", "log.csv", "--schema", "schema.yaml", "--out", "raw", *options)
    assert raw.returncode == 0, raw.stderr
    assert run("prepare", "log.csv", "folder", "--schema", "schema.yaml").returncode == 0
    assert run("train", "folder", "--out", "prepared", *options).returncode == 0
    assert state_of(tmp_path / "raw") == state_of(tmp_path / "prepared")
    assert json.loads((tmp_path / "raw" / "summary.json").read_text())["test"]["auc"] > 0.95
    mixed = run("train", "folder", "--label", "label", "--out", "mixed")
    assert (mixed.returncode, "--label is for raw logs; folder is a folder" in mixed.stderr) == (2, True)


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    assert run("train", log, "--out", "runs/log").returncode == 0
    (tmp_path / "runs" / "log" / "summary.json").unlink()
    with RunFolder(tmp_path / "runs" / "log").lock():
        done = run("train", "--resume", "runs/log")
    assert (done.returncode, done.stderr) == (2, "error: runs/log: another process is training this run\n")
    assert run("train", "--resume", "runs/log").returncode == 0


def test_resume_wants_the_settings_it_was_begun_with_and_no_others(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    assert run("train", log, "--out", "runs/log", "--batch-size", 512).returncode == 0
    (tmp_path / "runs" / "log" / "summary.json").unlink()
    given = run("train", "--resume", "runs/log", "--l21", 0, "--checkpoint-minutes", 0)
    assert given.returncode == 2
    assert "--resume takes everything from the run, and no l21, checkpoint-minutes" in given.stderr
    config = tmp_path / "runs" / "log" / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("batch_size: 512", "batch_size: 100"))
    edited = run("train", "--resume", "runs/log")
    assert (edited.returncode, edited.stderr) == (
        2,
        "error: runs/log/config.yaml: training.batch_size is 100, but the run was begun with 512; put it back, or "
        "begin another run\n",
    )
    config.write_text(text)
    assert run("train", "--resume", "runs/log").returncode == 0


def test_two_runs_cannot_begin_in_one_folder(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    (tmp_path / "run").mkdir()
    with RunFolder(tmp_path / "run").lock():
        done = run("train", log, "--out", "run")
    assert done.returncode == 2
    assert done.stderr.endswith("error: run: another process is training this run\n")
    assert not any((tmp_path / "run").iterdir())


def test_a_number_of_local_ranks_that_is_none_is_no_reason_to_fail() -> None:
    environment = {**os.environ, "LOCAL_WORLD_SIZE": "two"}
    done = subprocess.run([COMMAND, "--version"], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_encoding_without_lambda_is_no_reason_to_fail(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([COMMAND, "train", "--help"], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_next_log_is_shuffled_by_its_own_length(tmp_path: Path, run: Run) -> None:
    short, long = click_log(tmp_path / "short.csv", 600), click_log(tmp_path / "long.csv", 1_000)
    assert run("train", short, "--model", "lr", "--no-baseline", "--batch-size", 100).returncode == 0
    assert read_config(tmp_path / "runs" / "short" / "latest" / "config.yaml", {}).training.shuffle_buffer == 540
    done = run("train", long, "--continue", "runs/short", "--out", "next")
    assert done.returncode == 0, done.stderr
    after = read_config(tmp_path / "next" / "config.yaml", {}).training
    assert (after.batch_size, after.shuffle_buffer) == (100, 900)


def test_a_log_of_one_row_is_refused(tmp_path: Path, run: Run) -> None:
    (tmp_path / "log.csv").write_text("label,color\n1,red\n")
    done = run("train", "log.csv")
    assert done.returncode == 2
    assert done.stderr.endswith("error: log.csv: has 1 row, 1 for training; a run needs at least 2 rows to train on\n")
    assert not (tmp_path / "runs").exists()


def test_a_second_epoch_that_resets_what_a_run_has_learnt_is_refused_by_options(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv", 600)
    assert run("train", log, "--model", "lr", "--out", "run").returncode == 0
    done = run("train", log, "--continue", "run", "--out", "next", "--epochs", 2, "--after-first-epoch", "reset")
    assert done.returncode == 2
    assert done.stderr.endswith("give --epochs=1, or --after-first-epoch=train or freeze\n")
