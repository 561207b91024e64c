"""`sparsegroup evaluate`, and the names of features in a run, through the real command line."""

import json
from pathlib import Path

import polars as pl
import pytest

from cli_cases import click_log, summary_of
from command import Run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Some features, a list among them; of the test rows, the last tenth, those of color c5 come out otherwise."""
    rows = ["label,user,color,tags"]
    for i in range(4_000):
        label = int(i % 7 in (1, 3)) if i < 3_600 or i % 7 != 5 else 1
        rows.append(f"{label},u{i % 11},c{i % 7},{'a|b' if i % 2 else 'b'}")
    (tmp_path / "schema.yaml").write_text("label: label\ncategorical: [user, color]\nmulti: {tags: '|'}\n")
    path = tmp_path / "log.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_it_says_what_the_run_said_and_finds_the_value_that_is_off(log: Path, tmp_path: Path, run: Run) -> None:
    assert run("train", log, "--schema", "schema.yaml", "--out", "run", "--lr", 0.02).returncode == 0
    rows = [line for line in log.read_text().splitlines()[3_601:] for _ in range(3)]
    other = tmp_path / "other.csv"
    other.write_text("label,user,color,tags\n" + "\n".join(rows) + "\n")

    done = run("evaluate", "run", log, "--user", "user", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    summary = summary_of(tmp_path / "run")
    assert (found["metrics"], found["baseline"], found["rows"]) == (summary["test"], summary["baseline"], 400)
    assert found["curves"] == summary["curves"]
    assert found["gauc"]["users"] == 11
    assert found["gauc"]["share"] == pytest.approx(1)

    arguments = ("evaluate", "run", other, "--by", "color", "--by", "tags", "--user", "user", "--top", 3)
    found = json.loads(run(*arguments, "--json").stdout)
    assert found["rows"] == 1_200
    worst = found["by"]["color"][0]
    assert worst["value"] == "c5"
    assert worst["calibration"] < 0.5
    assert worst["high"] < 1
    assert len(found["by"]["color"]) == 3
    assert {one["value"]: one["rows"] for one in found["by"]["tags"]} == {"a": 600, "b": 1_200}
    shown = run(*arguments).stdout
    for expected in ("1,200 rows", "baseline", "gAUC by user, 11 users", "Gains", "c5", "lift"):
        assert expected in shown


def test_an_export_is_evaluated_without_a_baseline(log: Path, tmp_path: Path, run: Run) -> None:
    assert run("train", log, "--schema", "schema.yaml", "--out", "run", "--lr", 0.02).returncode == 0
    assert run("export", "run", "export", "--no-onnx").returncode == 0
    found = json.loads(run("evaluate", "export", log, "--json").stdout)
    assert found["baseline"] is None
    assert found["gauc"] is None
    assert found["metrics"]["auc"] == pytest.approx(summary_of(tmp_path / "run")["test"]["auc"], abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--by", "colour"), "has no field 'colour'; did you mean 'color'? its fields are user, color, tags"),
        (("--user", "tags"), "--user: tags has several values a row; gAUC wants a field of one"),
    ],
)
def test_fields_that_will_not_do_are_named(log: Path, run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert run("train", log, "--schema", "schema.yaml", "--out", "run").returncode == 0
    done = run("evaluate", "run", log, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_run_on_a_raw_log_names_its_largest_features(log: Path, tmp_path: Path, run: Run) -> None:
    done = run("train", log, "--schema", "schema.yaml", "--out", "run", "--lr", 0.02, "--l21", 0)
    assert done.returncode == 0, done.stderr
    largest = summary_of(tmp_path / "run")["largest"]
    assert len(largest) == 10
    assert [one["norm"] for one in largest] == sorted((one["norm"] for one in largest), reverse=True)
    names = pl.read_parquet(tmp_path / "run" / "names.parquet")
    assert names.height == names["key"].n_unique() == 11 + 7 + 2
    assert {*names.filter(pl.col("field") == "tags")["value"]} == {"a", "b"}
    report = (tmp_path / "run" / "report.html").read_text()
    assert f'<th class="name" scope="row">{largest[0]["field"]}</th>' in report
    assert f"<td>{largest[0]['value']}</td>" in report
    seen = json.loads(run("inspect", "run", "--top", 20, "--json").stdout)["top"]
    assert [(one["key"], one["value"]) for one in seen[:10]] == [(one["key"], one["value"]) for one in largest]
    assert all(one["value"] is not None for one in seen)


def test_names_are_those_of_the_vocabulary_of_a_prepared_log(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    assert run("prepare", log, "named", "--vocabulary").returncode == 0
    assert run("prepare", log, "bare").returncode == 0
    for name, known in (("named", True), ("bare", False)):
        assert run("train", name, "--out", f"run-{name}", "--l21", 0).returncode == 0
        largest = summary_of(tmp_path / f"run-{name}")["largest"]
        assert len(largest) == 10
        assert all((one["value"] is not None) == known for one in largest)


def test_the_report_shows_settings_as_they_were_and_none_that_was_not_set(log: Path, tmp_path: Path, run: Run) -> None:
    assert run("train", log, "--schema", "schema.yaml", "--optimizer", "adam", "--out", "run").returncode == 0
    report = (tmp_path / "run" / "report.html").read_text()
    settings = report[report.index("<h2>Settings</h2>") : report.index("<h2>Run</h2>")]
    assert "–" not in settings
    for name, value in (("lr", "0.001"), ("dim", "8"), ("options.betas", "0.9, 0.999"), ("compile", "no")):
        assert f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' in settings
