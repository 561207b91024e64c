"""A value has one key or number in every form: CSV, TSV, Parquet, Arrow, data frames, JSON of requests and of Kafka."""

import datetime as dt
import json
import math
import runpy
from collections.abc import Callable, Sequence
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from over import over
from sparsegroup.data import Batch, ClickLogError, FrameLog, columns_of, frames, hash_keys, open_log
from sparsegroup.data import open as opening
from sparsegroup.data.batches import Bags, concatenated
from sparsegroup.data.frames import feature_format
from sparsegroup.data.kinds import MISSING
from sparsegroup.data.raw.encode import encode_frame
from sparsegroup.server import BadRowsError, RowReader
from sparsegroup.streaming.sources.records import frame_of, record_of

SCORE = Path(__file__).parents[2] / "examples" / "score_onnx.py"
DAY = dt.date(2026, 1, 31)
DAYS = pl.Series([DAY, DAY, None])
MOMENTS = [dt.datetime(2026, 1, 31, 9, 30), dt.datetime(2026, 12, 1, 23, 59, 59), None]
BERLIN = [moment and moment.replace(tzinfo=dt.timezone(dt.timedelta(hours=1))) for moment in MOMENTS]
E1, E2 = "caf\u00e9", "cafe\u0301"

# fmt: off
# Kind; the texts of a CSV; and columns of types with the same values.
CASES: list[tuple[str, list[str], list[pl.Series]]] = [
    (
        "category",
        ["a", E1, ""],
        [
            pl.Series(["a", E1, None]),
            pl.Series(["a", E2, ""]),
            pl.Series(["a", E1, None], dtype=pl.Categorical),
            pl.Series(["a", E1, None], dtype=pl.Enum(["a", E1])),
        ],
    ),
    (
        "category",
        ["105", "7", ""],
        [
            pl.Series([105, 7, None], dtype=pl.Int8),
            pl.Series([105, 7, None], dtype=pl.UInt64),
            pl.Series([105.0, 7.0, math.nan]),
            pl.Series([105, 7, None], dtype=pl.Float32),
            pl.Series([Decimal("105.00"), Decimal("7.00"), None], dtype=pl.Decimal(38, 2)),
            pl.Series(["105", "7", None], dtype=pl.Categorical),
        ],
    ),
    (
        "category",
        ["1.5", "0.1", "10000000000000000"],
        [
            pl.Series([1.5, 0.1, 1e16]),
            pl.Series([Decimal("1.500"), Decimal("0.100"), Decimal(10**16)], dtype=pl.Decimal(38, 3)),
        ],
    ),
    ("category", ["1.5", "0.25", "16777216"], [pl.Series([1.5, 0.25, 2**24], dtype=pl.Float32)]),
    (
        "category of numbers",
        ["18446744073709551615", "9223372036854775808.0", " +007 "],
        [
            pl.Series([2**64 - 1, 2**63, 7], dtype=pl.UInt64),
            pl.Series([Decimal(2**64 - 1), Decimal(2**63), Decimal(7)], dtype=pl.Decimal(38, 0)),
        ],
    ),
    (
        "category of numbers",
        ["7.0", "-0.50", "NA"],
        [pl.Series([7.0, -0.5, None]), pl.Series([Decimal("7.00"), Decimal("-0.50"), None])],
    ),
    (
        "number",
        ["1.125", "-3", "NaN"],
        [
            pl.Series([1.125, -3.0, None]),
            pl.Series([1.125, -3.0, math.inf], dtype=pl.Float32),
            pl.Series([Decimal("1.125"), Decimal("-3.000"), None]),
        ],
    ),
    ("number", ["90", "0.5", ""], [pl.Series([dt.timedelta(minutes=1.5), dt.timedelta(milliseconds=500), None])]),
    ("category, number", ["2.50", "3", "?"], [pl.Series([2.5, 3, None], dtype=x) for x in (pl.Float64, pl.Float32)]),
    ("amount", ["$1,234.50", "1.125", "0.0000001"], [pl.Series([1234.5, 1.125, 1e-7])]),
    ("amount comma", ["1.234,50 €", "1,125", "1.125"], [pl.Series([1234.5, 1.125, 1125.0])]),
    (
        "category, amount",
        ["30 %", "$1.50", ""],
        [pl.Series([30.0, 1.5, None]), pl.Series([Decimal(30), Decimal("1.5"), None])],
    ),
    ("category, amount comma", ["1,90 €", "1.125", "1,125"], [pl.Series([1.9, 1125.0, 1.125])]),
    (
        "boolean",
        ["True", "no", ""],
        [
            pl.Series([True, False, None]),
            pl.Series([1, 0, None], dtype=pl.Int8),
            pl.Series([1.0, 0.0, math.nan]),
            pl.Series([Decimal("1.00"), Decimal("0.00"), None]),
            pl.Series(["1.0", "0.00", None]),
        ],
    ),
    ("list |", ["a|b", E1, ""], [pl.Series([["a", "b"], [E2], []]), pl.Series([["a", "b"], [E1], None])]),
    ("list comma", ["1,2", "3", ""], [pl.Series([[1, 2], [3], None]), pl.Series([[1.0, 2.0], [3.0], [None]])]),
    (
        "list json",
        ['["a", "b|c"]', "[null]", "[]"],
        [pl.Series([["a", "b|c"], [None], []]), pl.Series([["a", "b|c"], [""], None])],
    ),
    (
        "list json",
        ["[1.5, 2.0]", "[3, 1e-7]", "NA"],
        [pl.Series([[1.5, 2.0], [3.0, 1e-7], None]), pl.Series(["[1.50,2]", "[3, 1e-07]", ""])],
    ),
    ("list json", ["[1, 2]", "[true]", ""], [pl.Series(["[1.0, 2]", "[true]", None])]),
    ("list json", ["[1, 2]", "[3, 4]", "[5, 6]"], [pl.Series([[1, 2], [3, 4], [5, 6]], dtype=pl.Array(pl.Int16, 2))]),
    ("words", [f"The {E1}", "a-b", ""], [pl.Series([f"The {E2}", "a-b", None])]),
    ("domain", ["Ann@Site.com", "https://b.de/x", ""], [pl.Series(["ann@site.com", "http://b.de", None])]),
    ("category, domain", ["a@Site.com", "x", ""], [pl.Series(["a@Site.com", "x", None], dtype=pl.Categorical)]),
    (
        "timestamp iso",
        ["2026-01-31T09:30:00", "2026-12-01 23:59:59", ""],
        [pl.Series(MOMENTS, dtype=pl.Datetime(unit)) for unit in ("ms", "us", "ns")],
    ),
    (
        "timestamp iso",
        ["2026-01-31T09:30:00+01:00", "2026-12-01T23:59:59+01:00", ""],
        [pl.Series(BERLIN).dt.convert_time_zone("Europe/Berlin")],
    ),
    ("timestamp date", ["2026-01-31", "2026-01-31", ""], [DAYS, DAYS.cast(pl.Datetime)]),
    ("timestamp %d/%m/%Y", ["31/01/2026", "31/01/2026", ""], [DAYS]),
    (
        "timestamp %Y%m%d",
        ["20260131", "20260131", ""],
        [pl.Series([20260131, 20260131, None], dtype=one) for one in (pl.Int32, pl.Float64)],
    ),
    (
        "timestamp s",
        ["1769851800", "1769851800.9", ""],
        [
            pl.Series([1769851800, 1769851800, None]),
            pl.Series([1769851800.0, 1769851800.9, None]),
            pl.Series([dt.datetime(2026, 1, 31, 9, 30)] * 2 + [None]),
        ],
    ),
    (
        "timestamp ms",
        ["1769851800123", "1769851800000", ""],
        [pl.Series([1769851800123, 1769851800000, None], dtype=one) for one in (pl.Int64, pl.Float64)],
    ),
    ("list | shares c0.0", ["a", E1, ""], [pl.Series([["a"], [E2], None]), pl.Series(["a", E1, None])]),
    ("list json shares c0.0", ['["a"]', f'["{E2}"]', "[]"], [pl.Series([["a"], [E1], [None]])]),
    ("list | shares c1.0", ["105", "7", ""], [pl.Series([[105.0], [7.0], []]), pl.Series([[105], [7], [None]])]),
    ("list json shares c1.0", ["[105]", "[7.0]", "NA"], [pl.Series([[105], [7], None])]),
    (
        "list | shares c5.0",
        ["07", "-.5", "NA"],
        [pl.Series([[7.0], [-0.5], None]), pl.Series([["7."], ["-0.50"], [" "]])],
    ),
    ("list json shares c5.0", ['["7.0"]', "[-0.50]", "[]"], [pl.Series([[7.0], [-0.5], [None]])]),
    ("category of numbers shares c5.0", ["7", "-0.5", "?"], [pl.Series([7.0, -0.5, None])]),
]
# fmt: on

