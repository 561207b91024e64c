"""What columns are taken for, and that it is said, written and read."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from column_cases import CASES, ROWS, chosen, column, csv_of, everything
from data_cases import DATA, written
from sparsegroup.data import ClickLogError, LogOptionError, columns_of
from sparsegroup.data.kinds import ColumnKind
from sparsegroup.data.schema import read_schema, write_schema


def findings(**columns: list[str]) -> Any:
    return columns_of(pl.DataFrame({name: pl.Series(values).replace("", None) for name, values in columns.items()}))


@pytest.mark.parametrize("case", CASES)
def test_a_column_is_taken_for_what_it_is_and_the_reason_is_said(case: str) -> None:
    name, values, kind = CASES[case]
    (found,) = findings(**{name: values})
    assert (found.name, found.kind) == (name, kind), found
    assert found.why
    missing = {"", "NA"}
    assert found.distinct == len({*values} - missing)
    assert found.missing == pytest.approx(sum(value in missing for value in values) / len(values))


def test_ids_among_whole_numbers_are_told_from_amounts_by_how_often_neighbours_come() -> None:
    generator = np.random.default_rng(0)
    popular = generator.permutation(3_000)[generator.zipf(1.3, 60_000) % 3_000]
    amounts = np.abs(generator.normal(2_000, 500, 60_000)).astype(int)
    ids, spent = findings(a=[str(value) for value in popular], b=[str(value) for value in amounts])
    assert (ids.kind, spent.kind) == ("category", "category, number")


def test_a_clock_that_has_not_come_round_is_left_out() -> None:
    days = np.arange(60_000) // 1_000
    draw = np.random.default_rng(0)
    columns = {
        "month": days // 20,
        "day": days % 20,
        "weekday": days % 7,
        "tick": np.arange(60_000) // 600 % 5,
        "kind": draw.permutation(days),
        "shop_id": days // 20,
    }
    found = {one.name: one for one in findings(**{name: [str(one) for one in of] for name, of in columns.items()})}
    kinds = {name: one.kind for name, one in found.items()}
    assert kinds.pop("month") == kinds.pop("day") == "ignore"
    assert set(kinds.values()) == {"category"}
    assert found["month"].why.startswith("a clock: 3 values in 3 ")
    assert found["day"].why.startswith("a clock: ")


def test_nearly_unique_categories_are_warned_of() -> None:
    values = [f"k{i if i % 10 else 0}" for i in range(ROWS)]
    (found,) = findings(token=values)
    assert (found.kind, "token is nearly unique, 541 values in 600 rows" in found.warning) == ("category", True)
    assert not findings(token=[f"k{i % 300}" for i in range(ROWS)])[0].warning


def test_the_day_and_the_month_of_a_date_are_told_apart_or_it_is_said_that_they_are_not() -> None:
    either = [f"0{i % 9 + 1}/0{i * 7 % 9 + 1}/2024" for i in range(ROWS)]
    (found,) = findings(order=either)
    assert found.kind == "timestamp %d/%m/%Y"
    assert "read with the day first: if that is wrong, say 'timestamp %m/%d/%Y'" in found.warning
    in_order = [f"0{i * 9 // ROWS + 1}/0{i * 81 // ROWS % 9 + 1}/2024" for i in range(ROWS)]
    (found,) = findings(order=in_order)
    assert (found.kind, found.warning) == ("timestamp %m/%d/%Y", "")
    assert findings(order=[*either[:-1], "31/01/2024"])[0].warning == ""
    assert findings(order=[*either[:-1], "31/01/2024", "01/31/2024"])[0].kind == "category"


@pytest.mark.parametrize("values", [['{"a": 1}', '{"a": 2}'], ['[{"a": 1}]', "[]"], ["[[1]]", "[[2, 3], []]"]])
def test_json_within_json_is_left_out_with_a_warning(values: list[str]) -> None:
    (found,) = findings(blob=values * 60)
    assert found.kind == "ignore"
    assert "column 'blob' holds lists or objects within JSON, which are not read" in found.warning


def test_a_column_has_its_auc(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    label = draw.integers(0, 2, 4_000)
    amount = label + draw.normal(0, 1, 4_000)
    mail = [f"u{i}@site{one if draw.random() < 0.75 else 1 - one}.com" for i, one in enumerate(label.tolist())]
    columns = {
        "label": [str(one) for one in label],
        "noise": [f"c{i % 7}" for i in range(4_000)],
        "amount": [f"{one:.2f} €".replace(".", ",") for one in amount],
        "mail": mail,
        "row": [str(i) for i in range(4_000)],
        "paid": [f"{one}%" for one in label],
    }
    found = {one.name: one for one in chosen(csv_of(tmp_path / "log.csv", columns)).findings}
    assert (found["label"].auc, found["row"].auc) == (None, None)
    assert found["noise"].auc == pytest.approx(0.5, abs=0.05)
    assert found["amount"].auc == pytest.approx(roc_auc_score(label, amount), abs=0.001)
    assert found["mail"].auc == pytest.approx(0.75, abs=0.03)
    assert found["paid"].auc == 1.0
    assert found["paid"].warning.startswith("column 'paid' alone predicts the label with an AUC of 1.0000")
    assert not found["amount"].warning


def test_what_the_first_part_shows_is_not_left_out_for_being_constant(tmp_path: Path) -> None:
    lines = [f"{i % 2},{'a' if i < 100_000 else 'b'}" for i in range(100_050)]
    kinds = chosen(written(tmp_path / "log.csv", "label,month\n" + "\n".join(lines))).kinds
    assert kinds == {"label": "label", "month": "category"}


@pytest.mark.parametrize(
    "text", [*(kind for _, _, kind in CASES.values()), "list tab", "list ||", "time", "label", "category, amount comma"]
)
def test_a_kind_is_its_text(text: str) -> None:
    assert str(ColumnKind.of(text)) == text
    assert ColumnKind.of(f" {text} ") == ColumnKind.of(text)


@pytest.mark.parametrize("text", ["", "float", "time week", "list", "category,", "timestamp"])
def test_another_kind_is_refused(text: str) -> None:
    with pytest.raises(ClickLogError, match="a column is one of category; "):
        ColumnKind.of(text)


def test_a_written_schema_gives_the_same_format(tmp_path: Path) -> None:
    log = csv_of(tmp_path / "log.csv", everything())
    for options in ({}, {"exclude": ["words"], "test_fraction": 0.25}, {"label": "yes and no"}):
        told = chosen(log, **options)
        write_schema(tmp_path / "schema.yaml", told, "log.csv")
        assert read_schema(tmp_path / "schema.yaml") == told
        assert chosen(log, schema=tmp_path / "schema.yaml") == told
        again = chosen(log, columns=told.kinds, **{**options, "exclude": ()})
        assert again == told


def test_every_kind_of_schema_is_written_and_read(tmp_path: Path) -> None:
    for number, (name, values, _) in enumerate(CASES.values()):
        log = csv_of(tmp_path / f"{number}.csv", {"label": column(lambda i: i % 2), name: values, "#: {": values})
        told = chosen(log)
        write_schema(tmp_path / "schema.yaml", told, "x")
        assert read_schema(tmp_path / "schema.yaml") == told


def test_the_first_columns_missing_name_is_that_of_pandas_index(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", ",label,a\n" + "\n".join(f"{i},{i % 2},x{i % 3}" for i in range(200)))
    log = chosen(path)
    assert (log.fields, log.kinds[""]) == (("a",), "ignore")
    with pytest.raises(ClickLogError, match="column 3 has no name"):
        chosen(written(tmp_path / "other.csv", "label,a,\n1,2,3\n"))


def test_columns_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "label,t,u,t.hour\n1,1,2,3\n")
    with pytest.raises(ClickLogError, match=r"column 't' yields 't.hour', but the log has a column of that name"):
        chosen(path, columns={"t": "timestamp s", "t.hour": "category"})
    with pytest.raises(ClickLogError, match="columns 't' and 'u' cannot both be the log's own time"):
        chosen(path, columns={"t": "time s", "u": "time"})
    with pytest.raises(LogOptionError, match="`columns` is for logs whose columns come from a header"):
        chosen(path, dataset="criteo", columns={"t": "category"})
    assert chosen(path, dataset="criteo", columns="categorical").name == "criteo"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("columns: {a: category}", "label is missing"),
        ("columns: {a: float, y: label}", "a column is one of"),
        ("label: y\ncategorical: [a]\ncolumns: {a: category}", "categorical and columns cannot both be given"),
        ("columns: {a: label, y: label}", "columns 'a' and 'y' cannot both be the label"),
    ],
)
def test_a_schema_that_cannot_hold_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "schema.yaml", text)
    with pytest.raises(ClickLogError, match=message) as raised:
        read_schema(path)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["nycflights13", "globo_clicks"])
def test_real_logs(name: str) -> None:
    path = DATA / f"{name}.csv.xz"
    if not path.exists():
        pytest.skip("no real data here")
    log = chosen(path)
    assert log.kinds["ts"] == {"nycflights13": "time s", "globo_clicks": "time ms"}[name]
    categories = {"nycflights13": {"carrier", "flight", "tailnum", "dest"}, "globo_clicks": {"user", "article1", "os"}}
    assert categories[name] <= {*log.fields}
    assert {"nycflights13": "distance.number", "globo_clicks": ""}[name] in (*log.numbers, "")
    assert log.split_column == "split"
