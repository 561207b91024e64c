"""What columns are taken for, that it is said, written and read; and what becomes of them."""

import datetime as dt
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from data_cases import assert_same, rows_of, write, written
from over import over
from sparsegroup.data import ClickLogError, LogOptionError, columns_of, hash_keys, kinds_of, open_log, prepare
from sparsegroup.data import open as opening
from sparsegroup.data.keys import keys_of
from sparsegroup.data.kinds import ColumnFinding, ColumnKind
from sparsegroup.data.open import format_of
from sparsegroup.data.raw.files import raw_file
from sparsegroup.data.schema import LogFormat, format_for_kinds, read_schema, write_schema

ROWS = 600
START = 1_700_000_000


def column(make: Callable[[int], object], rows: int = ROWS) -> list[str]:
    return [str(make(i)) for i in range(rows)]


def shuffled(values: Sequence[object]) -> list[str]:
    return [str(value) for value in random.Random(1).sample(list(values), len(values))]


def iso(i: int) -> str:
    return dt.datetime.fromtimestamp(START + 3600 * i, dt.UTC).isoformat()


def day(i: int, form: str) -> str:
    """A time of the year 2024, the days not in order."""
    return (dt.datetime(2024, 1, 1) + dt.timedelta(days=i * 7 % 366, minutes=i * 31 % 1440)).strftime(form)


