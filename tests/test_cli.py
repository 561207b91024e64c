"""The user's paths through the real command line."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparsegroup.cli import main
from sparsegroup.data import PreparedLog
from sparsegroup.kernels import threads
from sparsegroup.training import evaluate, load_model, predict

COMMAND = Path(sys.executable).with_name("sparsegroup")


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command's own entry point, in this process: importing torch anew for each call would take seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(threads, "_number", None)  # what a command sets goes with it

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["sparsegroup", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return run


def click_log(path: Path, rows: int = 2_000) -> Path:
    lines = ["label,id,ts,color,size"]
    lines += [f"{int(i % 7 in (1, 3))},{i},{i},c{i % 7},{i * 2654435761 % 97}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_train_takes_a_log_and_leaves_a_model(tmp_path: Path, run: Run) -> None:
    done = run("train", click_log(tmp_path / "log.csv"), "--lr", 0.05, "--l21", 1e-4)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "log"
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors",
        "vocabulary.parquet",
        "config.json",
        "metrics.json",
        "progress.png",
    }
    metrics = json.loads((folder / "metrics.json").read_text())
    assert f"test AUC       {metrics['test_auc']:.4f}" in done.stdout
    assert metrics["test_auc"] > 0.95  # the label is a function of `color`
    assert re.search(r"feature rate +[01]\.\d+ +\([\d,]+ of 104 features\)", done.stdout)
    assert (folder / "progress.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_repeats_bit_for_bit_in_another_process_and_another_does_not(tmp_path: Path) -> None:
    def weights(out: str, seed: int) -> bytes:
        arguments = ["train", "--rows", "5000", "--model", "opnn", "--seed", str(seed), "--out", out]
        subprocess.run([COMMAND, *arguments], cwd=tmp_path, capture_output=True, check=True)
        return (tmp_path / out / "model.safetensors").read_bytes()

    one, same, other = weights("a", 1), weights("b", 1), weights("c", 2)
    assert one == same
    assert one != other


def test_a_run_is_not_overwritten_unless_asked(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    assert run("train", log, "--out", "run").returncode == 0
    before = (tmp_path / "run" / "metrics.json").read_text()
    again = run("train", log, "--out", "run", "--seed", 1)
    assert (again.returncode, again.stderr) == (2, "error: run is not empty; give another --out, or --overwrite\n")
    assert (tmp_path / "run" / "metrics.json").read_text() == before
    assert run("train", log, "--out", "run", "--seed", 1, "--overwrite").returncode == 0
    assert (tmp_path / "run" / "metrics.json").read_text() != before


def test_bad_rows_stop_training_or_are_skipped_and_reported(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    log.write_text(log.read_text() + "1,2000,20")
    stopped = run("train", log)
    assert (stopped.returncode, stopped.stdout.strip()) == (2, "")
    assert stopped.stderr == f"error: {log}:2002: 3 columns where 5 are expected: '1,2000,20'\n"
    assert not (tmp_path / "runs").exists()
    skipped = run("train", log, "--on-bad-row", "skip")
    assert skipped.returncode == 0
    assert "skipped 1 bad row" in skipped.stdout
    assert "line 2002: 3 columns where 5 are expected: '1,2000,20'" in skipped.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no.csv"], "error: no.csv: no such file\n"),
        (["log.csv", "--label", "bought"], "error: log.csv:1: no label column 'bought'"),
        (["log.csv", "--l21", "-1"], "error: l21 must be >= 0, got -1"),
        (["log.csv", "--lr", "nan"], "error: lr must be finite and >= 0, got nan"),
        (["log.csv", "--optimizer", "ftrl"], "error: the optimizer ftrl has no default learning rate: give lr"),
        (["log.csv", "--optimizer", "lion"], "'lion' is not one of 'sgd'"),
        (["log.csv", "--norm", "l2"], "'l2' is not one of 's'"),
        (["log.csv", "--test-fraction", "0"], "0 test rows; both must be > 0"),
        (["--colour"], "No such option: --colour"),
    ],
)
def test_wrong_arguments_are_named_without_a_traceback(
    tmp_path: Path, run: Run, arguments: list[str], message: str
) -> None:
    click_log(tmp_path / "log.csv", rows=50)
    done = run("train", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_demo_shows_three_methods_and_prunes_to_the_rate_of_group_adam(run: Run) -> None:
    done = run("demo", "--rows", 30_000)
    assert done.returncode == 0, done.stderr
    rows = {
        cells[0]: cells[1:]
        for line in done.stdout.splitlines()
        if line.startswith("│") and (cells := [cell.strip() for cell in line.strip("│").split("│")])
    }
    assert list(rows) == ["Adam", "Adam, pruned", "Group Adam"]
    assert rows["Adam"][2] == "100.00%"
    assert rows["Adam, pruned"][2:4] == rows["Group Adam"][2:4]
    assert float(rows["Group Adam"][2].rstrip("%")) < 50


def test_version_and_help(run: Run) -> None:
    assert re.fullmatch(r"sparsegroup \d+\.\d+\.\d+\n", run("--version").stdout)
    for arguments in ([], ["train"], ["demo"]):
        shown = run(*arguments, "--help")
        assert shown.returncode == 0
        assert "Usage: sparsegroup" in shown.stdout


def test_a_prepared_log_is_trained_on(tmp_path: Path, run: Run) -> None:
    rows = [
        [str(int(i % 7 in (1, 3))), *[str(i % 5)] * 13, *[f"{i % 7}v{i * j % 11}" for j in range(26)]]
        for i in range(2_100)
    ]
    (tmp_path / "train.txt").write_text("\n".join("\t".join(row) for row in rows) + "\n")
    assert run("prepare", "train.txt", "log", "--vocabulary").returncode == 0
    done = run("train", "log", "--lr", 0.05, "--l21", 1e-4)
    assert done.returncode == 0, done.stderr
    assert "1,800 training and 300 test rows, 26 fields, 13 numbers" in done.stdout
    metrics = json.loads((tmp_path / "runs" / "log" / "metrics.json").read_text())
    assert metrics["test_auc"] > 0.99
    assert 0.5 < metrics["test_calibration"] < 2
    assert 0 < metrics["test_normalized_entropy"] < 0.5
    model = load_model(tmp_path / "runs" / "log")
    log = PreparedLog(tmp_path / "log")
    probabilities = predict(model, log, log.train_rows, len(log))
    labels = next(log.batches(log.train_rows, len(log), 300)).labels.numpy()
    assert evaluate(labels, probabilities).auc == pytest.approx(metrics["test_auc"])
    assert (tmp_path / "runs" / "log" / "vocabulary.parquet").read_bytes() == (
        tmp_path / "log" / "vocabulary.parquet"
    ).read_bytes()


def test_synthesize_makes_a_log_to_train_on(tmp_path: Path, run: Run) -> None:
    done = run("synthesize", "avazu", "made-up", "--rows", 20_000, "--seed", 1)
    assert done.returncode == 0, done.stderr
    assert "20,000: 18,000 for training, 2,000 for testing" in done.stdout
    assert run("train", "made-up", "--model", "mlp").returncode == 0
    again = run("synthesize", "avazu", "made-up")
    assert (again.returncode, "made-up: is not empty" in again.stderr) == (2, True)
    none = run("synthesize", "avazu", "none", "--rows", 0)
    assert (none.returncode, "rows must be from 1 to" in none.stderr) == (2, True)


def test_the_number_of_threads_changes_nothing(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    for number in (1, 3):
        assert run("train", log, "--lr", 0.05, "--out", f"run-{number}", "--threads", number).returncode == 0
    one, three = (tmp_path / f"run-{number}" / "model.safetensors" for number in (1, 3))
    assert one.read_bytes() == three.read_bytes()
