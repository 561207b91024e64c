"""Rows of requests against the same rows in a file: the same keys and numbers, whatever form they come in."""

import json
import math
import re
from pathlib import Path

import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from data_cases import avazu_log, criteo_log
from plain_settings import plain
from server_cases import KINDS, typed_rows, untrained, write_rows
from sparsegroup.data import Batch, open_log
from sparsegroup.data.kinds import ColumnKind
from sparsegroup.data.values import text_of, text_of_value
from sparsegroup.errors import ClickLogError
from sparsegroup.server import BadRowsError, RowReader, format_of_model, rows


def assert_same(ours: Batch, theirs: Batch) -> None:
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.numbers.nan_to_num(-7), theirs.numbers.nan_to_num(-7))
    assert torch.equal(ours.numbers.isnan(), theirs.numbers.isnan())
    for bags, others in zip(ours.bags, theirs.bags, strict=True):
        assert torch.equal(bags.keys, others.keys)
        assert torch.equal(bags.offsets, others.offsets)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "log.csv", typed_rows())


@pytest.fixture(scope="module")
def expected(log: Path) -> Batch:
    opened = open_log(log, like=untrained(log).config.format_options, whole=True)
    return next(opened.batches(0, 200, 200))


@pytest.fixture
def reader(log: Path) -> RowReader:
    trained = untrained(log)
    return RowReader(format_of_model(trained.config, trained.columns))


def test_rows_are_read_as_a_file_is_whether_their_values_are_new_known_or_forgotten(
    reader: RowReader, expected: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = typed_rows()
    with monkeypatch.context() as patch:
        for limit, most in (("_REMEMBERED", 1), ("_REMEMBERED", 2), ("_REMEMBERED", 3), ("_LONGEST", 1)):
            patch.setattr(rows, limit, most)
            assert_same(reader.batch(every), expected)
    for _ in range(2):
        assert_same(reader.batch(every), expected)
        for begin in (0, 3, 150):
            assert_same(reader.batch(every[begin : begin + 5]), expected[begin : begin + 5])
    for row in range(30):
        assert_same(reader.batch([every[row]]), expected[row : row + 1])


def test_json_has_numbers_booleans_lists_and_nulls(reader: RowReader) -> None:
    texts = {"when": "2026-05-01T07:30:00", "site": "a", "size": "3", "price": "1.5", "member": "true"}
    texts |= {"tags": "x|y", "words": '["one", 2, null]', "visits": "7"}
    typed = texts | {"size": 3, "price": 1.5, "member": True, "tags": ["x", "y"], "words": ["one", 2, None]}
    assert_same(reader.batch([typed | {"visits": 7.0}]), reader.batch([texts]))
    empty = dict.fromkeys(texts)
    assert_same(reader.batch([empty]), reader.batch([dict.fromkeys(texts, "")]))
    assert_same(reader.batch([typed, {}]), reader.batch([texts, empty]))
    assert_same(reader.batch([typed | {"other": 5, "clicked": "neither"}]), reader.batch([typed]))
    assert len(reader.batch([])) == 0
    missing = reader.batch([typed | {"price": value} for value in (math.nan, math.inf, "", None)])
    assert missing.numbers.isnan()[:, 0].all()


def test_a_frame_is_read_as_its_rows(reader: RowReader, expected: Batch) -> None:
    frame = pl.DataFrame(typed_rows())
    assert_same(reader.batch_of_frame(frame.to_arrow()), expected)
    assert_same(reader.batch_of_frame(frame.drop("clicked")), expected)
    with pytest.raises(BadRowsError, match="no column 'when' in the frame"):
        reader.batch_of_frame(frame.drop("when"))


def test_a_column_that_no_row_has_is_an_error_that_names_a_likely_one(reader: RowReader) -> None:
    row = typed_rows(1)[0]
    price = row.pop("price")
    with pytest.raises(BadRowsError, match=r"no row has the column 'price'.*did you mean 'prices'") as refused:
        reader.batch([row | {"prices": price}, row])
    assert [(one.row, one.column) for one in refused.value.bad] == [(None, "price")]
    with pytest.raises(BadRowsError) as refused:
        reader.batch([{"clicked": 1}])
    assert [one.column for one in refused.value.bad] == list(reader.columns)


def test_bad_values_are_named_by_row_and_column_and_others_can_be_read_afterwards(reader: RowReader) -> None:
    every = typed_rows(20)
    before = reader.batch(every)
    wrong = [dict(row) for row in every]
    wrong[3]["price"] = "cheap"
    wrong[7]["when"] = "yesterday"
    wrong[9]["visits"] = "many"
    for given_rows in (lambda: reader.batch(wrong), lambda: reader.batch_of_frame(pl.DataFrame(wrong))):
        with pytest.raises(BadRowsError, match=r"row 3: 'price' cannot be read.*cheap.*2 more") as refused:
            given_rows()
        assert [(one.row, one.column) for one in refused.value.bad] == [(3, "price"), (7, "when"), (9, "visits")]
    for value, reason in (({"a": 1}, "takes no object"), ([1, 2], "takes one value, got a list")):
        with pytest.raises(BadRowsError, match=f"row 1: 'site' {reason}"):
            reader.batch([every[0], every[1] | {"site": value}])
    with pytest.raises(BadRowsError, match=r"row 0: 'tags' has '\|', .*'x\|y'"):
        reader.batch([every[0] | {"tags": ["x|y"]}])
    assert_same(reader.batch(every), before)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1) | st.booleans())
