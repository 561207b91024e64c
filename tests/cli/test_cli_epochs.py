"""Epochs, rows held out, order and learning rates, through the real command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from cli_cases import many_features, summary_of
from command import Run
from following import CutOffError, cut_off_at
from run_folders import state_of
from sparsegroup.training.session import Session

SMALL = ["--batch-size", 100, "--set", "model.dim=2", "--set", "model.hidden=[4]", "--threads", 1]


def coins(path: Path) -> Path:
    """A log of clicks that are drawn, which can only be learnt by heart."""
    draw = np.random.default_rng(0)
    lines = [f"{draw.integers(2)},u{draw.integers(700)},i{draw.integers(5)}" for _ in range(3_000)]
    path.write_text("\n".join(["label,user,item", *lines]) + "\n")
    return path


def test_a_run_of_several_epochs_says_what_it_kept(tmp_path: Path, run: Run) -> None:
    log = coins(tmp_path / "log.csv")
    epochs = ["--epochs", 5, "--validation", ".1", "--patience", 1, "--shuffle-buffer", 700]
    rates = ["--lr", 0.3, "--l21", 0, "--network-lr", 0.01, "--schedule", "linear", "--warmup", "5%"]
    done = run("train", log, *epochs, *rates, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "2,430 training, 270 validation and 300 test rows" in done.stderr
    folder = tmp_path / "runs" / "log" / "latest"
    summary = summary_of(folder)
    best, count = summary["best_epoch"], summary["epochs"]
    assert isinstance(best, int)
    assert isinstance(count, int)
    assert best < count < 5
    assert f"{count}  (the best, epoch {best}, is kept)" in done.stdout
    assert (summary["samples"], summary["validation_rows"]) == (2_430 * count, 270)
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    measured = {point["epoch"]: point["validation_log_loss"] for point in points if point["validation_log_loss"]}
    assert list(measured) == list(range(1, count + 1))
    assert summary["validation"]["log_loss"] == min(measured.values()) == measured[best]  # type: ignore[index]
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert (settings["training"]["epochs"], settings["training"]["shuffle_buffer"]) == (5, 700)
    assert (settings["optimizer"]["network_lr"], settings["optimizer"]["warmup"]) == (0.01, 0.05)
    report = (folder / "report.html").read_text()
    assert f"{count}, the best of them {best}" in report
    assert "validation, after each epoch" in report


def test_it_is_resumed_in_its_second_epoch_and_gone_on_with(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = many_features(tmp_path / "log.csv", 1_000)
    options = ["--epochs", 2, "--target-rate", 0.2, "--after-first-epoch", "reset", "--validation", 0.2, *SMALL]
    assert run("train", log, "--out", "whole", *options, "--checkpoint-steps", 3).returncode == 0
    with monkeypatch.context() as patch:
        cut_off_at(patch, Session, "checkpoint", 5)
        with pytest.raises(CutOffError):
            run("train", log, "--out", "cut", *options, "--checkpoint-steps", 3)
    resumed = run("train", "--resume", "cut", "--threads", 1)
    assert resumed.returncode == 0, resumed.stderr
    assert "2 epochs" in resumed.stderr
    assert "resumed at row " in resumed.stderr
    assert state_of(tmp_path / "whole") == state_of(tmp_path / "cut")
    undone = run("train", log, "--continue", "cut", "--out", "next")
    assert (undone.returncode, "reset would undo" in undone.stderr) == (2, True)
    assert not (tmp_path / "next").exists()
    following = run("train", log, "--continue", "cut", "--after-first-epoch", "train", "--out", "next")
    assert following.returncode == 0, following.stderr
    assert yaml.safe_load((tmp_path / "next" / "config.yaml").read_text())["training"]["epochs"] == 2


def test_a_path_takes_them_too(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv", 1_000)
    options = ["--rates", ".2", "--epochs", 2, "--after-first-epoch", "reset", "--schedule", "cosine", *SMALL]
    done = run("path", log, *options)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "paths" / "log" / "path.json").read_text())
    assert content["config"]["training"]["after_first_epoch"] == "reset"
    assert content["points"][1]["feature_rate"] == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--patience", 1], "training.patience needs rows that are held out: give training.validation, such as 0.05"),
        (["--validation", 1], "training.validation: input should be less than 1, got '1'"),
        (["--epochs", 0], "training.epochs: input should be greater than or equal to 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, run: Run, options: list[object], message: str) -> None:
    done = run("train", many_features(tmp_path / "log.csv", 100), *options)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
