"""Labels that are made of a column, weights of rows, and test sets that begin at a time."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from command import Run
from data_cases import written
from over import over
from sparsegroup.data import ClickLogError, Log, LogOptionError, PreparedLog, open_log, prepare
from sparsegroup.data.kinds import NUMBERS, Label
from sparsegroup.data.open import FormatOptions
from sparsegroup.data.schema import LogFormat, read_schema, write_schema
from sparsegroup.data.values import classes_in
from sparsegroup.objectives import Objective
from sparsegroup.training import Config


def labels_of(log: Log) -> list[float]:
    return [label for batch in log.batches(0, len(log), 64) for label in batch.labels.tolist()]


def weights_in(log: Log) -> list[float] | None:
    (batch,) = log.batches(0, len(log), len(log))
    assert log.weighted == (batch.weights is not None)
    assert batch.weights is None or batch.weights.dtype == torch.float32
    return None if batch.weights is None else batch.weights.tolist()


# Labels

TEXTS = ["4", "5", " 3.0 ", "click", None, "1"]


@over(
    ("given", "expected"),
    {
        "r>=4": [1, 1, 0, None, None, 0],
        "r < 4": [0, 0, 1, None, None, 1],
        "r=3": [0, 0, 1, 0, None, 0],
        "r != 3": [1, 1, 0, 1, None, 1],
        "r==click": [0, 0, 0, 1, None, 0],
        "r": [None, None, None, None, None, 1],
    }.items(),
)
def test_a_label_is_a_column_or_a_comparison(given: str, expected: list[int | None]) -> None:
    assert Label.of(given, ["r"]).read(pl.Series(TEXTS)).to_list() == expected


def test_numbers_are_labels_and_names_of_columns_come_first() -> None:
    read = Label("r", NUMBERS).read(pl.Series(["-2.5", "1e3", "inf", "nan", "", None]))
    assert read.to_list() == [-2.5, 1000, None, None, None, None]
    assert Label.of("a>b", ["a>b"]).column == "a>b"
    assert Label.of("a/b", ["a/b"]).tries is None
    with pytest.raises(LogOptionError, match="`label` 'r>high': > compares with a number, got 'high'"):
        Label.of("r>high", ["r"])


@over(
    ("texts", "expected"),
    [
        (["0.00", "1.00", " 1", "1e0", "2", "-1", ""], [0, 1, 1, 1, None, None, None]),
        (["Y", "n", "TRUE", "f", "yes", "maybe", None], [1, 0, 1, 0, 1, None, None]),
    ],
)
def test_labels_are_0_and_1_in_every_spelling(texts: list[str], expected: list[int | None]) -> None:
    assert Label("x").read(pl.Series(texts)).to_list() == expected


def advised(values: list[str], path: Path) -> str | None:
    """Return the label that the error about these labels proposes; None if the labels are valid."""
    pl.DataFrame({"label": values, "u": [f"u{i % 7}" for i in range(len(values))]}).write_csv(path)
    try:
        open_log(path)
    except ClickLogError as error:
        return re.findall(r"`label` '(.*?)'", str(error))[0]
    return None


@over(
    ("values", "expected"),
    [
        (["-1", "+1", "-1"] * 200, "label==1"),
        (["1", "2", "1"] * 200, "label==2"),
        (["none", "click", "none"] * 200, "label==click"),
        (["-1", "1"] * 200, "label==1"),
        ([str(i % 5 + 1) for i in range(600)], "label>=4"),
        (["0.00", "1.00"] * 200, None),
    ],
)
def test_other_labels_get_a_comparison_that_tells_them_apart(
    values: list[str], expected: str | None, tmp_path: Path
) -> None:
    assert advised(values, tmp_path / "log.csv") == expected
    if expected is not None:
        assert {*labels_of(open_log(tmp_path / "log.csv", label=expected))} == {0, 1}


@settings(max_examples=40)
@given(
    numbers=st.lists(st.integers(-3, 6), min_size=2, max_size=5, unique=True),
    draw=st.randoms(use_true_random=False),
)
def test_advice_about_labels_never_makes_all_of_them_alike(
    numbers: list[int], draw: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("advice") / "log.csv"
    values = [*numbers, *draw.choices(numbers, k=100)]
    try:
        proposed = advised([str(one) for one in values], path)
    except IndexError:  # a bad row, if most are labels
        return
    if proposed is not None:
        assert {*labels_of(open_log(path, label=proposed))} == {0, 1}


NUMBERS_ONLY = [name for name in Objective.known if str(Objective.of(name).labels).startswith(NUMBERS)]


@pytest.mark.parametrize("name", [*NUMBERS_ONLY])
@given(numbers=st.lists(st.floats(width=32) | st.sampled_from([0.0, 1.0, -0.0, -1e-30, 1.5]), min_size=1))
def test_a_log_takes_the_labels_that_its_objective_takes(name: str, numbers: list[float]) -> None:
    objective = Objective.of(name)
    read = Label("x", objective.labels).read(pl.Series([repr(one) for one in numbers])).is_not_null().to_list()
    assert read == objective.are_labels(torch.tensor(numbers, dtype=torch.float32)).tolist()


@over(
    ("objective", "wrong", "problem"),
    [
        ("poisson", "-3", "finite number >= 0"),
        ("tweedie", "-0.5", "finite number >= 0"),
        ("gamma", "0", "finite number > 0"),
        ("binomial", "1.5", "finite number >= 0, <= 1"),
        ("squared", "inf", "finite number"),
    ],
)
def test_a_label_out_of_an_objectives_range_is_a_bad_row(
    objective: str, wrong: str, problem: str, tmp_path: Path
) -> None:
    rows = [f"{wrong if i == 200 else i % 2 * 0.5 + 0.25},u{i % 5}" for i in range(400)]
    path = written(tmp_path / "log.csv", "\n".join(["count,user", *rows]) + "\n")
    options = Config.of(label="count", objective=objective).format_options
    with pytest.raises(ClickLogError, match=rf"log\.csv:202: label 'count' must be a {problem}: 'count={wrong}'"):
        open_log(path, **options)
    assert len(open_log(path, on_bad_row="skip", max_bad=0.05, **options)) == 399


def test_the_error_about_a_row_without_a_label_says_how_many_more_there_are(tmp_path: Path) -> None:
    rows = [f"{'' if i % 2 else i % 4 // 2},u{i % 5}" for i in range(400)]
    path = written(tmp_path / "log.csv", "\n".join(["label,user", *rows]) + "\n")
    with pytest.raises(ClickLogError, match=r"log\.csv:3: .*no label.*199 more of the 400 rows"):
        open_log(path)


def test_labels_that_are_all_the_same_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "log.csv", "\n".join(["label,user", *(f"1,u{i % 5}" for i in range(200))]) + "\n")
    assert "all 200 rows have the label 1" in " ".join(open_log(path).notes)
    assert not open_log(path, whole=True).notes
    prepare([path], tmp_path / "prepared")
    assert "all 200 rows have the label 1" in caplog.text


@over(
    ("texts", "classes"),
    [(["10", "9", "9.0", " 1e1", None], ("9", "10")), (["10", "9", "b", " a ", ""], ("10", "9", "a", "b"))],
)
def test_classes_are_sorted_as_numbers_if_all_are(texts: list[str], classes: tuple[str, ...]) -> None:
    label = Label.of_classes("x", classes_in(pl.Series(texts, dtype=pl.String)))
    assert label.classes == classes
    read = label.read(pl.Series(texts, dtype=pl.String)).to_list()
    names = [None if text is None else text.strip() for text in texts]
    number_of = {"9.0": 0, "1e1": 1, None: None, "": None} | {name: place for place, name in enumerate(classes)}
    assert read == [number_of[name] for name in names]


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    rows = range(300)
    days = [f"2026-05-{1 + row * 20 // 300:02}T10:00" for row in rows]
    frame = pl.DataFrame(
        {"rating": [row % 5 + 1 for row in rows], "at": days, "user": [f"u{row % 11}" for row in rows]}
    )
    frame.with_columns(w=pl.lit(3.0)).write_csv(tmp_path / "ratings.csv")
    return tmp_path / "ratings.csv"


@over(
    ("options", "expected"),
    [
        ({"label": "rating>=4"}, lambda row: row % 5 >= 3),
        ({"label": "rating", "labels": "numbers"}, lambda row: row % 5 + 1),
        ({"label": "rating", "labels": "classes"}, lambda row: row % 5),
        ({"label": "rating", "labels": ("5", "4", "3", "2", "1.0")}, lambda row: 4 - row % 5),
        ({"label": "rating>=4", "labels": "classes"}, lambda row: row % 5 >= 3),  # a comparison has two
    ],
)
def test_labels_are_the_same_in_a_log_a_prepared_one_and_with_a_schema(
    options: Any, expected: Any, ratings: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("labels")
    log = open_log(ratings, **options)
    assert labels_of(log) == [float(expected(row)) for row in range(300)]
    assert log.binary == ("rating>=4" in options.values())
    assert "rating" not in (*log.fields, *log.numbers)
    prepare([ratings], folder / "prepared", **options)
    write_schema(folder / "schema.yaml", log.format, "it")
    named = {"labels": "numbers"} if options.get("labels") == "numbers" else {}  # which no schema says
    for again in (PreparedLog(folder / "prepared"), open_log(ratings, schema=folder / "schema.yaml", **named)):
        assert labels_of(again) == labels_of(log)
        assert (again.binary, again.classes) == (log.binary, log.classes)
    others = ({"label": "rating>=3"}, {"label": "rating", "labels": ("1", "2", "3", "4", "5", "6")})
    assert all(open_log(ratings, **other).identity != log.identity for other in others)


@over(
    ("options", "message"),
    [
        ({}, r"'rating' has numbers such as 1, 2, 3: compare it, as in .label. 'rating>=4'"),
        ({"labels": list("1234")}, r"csv:6: label 'rating' must be one of the classes 1, 2, 3, 4: 'rating=5'"),
        ({"labels": ["1"]}, r"2 to 1000 different classes are expected, got 1 class"),
        ({"labels": "colors"}, r"`labels` is binary, numbers, classes, or a list of these, got 'colors'"),
        ({"labels": "numbers", "positive_weight": 2.0}, "`positive_weight` is for labels 0 and 1; these are numbers"),
        ({"label": "rating>=4", "negatives_kept": 2.0}, r"`negatives_kept` must be in \(0, 1\], got 2"),
        (
            {"label": "rating>=4", "test_from": "2026-05-12", "test_fraction": 0.2},
            "`test_from` and `test_fraction` cannot both be given",
        ),
        (
            {"label": "rating>=4", "test_from": "2026-05-12", "exclude": ["at"]},
            r"`test_from` is for logs with a column of times in order; .*ratings.csv",
        ),
        *(
            ({"label": "rating>=4", "test_from": moment}, f"{problem}, the last one is of 2026-05-20 10:00:00")
            for moment, problem in (("2026-07-01", "no row is later"), ("2026-04-01", "no row is earlier"))
        ),
    ],
)
def test_labels_and_test_sets_that_cannot_be_are_refused(options: Any, message: str, ratings: Path) -> None:
    with pytest.raises((ClickLogError, LogOptionError), match=message):
        open_log(ratings, **{"label": "rating", **options})


def test_a_thousand_classes_are_the_most(tmp_path: Path) -> None:
    pl.DataFrame({"label": [f"{number}.5" for number in range(1001)], "user": "u"}).write_csv(tmp_path / "log.csv")
    with pytest.raises(LogOptionError, match=r"got 1,001 classes; numbers are learnt with `objective` squared"):
        open_log(tmp_path / "log.csv", labels="classes")


def test_the_test_set_begins_at_a_date(ratings: Path, tmp_path: Path) -> None:
    for moment, rows in (("2026-05-12", 165), ("2026-05-12T10:00", 165), ("2026-05-12 10:01", 180)):
        assert open_log(ratings, label="rating>=4", test_from=moment).train_rows == rows
    prepared, _ = prepare([ratings], tmp_path / "out", label="rating>=4", test_from="2026-05-12")
    assert prepared.train_rows == 165
    late = pl.read_csv(ratings).with_columns(at=pl.lit("2026-05-01T00:00")).tail(2)
    pl.concat([pl.read_csv(ratings), late]).write_csv(ratings)
    with pytest.raises(ClickLogError, match=r"rows from before 2026-05-12 \(`test_from`\) come after later ones"):
        open_log(ratings, label="rating>=4", test_from="2026-05-12")


def test_a_share_of_tries_weighs_as_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "ads.csv"
    counts = [(0, 4), (1, 4), (3, 3), (0, 0), (2, 5)]
    lines = [f"{clicks},{tries},a{clicks},2" for clicks, tries in counts]
    path.write_text("\n".join(["clicks,impressions,ad,weight", *lines * 20, "6,5,b,2", ",5,b,2"]) + "\n")
    options: dict[str, Any] = {"on_bad_row": "skip", "max_bad": 0.1}
    log = open_log(path, label="clicks/impressions", **options)
    assert log.made_of().keys() == {"ad"}
    assert dict(log.bad_rows) == {"label 'clicks' must be a number from 0 to 'impressions'": 2}
    prepared, _ = prepare([path], tmp_path / "prepared", label="clicks/impressions", **options)
    write_schema(tmp_path / "schema.yaml", log.format, "it")
    for one in (log, prepared, open_log(path, schema=tmp_path / "schema.yaml", **options)):
        assert labels_of(one)[:5] == pytest.approx([0, 0.25, 1, 0, 0.4])
        assert weights_in(one) == [8, 8, 6, 0, 10] * 20
    assert str(Label.of("clicks/impressions")) == "clicks/impressions"


def test_classes_weigh_what_they_stand_for(ratings: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"label": "rating>=4", "negatives_kept": 0.25, "positive_weight": 2.0}
    for weight, factor in (("none", 1), ("w", 3)):
        log = open_log(ratings, weight=weight, **options)
        assert weights_in(log) == [factor * (2.0 if label else 4.0) for label in labels_of(log)]
    prepared, _ = prepare([ratings], tmp_path / "out", weight="w", **options)
    assert weights_in(prepared) == weights_in(log)
    assert not open_log(ratings, whole=True, weight="none", label="gone", negatives_kept=0.25).weighted


# Weights

ROWS = 400
WEIGHTED = LogFormat("log", "label", ("a",), weight="w")


def log_of(path: Path, name: str = "sample_weight", weight: Any = lambda i: i % 4 / 2) -> Path:
    lines = [f"clicked,a,b,{name}", *(f"{i * 7 % 3 // 2},u{i % 5},v{i % 11},{weight(i)}" for i in range(ROWS))]
    return written(path, "\n".join(lines) + "\n")


def weights_of(path: Path, **options: Any) -> list[float] | None:
    return weights_in(open_log(path, **options))


def plain_log(path: Path, weights: list[str], name: str = "w") -> Path:
    return written(path, "\n".join([f"label,a,{name}", *(f"{i % 2},x,{w}" for i, w in enumerate(weights))]))


@pytest.mark.parametrize("name", ["w", "weight"])
def test_weights_come_with_the_rows(name: str, tmp_path: Path) -> None:
    weights = ["1", "0", "0.25", "1e-3", "1e18", "-0.0", "0.1"]
    path = plain_log(tmp_path / "log.csv", weights, name)
    schema = written(tmp_path / "schema.yaml", f"label: label\nweight: {name}\ncategorical: [a]")
    log_format = read_schema(schema)
    assert log_format.weight == name
    expected = np.array(weights, np.float64).astype(np.float32).tolist()
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


@over("bad", ["", "-1e-30", "nan", "inf", "1e30", "1e99", "heavy"])
def test_a_weight_that_is_none_is_a_bad_row(bad: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("weights")
    path = plain_log(folder / "log.csv", ["1", bad, "2"])
    message = f"{path}:3: weight 'w' must be a number >= 0, at most 1e+18: " + repr(f"w={bad}" if bad else "no w")
    for read in (lambda: prepare([path], folder / "out", WEIGHTED), lambda: weights_of(path, format=WEIGHTED)):
        with pytest.raises(ClickLogError) as raised:
            read()
        assert str(raised.value) == message
    log, _ = prepare([path], folder / "skip", WEIGHTED, on_bad_row="skip", max_bad=0.5)
    raw = open_log(path, format=WEIGHTED, on_bad_row="skip", max_bad=0.5)
    assert weights_in(log) == weights_in(raw) == [1.0, 2.0]
    assert log.manifest.bad_rows == raw.bad[0].reasons == {"weight 'w' must be a number >= 0, at most 1e+18": 1}


@over(
    ("fields", "weight", "message"),
    [
        (("a", "w"), "w", "column 'w' is the weight; it cannot also be a field"),
        (("a", "weight"), "w", "a field cannot be named 'weight'; rename it"),
        (("a",), "v", "no column 'v'; the columns are label, a, w, weight"),
    ],
)
def test_a_weight_is_a_column_of_its_own(fields: tuple[str, ...], weight: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "label,a,w,weight\n1,x,1,2\n")
    with pytest.raises(ClickLogError, match=f"log.csv:1: {message}"):
        prepare([path], tmp_path / "out", LogFormat("log", "label", fields, weight=weight))


@over("name", ["weight", "sample_weight", "Importance", "weights"])
def test_a_column_of_weights_is_recognized_by_its_name(name: str, tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", name)
    log = open_log(path)
    assert (log.fields, log.numbers, log.columns[name]) == (("a", "b"), (), "weight")
    assert weights_of(path) == [i % 4 / 2 for i in range(ROWS)]
    (finding,) = (one for one in log.findings if one.name == name)
    assert "because of its name" in finding.why
    assert f"column {name!r} is used as the rows' weight" in finding.warning
    assert "set `weight` to none" in finding.warning


@over(
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
def test_other_columns_are_features(name: str, weight: Any, tmp_path: Path) -> None:
    log = open_log(log_of(tmp_path / "log.csv", name, weight))
    assert not log.weighted
    assert log.columns == open_log(tmp_path / "log.csv", weight="none").columns


def test_the_weight_is_the_requested_column_and_by_name_the_plainer_one_is_a_feature(tmp_path: Path) -> None:
    path = log_of(tmp_path / "log.csv", "weight,sample_weight", lambda i: f" {i % 3},{i % 4}")
    log = open_log(path)
    assert (log.columns["weight"], log.columns["sample_weight"]) == ("category of numbers", "weight")
    assert log.fields == ("a", "b", "weight.value")
    by_name, other = [i % 4 for i in range(ROWS)], [i % 3 for i in range(ROWS)]
    schema = written(tmp_path / "schema.yaml", "columns: {clicked: label, a: category, weight: weight}")
    for options, expected in (
        ({}, by_name),
        ({"weight": "weight"}, other),
        ({"weight": "weight", "columns": "categorical", "exclude": ["sample_weight"]}, other),
        ({"weight": "none"}, None),
        ({"columns": log.columns}, by_name),
        ({"columns": log.columns, "weight": "none"}, None),
        ({"columns": log.columns, "weight": "weight"}, other),
        ({"schema": schema}, other),
    ):
        assert weights_of(path, **options) == expected, options
    assert open_log(path, weight="none").fields == ("a", "b", "weight", "sample_weight")
    prepared, _ = prepare([path], tmp_path / "out")
    assert weights_in(prepared) == by_name


@over(
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


SMALL = ("--set", "model.hidden=[4]", "--model", "mlp", "--set", "model.dim=2", "--l21", "0", "--threads", "1")


def test_a_run_learns_and_is_measured_by_weights(run: Run) -> None:
    log = log_of(Path("log.csv"))

    def kinds(*arguments: object) -> dict[str, str]:
        done = run("columns", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return {one["name"]: one["kind"] for one in json.loads(done.stdout)["columns"]}

    assert kinds(log)["sample_weight"] == "weight"
    assert kinds(log, "--weight", "none")["sample_weight"] == "category, number"
    assert kinds(log, "--weight", "b")["b"] == "weight"
    done = run("train", log, "--out", "run", *SMALL)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "weighted rows" in said
    assert "column 'sample_weight' is used as the rows' weight" in said
    assert "set --weight to none" in said
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
    pl.read_csv("log.csv").drop("sample_weight").write_csv("scored.csv")
    assert run("predict", "run", "scored.csv", "--out", "again.csv").returncode == 0
    assert pl.read_csv("again.csv").equals(scores)
    refused = run("predict", "run", "scored.csv", "--out", "third.csv", "--weight", "sample_weight")
    assert (refused.returncode, "--weight: scored.csv has no column" in refused.stderr) == (2, True)