KINDS = {f"c{case}.{form}": kind for case, (kind, _, forms) in enumerate(CASES) for form in range(len(forms))}
TYPED = pl.DataFrame(
    {f"c{case}.{form}": column for case, (_, _, forms) in enumerate(CASES) for form, column in enumerate(forms)}
)
TEXTS = pl.DataFrame({name: CASES[int(name[1:].partition(".")[0])][1] for name in KINDS})
FORMAT = feature_format(KINDS).for_scoring()


def read(path: Path) -> Batch:
    return next(open_log(path, columns=KINDS, whole=True).batches(0, 3, 3))


def jsonable(value: object) -> object:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, dt.datetime | dt.date):
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_rows() -> list[dict[str, Any]]:
    """Return the typed rows as JSON, with times as texts."""
    rows = []
    for typed, texts in zip(TYPED.iter_rows(named=True), TEXTS.iter_rows(named=True), strict=True):
        has_time = {name for name, dtype in TYPED.schema.items() if isinstance(dtype, pl.Date | pl.Datetime)}
        rows.append({name: texts[name] if name in has_time else jsonable(value) for name, value in typed.items()})
    return rows


def of_csv(folder: Path) -> Batch:
    TEXTS.write_csv(folder / "log.csv")
    return read(folder / "log.csv")


