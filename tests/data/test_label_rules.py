"""Labels that are made of a column, and test sets that begin at a time."""

from pathlib import Path

import polars as pl
import pytest
import torch

from sparsegroup.data import ClickLogError, LogOptionError, PreparedLog, open_log, prepare
from sparsegroup.data.kinds import NUMBERS, Label
from sparsegroup.data.schema import read_schema, write_schema

TEXTS = ["4", "5", " 3.0 ", "click", None, "1"]
CASES = {
    "r>=4": [1, 1, 0, None, None, 0],
    "r < 4": [0, 0, 1, None, None, 1],
    "r=3": [0, 0, 1, 0, None, 0],
    "r != 3": [1, 1, 0, 1, None, 1],
    "r==click": [0, 0, 0, 1, None, 0],
    "r": [None, None, None, None, None, 1],
}


@pytest.mark.parametrize(("given", "expected"), CASES.items())
def test_a_label_is_a_column_or_a_comparison(given: str, expected: list[int | None]) -> None:
    assert Label.of(given, ["r"]).read(pl.Series(TEXTS)).to_list() == expected


def test_numbers_are_labels_by_that_rule_alone() -> None:
    read = Label("r", NUMBERS).read(pl.Series(["-2.5", "1e3", "inf", "nan", "", None]))
    assert read.to_list() == [-2.5, 1000, None, None, None, None]
    assert Label.of("a>b", ["a>b"]).column == "a>b"  # a column of that name comes first
    with pytest.raises(LogOptionError, match="`label` 'r>high': > compares with a number, got 'high'"):
        Label.of("r>high", ["r"])


def test_a_share_of_tries_weighs_as_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "ads.csv"
    counts = [(0, 4), (1, 4), (3, 3), (0, 0), (2, 5)]
    lines = [f"{clicks},{tries},a{clicks},2" for clicks, tries in counts]
    path.write_text("\n".join(["clicks,impressions,ad,weight", *lines * 20, "6,5,b,2", ",5,b,2"]) + "\n")
    log = open_log(path, label="clicks/impressions", on_bad_row="skip", max_bad=0.1)
    assert log.made_of().keys() == {"ad"}
    (batch,) = log.batches(0, 5, 5)
    assert batch.labels.tolist() == pytest.approx([0, 0.25, 1, 0, 0.4])
    assert batch.weights is not None
    assert batch.weights.tolist() == [8, 8, 6, 0, 10]
    assert dict(log.bad_rows) == {"label 'clicks' must be a number from 0 to 'impressions'": 2}
    prepared, _ = prepare([path], tmp_path / "prepared", label="clicks/impressions", on_bad_row="skip", max_bad=0.1)
    (same,) = prepared.batches(0, 5, 5)
    assert torch.equal(same.labels, batch.labels)
    assert torch.equal(same.weights, batch.weights)
    write_schema(tmp_path / "schema.yaml", log.format, "it")  # type: ignore[attr-defined]
    again = open_log(path, schema=tmp_path / "schema.yaml", on_bad_row="skip", max_bad=0.1)
    assert labels_of(again) == labels_of(log)
    assert str(Label.of("clicks/impressions")) == "clicks/impressions"
    assert Label.of("a/b", ["a/b"]).tries is None  # a column of that name comes first


def ratings(folder: Path, rows: int = 300) -> Path:
    days = [f"2026-05-{1 + row * 20 // rows:02}T10:00" for row in range(rows)]
    frame = pl.DataFrame({"rating": [row % 5 + 1 for row in range(rows)], "at": days})
    frame = frame.with_columns(user=pl.Series([f"u{row * 7 % 11}" for row in range(rows)]))
    frame.write_csv(folder / "ratings.csv")
    return folder / "ratings.csv"


def labels_of(log: object) -> list[float]:
    return [label for batch in log.batches(0, len(log), 64) for label in batch.labels.tolist()]  # type: ignore[attr-defined]


def test_a_rule_holds_in_a_log_a_prepared_one_and_a_schema(tmp_path: Path) -> None:
    path = ratings(tmp_path)
    log = open_log(path, label="rating>=4")
    assert labels_of(log) == [float(row % 5 >= 3) for row in range(300)]
    assert "rating" not in (*log.fields, *log.numbers)
    prepared, _ = prepare([path], tmp_path / "prepared", label="rating>=4")
    assert labels_of(prepared) == labels_of(log)
    write_schema(tmp_path / "schema.yaml", log.format, "it")  # type: ignore[attr-defined]
    assert read_schema(tmp_path / "schema.yaml").label_rule == ">=4"
    assert labels_of(open_log(path, schema=tmp_path / "schema.yaml")) == labels_of(log)
    assert log.identity != open_log(path, label="rating>=3").identity


def test_labels_of_any_number(tmp_path: Path) -> None:
    path = ratings(tmp_path)
    log = open_log(path, label="rating", labels="numbers")
    assert not log.binary
    assert labels_of(log)[:6] == [1, 2, 3, 4, 5, 1]
    prepare([path], tmp_path / "prepared", label="rating", labels="numbers")
    again = PreparedLog(tmp_path / "prepared")
    assert not again.binary
    assert labels_of(again) == labels_of(log)
    with pytest.raises(
        ClickLogError, match=r"'rating' has numbers such as 2, 3, 4: compare it, as in .label. 'rating>"
    ):
        open_log(path, label="rating")


