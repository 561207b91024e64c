"""`sparsegroup evaluate`, and the names of features in a run, through the real command line."""

import json
from pathlib import Path

import polars as pl
import pytest

from cli_cases import click_log, summary_of
from command import Run, call
from endings import Refused


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and its log, with a list; of the last tenth, the rows of color c5 have other labels."""
    folder = tmp_path_factory.mktemp("evaluate")
    rows = ["label,user,color,tags"]
    for i in range(2_000):
        label = int(i % 7 in (1, 3)) if i < 1_800 or i % 7 != 5 else 1
        rows.append(f"{label},u{i % 11},c{i % 7},{'a|b' if i % 2 else 'b'}")
    (folder / "schema.yaml").write_text("label: label\ncategorical: [user, color]\nmulti: {tags: '|'}\n")
    (folder / "log.csv").write_text("\n".join(rows) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        settings = ("--optimizer", "adam", "--lr", 0.02, "--l21", 0, "--batch-size", 64, "--selection", "never")
        assert call(patch, "train", "log.csv", "--schema", "schema.yaml", "--out", "run", *settings) == 0
        assert call(patch, "export", "run", "export", "--no-onnx") == 0
    return folder


@pytest.fixture
def there(place: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


def test_it_says_what_the_run_said_and_finds_the_value_that_is_off(there: Path, tmp_path: Path, ok: Run) -> None:
    found = json.loads(ok("evaluate", "run", "log.csv", "--user", "user", "--json").stdout)
    summary = summary_of(there / "run")
    assert (found["metrics"], found["baseline"], found["rows"]) == (summary["test"], summary["baseline"], 200)
    assert found["curves"] == summary["curves"]
    assert found["gauc"]["users"] == 11
    assert found["gauc"]["share"] == pytest.approx(1)

    header, *rows = (there / "log.csv").read_text().splitlines()
    other = tmp_path / "other.csv"
    other.write_text("\n".join([header, *rows[1_800:] * 6]) + "\n")
    arguments = ("evaluate", "run", other, "--by", "color", "--by", "tags", "--user", "user", "--top", 3)
    found = json.loads(ok(*arguments, "--json").stdout)
    assert found["rows"] == 1_200
    worst = found["by"]["color"][0]
    assert worst["value"] == "c5"
    assert worst["calibration"] < 0.5
    assert worst["high"] < 1
    assert len(found["by"]["color"]) == 3
    assert {one["value"]: one["rows"] for one in found["by"]["tags"]} == {"a": 600, "b": 1_200}
    shown = ok(*arguments).stdout
    for expected in ("1,200 rows", "baseline", "gAUC by user, 11 users", "Gains", "c5", "lift"):
        assert expected in shown


def test_an_export_is_evaluated_without_a_baseline(there: Path, ok: Run, refused: Refused) -> None:
    found = json.loads(ok("evaluate", "export", "log.csv", "--json").stdout)
    assert (found["baseline"], found["gauc"]) == (None, None)
    auc = summary_of(there / "run")["test"]["auc"]  # type: ignore[index]
    assert found["metrics"]["auc"] == pytest.approx(auc, abs=1e-6)
    said = refused("evaluate", "run", "log.csv", "--user", "tags")
    assert "--user: tags has several values a row; gAUC wants a field of one" in said


def test_a_run_on_a_raw_log_names_its_largest_features_and_its_settings(there: Path, ok: Run) -> None:
    largest = summary_of(there / "run")["largest"]
    assert isinstance(largest, list)
    assert len(largest) == 10
    assert [one["norm"] for one in largest] == sorted((one["norm"] for one in largest), reverse=True)
    names = pl.read_parquet(there / "run" / "names.parquet")
    assert names.height == names["key"].n_unique() == 11 + 7 + 2
    assert {*names.filter(pl.col("field") == "tags")["value"]} == {"a", "b"}
    seen = json.loads(ok("inspect", "run", "--top", 20, "--json").stdout)["top"]
    assert [(one["key"], one["value"]) for one in seen[:10]] == [(one["key"], one["value"]) for one in largest]
    assert all(one["value"] is not None for one in seen)
    report = (there / "run" / "report.html").read_text()
    assert f'<th class="name" scope="row">{largest[0]["field"]}</th>' in report
    assert f"<td>{largest[0]['value']}</td>" in report
    settings = report[report.index("<h2>Settings</h2>") : report.index("<h2>Run</h2>")]
    assert "–" not in settings
    for name, value in (("lr", "0.02"), ("dim", "8"), ("options.betas", "0.9, 0.999"), ("compile", "no")):
        assert f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' in settings


def test_names_are_those_of_the_vocabulary_of_a_prepared_log(tmp_path: Path, ok: Run) -> None:
    log = click_log(tmp_path / "log.csv", 600)
    for name, options in (("named", ["--vocabulary"]), ("bare", [])):
        ok("prepare", log, name, *options)
        ok("train", name, "--out", f"run-{name}", "--l21", 0, "--selection", "never")
        largest = summary_of(tmp_path / f"run-{name}")["largest"]
        assert isinstance(largest, list)
        assert len(largest) == 10
        assert all((one["value"] is not None) == bool(options) for one in largest)