def of_tsv(folder: Path) -> Batch:
    rows = [TEXTS.columns, *TEXTS.rows()]
    (folder / "log.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return read(folder / "log.tsv")


def of_parquet(folder: Path) -> Batch:
    pq.write_table(TYPED.to_arrow(), folder / "log.parquet")
    return read(folder / "log.parquet")


def of_feather(folder: Path) -> Batch:
    feather.write_feather(TYPED.to_arrow(), folder / "log.feather")
    return read(folder / "log.feather")


def of_polars(folder: Path) -> Batch:
    return next(FrameLog(TYPED, columns=KINDS, whole=True).batches(0, 3, 3))


def of_pandas(folder: Path) -> Batch:
    return next(FrameLog(TYPED.to_pandas(), columns=KINDS, whole=True).batches(0, 3, 3))


def of_texts_in_pandas(folder: Path) -> Batch:
    return next(FrameLog(pd.DataFrame(TEXTS.to_dict(as_series=False)), columns=KINDS, whole=True).batches(0, 3, 3))


def of_json(folder: Path) -> Batch:
    return RowReader(FORMAT).batch(json.loads(json.dumps(json_rows())))


def of_arrow_requests(folder: Path) -> Batch:
    return RowReader(FORMAT).batch_of_frame(TYPED.to_arrow())


def of_kafka(folder: Path) -> Batch:
    texts = [json.dumps(row).encode() for row in json_rows()]
    bad: list[Any] = []
    frame = frame_of([(number, record_of(text), text) for number, text in enumerate(texts)], FORMAT, bad)
    batch = encode_frame(frame, FORMAT, bad).batch
    assert not bad
    return batch


def of_kafka_one_by_one(folder: Path) -> Batch:
    texts = [json.dumps(row).encode() for row in json_rows()]
    parts = [encode_frame(frame_of([(0, record_of(text), text)], FORMAT, []), FORMAT, []).batch for text in texts]
    return concatenated(parts)


def of_onnx_script(folder: Path) -> Batch:
    """Return the inputs that `examples/score_onnx.py` makes, with the kinds from a manifest."""
    script = runpy.run_path(str(SCORE))
    columns = asdict(FORMAT.columns_of_model)
    kinds = script["kinds_to_read"]({"config": {"data": {"columns": KINDS}}, "columns": columns}, False)
    rows = [script["made_of"](row, kinds) for row in TEXTS.iter_rows(named=True)]
    inputs = script["inputs_of"](rows, columns, "|")
    bags = [
        Bags(torch.from_numpy(inputs[f"{name}.keys"]), torch.from_numpy(inputs[f"{name}.offsets"]))
        for name in FORMAT.lists
    ]
    keys, numbers, zeros = torch.from_numpy(inputs["keys"]), torch.from_numpy(inputs["numbers"]), torch.zeros(3)
    return Batch(keys, numbers, zeros, zeros.long(), bags=tuple(bags))


FORMS: Sequence[Callable[[Path], Batch]] = (
    of_tsv, of_parquet, of_feather, of_polars, of_pandas, of_texts_in_pandas, of_json, of_arrow_requests, of_kafka,
    of_kafka_one_by_one, of_onnx_script,
)  # fmt: skip


def made_by_column(batch: Batch) -> dict[str, Any]:
    """Return field or number → its values in a batch, in a comparable form."""
    single = [name for name in FORMAT.fields if name not in FORMAT.lists]
    found: dict[str, Any] = {name: batch.keys[:, place].tolist() for place, name in enumerate(single)}
    found |= {name: batch.numbers[:, place].nan_to_num(-7).tolist() for place, name in enumerate(FORMAT.numbers)}
    for name, bags in zip(FORMAT.lists, batch.bags, strict=True):
        found[name] = (bags.keys.tolist(), bags.offsets.tolist())
    return found


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_gives_the_keys_and_numbers_of_a_csv(form: Callable[[Path], Batch], tmp_path: Path) -> None:
    expected, found = made_by_column(of_csv(tmp_path)), made_by_column(form(tmp_path))
    assert expected.keys() == found.keys()
    wrong = {name: (KINDS.get(name), TYPED.schema.get(name)) for name, one in expected.items() if found[name] != one}
    assert not wrong


@pytest.mark.parametrize("form", [of_csv, *FORMS], ids=lambda form: form.__name__)
def test_a_value_has_one_key_in_all_columns_of_a_vocabulary(form: Callable[[Path], Batch], tmp_path: Path) -> None:
    found, shares = made_by_column(form(tmp_path)), FORMAT.columns_of_model.shares
    assert len(shares) == 10
    for name, owner in shares.items():
        keys = found[name][0] if name in FORMAT.lists else found[name]
        assert keys == found[owner], (name, KINDS[name])


def keys_and_numbers(kind: str, values: object) -> tuple[Any, Any]:
    """Return the keys and numbers of a column of a frame."""
    frame = pl.DataFrame({"x": values, "other": ["a"] * len(values)})  # type: ignore[arg-type]
    found = hash_keys(frame, {"x": kind, "other": "category"})
    keys = found.bags["x"].keys.tolist() if "x" in found.bags else found.keys.tolist()
    return keys, found.numbers.tobytes()


def of_request(kind: str, values: Sequence[object]) -> tuple[Any, Any]:
    """Return the keys and numbers of a column of JSON rows."""
    log = feature_format({"x": kind, "other": "category"}).for_scoring()
    batch = RowReader(log).batch([{"x": json.loads(json.dumps(value)), "other": "a"} for value in values])
    keys = batch.bags[0].keys.tolist() if log.lists else batch.keys.tolist()
    return keys, batch.numbers.numpy().tobytes()


FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53).map(float)