def test_classes_are_found_in_the_first_rows(tmp_path: Path) -> None:
    path = ratings(tmp_path)
    options = {"label": "rating", "labels": "classes"}
    log = open_log(path, **options)
    assert (log.classes, log.binary) == (("1", "2", "3", "4", "5"), False)
    assert labels_of(log) == [row % 5 for row in range(300)]
    prepare([path], tmp_path / "prepared", **options)
    again = PreparedLog(tmp_path / "prepared")
    assert (again.classes, labels_of(again)) == (log.classes, labels_of(log))
    write_schema(tmp_path / "schema.yaml", log.format, "it")
    assert open_log(path, schema=tmp_path / "schema.yaml").classes == log.classes
    assert open_log(path, label="rating>=4", labels="classes").binary  # a comparison has two
    given = open_log(path, label="rating", labels=("5", "4", "3", "2", "1.0"))
    assert labels_of(given)[:5] == [4, 3, 2, 1, 0]
    assert given.identity != log.identity
    with pytest.raises(ClickLogError, match=r"csv:6: label 'rating' must be one of the classes 1, 2, 3, 4: 'rating=5'"):
        open_log(path, label="rating", labels=list("1234"))
    with pytest.raises(LogOptionError, match=r"2 to 1000 different classes are expected, got 1 class"):
        open_log(path, label="rating", labels=["1"])
    with pytest.raises(LogOptionError, match=r"`labels` is binary, numbers, classes, or a list of these, got 'colors'"):
        open_log(path, label="rating", labels="colors")
    pl.DataFrame({"label": [f"{number}.5" for number in range(1001)], "user": ["u"] * 1001}).write_csv(path)
    with pytest.raises(LogOptionError, match=r"got 1,001 classes; numbers are learnt with `objective` squared"):
        open_log(path, labels="classes")


@pytest.mark.parametrize(
    ("texts", "classes"),
    [(["10", "9", "9.0", " 1e1", None], ("9", "10")), (["10", "9", "b", " a ", ""], ("10", "9", "a", "b"))],
)
def test_classes_are_sorted_as_numbers_if_all_are(texts: list[str], classes: tuple[str, ...]) -> None:
    label = Label.of_texts("x", pl.Series(texts, dtype=pl.String))
    assert label.classes == classes
    read = label.read(pl.Series(texts, dtype=pl.String)).to_list()
    names = [None if text is None else text.strip() for text in texts]
    number_of = {"9.0": 0, "1e1": 1, None: None, "": None} | {name: place for place, name in enumerate(classes)}
    assert read == [number_of[name] for name in names]


def test_the_test_set_begins_at_a_date(tmp_path: Path) -> None:
    path = ratings(tmp_path)
    options = {"label": "rating>=4"}
    for moment, rows in (("2026-05-12", 165), ("2026-05-12T10:00", 165), ("2026-05-12 10:01", 180)):
        assert open_log(path, test_from=moment, **options).train_rows == rows
    assert prepare([path], tmp_path / "out", test_from="2026-05-12", **options)[0].train_rows == 165
    for moment, problem in (("2026-07-01", "no row is later"), ("2026-04-01", "no row is earlier")):
        with pytest.raises(ClickLogError, match=f"{problem}, the last one is of 2026-05-20 10:00:00"):
            open_log(path, test_from=moment, **options)
    with pytest.raises(LogOptionError, match="`test_from` and `test_fraction` cannot both be given"):
        open_log(path, test_from="2026-05-12", test_fraction=0.2, **options)
    untimed = tmp_path / "untimed.csv"
    pl.read_csv(path).drop("at").write_csv(untimed)
    with pytest.raises(LogOptionError, match=r"`test_from` is for logs with a column of times in order; .*untimed.csv"):
        open_log(untimed, test_from="2026-05-12", **options)
    shuffled = pl.read_csv(path).with_columns(at=pl.lit("2026-05-01T00:00")).tail(2)
    pl.concat([pl.read_csv(path), shuffled]).write_csv(path)
    with pytest.raises(ClickLogError, match=r"rows from before 2026-05-12 \(`test_from`\) come after later ones"):
        open_log(path, test_from="2026-05-12", **options)


def test_classes_weigh_what_they_stand_for(tmp_path: Path) -> None:
    path = ratings(tmp_path)
    pl.read_csv(path).with_columns(w=pl.lit(3.0)).write_csv(path)
    options = {"label": "rating>=4", "negatives_kept": 0.25, "positive_weight": 2.0}
    for weight, factor in (("none", 1), ("w", 3)):
        log = open_log(path, weight=weight, **options)
        assert log.weighted
        expected = [factor * (2.0 if label else 4.0) for label in labels_of(log)]
        weights = [one for batch in log.batches(0, 300, 64) for one in batch.weights.tolist()]
        assert weights == expected
    prepared, _ = prepare([path], tmp_path / "out", weight="w", **options)
    assert [one for batch in prepared.batches(0, 300, 64) for one in batch.weights.tolist()] == expected
    assert not open_log(path, whole=True, weight="none", label="gone", negatives_kept=0.25).weighted
    with pytest.raises(LogOptionError, match=r"`negatives_kept` must be in \(0, 1\], got 2"):
        open_log(path, label="rating>=4", negatives_kept=2.0)
    with pytest.raises(LogOptionError, match="`positive_weight` is for labels 0 and 1; these are numbers"):
        open_log(path, label="rating", labels="numbers", positive_weight=2.0)
