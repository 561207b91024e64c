"""The column of the rows' weights: in a schema, recognized by its name, or named by an option."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score

from command import Run
from data_cases import written
from over import over
from sparsegroup.data import ClickLogError, Log, LogOptionError, open_log, prepare
from sparsegroup.data.open import FormatOptions
from sparsegroup.data.schema import LogFormat, read_schema
from sparsegroup.estimator import Classifier

ROWS = 400
SMALL = ("--set", "model.hidden=[4]", "--model", "mlp", "--set", "model.dim=2", "--l21", "0", "--threads", "1")


def log_of(path: Path, name: str = "sample_weight", weight: object = lambda i: i % 4 / 2, rows: int = ROWS) -> Path:
    assert callable(weight)
    lines = [f"clicked,a,b,{name}", *(f"{i * 7 % 3 // 2},u{i % 5},v{i % 11},{weight(i)}" for i in range(rows))]
    return written(path, "\n".join(lines) + "\n")


def weights_of(path: Path, **options: object) -> list[float] | None:
    return weights_in(open_log(path, **options))  # type: ignore[arg-type]


def weights_in(log: Log) -> list[float] | None:
    (batch,) = log.batches(0, len(log), len(log))
    assert log.weighted == (batch.weights is not None)
    assert batch.weights is None or batch.weights.dtype == torch.float32
    return None if batch.weights is None else batch.weights.tolist()


WEIGHTED = LogFormat("log", "label", ("a",), weight="w")
WEIGHTS = ["1", "0", "0.25", "1e-3", "3e38", "-0.0", "0.1"]


def plain_log(path: Path, weights: list[str], name: str = "w") -> Path:
    return written(path, "\n".join([f"label,a,{name}", *(f"{i % 2},x,{w}" for i, w in enumerate(weights))]))


@pytest.mark.parametrize("name", ["w", "weight"])
def test_weights_come_with_the_rows(name: str, tmp_path: Path) -> None:
    path = plain_log(tmp_path / "log.csv", WEIGHTS, name)
    schema = written(tmp_path / "schema.yaml", f"label: label\nweight: {name}\ncategorical: [a]")
    log_format = read_schema(schema)
    assert log_format.weight == name
    expected = np.array(WEIGHTS, np.float64).astype(np.float32).tolist()
    prepared, _ = prepare([path], tmp_path / "out", log_format)
    assert prepared.manifest.weighted
    assert pl.read_parquet(tmp_path / "out" / "part-00000.parquet").schema["weight"] == pl.Float32
    assert weights_in(prepared) == weights_of(path, format=log_format) == expected
    assert prepared.fields == ("a",)
    for other in (replace(log_format, weight=None), replace(log_format, test_fraction=0.2)):
        with pytest.raises(ClickLogError, match="read in another way"):
            prepare([path], tmp_path / "out", other)

    pl.read_csv(path).write_parquet(tmp_path / "log.parquet")
    assert weights_of(tmp_path / "log.parquet", format=log_format) == expected


@pytest.mark.parametrize("bad", ["", "-1", "-1e-30", "nan", "inf", "-inf", "1e99", "heavy", "1 2"])
def test_a_weight_that_is_none_is_a_bad_row(bad: str, tmp_path: Path) -> None:
    path = plain_log(tmp_path / "log.csv", ["1", bad, "2"])
    message = f"{path}:3: weight 'w' must be a number >= 0: " + repr(f"w={bad}" if bad else "no w")
    with pytest.raises(ClickLogError) as raised:
        prepare([path], tmp_path / "out", WEIGHTED)
    assert str(raised.value) == message
    with pytest.raises(ClickLogError) as raised:
        weights_of(path, format=WEIGHTED)
    assert str(raised.value) == message
    log, _ = prepare([path], tmp_path / "skip", WEIGHTED, on_bad_row="skip", max_bad=0.5)
    raw = open_log(path, format=WEIGHTED, on_bad_row="skip", max_bad=0.5)
    assert weights_in(log) == weights_in(raw) == [1.0, 2.0]
    assert log.manifest.bad_rows == raw.bad[0].reasons == {"weight 'w' must be a number >= 0": 1}


def test_without_a_weight_there_are_none_and_the_name_is_free(tmp_path: Path) -> None:
    path = plain_log(tmp_path / "log.csv", ["1", "heavy"], "weight")
    log, _ = prepare([path], tmp_path / "out")
    assert (log.fields, log.manifest.weighted) == (("a", "weight"), False)
    for batch in (*log.batches(0, 2, 2), *open_log(path).batches(0, 2, 2)):
        assert batch.weights is None


@over(
    ("fields", "numbers", "weight", "message"),
    [
        (("a", "w"), (), "w", "column 'w' is the weight; it cannot also be a field"),
        (("a",), ("w",), "w", "column 'w' is the weight; it cannot also be a field"),
        (("a", "weight"), (), "w", "a field cannot be named 'weight'; rename it"),
        (("a",), (), "v", "no column 'v'; the columns are label, a, w, weight"),
    ],
)
def test_a_weight_is_a_column_of_its_own(
    fields: tuple[str, ...], numbers: tuple[str, ...], weight: str, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "log.csv", "label,a,w,weight\n1,x,1,2\n")
    with pytest.raises(ClickLogError, match=f"log.csv:1: {message}"):
        prepare([path], tmp_path / "out", LogFormat("log", "label", fields, numbers, weight=weight))


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
    assert weights_in(prepared) == weights_of(path)


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
