"""The column of the rows' weights: recognized by its name, or named by an option, in all that reads a log."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from command import Run
from data_cases import written
from sparsegroup.data import ClickLogError, LogOptionError, open_log, prepare
from sparsegroup.data.open import FormatOptions
from sparsegroup.estimator import Classifier

ROWS = 400
SMALL = ("--set", "model.hidden=[4]", "--model", "mlp", "--set", "model.dim=2", "--l21", "0", "--threads", "1")


def log_of(path: Path, name: str = "sample_weight", weight: object = lambda i: i % 4 / 2, rows: int = ROWS) -> Path:
    assert callable(weight)
    lines = [f"clicked,a,b,{name}", *(f"{i * 7 % 3 // 2},u{i % 5},v{i % 11},{weight(i)}" for i in range(rows))]
    return written(path, "\n".join(lines) + "\n")


def weights_of(path: Path, **options: object) -> list[float] | None:
    log = open_log(path, **options)  # type: ignore[arg-type]
    (batch,) = log.batches(0, len(log), len(log))
    assert log.weighted == (batch.weights is not None)
    return None if batch.weights is None else batch.weights.tolist()


@pytest.mark.parametrize("name", ["weight", "sample_weight", "Importance", "weights"])
def test_a_column_of_weights_is_recognized_by_its_name(name: str, tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", name)
    log = open_log(path)
    assert (log.fields, log.numbers, log.columns[name]) == (("a", "b"), (), "weight")
    assert weights_of(path) == [i % 4 / 2 for i in range(ROWS)]
    (finding,) = (one for one in log.findings if one.name == name)
    assert "because of its name" in finding.why
    assert f"column {name!r} is used as the rows' weight" in finding.warning
    assert "set `weight` to none" in finding.warning
    prepared, _ = prepare([path], tmp_path / "out")
    assert prepared.weighted
    (batch,) = prepared.batches(0, ROWS, ROWS)
    assert batch.weights is not None
    assert batch.weights.tolist() == weights_of(path)


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("weight", lambda i: i % 4 - 1),
        ("weight", lambda i: "" if i == 7 else i % 4),
        ("weight", lambda i: ["light", "heavy"][i % 2]),
        ("weight", lambda i: 0),
        ("weight", lambda i: "inf" if i % 2 else 1),
        ("body_weight", lambda i: i % 4),
    ],
)
def test_other_columns_are_features_as_before(name: str, weight: object, tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", name, weight)
    log = open_log(path)
    assert not log.weighted
    assert log.columns[name] != "weight"
    assert log.columns == open_log(path, weight="none").columns


def test_of_two_names_the_plainer_is_a_feature(tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", "weight,sample_weight", lambda i: f"{i % 3},{i % 4}")
    log = open_log(path)
    assert (log.columns["weight"], log.columns["sample_weight"]) == ("category", "weight")
    assert log.fields == ("a", "b", "weight.value")
    assert weights_of(path) == [i % 4 for i in range(ROWS)]
    assert weights_of(path, weight="weight") == [i % 3 for i in range(ROWS)]
    assert open_log(path, weight="none").fields == ("a", "b", "weight", "sample_weight")


def test_the_weight_is_as_asked(tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", "cost,weight", lambda i: f" {i % 5},{i % 4}")
    assert weights_of(path, weight="cost") == [i % 5 for i in range(ROWS)]
    assert weights_of(path, weight="cost", columns="categorical", exclude=["weight"]) == [i % 5 for i in range(ROWS)]
    assert weights_of(path, weight="none") is None
    kinds = open_log(path).columns
    assert weights_of(path, columns=kinds) == [i % 4 for i in range(ROWS)]
    assert weights_of(path, columns=kinds, weight="none") is None
    assert weights_of(path, columns=kinds, weight="cost") == [i % 5 for i in range(ROWS)]
    schema = written(tmp_path / "schema.yaml", "columns: {clicked: label, a: category, cost: weight}")
    assert weights_of(path, schema=schema) == [i % 5 for i in range(ROWS)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": "none such"}, "no column 'none such' for `weight`"),
        ({"weight": "clicked"}, "`weight`: 'clicked' is the label or the split already"),
        ({"weight": "b", "exclude": ["b"]}, "`weight`: 'b' is the label or the split already, or excluded"),
        ({"columns": {"a": "weight", "b": "weight", "sample_weight": "category"}}, "'a' and 'b' cannot both be the"),
    ],
)
def test_a_weight_that_cannot_be(options: FormatOptions, message: str, tmp_path: Path) -> None:
    with pytest.raises((ClickLogError, LogOptionError), match=message):
        open_log(log_of(tmp_path / "log.csv"), **options)


def test_a_run_learns_and_is_measured_by_weights(run: Run) -> None:
    log = log_of(Path("log.csv"))
    done = run("train", log, "--out", "run", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "weighted rows" in done.stderr
    assert "column 'sample_weight' is used as the rows' weight" in " ".join(done.stderr.split())
    assert "set --weight to none" in " ".join(done.stderr.split())
    test = json.loads(Path("run/summary.json").read_text())["test"]
    done = run("predict", "run", log, "--out", "scores.csv", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["log"] == "log.csv"
    scores, weights = pl.read_csv("scores.csv"), np.arange(ROWS) % 4 / 2
    expected = roc_auc_score(scores["label"], scores["probability"], sample_weight=weights)
    assert json.loads(done.stdout)["auc"] == pytest.approx(expected)
    last, kept = scores.tail(40), weights[-40:]
    assert test["auc"] == pytest.approx(roc_auc_score(last["label"], last["probability"], sample_weight=kept))
    assert test["log_loss"] == pytest.approx(log_loss(last["label"], last["probability"], sample_weight=kept), rel=1e-5)
    found = json.loads(run("evaluate", "run", log, "--json").stdout)
    assert found["metrics"]["auc"] == pytest.approx(test["auc"])
    plain = json.loads(run("evaluate", "run", log, "--weight", "none", "--json").stdout)
    assert plain["metrics"]["auc"] == pytest.approx(roc_auc_score(last["label"], last["probability"]))
    scored = pl.read_csv("log.csv").drop("sample_weight")
    scored.write_csv("scored.csv")
    assert run("predict", "run", "scored.csv", "--out", "again.csv").returncode == 0
    assert pl.read_csv("again.csv").equals(scores)
    refused = run("predict", "run", "scored.csv", "--out", "again.csv", "--weight", "sample_weight")
    assert (refused.returncode, "--weight: scored.csv has no column" in refused.stderr) == (2, True)
    assert run("train", "--resume", "run").returncode == 0


def test_rows_of_weight_zero_teach_nothing(tmp_path: Path) -> None:
    """The rows whose weight is 0 have the wrong label: with the weights, the model never learns it."""
    frame = pl.DataFrame({"a": [f"u{i % 2}" for i in range(2_000)]})
    right = np.arange(2_000) % 2
    wrong = np.arange(2_000) % 3 > 0
    model = Classifier(model="lr", l21=0.0, lr=0.1, batch_size=100)
    model.fit(frame, np.where(wrong, 1 - right, right), sample_weight=np.where(wrong, 0.0, 1.0))
    assert (model.predict(frame) == right).all()
    with pytest.raises(ValueError, match="give the values of 'w' as sample_weight"):
        Classifier(columns={"w": "weight"}).fit(pl.DataFrame({"a": ["x", "y"], "w": [1, 2]}), [0, 1])


def test_columns_shows_the_weight(run: Run) -> None:
    log = log_of(Path("log.csv"))

    def kinds(*arguments: object) -> dict[str, str]:
        done = run("columns", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return {one["name"]: one["kind"] for one in json.loads(done.stdout)["columns"]}

    assert kinds(log)["sample_weight"] == "weight"
    assert kinds(log, "--weight", "none")["sample_weight"] == "category, number"
    assert kinds(log, "--weight", "b")["b"] == "weight"
    assert run("prepare", log, "out", "--weight", "sample_weight").returncode == 0
    assert kinds("out")["sample_weight"] == "weight"
    assert run("columns", log, "--schema", "schema.yaml").returncode == 0
    assert weights_of(log, schema=Path("schema.yaml")) == weights_of(log)