def test_a_value_of_json_has_the_text_that_it_has_in_a_typed_column(value: float) -> None:
    frame = pl.DataFrame({"value": [value]})
    (text,) = frame.select(text_of(pl.col("value"), frame.schema["value"])).to_series()
    assert text_of_value(json.loads(json.dumps(value)), ColumnKind("category")) == text


def test_what_an_explanation_shows_of_a_row(reader: RowReader, expected: Batch) -> None:
    every = typed_rows()
    batch, values = reader.with_values(every)
    assert_same(batch, expected)
    assert (values[1]["site"], values[1]["when.hour"]) == (every[1]["site"], "1")
    assert {one["price"] for one in values} == {1.5, 20.0, 0.333, None, 1000.0}


def test_public_formats_are_told_by_the_models_columns(tmp_path: Path) -> None:
    numbers = ["", "0", "1", "2", "3", "-1", "-3", "10", "100", "543", "7", "8", "9"]
    criteo = criteo_log(tmp_path / "criteo.txt", numbers, 20)
    avazu = avazu_log(tmp_path / "avazu.csv", [f"141021{i:02}" for i in range(20)])
    for path, settings in (
        (criteo, {}),
        (criteo, {"criteo_numbers": "buckets"}),
        (avazu, {"avazu_hour": "weekday-hour"}),
        (avazu, {"dataset": "avazu"}),
    ):
        opened = open_log(path, like=plain(**settings).format_options, whole=True)
        log = format_of_model(plain(**settings), opened.schema)
        lines = path.read_text().splitlines()
        names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
        names = names if path is criteo else lines.pop(0).split(",")
        given_rows = [dict(zip(names, re.split("[,\t]", line), strict=True)) for line in lines]
        assert_same(RowReader(log).batch(given_rows), next(opened.batches(0, 20, 20)))
    with pytest.raises(BadRowsError, match="row 0: 'hour' cannot be read"):
        RowReader(log).batch([given_rows[0] | {"hour": "noon"}])


def test_other_formats(log: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.yaml"
    schema.write_text('label: clicked\ncategorical: [site, size]\nnumeric: [visits]\nmulti: {tags: "|"}\n')
    for settings in ({"columns": "categorical"}, {"schema": schema}):
        opened = open_log(log, whole=True, **settings)
        reader = RowReader(format_of_model(plain(**settings), opened.schema))
        assert_same(reader.batch(typed_rows()), next(opened.batches(0, 200, 200)))
    assert reader.columns == ("site", "size", "tags", "visits")
    assert reader.batch([typed_rows(1)[0] | {"visits": ""}]).numbers.tolist() == [[0.0]]
    schema.unlink()
    with pytest.raises(ClickLogError, match=r"the schema .* which is not there"):
        format_of_model(plain(schema=schema), opened.schema)
    with pytest.raises(ClickLogError, match="differ from what its settings describe"):
        format_of_model(plain(columns={"site": "category"}), opened.schema)
    # A label that is a number by its kind, a weight, and what is ignored are not needed.
    kinds = {**KINDS, "clicked": "number", "visits": "weight", "size": "ignore"}
    opened = open_log(log, columns=kinds, label="clicked", whole=True)
    found = format_of_model(plain(columns=kinds, label="clicked"), opened.schema)
    assert found.raw == ("when", "site", "member", "tags", "words", "price")