@settings(max_examples=40)
@given(st.lists(FLOATS, min_size=1, max_size=5), st.sampled_from(["category of numbers", "number", "category, number"]))
def test_a_number_is_one_however_it_is_written(values: list[float], kind: str) -> None:
    typed = keys_and_numbers(kind, pl.Series(values, dtype=pl.Float64))
    assert keys_and_numbers(kind, [repr(value) for value in values]) == typed
    assert keys_and_numbers(kind, [f" {value:+.17e}" for value in values]) == typed
    assert of_request(kind, values) == typed
    assert of_request("category", values)[0] == keys_and_numbers("category", pl.Series(values, dtype=pl.Float64))[0]
    whole = [int(value) for value in values]
    if kind == "category of numbers":
        digits = keys_and_numbers(kind, [f"{value:+}.00" for value in whole])
        assert digits == of_request(kind, whole) == of_request("category", whole)


@settings(max_examples=30)
@given(st.lists(st.decimals(-(10**7), 10**7, places=3), min_size=1, max_size=5))
def test_an_amount_is_one_with_a_point_a_comma_or_a_type(values: list[Decimal]) -> None:
    point = [f"${value:,.3f}" for value in values]
    comma = [text.translate(str.maketrans(",.", ".,")) for text in point]
    expected = keys_and_numbers("category, amount", point)
    assert keys_and_numbers("category, amount comma", comma) == expected
    for kind in ("category, amount", "category, amount comma"):
        assert keys_and_numbers(kind, pl.Series([float(value) for value in values])) == expected
        assert keys_and_numbers(kind, pl.Series(values, dtype=pl.Decimal(38, 3))) == expected
        assert of_request(kind, [float(value) for value in values]) == expected


