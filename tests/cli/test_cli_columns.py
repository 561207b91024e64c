"""What a log's columns were taken for, along the way of a user: shown, edited, trained with, served."""

import json
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import yaml

from cli_cases import column, summary_of
from command import Run, call, without_pictures
from endings import Refused
from over import over
from run_folders import state_of
from sparsegroup.data.open import format_of
from sparsegroup.data.raw.files import listed
from sparsegroup.data.schema import read_schema
from sparsegroup.settings.yaml_settings import checked
from sparsegroup.training import Config
from sparsegroup.training.run_folder import RunFolder

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
        price = (i * 37 % 251) / 256 if i % 13 else ""
        level = i * 7919 % 211
        lines.append(f"{1_700_000_000_000 + 977 * i},{level},{label},{price},{seen},{mobile},{tags},à {i % 5},{i}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, its last rows alone, and a run on the log."""
    folder = tmp_path_factory.mktemp("columns")
    stranger_log(folder / "log.csv")
    stranger_log(folder / "rest.csv", ROWS - REST)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        without_pictures(patch)
        assert call(patch, "train", "log.csv", "--out", "run", *SMALL) == 0
    return folder


def test_columns_are_shown_and_written_and_train_to_the_same(place: Path, ok: Run, refused: Refused) -> None:
    log = place / "log.csv"
    done = ok("columns", log, "--schema", "schema.yaml")
    for word in (*KINDS, "counts", "milliseconds", "written to schema.yaml"):
        assert word in " ".join(done.stdout.split())
    assert yaml.safe_load(Path("schema.yaml").read_text())["columns"] == KINDS
    found = json.loads(ok("columns", log, "--json").stdout)["columns"]
    assert {one["name"]: one["kind"] for one in found} == KINDS
    assert all(one["why"] for one in found)
    assert "schema.yaml exists; give another --schema" in refused("columns", log, "--schema", "schema.yaml")
    ok("prepare", log, "prepared")
    kinds = {one["name"]: one["kind"] for one in json.loads(ok("columns", "prepared", "--json").stdout)["columns"]}
    expected = {"level": "category", "level.number": "number", "tags": "list", "when.hour": "category"}
    assert {name: kinds[name] for name in expected} == expected
    for given in ((log, "--schema", "schema.yaml"), ("prepared",)):
        ok("train", *given, "--out", "run", "--overwrite", *SMALL)
        assert state_of(Path("run")) == state_of(place / "run")
    ok("predict", "run", log, "--out", "scores.csv")  # a raw log, by a run on a prepared one


def test_columns_of_a_public_format_and_of_a_log_without_a_column_named_label(ok: Run, run: Run) -> None:
    Path("train.txt").write_text("\n".join("\t".join(["1", *"5" * 39]) for _ in range(9)))
    assert "as the format 'criteo' has it" in ok("columns", "train.txt").stdout
    assert "need none: the format 'criteo' says them" in run("columns", "train.txt", "--schema", "s.yaml").stderr
    Path("nameless.csv").write_text("bought,a,dear\n1,x,0\n0,y,1\n1,z,2\n")
    said = "no label column 'label' or 'click'; name it with --label, such as --label bought (0 or 1 in each row)"
    for command, message in (
        ("columns nameless.csv", said),
        ("columns nameless.csv --label brought", "--label bought"),
    ):
        done = run(*command.split())
        assert (done.returncode, "category" in done.stdout) == (2, True)
        assert message in " ".join(done.stderr.split())
    found = json.loads(ok("columns", "nameless.csv", "--json", "--label", "bought").stdout)["columns"]
    assert found[0]["why"] == "the label, as requested"


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
    options = ("--model", "lr", "--no-baseline", "--batch-size", 32, "--lr", 0.05, "--selection", "never")
    said = " ".join(ok("train", "log.csv", "--out", "run", *options).stderr.split())
    for words in ("user category", "column 'seconds' alone predicts", "token is nearly unique, 541 values in 600 rows"):
        assert words in said
    (warning,) = [one for one in summary_of(tmp_path / "run")["warnings"] if "too good to be true" in one]
    assert "'seconds' 1.0000 alone reaches an AUC above 0.99." in warning
    said = ok("columns", "log.csv", "--exclude", "seconds", "--exclude", "token").stderr
    assert ("alone predicts" in said, "nearly unique" in said) == (False, False)


def test_a_run_and_the_one_that_continues_it_read_every_later_log_as_the_first(place: Path, ok: Run) -> None:
    run, log, rest = place / "run", place / "log.csv", place / "rest.csv"
    columns = RunFolder(run).finished_config().data.columns or {}
    assert list(columns.items()) == list(KINDS.items())  # the fields' numbers depend on the order
    ok("export", run, "served", "--test", log, "--no-onnx")
    (checkpoint,) = run.glob("checkpoints/step-*")
    pl.read_csv(log).write_parquet("log.parquet")
    ok("predict", run, log, "--out", "scores.csv")
    expected = column("scores.csv", "probability")
    scored = ((run, rest), (run, "log.parquet"), (checkpoint, rest), ("served", log), ("served", "log.parquet"))
    for model, each in scored:
        ok("predict", model, each, "--out", "scores.csv", "--overwrite")
        found = column("scores.csv", "probability")
        assert found == pytest.approx(expected[-len(found) :])
        assert len(found) == (REST if each == rest else ROWS)
    ok("train", rest, "--continue", run, "--out", "day2")
    assert RunFolder("day2").finished_config().data.columns == KINDS
    Path("day2/summary.json").unlink()  # like a run that was cut off
    ok("train", "--resume", "day2")


def test_a_run_and_its_export_hold_their_schema_whatever_becomes_of_the_file(ok: Run, refused: Refused) -> None:
    log, schema = stranger_log(Path("log.csv")), Path("schema.yaml")
    schema.write_text("columns: {clicked: label, mobile: boolean, level: category}")
    ok("train", log, "--schema", schema, "--out", "run", "--model", "lr", "--selection", "never", "--no-baseline")
    ok("export", "run", "served", "--no-onnx")
    expected = ok("predict", "run", log).stdout
    schema.write_text("columns: {clicked: label, mobile: category, level: category}")
    assert ok("predict", "run", log).stdout == expected
    said = refused("train", log, "--continue", "run", "--schema", schema, "--out", "next")
    assert "'mobile' cannot become category: the run to continue reads it as boolean" in said
    schema.unlink()
    for model in ("served", next(Path("run/checkpoints").iterdir())):
        assert ok("predict", model, log).stdout == expected
    ok("train", log, "--continue", "run", "--out", "next")
    assert RunFolder("next").config().data.schema_file == RunFolder("run").config().data.schema_file
    Path("next/summary.json").unlink()  # like a run that was cut off
    ok("train", "--resume", "next")


@over(
    "schema",
    [
        "columns: {clicked: label, mobile: boolean, level: 'category, number', row: split}\nseparator: ','",
        "{label: level>=100, categorical: [mobile], numeric: [row], multi: {tags: '|'}, test_fraction: .2}",
        "{label: [clicked, mobile], categorical: [time], time: when}",
        "{label: time, classes: [à 0, à 1, à 2, à 3, à 4], categorical: [mobile]}",
    ],
)
def test_settings_of_a_log_with_a_schema_read_every_log_without_the_file(schema: str, tmp_path: Path) -> None:
    path, log = tmp_path / "schema.yaml", stranger_log(tmp_path / "log.csv", stop=50)
    path.write_text(schema)
    config = Config.of(schema=path)
    config = config.for_log(SimpleNamespace(described=read_schema(path).described, columns={}))  # type: ignore[arg-type]
    again = checked(Config, yaml.safe_load(config.as_yaml()), "config.yaml")
    path.unlink()
    for whole in (False, True):
        found = format_of(listed(log), whole=whole, **again.format_options)
        path.write_text(schema)
        assert found == format_of(listed(log), whole=whole, schema=path)
        path.unlink()
