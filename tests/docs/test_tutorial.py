"""The tutorial's and README's commands run as printed, on a shorter log, and end in a model that serves."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from cli_cases import summary_of
from command import Run
from over import over
from sparsegroup.data.synthetic import TypedClicks

ROOT = Path(__file__).parents[2]
ROWS = 4_000


def commands_in(page: Path) -> Iterator[list[str]]:
    """The commands of a page's shell blocks, without comments."""
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def carried_out(page: Path, run: Run) -> list[str]:
    """Run what a page has a user run, installing aside; the commands."""
    done = []
    for program, *arguments in commands_in(page):
        if program == "sparsegroup":
            shorter = ["--rows", str(ROWS)] if arguments[0] == "synthesize" else []
            ended = run(*arguments, *shorter)
            assert ended.returncode == 0, (arguments, ended.stderr)
        elif program == "python" and arguments[0].startswith("examples/"):
            script = str(ROOT / arguments[0])
            subprocess.run([sys.executable, script, *arguments[1:]], check=True, capture_output=True)
        else:
            assert program in ("python3", "pip", "source", "make"), program
            continue
        done.append(" ".join([program, *arguments]))
    return done


def test_the_tutorial_prints_the_rows_that_it_has_written(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    (rows,) = re.findall(r"synthesize clicks.csv --rows (\d+)", page)
    (printed,) = re.findall(r"```text\n(request_id.*?)```", page, flags=re.DOTALL)
    block, _ = next(TypedClicks(int(rows)).blocks())
    first = block.slice(0, 3)
    frame = pl.DataFrame(pl.from_arrow(first)).with_columns(pl.col("tags").list.join("|").replace("", None))
    assert frame.write_csv(datetime_format="%Y-%m-%dT%H:%M:%S") == printed


@over("page", ["README.md", "docs/index.md"])
def test_the_commands_of_a_first_page_begin_commands_of_the_tutorial_in_its_order(page: str) -> None:
    longer = iter(commands_in(ROOT / "docs" / "tutorial.md"))
    commands = list(commands_in(ROOT / page))
    assert {words[0] for words in commands} <= {"make", "pip", "sparsegroup"}
    for words in commands:
        if words[0] == "sparsegroup":
            assert any(words == other[: len(words)] for other in longer), words


def test_a_stranger_gets_from_a_csv_to_a_served_model(tmp_path: Path, run: Run) -> None:
    done = carried_out(ROOT / "docs" / "tutorial.md", run)
    assert [command.split()[1] for command in done if "predict" in command] == ["predict"]
    summary, manifest = summary_of(tmp_path / "run"), json.loads((tmp_path / "served" / "manifest.json").read_text())
    assert summary["live_rows"] == pytest.approx(4_096, rel=0.01)  # of 5,293: more than a tenth
    assert manifest["tables"]["embedding"]["live_rows"] == summary["live_rows"]
    assert (tmp_path / "served" / "model.onnx").exists()
    scores = pl.read_csv(tmp_path / "scores.csv")
    assert len(scores) == ROWS
    assert scores["probability"].is_between(0, 1, closed="none").all()
    elsewhere = pl.read_csv(tmp_path / "scores-onnx.csv")
    assert (elsewhere["probability"] - scores["probability"]).abs().max() < 1e-6
    assert (tmp_path / "schema.yaml").read_text().count("\n") > 10