PARTS = st.text(st.characters(exclude_characters="|\x1f\n", exclude_categories=["Cs"]), max_size=3)
LISTS = st.lists(st.lists(PARTS, max_size=3), min_size=1, max_size=4) | st.lists(
    st.lists(FLOATS | st.none(), max_size=3), min_size=1, max_size=4
)


@settings(max_examples=40)
@given(LISTS)
@example([["-"], ["", "a"]])
def test_a_list_is_one_as_a_type_as_json_and_with_separators(values: list[list[Any]]) -> None:
    numbers = any(isinstance(part, float) for one in values for part in one)
    typed = pl.Series(values, dtype=pl.List(pl.Float64 if numbers else pl.String))
    expected = keys_and_numbers("list json", typed)
    assert keys_and_numbers("list json", [json.dumps(one) for one in values]) == expected
    assert of_request("list json", values) == expected
    assert keys_and_numbers("list |", typed) == of_request("list |", values)
    if not any("|".join(map(str, one)).strip() in MISSING for one in values):
        assert keys_and_numbers("list |", typed) == expected
    if all(isinstance(part, str) for one in values for part in one):
        assert keys_and_numbers("list |", ["|".join(one) for one in values]) == keys_and_numbers("list |", typed)


@settings(max_examples=40)
@given(st.lists(PARTS.filter(bool), min_size=1, max_size=4), st.sampled_from(["category", "category of numbers"]))
@example(["NA", "-", " ", "007", " 7.0"], "category")
@example(["NA", "-", " ", "007", " 7.0"], "category of numbers")
def test_a_text_has_one_key_in_an_item_and_in_its_histories(values: list[str], kind: str) -> None:
    kinds = {
        "item": kind,
        "list": "list | shares item",
        "json": "list json shares item",
        "before": f"{kind} shares item",
    }
    kinds["typed"] = "list | shares item"
    frame = pl.DataFrame({"item": values, "list": values, "json": [json.dumps([one]) for one in values]})
    frame = frame.with_columns(before="item", typed=pl.concat_list("item"))
    found = hash_keys(frame, kinds)
    item = found.keys[:, 0].tolist()
    assert found.keys[:, 1].tolist() == item
    request = RowReader(feature_format(kinds).for_scoring()).batch(frame.to_dicts())
    for bags in (*found.bags.values(), *request.bags):
        assert bags.keys.tolist() == item
    assert request.keys.tolist() == found.keys.tolist()


