"""Ctrl-C and SIGTERM: `train` saves the run behind the batch under way, and says how to resume it."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from command import Run
from distributed_cases import begun
from kill_runs import differences, outcome_of
from sparsegroup.cli.runs import Interruption
from sparsegroup.training import Session, Trainer

TRAIN = ("--rows", 600, "--model", "lr", "--batch-size", 80, "--epochs", 2)
TRAIN += ("--checkpoint-minutes", 0, "--keep-checkpoints", 1)
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
    ok("train", "--out", "whole", *TRAIN)
    for name, first, second in (("run", signal.SIGTERM, None), ("other", signal.SIGINT, signal.SIGTERM)):
        before = signal.getsignal(first)
        with monkeypatch.context() as patch:
            at_a_batch(patch, 2, first, second)
            done = run("train", "--out", name, *TRAIN, "--quiet")
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
        done = run("train", "--out", "run", *TRAIN, "--quiet")
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


def test_a_process_that_gets_ctrl_c_prints_one_line_and_ends_with_130(tmp_path: Path) -> None:
    options = ["--model", "lr", "--batch-size", "2", "--epochs", "50", "--checkpoint-steps", "5", "--no-baseline"]
    process = begun(tmp_path, "train", "--rows", "2000", "--out", "run", *options, "--quiet")
    try:
        while not list((tmp_path / "run" / "checkpoints").glob("step-*")) and process.is_alive():
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        process.join(60)
    finally:
        process.kill()
        process.join()
    out, said = ((tmp_path / name).read_text() for name in ("stdout", "stderr"))
    assert (process.exitcode, out) == (130, ""), said
    found = re.fullmatch(
        r"interrupted at row ([\d,]+) of 90,000; the last checkpoint is run/checkpoints/step-(\d{12}); continue "
        r"with `sparsegroup train --resume run`\n",
        said,
    )
    assert found is not None, said
    assert int(found[1].replace(",", "")) == 2 * int(found[2])
    assert (tmp_path / "run" / "checkpoints" / f"step-{found[2]}" / "checkpoint.json").is_file()
