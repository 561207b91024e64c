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
from sparsegroup.training.run_folder import RunFolder

SCORE = Path(__file__).parents[2] / "examples" / "score_onnx.py"
ROWS, REST = 900, 60
SMALL = ("--set", "model.hidden=[4]", "--model", "mlp", "--set", "model.dim=2", "--l21", "0", "--threads", "1")
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


def test_columns_are_shown_and_written(run: Run) -> None:
    log = stranger_log(Path("log.csv"))
    done = run("columns", log, "--schema", "schema.yaml")
    assert done.returncode == 0, done.stderr
    for word in (*KINDS, "counts", "milliseconds", "written to schema.yaml"):
        assert word in " ".join(done.stdout.split())
    assert yaml.safe_load(Path("schema.yaml").read_text())["columns"] == KINDS
    found = json.loads(run("columns", log, "--json").stdout)["columns"]
    assert {one["name"]: one["kind"] for one in found} == KINDS
    assert all(one["why"] for one in found)
    refused = run("columns", log, "--schema", "schema.yaml")
    assert (refused.returncode, "schema.yaml exists; give another --schema" in refused.stderr) == (2, True)


def test_columns_of_other_logs(run: Run) -> None:
    Path("train.txt").write_text("\n".join("\t".join(["1", *"5" * 39]) for _ in range(9)))
    assert "as the format 'criteo' has it" in run("columns", "train.txt").stdout
    assert "need none: the format 'criteo' says them" in run("columns", "train.txt", "--schema", "s.yaml").stderr
    assert run("prepare", stranger_log(Path("log.csv")), "out").returncode == 0
    found = json.loads(run("columns", "out", "--json").stdout)["columns"]
    kinds = {one["name"]: one["kind"] for one in found}
    assert (kinds["level"], kinds["level.number"], kinds["tags"], kinds["when.hour"]) == (
        "category", "number", "list", "category")  # fmt: skip
    nameless = Path("nameless.csv")
    nameless.write_text("bought,a,dear\n1,x,0\n0,y,1\n1,z,2\n")
    for command in ("columns", "train"):
        done = run(command, nameless)
        assert done.returncode == 2
        said = "no label column 'label' or 'click'; name it with --label, such as --label bought (0 or 1 in each row)"
        assert said in " ".join(done.stderr.split())
    assert "category" in run("columns", nameless).stdout
    found = json.loads(run("columns", nameless, "--json", "--label", "bought").stdout)["columns"]
    assert found[0]["why"] == "the label, as requested"
    done = run("columns", nameless, "--label", "brought")
    assert (done.returncode, "category" in done.stdout, "--label bought" in done.stderr) == (2, True, True)


def test_a_column_that_knows_the_label_is_named_before_training(run: Run) -> None:
    log = Path("log.csv")
    rows = [f"{i * 7 % 3 // 2},u{i % 50},{'' if i * 7 % 3 < 2 else i / 8},{i % 2}" for i in range(900)]
    log.write_text("\n".join(["clicked,user,seconds,fair", *rows]) + "\n")
    done = run("columns", log)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "column 'seconds' alone predicts the label with an AUC of 1.0000" in said
    assert "leave it out (--exclude)" in said
    assert ("'user'" in said, "'fair'" in said) == (False, False)
    assert not run("columns", log, "--exclude", "seconds").stderr
    done = run("train", log, "--out", "run", *SMALL, "--set", "optimizer.lr=0.05", "--batch-size", "32")
    assert done.returncode == 0, done.stderr
    assert "column 'seconds' alone predicts the label" in " ".join(done.stderr.split())