@over(
    ("kind", "values", "message"),
    [
        ("category", [["a"], ["b"]], "list"),
        ("category of numbers", [[1], [2]], "list"),
        ("number", [[1.5], None], "number"),
        ("number", [True, False], "number"),
        ("number", [DAY, DAY], "number"),
        ("amount", [True, False], "cannot be"),
        ("list |", [["a|b"], ["c"]], r"a\|b"),
        ("timestamp iso", [5, 6], "5"),
    ],
)
def test_a_type_that_cannot_be_the_kind_is_refused_in_every_form(
    kind: str, values: list[Any], message: str, tmp_path: Path
) -> None:
    kinds = {"x": kind, "other": "category"}
    frame = pl.DataFrame({"x": values, "other": ["a", "b"]})
    reader = RowReader(feature_format(kinds).for_scoring())
    frame.write_parquet(tmp_path / "log.parquet")
    with pytest.raises(ClickLogError, match=message):
        hash_keys(frame, kinds)
    with pytest.raises(ClickLogError, match=rf"log\.parquet.*{message}"):
        next(open_log(tmp_path / "log.parquet", columns=kinds, whole=True).batches(0, 2, 2))
    with pytest.raises(BadRowsError, match=message):
        reader.batch_of_frame(frame.to_arrow())
    if not isinstance(values[0], dt.date):
        texts = [json.dumps(row).encode() for row in frame.to_dicts()]
        with pytest.raises(BadRowsError, match="'x'"):
            reader.batch(frame.to_dicts())
        bad: list[Any] = []
        rows = frame_of([(number, record_of(text), text) for number, text in enumerate(texts)], reader.log, bad)
        encode_frame(rows, reader.log, bad)
        assert any("'x'" in reason for _, reason, _ in bad)


FIFTHS = pl.Enum([f"1.{i}" for i in range(5)])

