"""What a log's columns were taken for, along the way of a user: shown, edited, trained with, served."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml

from cli_cases import click_log, summary_of
from command import Run
from endings import Refused
from sparsegroup.training.run_folder import RunFolder

SCORE = Path(__file__).parents[2] / "examples" / "score_onnx.py"
ROWS, REST = 600, 60
SMALL = ("--set", "model.hidden=[4]", "--model", "mlp", "--set", "model.dim=2", "--l21", "0", "--selection", "never")
KINDS = {
    "when": "time ms",
    "level": "category, number",
    "clicked": "label",
    "price": "number",
    "seen": "timestamp iso",
    "mobile": "boolean",
    "tags": "list |",
    "time": "category",
    "row": "ignore",
}


def stranger_log(path: Path, start: int = 0, stop: int = ROWS) -> Path:
    """Rows of a log that nobody has prepared; the last ones alone look quite different."""
    lines = [",".join(KINDS)]
    for i in range(start, stop):
        seen = f"2024-02-{i % 28 + 1:02} {i % 24:02}:30:00+01:00" if i % 10 and i < ROWS - REST else ""
        label, mobile = ["True", "false"][i * 7 % 3 == 0], ["yes", "no"][i % 2]
        tags = "|".join(f"t{j}" for j in range(i % 4 + 1)) if i < ROWS - REST else "t1"
        price = (i * 37 % 251) / 256
        level = i * 7919 % 211
        lines.append(f"{1_700_000_000_000 + 977 * i},{level},{label},{price},{seen},{mobile},{tags},at {i % 5},{i}")
    path.write_text("\n".join(lines) + "\n")
    return path


def probabilities(path: Path) -> list[float]:
    with path.open(newline="") as file:
        return [float(row["probability"]) for row in csv.DictReader(file)]


def test_columns_are_shown_and_written(ok: Run, refused: Refused) -> None:
    log = stranger_log(Path("log.csv"))
    done = ok("columns", log, "--schema", "schema.yaml")
    for word in (*KINDS, "counts", "milliseconds", "written to schema.yaml"):
        assert word in " ".join(done.stdout.split())
    assert yaml.safe_load(Path("schema.yaml").read_text())["columns"] == KINDS
    found = json.loads(ok("columns", log, "--json").stdout)["columns"]
    assert {one["name"]: one["kind"] for one in found} == KINDS
    assert all(one["why"] for one in found)
    assert "schema.yaml exists; give another --schema" in refused("columns", log, "--schema", "schema.yaml")


def test_columns_of_other_logs(ok: Run, run: Run) -> None:
    Path("train.txt").write_text("\n".join("\t".join(["1", *"5" * 39]) for _ in range(9)))
    assert "as the format 'criteo' has it" in ok("columns", "train.txt").stdout
    assert "need none: the format 'criteo' says them" in run("columns", "train.txt", "--schema", "s.yaml").stderr
    ok("prepare", stranger_log(Path("log.csv")), "out")
    kinds = {one["name"]: one["kind"] for one in json.loads(ok("columns", "out", "--json").stdout)["columns"]}
    expected = {"level": "category", "level.number": "number", "tags": "list", "when.hour": "category"}
    assert {name: kinds[name] for name in expected} == expected
    Path("nameless.csv").write_text("bought,a,dear\n1,x,0\n0,y,1\n1,z,2\n")
    for command in ("columns", "train"):
        done = run(command, "nameless.csv")
        assert (done.returncode, "category" in done.stdout) == (2, command == "columns")
        said = "no label column 'label' or 'click'; name it with --label, such as --label bought (0 or 1 in each row)"
        assert said in " ".join(done.stderr.split())
    found = json.loads(ok("columns", "nameless.csv", "--json", "--label", "bought").stdout)["columns"]
    assert found[0]["why"] == "the label, as requested"
    done = run("columns", "nameless.csv", "--label", "brought")
    assert (done.returncode, "category" in done.stdout, "--label bought" in done.stderr) == (2, True, True)


def test_columns_that_will_do_harm_are_named_before_training_and_at_its_end(tmp_path: Path, ok: Run) -> None:
    """One that knows the label, and one whose values are nearly unique."""
    label, rows = [i * 7 % 3 // 2 for i in range(600)], []
    for i in range(600):
        rows.append(f"{label[i]},u{i % 50},{i / 8 if label[i] else ''},{i % 2},k{i if i % 10 else 0}")
    Path("log.csv").write_text("\n".join(["clicked,user,seconds,fair,token", *rows]) + "\n")
    said = " ".join(ok("columns", "log.csv").stderr.split())
    assert "column 'seconds' alone predicts the label with an AUC of 1.0000" in said
    assert "leave it out (--exclude)" in said
    assert ("'user'" in said, "'fair'" in said) == (False, False)
    assert "alone predicts" not in ok("columns", "log.csv", "--exclude", "seconds").stderr
    options = ("--model", "lr", "--no-baseline", "--batch-size", 32, "--lr", 0.05, "--selection", "never")
    said = " ".join(ok("train", "log.csv", "--out", "run", *options).stderr.split())
    assert "column 'seconds' alone predicts the label" in said
    assert "token is nearly unique, 541 values in 600 rows" in said
    (warning,) = [one for one in summary_of(tmp_path / "run")["warnings"] if "too good to be true" in one]  # type: ignore
    assert "'seconds' 1.0000 alone reaches an AUC above 0.99." in warning
    assert "nearly unique" not in ok("train", "log.csv", "--exclude", "token", "--out", "other", *options).stderr


def test_a_run_reads_every_later_log_as_the_first(ok: Run) -> None:
    log, rest = stranger_log(Path("log.csv")), stranger_log(Path("rest.csv"), ROWS - REST)
    assert "counts the rows" in " ".join(ok("train", log, "--out", "run", *SMALL).stderr.split())
    columns = RunFolder("run").finished_config().data.columns or {}
    assert list(columns.items()) == list(KINDS.items())  # the fields' numbers depend on the order
    ok("export", "run", "served", "--test", log, "--onnx")
    (checkpoint,) = Path("run/checkpoints").glob("step-*")
    pl.read_csv(log).write_parquet("log.parquet")
    ok("predict", "run", log, "--out", "scores.csv")
    expected = probabilities(Path("scores.csv"))
    scored = (("run", rest), ("run", "log.parquet"), (checkpoint, rest), ("served", log), ("served", "log.parquet"))
    for model, each in scored:
        ok("predict", model, each, "--out", "scores.csv")
        found = probabilities(Path("scores.csv"))
        assert found == pytest.approx(expected[-len(found) :])
        assert len(found) == (REST if each == rest else ROWS)
    pytest.importorskip("onnxruntime")
    alone = subprocess.run([sys.executable, SCORE, "served", log, "--out", "onnx.csv"], capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    assert probabilities(Path("onnx.csv")) == pytest.approx(expected, abs=1e-6)
    assert "log loss" in alone.stdout


def test_a_prepared_log_a_schema_and_the_raw_log_train_to_the_same(ok: Run) -> None:
    log = stranger_log(Path("log.csv"))
    ok("columns", log, "--schema", "schema.yaml")
    ok("prepare", log, "out")
    for number, given in enumerate([(log,), ("out",), (log, "--schema", "schema.yaml")]):
        ok("train", *given, "--out", str(number), *SMALL)
    results = [summary_of(Path(str(number)))["test"] for number in range(3)]
    assert results[0] == results[1] == results[2]
    ok("predict", "1", log, "--out", "scores.csv")  # a raw log, by a run on a prepared one


def test_the_next_day_is_read_as_the_first(ok: Run) -> None:
    log, rest = stranger_log(Path("log.csv"), 0, ROWS - REST), stranger_log(Path("rest.csv"), ROWS - REST)
    ok("train", log, "--out", "day1", *SMALL)
    ok("train", rest, "--continue", "day1", "--out", "day2")
    assert RunFolder("day2").finished_config().data.columns == KINDS
    (Path("day2") / "summary.json").unlink()  # like a run that was cut off
    ok("train", "--resume", "day2")


def test_all_columns_are_categories_on_request_or_in_a_run_of_an_older_version(ok: Run) -> None:
    log = click_log(Path("log.csv"), 400)
    ok("train", log, "--columns", "categorical", "--out", "run", *SMALL)
    assert list(summary_of(Path("run"))["fields"]) == ["color", "size"]  # type: ignore[call-overload]
    (Path("run") / "summary.json").unlink()
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    del config["data"]["columns"]  # which older versions do not write
    Path("run/config.yaml").write_text(yaml.safe_dump(config))
    ok("train", "--resume", "run")
    ok("predict", "run", log, "--out", "scores.csv")
