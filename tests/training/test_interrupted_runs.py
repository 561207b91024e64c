"""A run on any kind of log that is cut off, or ended by Ctrl-C or SIGTERM, is resumed to an undisturbed run's bits."""

import gzip
import itertools
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from cli_cases import click_log
from command import Run
from following import CutOffError, cut_off_at
from kill_runs import differences, outcome_of
from run_folders import state_of
from sparsegroup.cli.runs import Interruption
from sparsegroup.training import Session, Trainer

OFTEN = ("--model", "lr", "--batch-size", 80, "--checkpoint-minutes", 0)
TRAIN = (*OFTEN, "--checkpoint-steps", 1, "--target-rate", 0.5)


def compressed_with_columns_and_a_test_log(folder: Path) -> list[str]:
    (folder / "log.csv.gz").write_bytes(gzip.compress(click_log(folder / "log.csv", 240).read_bytes()))
    click_log(folder / "test.csv", 40)
    return ["log.csv.gz", "--columns", "categorical", "--label", "label", "--exclude", "id", "--test", "test.csv"]


def several_files_by_a_schema(folder: Path) -> list[str]:
    clicks = pl.read_csv(click_log(folder / "log.csv", 240)).drop("id", "ts")
    for day in range(3):
        (folder / "days" / f"day={day}").mkdir(parents=True)
        clicks[day * 80 : day * 80 + 80].write_csv(folder / "days" / f"day={day}" / "part.csv")
    (folder / "schema.yaml").write_text("label: label\ncategorical: [color]\nnumeric: [size]\n")
    return ["days/*/part.csv", "--schema", "schema.yaml"]


def criteo(folder: Path) -> list[str]:
    numbers, words = [f"{n}" for n in range(13)], [f"{n:08x}" for n in range(26)]
    lines = ["\t".join([str(i % 7 // 5), *numbers[:12], str(i % 5), *words[:25], f"{i % 9:08x}"]) for i in range(240)]
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    return ["train.txt", "--criteo-numbers", "buckets"]


@pytest.fixture
def cut_off_and_resumed(
    tmp_path: Path, ok: Run, run: Run, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str]], None]:
    """Compares a run on a log that is cut off and resumed with an undisturbed one."""

    def check(log: list[str]) -> None:
        ok("train", *log, "--out", "whole", *TRAIN)
        with monkeypatch.context() as patch:
            cut_off_at(patch, Session, "checkpoint", 2, after=True)
            with pytest.raises(CutOffError):
                run("train", *log, "--out", "run", *TRAIN)
        ok("train", "--resume", "run")
        assert not differences(outcome_of(tmp_path / "whole"), outcome_of(tmp_path / "run"))

    return check


@pytest.mark.parametrize("kind", [compressed_with_columns_and_a_test_log, several_files_by_a_schema, criteo])
def test_a_run_on_any_kind_of_log_is_resumed_to_the_same_bits(
    tmp_path: Path, cut_off_and_resumed: Callable[[list[str]], None], kind: Callable[[Path], list[str]]
) -> None:
    cut_off_and_resumed(kind(tmp_path))


def test_a_run_on_a_prepared_log_is_resumed_and_its_settings_train_it_again(
    tmp_path: Path, ok: Run, run: Run, cut_off_and_resumed: Callable[[list[str]], None]
) -> None:
    click_log(tmp_path / "log.csv", 240)
    ok("prepare", "log.csv", "folder")
    cut_off_and_resumed(["folder"])
    assert "rows:" not in (tmp_path / "run" / "config.yaml").read_text()  # the size of a synthetic log
    ok("train", "run/config.yaml", "--out", "again")
    assert state_of(tmp_path / "again") == state_of(tmp_path / "run")
    other = run("train", "run/config.yaml", "--out", "other", "--columns", "categorical")
    assert "--columns is for raw logs; folder is a folder, prepared already" in other.stderr


ENDED = ("--rows", 600, *OFTEN, "--epochs", 2, "--keep-checkpoints", 1)
SAYS = "interrupted at row 160 of 1,080; the last checkpoint is run/checkpoints/step-000000000002; continue with "


def at_a_batch(patch: pytest.MonkeyPatch, number: int, *signals: signal.Signals | None) -> None:
    """Raise signals while a batch, counted from 1, is trained on."""
    real, count = Trainer._step, 0

    def step(self: Trainer, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        for one in filter(None, signals if count == number else ()):
            signal.raise_signal(one)
        return real(self, *arguments)

    patch.setattr(Trainer, "_step", step)


def test_a_run_that_is_interrupted_is_saved_and_resumed_to_the_same_bits(
    tmp_path: Path, ok: Run, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a second request to end follows, as torchrun sends it."""
    ok("train", "--out", "whole", *ENDED)
    for name, first, second in (("run", signal.SIGTERM, None), ("other", signal.SIGINT, signal.SIGTERM)):
        before = signal.getsignal(first)
        with monkeypatch.context() as patch:
            at_a_batch(patch, 2, first, second)
            done = run("train", "--out", name, *ENDED, "--quiet")
        assert (done.returncode, done.stdout) == (128 + first, "")
        assert done.stderr == SAYS.replace("run/", f"{name}/") + f"`sparsegroup train --resume {name}`\n"
        assert signal.getsignal(first) == before
        ok("train", "--resume", name)
        assert not differences(outcome_of(tmp_path / "whole"), outcome_of(tmp_path / name))


def test_a_second_interruption_or_one_while_nothing_is_trained_ends_at_once(
    ok: Run, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        at_a_batch(patch, 2, signal.SIGINT, signal.SIGINT)
        done = run("train", "--out", "run", *ENDED, "--quiet")
    assert done.returncode == 130
    assert done.stderr == "interrupted; there is no checkpoint yet; continue with `sparsegroup train --resume run`\n"
    real = Session.checkpoint

    def interrupted(self: Session, **keywords: Any) -> Path:
        path = real(self, **keywords)
        signal.raise_signal(signal.SIGINT)
        return path

    with monkeypatch.context() as patch:
        patch.setattr(Session, "checkpoint", interrupted)  # the last one, before the evaluation
        done = run("train", "--resume", "run", "--quiet")
    assert done.returncode == 130
    assert done.stderr == (
        "interrupted; the last checkpoint is run/checkpoints/step-000000000014; continue with "
        "`sparsegroup train --resume run`\n"
    )
    ok("train", "--resume", "run")


def test_a_signal_that_the_process_ignores_remains_ignored() -> None:
    """As SIGINT in a job that a shell's script starts in the background."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption().handled():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [1, 14])
@pytest.mark.parametrize("options", [(), ("--checkpoint-steps", 1)], ids=["one checkpoint", "many checkpoints"])
def test_a_folder_that_is_removed_ends_the_training_in_words(
    number: int, options: tuple[Any, ...], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, batches = Trainer._step, itertools.count(1)

    def step(self: Trainer, *arguments: Any) -> Any:
        if next(batches) == number:
            shutil.rmtree(tmp_path / "run")
        return real(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", step)
    done = run("train", "--out", "run", *ENDED, *options)
    assert done.returncode == 2
    assert "error: run: the folder of the run has been removed or moved" in done.stderr
    assert not (tmp_path / "run").exists()