TYPES: dict[str, tuple[pl.Series, str]] = {
    "digits that are categories": (pl.Series([str(i % 50) for i in range(400)], dtype=pl.Categorical), "category"),
    "decimals that are an enum": (pl.Series([f"1.{i % 5}" for i in range(400)], dtype=FIFTHS), "category"),
    "true and nothing": (pl.Series([True if i % 2 else None for i in range(400)]), "boolean"),
    "floats, none so far": (pl.Series([None] * 300 + [i / 8 for i in range(100)]), "number"),
    "whole numbers, none so far": (pl.Series([None] * 300 + list(range(100))), "category, number"),
    "booleans, none so far": (pl.Series([None] * 399 + [True]), "boolean"),
    "lists, none so far": (pl.Series([None] * 399 + [["a"]]), "list json"),
    "times, none so far": (pl.Series([None] * 399 + [MOMENTS[0]]), "timestamp iso"),
    "empty lists": (pl.Series([[] if i % 2 else ["a"] for i in range(400)]), "list json"),
    "lists of lists": (pl.Series([[[1]]] * 400), "ignore"),
    "texts of digits": (pl.Series([str(i % 9) for i in range(400)]), "category of numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", TYPES)
def test_a_type_decides_what_a_column_is_where_its_texts_do_not_show_it(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "SAMPLE_ROWS", 300)
    monkeypatch.setattr(frames, "SAMPLE_ROWS", 300)
    values, kind = TYPES[case]
    frame = pl.DataFrame({"x": values, "other": ["a", "b"] * 200, "label": [0, 1] * 200})
    frame.write_parquet(tmp_path / "log.parquet", row_group_size=100)
    assert open_log(tmp_path / "log.parquet").columns["x"] == kind
    assert {one.name: one.kind for one in columns_of(frame.drop("label"))}["x"] == kind


def test_categories_of_numbers_in_pandas_and_arrow_are_categories_and_pandas_index_is_no_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": pd.Categorical([i % 7 for i in range(200)]), "label": [0, 1] * 100})
    frame = frame.sample(frac=1.0, random_state=0)
    feather.write_feather(pa.Table.from_pandas(frame), tmp_path / "log.feather")
    assert open_log(tmp_path / "log.feather").columns == {"x": "category", "label": "label"}
    frame.to_parquet(tmp_path / "log.parquet")
    assert set(open_log(tmp_path / "log.parquet").columns) == {"x", "label"}
    expected = hash_keys(pl.DataFrame({"x": frame["x"].astype(int)}), {"x": "category"}).keys.tolist()
    for given_frame in (frame, pa.Table.from_pandas(frame)):
        assert hash_keys(given_frame, {"x": "category"}).keys.tolist() == expected
        assert {one.name: one.kind for one in columns_of(given_frame)}["x"] == "category"
        assert "__index_level_0__" not in {one.name for one in columns_of(given_frame)}


def test_the_onnx_script_refuses_what_it_does_not_know_by_the_manifest() -> None:
    script = runpy.run_path(str(SCORE))

    def kinds_of(columns: Any, fields: list[str], **data: Any) -> Any:
        described = {"config": {"data": {"columns": columns, **data}}, "columns": {"fields": fields, "numbers": []}}
        return script["kinds_to_read"](described, False)

    assert kinds_of("categorical", ["a"]) == {}
    assert [*kinds_of({"a": "category", "b": "ignore", "c": "label"}, ["a"])] == ["a"]
    for columns, fields, data in (
        ({"a": "colour"}, ["a"], {}),
        ({"a": "category"}, ["a", "b"], {}),
        (None, ["a"], {"schema": "s.yaml"}),
        (None, ["I1"], {}),
    ):
        with pytest.raises(SystemExit, match=r"error: .*(kind|does not say)"):
            kinds_of(columns, fields, **data)
    with pytest.raises(SystemExit, match="'p' cannot be read as number: 'cheap'"):
        script["made_of"]({"p": "cheap"}, {"p": ("number", "p")})


@pytest.mark.parametrize("moment", ["NaN", "\t", "", "NA", None])
def test_a_missing_time_is_missing_in_every_form_of_a_row_to_score(moment: str | None, tmp_path: Path) -> None:
    kinds = {"ts": "time iso", "a": "category"}
    reader = RowReader(feature_format(kinds).for_scoring())
    (tmp_path / "log.csv").write_text(f"ts,a\n{moment or ''},x\n")
    expected = next(open_log(tmp_path / "log.csv", columns=kinds, whole=True).batches(0, 1, 1)).keys.tolist()
    row = {"ts": moment, "a": "x"}
    assert reader.batch([row]).keys.tolist() == expected
    assert reader.with_values([row])[0].keys.tolist() == expected
    frame = pl.DataFrame([row], schema={"ts": pl.String, "a": pl.String})
    assert reader.batch_of_frame(frame).keys.tolist() == expected
    assert hash_keys(frame, {"ts": "timestamp iso", "a": "category"}).keys.tolist() == expected


def test_objects_of_a_request_are_columns_as_in_kafka() -> None:
    reader = RowReader(feature_format({"user.id": "category", "tags.name": "list json"}).for_scoring())
    row = {"user": {"id": 7}, "tags": [{"name": "a"}, {"name": "b"}]}
    found = reader.batch([row])
    flat = reader.batch([{"user.id": "7", "tags.name": ["a", "b"]}])
    assert found.keys.tolist() == flat.keys.tolist()
    assert found.bags[0].keys.tolist() == flat.bags[0].keys.tolist()
    text = json.dumps(row).encode()
    kafka = encode_frame(frame_of([(0, record_of(text), text)], reader.log, []), reader.log, []).batch
    assert kafka.keys.tolist() == flat.keys.tolist()


def test_classes_that_differ_by_blanks_only_are_one_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "".join(f"{label},x{i % 3}\n" for i in range(20) for label in ("bad", "bad ", "good"))
    (tmp_path / "log.csv").write_text(f"label,a\n{rows}")
    log = open_log(tmp_path / "log.csv", labels="classes")
    assert log.classes == ("bad", "good")
    assert "'bad' and 'bad '" in caplog.text
    caplog.clear()
    (tmp_path / "log.csv").write_text(f"label,a\n{rows.replace('bad ', 'bad').replace('good', 'good ')}")
    open_log(tmp_path / "log.csv", labels="classes")
    assert not caplog.text