def test_a_run_reads_every_later_log_as_its_own(run: Run) -> None:
    log, rest = stranger_log(Path("log.csv")), stranger_log(Path("rest.csv"), ROWS - REST)
    done = run("train", log, "--out", "run", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "counts the rows" in " ".join(done.stderr.split())
    assert RunFolder("run").finished_config().data.columns == KINDS
    assert list(RunFolder("run").finished_config().data.columns or ()) == list(
        KINDS
    )  # the fields' numbers hang on the order
    assert run("export", "run", "served", "--test", log, "--onnx").returncode == 0
    (checkpoint,) = Path("run/checkpoints").glob("step-*")
    expected: list[float] = []
    for model in ("run", checkpoint, "served"):
        for scored in (log, rest):
            done = run("predict", model, scored, "--out", "scores.csv")
            assert done.returncode == 0, done.stderr
            expected = expected or probabilities(Path("scores.csv"))
            assert probabilities(Path("scores.csv")) == pytest.approx(
                expected[-len(probabilities(Path("scores.csv"))) :]
            )
    pl.read_csv(log).write_parquet("log.parquet")
    assert run("predict", "served", "log.parquet", "--out", "typed.csv").returncode == 0
    assert probabilities(Path("typed.csv")) == pytest.approx(expected)
    pytest.importorskip("onnxruntime")
    scored = subprocess.run(
        [sys.executable, SCORE, "served", log, "--out", "onnx.csv"], capture_output=True, text=True, check=False
    )
    assert scored.returncode == 0, scored.stderr
    assert probabilities(Path("onnx.csv")) == pytest.approx(expected, abs=1e-6)
    assert "log loss" in scored.stdout


def test_a_prepared_log_a_schema_and_the_raw_log_train_to_the_same(run: Run) -> None:
    log = stranger_log(Path("log.csv"))
    run("columns", log, "--schema", "schema.yaml")
    assert run("prepare", log, "out").returncode == 0
    for number, (given, *more) in enumerate([(log,), ("out",), (log, "--schema", "schema.yaml")]):
        done = run("train", given, *more, "--out", str(number), *SMALL)
        assert done.returncode == 0, done.stderr
    results = [summary_of(Path(str(number)))["test"] for number in range(3)]
    assert results[0] == results[1] == results[2]
    assert run("predict", "1", log, "--out", "scores.csv").returncode == 0  # a raw log, by a run on a prepared one


def test_the_next_day_is_read_as_the_first(run: Run) -> None:
    log, rest = stranger_log(Path("log.csv"), 0, ROWS - REST), stranger_log(Path("rest.csv"), ROWS - REST)
    assert run("train", log, "--out", "day1", *SMALL).returncode == 0
    done = run("train", rest, "--continue", "day1", "--out", "day2")
    assert done.returncode == 0, done.stderr
    assert RunFolder("day2").finished_config().data.columns == KINDS
    (Path("day2") / "summary.json").unlink()  # as one that was cut off
    done = run("train", "--resume", "day2")
    assert done.returncode == 0, done.stderr


def test_all_columns_are_categories_where_that_is_asked_for_or_was_so_before(run: Run) -> None:
    log = click_log(Path("log.csv"), 400)
    assert run("train", log, "--columns", "categorical", "--out", "asked", *SMALL).returncode == 0
    assert list(summary_of(Path("asked"))["fields"]) == ["color", "size"]  # type: ignore[call-overload]
    (Path("asked") / "summary.json").unlink()
    config = yaml.safe_load(Path("asked/config.yaml").read_text())
    del config["data"]["columns"]  # as older versions wrote it
    Path("asked/config.yaml").write_text(yaml.safe_dump(config))
    done = run("train", "--resume", "asked")
    assert done.returncode == 0, done.stderr
    assert run("predict", "asked", log, "--out", "scores.csv").returncode == 0


def test_nearly_unique_categories_are_warned_of_at_the_start(run: Run) -> None:
    lines = [f"{i % 2},c{i % 5},k{i if i % 10 else 0}" for i in range(400)]
    Path("log.csv").write_text("\n".join(["label,color,token", *lines]))
    done = run("train", "log.csv", "--out", "run", *SMALL)
    assert "token is nearly unique, 361 values in 400 rows" in " ".join(done.stderr.split())
    done = run("train", "log.csv", "--exclude", "token", "--out", "other", *SMALL)
    assert "nearly unique" not in done.stderr


def test_a_run_whose_test_auc_is_too_good_warns_at_its_end(tmp_path: Path, run: Run) -> None:
    lines = [
        "label,user,paid",
        *(f"{int(i % 7 == 3)},u{i * 40503 % 97},{'yes' if i % 7 == 3 else 'no'}" for i in range(1500)),
    ]
    log = tmp_path / "log.csv"
    log.write_text("\n".join(lines) + "\n")
    done = run("train", log, "--out", tmp_path / "run", "--model", "lr", "--no-baseline", "--batch-size", 64, "--json")
    assert done.returncode == 0, done.stderr
    (warning,) = [one for one in summary_of(tmp_path / "run")["warnings"] if "too good to be true" in one]
    assert "'paid' 1.0000 alone reaches an AUC above 0.99." in warning
