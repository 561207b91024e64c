"""The wheel with the extra cli, in an environment of its own: from a log to scores, by the installed command."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).with_name("sparsegroup")


def run(folder: Path, *arguments: object, status: int = 0) -> str:
    """What `sparsegroup` prints in a folder: on standard output, or where it is to fail, on standard error."""
    done = subprocess.run([COMMAND, *map(str, arguments)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, and a model trained on it."""
    folder = tmp_path_factory.mktemp("model")
    rows = "".join(f"{int(i % 5 == 0)},u{i % 9},a{i % 5}\n" for i in range(2_000))
    (folder / "log.csv").write_text(f"click,user,ad\n{rows}")
    run(folder, "train", "log.csv", "--lr", 0.05, "--l21", 1e-4, "--out", "trained")
    return folder


def test_a_run_leaves_a_report_and_goes_on_with_a_prepared_log(folder: Path) -> None:
    assert "<svg" in (folder / "trained" / "report.html").read_text()
    assert "complete" in run(folder, "train", "--resume", "trained")
    run(folder, "prepare", "log.csv", "prepared")
    assert "test AUC" in run(folder, "train", "prepared", "--continue", "trained", "--out", "next")


def test_a_model_is_inspected_and_scores(folder: Path) -> None:
    assert json.loads(run(folder, "inspect", "trained", "--json", "--html", "page.html"))
    assert "</html>" in (folder / "page.html").read_text()
    run(folder, "predict", "trained", "log.csv", "--out", "scores.csv")
    with (folder / "scores.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2_000


def test_a_model_is_exported_and_onnx_says_how_to_get_it(folder: Path) -> None:
    message = run(folder, "export", "trained", "exported", "--onnx", status=2)
    assert "pip install 'sparsegroup[onnx]'" in message
    assert "feature rate" in run(folder, "export", "trained", "exported", "--dtype", "int8", "--test", "log.csv")
    assert run(folder, "predict", "exported", "log.csv").count("\n") == 2_001


def test_the_demo_runs(folder: Path) -> None:
    assert "Group Adam" in run(folder, "demo", "--rows", 5_000)