CASES: dict[str, tuple[str, list[str], str]] = {
    "words": ("color", column(lambda i: f"c{i % 7}"), "category"),
    "decimals": ("price", column(lambda i: (i * 37 % 501) / 8), "number"),
    "decimals with a few values": ("stars", column(lambda i: (i % 5) / 2), "category, number"),
    "decimals with words for missing": ("price", column(lambda i: "NA" if i % 9 == 0 else i / 8), "number"),
    "negative and scientific": ("gain", column(lambda i: f"-{i + 1}.5e-3"), "number"),
    "infinite": ("ratio", column(lambda i: "inf" if i % 50 == 0 else i / 7), "number"),
    "zip codes": ("place", column(lambda i: f"0{1000 + i % 90}"), "category"),
    "numbers, one padded": ("place", column(lambda i: "007" if i == 3 else i % 211), "category"),
    "hex": ("sum", column(lambda i: f"{i % 90 * 7919:08x}"), "category"),
    "hashes that look like powers": ("digest", column(lambda i: f"{i % 40}e{i % 90}"), "category"),
    "large hashes": ("bucket", column(lambda i: 2**60 + i % 90), "category of numbers"),
    "ids by name": ("user_id", column(lambda i: i * 7919 % 211), "category of numbers"),
    "amounts by name": ("user_count", column(lambda i: i * 7919 % 211), "category, number"),
    "either": ("x", column(lambda i: i * 7919 % 211), "category, number"),
    "whole numbers that never repeat": ("cents", shuffled([i * 7919 for i in range(ROWS)]), "number"),
    "whole numbers as decimals": ("item", column(lambda i: f"{i % 211}.0"), "category of numbers"),
    "versions, which numbers would merge": ("os", column(lambda i: ["1.1", "1.10", "1.9"][i % 3]), "category"),
    "versions by name": ("app_version", column(lambda i: ["4.4", "5.0", "5.1"][i % 3]), "category"),
    "prices of two digits": ("fee", column(lambda i: f"{i % 7 / 10 + 1:.2f}"), "category, number"),
    "one number so far, or none": ("grade", column(lambda i: "7.0" if i % 2 else ""), "category of numbers"),
    "ids beyond 64 bits": ("place", column(lambda i: 2**70 + i % 90), "category of numbers"),
    "row numbers": ("n", column(lambda i: i), "ignore"),
    "uuids": ("session", shuffled([f"u{i:x}-{i}" for i in range(ROWS)]), "ignore"),
    "an id": ("id", column(lambda i: 10**12 + i * 17), "ignore"),
    "an id that repeats": ("id", column(lambda i: i % 50), "category of numbers"),
    "a constant": ("version", ["7"] * ROWS, "ignore"),
    "one value, or none": ("flag", column(lambda i: "x" if i % 2 else ""), "category"),
    "nothing": ("empty", [""] * ROWS, "ignore"),
    "true and false": ("mobile", column(lambda i: ["True", "false", "TRUE"][i % 3]), "boolean"),
    "0, 1 and 2": ("mobile", column(lambda i: i % 3), "category of numbers"),
    "0 and 1": ("mobile", column(lambda i: i % 2), "boolean"),
    "seconds": ("created", shuffled(range(START, START + 90 * ROWS, 90)), "timestamp s"),
    "seconds of a name that says nothing": ("visits", shuffled(range(START, START + 90 * ROWS, 90)), "number"),
    "milliseconds": ("created_at", shuffled([1000 * START + 77 * i for i in range(ROWS)]), "timestamp ms"),
    "ISO": ("seen", shuffled([iso(i) for i in range(ROWS)]), "timestamp iso"),
    "dates": ("born", shuffled([iso(24 * i)[:10] for i in range(ROWS)]), "timestamp date"),
    "no dates": ("born", column(lambda i: f"2024-13-{10 + i % 20}"), "category"),
    "dates, day first": ("order_date", column(lambda i: day(i, "%d/%m/%Y")), "timestamp %d/%m/%Y"),
    "dates, month first": ("order_date", column(lambda i: day(i, "%m/%d/%Y")), "timestamp %m/%d/%Y"),
    "dates with dots and times": ("order", column(lambda i: day(i, "%d.%m.%Y %H:%M")), "timestamp %d.%m.%Y %H:%M"),
    "dates with months in words": ("order", column(lambda i: day(i, "%b %d, %Y")), "timestamp %b %d, %Y"),
    "times of twelve hours": ("order", column(lambda i: day(i, "%m/%d/%Y %I:%M %p")), "timestamp %m/%d/%Y %I:%M %p"),
    "dates as numbers": ("order_date", column(lambda i: day(i, "%Y%m%d")), "timestamp %Y%m%d"),
    "numbers like dates": ("visits", column(lambda i: day(i, "%Y%m%d")), "number"),
    "euros": ("price", column(lambda i: f"{i * 37 % 9001 / 100:.2f} €".replace(".", ",")), "amount comma"),
    "euros in groups": ("price", column(lambda i: f"{1 + i * 7919 % 90}.{i % 10}50 EUR"), "amount comma"),
    "dollars in groups": ("price", column(lambda i: f"${i * 371 % 900_100 / 100:,.2f}" if i % 7 else ""), "amount"),
    "percent": ("rebate", column(lambda i: f"{i % 5 * 10}%"), "category, amount"),
    "decimal commas": ("weight_kg", column(lambda i: f"{i * 37 % 9001 / 100:.2f}".replace(".", ",")), "amount comma"),
    "one or two numbers": ("pair", column(lambda i: f"{i % 9},{i % 7}" if i % 3 else f"{i % 9}"), "list comma"),
    "two numbers of three digits": ("pair", column(lambda i: f"{i % 90 + 100},{i % 50 + 200}"), "list comma"),
    "e-mail addresses": ("mail", column(lambda i: f"Ann{i}@Site{i % 7}.com"), "domain"),
    "e-mail addresses that recur": ("mail", column(lambda i: f"ann{i % 50}@site{i % 7}.com"), "category, domain"),
    "URLs": ("page", column(lambda i: f"https://www.site{i % 7}.com/p/{i}?x=1"), "domain"),
    "titles": ("title", column(lambda i: f"the {'red' if i % 2 else 'blue'} car of {i * 7 % 99} and {i}"), "words"),
    "own time, seconds": ("ts", column(lambda i: START + i), "time s"),
    "own time, nearly in order": ("ts", column(lambda i: START + 60 * i - 90 * (i % 2)), "time s"),
    "a clock of its own": ("ts", column(lambda i: i // 3), "time"),
    "a time not in order": ("ts", shuffled(range(START, START + ROWS)), "timestamp s"),
    "a time with gaps": ("ts", column(lambda i: "" if i == 5 else START + i), "timestamp s"),
    "lists": ("genres", column(lambda i: "|".join(f"g{j % 9}" for j in range(i % 4 + 1))), "list |"),
    "lists, commas": ("tags", column(lambda i: ",".join(f"g{j}" for j in range(i % 5 + 1))), "list comma"),
    "lists, spaces": (
        "history",
        column(lambda i: " ".join(f"N{i * j % 31}" for j in range(1, i % 5 + 2))),
        "list space",
    ),
    "names with commas": ("who", column(lambda i: f"Smith, {'abc'[i % 3]}"), "category"),
    "names with spaces": ("city", column(lambda i: f"New York {'abc'[i % 3]}"), "category"),
    "JSON": ("tags", column(lambda i: json.dumps([f'a"{j}' for j in range(i % 3)])), "list json"),
    "nearly JSON": ("tags", column(lambda i: f"[{i % 7}"), "category"),
}


def chosen(log: Path, **options: Any) -> LogFormat:
    return format_of([raw_file(log)], **options)


def csv_of(path: Path, columns: dict[str, list[str]]) -> Path:
    pl.DataFrame(columns).write_csv(path)
    return path


def findings(**columns: list[str]) -> Any:
    return columns_of(pl.DataFrame({name: pl.Series(values).replace("", None) for name, values in columns.items()}))


@pytest.mark.parametrize("case", CASES)
def test_a_column_is_taken_for_what_it_is_and_a_schema_says_the_same(case: str, tmp_path: Path) -> None:
    name, values, kind = CASES[case]
    (found,) = findings(**{name: values})
    assert (found.name, found.kind) == (name, kind), found
    assert found.why
    assert found.distinct == len({*values} - {"", "NA"})
    assert found.missing == pytest.approx(sum(value in ("", "NA") for value in values) / len(values))
    assert str(ColumnKind.of(kind)) == kind
    assert ColumnKind.of(f" {kind} ") == ColumnKind.of(kind)
    log = csv_of(tmp_path / "log.csv", {"label": column(lambda i: i % 2), name: values, "#: {": values})
    told = chosen(log, test_fraction=0.25)
    write_schema(tmp_path / "schema.yaml", told, "x")
    assert read_schema(tmp_path / "schema.yaml") == told
    assert chosen(log, columns=told.kinds, test_fraction=0.25) == told


EITHER = [f"0{i % 9 + 1}/0{i * 7 % 9 + 1}/2024" for i in range(ROWS)]
IN_ORDER = [f"0{i * 9 // ROWS + 1}/0{i * 81 // ROWS % 9 + 1}/2024" for i in range(ROWS)]
NESTED = "column 'x' holds lists or objects within JSON, which are not read"
DAY_FIRST = "read with the day first: if that is wrong, say 'timestamp %m/%d/%Y'"


@over(
    ("values", "kind", "warning"),
    [
        (column(lambda i: f"k{i if i % 10 else 0}"), "category", "x is nearly unique, 541 values in 600 rows"),
        (column(lambda i: f"k{i % 300}"), "category", ""),
        (['{"a": 1}', '{"a": 2}'] * 60, "ignore", NESTED),
        (['[{"a": 1}]', "[]"] * 60, "ignore", NESTED),
        (["[[1]]", "[[2, 3], []]"] * 60, "ignore", NESTED),
        (EITHER, "timestamp %d/%m/%Y", DAY_FIRST),
        (IN_ORDER, "timestamp %m/%d/%Y", ""),
        ([*EITHER[:-1], "31/01/2024"], "timestamp %d/%m/%Y", ""),
        ([*EITHER[:-1], "31/01/2024", "01/31/2024"], "category", ""),
    ],
)
def test_what_the_values_leave_open_is_warned_of(values: list[str], kind: str, warning: str) -> None:
    (found,) = findings(x=values)
    assert found.kind == kind
    assert warning in found.warning
    assert bool(warning) == bool(found.warning)


def test_ids_among_whole_numbers_are_told_from_amounts_by_how_often_neighbours_come() -> None:
    generator = np.random.default_rng(0)
    popular = generator.permutation(3_000)[generator.zipf(1.3, 60_000) % 3_000]
    amounts = np.abs(generator.normal(2_000, 500, 60_000)).astype(int)
    ids, spent = findings(a=[str(value) for value in popular], b=[str(value) for value in amounts])
    assert (ids.kind, spent.kind) == ("category of numbers", "category, number")


def test_a_clock_that_has_not_come_round_is_left_out() -> None:
    days = np.arange(60_000) // 1_000
    columns = {
        "month": days // 20,
        "day": days % 20,
        "weekday": days % 7,
        "tick": np.arange(60_000) // 600 % 5,
        "kind": np.random.default_rng(0).permutation(days),
        "shop_id": days // 20,
    }
    found = {one.name: one for one in findings(**{name: [str(one) for one in of] for name, of in columns.items()})}
    kinds = {name: one.kind for name, one in found.items()}
    assert kinds.pop("month") == kinds.pop("day") == "ignore"
    assert set(kinds.values()) == {"category of numbers"}
    assert found["month"].why.startswith("a clock: 3 values in 3 ")
    assert found["day"].why.startswith("a clock: ")


def test_a_column_has_its_auc(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    label = draw.integers(0, 2, 4_000)
    amount = label + draw.normal(0, 1, 4_000)
    columns = {
        "label": [str(one) for one in label],
        "noise": [f"c{i % 7}" for i in range(4_000)],
        "amount": [f"{one:.2f} €".replace(".", ",") for one in amount],
        "mail": [f"u{i}@site{one if draw.random() < 0.75 else 1 - one}.com" for i, one in enumerate(label.tolist())],
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


def test_what_the_first_part_shows_is_not_left_out_for_being_constant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "SAMPLE_ROWS", 300)
    log = csv_of(tmp_path / "log.csv", {"label": column(lambda i: i % 2), "month": column(lambda i: "ab"[i // 500])})
    assert chosen(log).kinds == {"label": "label", "month": "category"}


def test_the_first_columns_missing_name_is_that_of_pandas_index(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", ",label,a\n" + "\n".join(f"{i},{i % 2},x{i % 3}" for i in range(200)))
    log = chosen(path)
    assert (log.fields, log.kinds[""]) == (("a",), "ignore")


@over(
    ("options", "message"),
    [
        (
            {"columns": {"t": "timestamp s", "t.hour": "category"}},
            r"column 't' yields 't.hour', but the log has a column of that name",
        ),
        ({"columns": {"t": "time s", "u": "time"}}, "columns 't' and 'u' cannot both be the log's own time"),
        (
            {"dataset": "criteo", "columns": {"t": "category"}},
            "`columns` is for logs whose columns come from a header",
        ),
        *(
            ({"columns": {"t": kind}}, "a column is one of category; ")
            for kind in ("", "float", "time week", "list", "category,", "timestamp")
        ),
    ],
)
def test_kinds_that_cannot_be_are_refused(options: Any, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "label,t,u,t.hour\n1,1,2,3\n")
    with pytest.raises((ClickLogError, LogOptionError), match=message):
        chosen(path, **options)
    assert chosen(path, dataset="criteo", columns="categorical").name == "criteo"


UNREADABLE = {
    "a map": pa.array([[("a", 1)]] * 300, pa.map_(pa.string(), pa.int64())),
    "bytes": pa.array([b"\xff\xfe"] * 300),
    "a time of the year 292277": pa.array([2**60] * 300, pa.timestamp("ms")),
    "texts of a mebibyte": pa.array(["x" * (1 << 20) + "y"] + ["x"] * 299),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_excluded_column_is_not_read(case: str, tmp_path: Path) -> None:
    columns = {"label": pa.array([i % 2 for i in range(300)]), "u": pa.array([f"u{i % 7}" for i in range(300)])}
    pq.write_table(pa.table(columns), tmp_path / "without.parquet")
    pq.write_table(pa.table({**columns, "x": UNREADABLE[case]}), tmp_path / "with.parquet")
    log, without = open_log(tmp_path / "with.parquet", exclude=["x"]), open_log(tmp_path / "without.parquet")
    assert log.columns == {**without.columns, "x": "ignore"}
    assert_same(rows_of(log), rows_of(without))
    prepare([tmp_path / "with.parquet"], tmp_path / "prepared", exclude=["x"])
    again = open_log(tmp_path / "with.parquet", columns=log.columns)  # as predict reads it
    assert_same(rows_of(again), rows_of(without))


@settings(max_examples=50)
@given(st.text(st.characters(codec="utf-8"), max_size=30), st.text(st.characters(codec="utf-8"), max_size=12))
def test_a_schema_is_read_as_it_was_written_whatever_its_reasons_and_names(text: str, name: str) -> None:
    assume(name not in ("label", "u"))
    name = 500 * name if len(name) > 9 else name
    kinds = {"label": "label", "u": "category", name: "number"}
    log = replace(
        format_for_kinds(kinds, "label"), findings=tuple(ColumnFinding(one, kind, text) for one, kind in kinds.items())
    )
    with TemporaryDirectory() as folder:
        path = Path(folder, "schema.yaml")
        write_schema(path, log, text, left_out={"u": text})
        read = read_schema(path)
    assert read.kinds == {**log.kinds, "u": "ignore"}


# What becomes of columns

READ: dict[str, dict[str, Any]] = {
    "category": {"a": "a", "": "", "NA": "NA", " b ": " b "},
    "category of numbers": {"1.0": "1", "01": "1", "2.50": "2.5", "1e3": "1000", "NA": "", "": "", "x": "x"},
    "boolean": {"Yes": "1", "TRUE": "1", "1": "1", "n": "0", "False": "0", "?": "", "": "", "maybe": "maybe"},
    "domain": {
        "Ann@Site.COM": "site.com", "https://user@Shop.example:80/a?b@c": "shop.example", "ftp://x.org": "x.org",
        "nothing": "nothing", "": "", "NA": "",
    },
    "words": {
        "The red car, the RED one!": ["the", "red", "car", "one"], "Über-Größe 42": ["über", "größe", "42"], "": [""],
        "...": [""], " ".join(map(str, range(100))): [str(i) for i in range(64)],
    },
    "list |": {"a|b||a": ["a", "b", "", "a"], "": [""], "null": [""], "c": ["c"]},
    "list json": {'["a", 1.0, null, true]': ["a", "1", "", "true"], "[]": [""], "": [""]},
    "number": {"1.5": 1.5, " -2e3": -2000, "NA": math.nan, "": math.nan, "inf": math.nan, "1e99": math.nan},
    "amount": {
        "$1,234.50": 1234.5, "30 %": 30, "-7.5%": -7.5, "USD 12": 12, "1 234 567 kr": 1234567, "£.5": 0.5, "3": 3,
        "1'000.25 CHF": 1000.25, "-$5.00": -5, "R$ 10.00": 10, "+4 zł": 4, "NULL": math.nan, "": math.nan,
    },
    "amount comma": {
        "9,84 €": 9.84, "1.234,50 EUR": 1234.5, "-0,5%": -0.5, "1 234,5 Kč": 1234.5, "12": 12, "€ 3,00": 3,
        "-": math.nan,
    },
}  # fmt: skip
"""Kind → text → what is hashed for it, the values of a bag, or a number."""


@pytest.mark.parametrize("kind", READ)
def test_values_are_read_by_their_kind(kind: str) -> None:
    texts, expected = list(READ[kind]), list(READ[kind].values())
    hashed = hash_keys(pl.DataFrame({"x": pl.Series(texts).replace("", None), "y": "y"}), {"x": kind, "y": "category"})
    if isinstance(expected[0], str):
        assert hashed.keys[:, 0].tolist() == keys_of(expected, 0).tolist()
    elif isinstance(expected[0], list):
        assert hashed.bags["x"].keys.tolist() == keys_of([value for one in expected for value in one], 0).tolist()
        assert hashed.bags["x"].offsets.diff().tolist() == [len(one) for one in expected]
    else:
        np.testing.assert_array_equal(hashed.numbers[:, 0], np.float32(expected))
        for wrong in ("12 apples", "1,2,3.4", "€", "1..2", "12-13", "$1 $2 3"):
            with pytest.raises(ClickLogError, match="row 0: 'x' cannot be read"):
                hash_keys(pl.DataFrame({"x": [wrong]}), {"x": kind})


SCALES = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
FORMS = ("%d/%m/%Y", "%m/%d/%Y %H:%M", "%b %d, %Y", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %I:%M %p")


@pytest.mark.parametrize("unit", [*SCALES, "iso", "date", *FORMS])
def test_times_have_the_hours_and_weekdays_of_the_calendar(unit: str) -> None:
    seconds = [0, -1, 86_399, 86_400, -86_400, 951_782_400, 4_102_444_799, *range(0, 10**7, 173 * 3607)]
    times = [dt.datetime(1970, 1, 1) + dt.timedelta(seconds=one) for one in seconds]
    if scale := SCALES.get(unit):
        texts = [str(one * scale + scale // 2) for one in seconds]
    else:
        texts = [time.strftime({"iso": "%Y-%m-%d %H:%M:%S", "date": "%Y-%m-%d"}.get(unit, unit)) for time in times]
    if unit == "iso":  # in the zone that is written
        for text in ("2024-03-01T00:30:00+02:00", "2024-02-29 22:30:00Z", "2024-02-29T17:00:59.9-0530"):
            texts.append(text)
            times.append(dt.datetime.fromisoformat(text))
    hashed = hash_keys(pl.DataFrame({"t": [*texts, "NA"]}), {"t": f"timestamp {unit}"})
    weekdays = [*(str(time.isoweekday()) for time in times), ""]
    assert hashed.keys[:, -1].tolist() == keys_of(weekdays, len(hashed.fields) - 1).tolist()
    if unit not in ("date", "%d/%m/%Y", "%b %d, %Y"):
        assert hashed.fields == ("t.hour", "t.weekday")
        assert hashed.keys[:, 0].tolist() == keys_of([*(str(time.hour) for time in times), ""], 0).tolist()
    else:
        assert hashed.fields == ("t.weekday",)
    with pytest.raises(ClickLogError, match=r"row 1: 't' cannot be read: 't=soon'"):
        hash_keys(pl.DataFrame({"t": [texts[0], "soon"]}), {"t": f"timestamp {unit}"})


DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=i * 7 % 90) for i in range(ROWS)]
SEEN = pl.Series([dt.datetime(2024, 3, 30) + dt.timedelta(minutes=7 * i) for i in range(ROWS)])
TYPED = {
    "clicked": pl.Series([i % 3 == 0 for i in range(ROWS)]),
    "ts": SEEN.dt.replace_time_zone("UTC").dt.convert_time_zone("America/New_York"),
    "seen": SEEN,
    "day": pl.Series(DAYS),
    "price": pl.Series([None if i % 11 == 0 else i * 37 % 501 / 8 for i in range(ROWS)]),
    "narrow": pl.Series([i * 37 % 501 / 8 for i in range(ROWS)], dtype=pl.Float32),
    "gap": pl.Series([math.nan if i % 11 == 0 else float(i * 7919 % 211) for i in range(ROWS)]),
    "whole": pl.Series([None if i % 13 == 0 else i * 7919 % 211 for i in range(ROWS)], dtype=pl.Int16),
    "mobile": pl.Series([None if i % 5 == 0 else i % 2 == 0 for i in range(ROWS)]),
    "amount": pl.Series([f"{i % 300}.25" for i in range(ROWS)]).cast(pl.Decimal(10, 2)),
    "word": pl.Series([("日本", "", None, f"w{i % 9}")[min(i, 3)] for i in range(ROWS)], dtype=pl.Categorical),
    "tags": pl.Series([[f'a"{j},' for j in range(i % 3)] for i in range(ROWS)]),
    "numbers": pl.Series([list(range(i % 3 + 1)) for i in range(ROWS)]),
}
USERS = [{"name": f"u{i % 9}", "place": {"city": f"c{i % 4}", "when": day}} for i, day in enumerate(DAYS)]
ITEMS = [[{"sku": f"s{i * j % 7}", "n": j} for j in range(i % 4)] for i in range(ROWS)]
NESTED_FRAME = pl.DataFrame(TYPED | {"user": USERS, "items": ITEMS})
OPENED: dict[str, Any] = {
    "user.name": [user["name"] for user in USERS],
    "user.place.city": [f"c{i % 4}" for i in range(ROWS)],
    "user.place.when": DAYS,
    "items.sku": [[item["sku"] for item in one] for one in ITEMS],
    "items.n": pl.Series([[item["n"] for item in one] for one in ITEMS], dtype=pl.List(pl.Int64)),
}
FLAT_FRAME = pl.DataFrame(TYPED | OPENED)
"""The same with structs opened: a field of a struct is a column, of a list of structs a list."""


def twin(path: Path) -> Path:
    """The CSV that people write of the flat frame."""
    texts = {name: FLAT_FRAME[name] for name in FLAT_FRAME.columns}
    for name in ("tags", "numbers", "items.sku", "items.n"):
        texts[name] = pl.Series([json.dumps(value) for value in texts[name].to_list()])
    texts["gap"] = texts["gap"].fill_nan(None)
    texts["ts"] = texts["ts"].dt.strftime("%Y-%m-%d %H:%M:%S%:z")
    pl.DataFrame(texts).write_csv(path, datetime_format="%Y-%m-%d %H:%M:%S")
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_typed_columns_give_what_their_csv_gives(suffix: str, tmp_path: Path) -> None:
    path = write(NESTED_FRAME, tmp_path / f"log{suffix}")
    typed, text = chosen(path), chosen(twin(tmp_path / "log.csv"))
    assert typed.fields == text.fields
    assert typed.fields[-5:] == ("user.name", "user.place.city", "user.place.when.weekday", "items.sku", "items.n")
    assert typed.numbers == text.numbers == ("price", "narrow", "gap.number", "whole.number", "amount")
    assert (typed.time, typed.lists) == (text.time, text.lists)
    assert tuple(typed.lists) == ("tags", "numbers", "items.sku", "items.n")
    ours, theirs = (
        prepare([log], tmp_path / log.suffix[1:], vocabulary=True)[0] for log in (path, tmp_path / "log.csv")
    )
    assert ours.manifest.features == theirs.manifest.features
    assert rows_of(ours).times.tolist() == SEEN.dt.epoch("s").to_list()
    for log in (ours, open_log(path, columns=theirs.columns, chunk_bytes=1_000)):  # the one is read as the other was
        assert_same(rows_of(log), rows_of(theirs))
    vocabulary = pl.read_parquet(tmp_path / suffix[1:] / "vocabulary.parquet").filter(pl.col("field") == "tags")
    assert set(vocabulary["value"]) == {"", 'a"0,', 'a"1,'}
    assert keys_of(vocabulary["value"], typed.fields.index("tags")).tolist() == vocabulary["key"].to_list()


def test_columns_of_structs_may_be_categories_and_their_names_are_unique(tmp_path: Path) -> None:
    nested = NESTED_FRAME.select("user", label="whole").head(20)
    nested.write_parquet(tmp_path / "log.parquet")
    assert chosen(tmp_path / "log.parquet", columns="categorical").fields == tuple(OPENED)[:3]
    nested.with_columns(pl.lit("x").alias("user.name")).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(ClickLogError, match=r"column 'user\.name' appears 2 times"):
        open_log(tmp_path / "log.parquet")


@pytest.mark.parametrize("kind", ["polars", "pandas", "arrow", "capsule"])
def test_the_keys_of_a_frame_are_those_of_its_log(kind: str, tmp_path: Path) -> None:
    frame = NESTED_FRAME
    frame.write_parquet(tmp_path / "log.parquet")
    log = open_log(tmp_path / "log.parquet")

    class Capsule:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return frame.to_arrow().__arrow_c_stream__(requested_schema)

    given: Any = {"polars": frame, "arrow": frame.to_arrow(), "capsule": Capsule()}.get(kind)
    if kind == "pandas":
        given = pytest.importorskip("pandas") and FLAT_FRAME.drop("clicked").to_pandas().set_axis(range(7, 7 + ROWS))
    hashed, rows = hash_keys(given, log.columns), rows_of(log)  # type: ignore[arg-type]
    np.testing.assert_array_equal(hashed.keys, rows.keys)
    np.testing.assert_array_equal(hashed.numbers, rows.numbers)
    assert (tuple(hashed.bags), hashed.fields, hashed.numbers_of) == (log.lists, log.fields, log.numbers)
    assert all(a.keys.equal(b.keys) for a, b in zip(hashed.bags.values(), rows.bags, strict=True))
    if kind == "polars":
        assert {"clicked": "label", **kinds_of(columns_of(frame.drop("clicked")))} == log.columns
        by_itself = hash_keys(frame.drop("clicked"))  # whose kinds it finds itself
        np.testing.assert_array_equal(by_itself.keys, rows.keys)


def test_frames_and_values_that_do_not_fit_are_named() -> None:
    kinds = {"a": "category", "n": "number"}
    for frame, message in (
        (pl.DataFrame({"a": ["x"]}), "no column 'n' in the frame; the columns are a"),
        (pl.DataFrame({"a": ["x", "y"], "n": ["1", "dear"]}), "row 1: 'n' cannot be read: 'n=dear'"),
        (object(), "a data frame is expected"),
    ):
        with pytest.raises(ClickLogError, match=message):
            hash_keys(frame, kinds)
    np.testing.assert_array_equal(hash_keys(pa.table({"a": ["x"], "n": [None]}), kinds).numbers, [[math.nan]])
