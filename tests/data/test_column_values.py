"""What becomes of columns: against plain Python, and of typed columns against their CSV."""

import datetime as dt
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from column_cases import ROWS, chosen, csv_of, everything, iso
from data_cases import assert_equal, rows_of, write, written
from sparsegroup.data import ClickLogError, columns_of, hash_keys, kinds_of, open_log, prepare
from sparsegroup.data.keys import keys_of
from sparsegroup.data.schema import LogFormat


def test_what_becomes_of_columns(tmp_path: Path) -> None:
    columns = everything()
    log, _ = prepare([csv_of(tmp_path / "log.csv", columns)], tmp_path / "out", vocabulary=True)
    rows = rows_of(log)
    fields = log.fields
    assert fields == ("ts.hour", "ts.weekday", "stars", "words", "lists", "JSON", "yes and no", "ISO.hour",
                      "ISO.weekday", "dates.weekday", "mixed")  # fmt: skip
    assert log.lists == ("lists", "JSON")
    assert log.numbers == ("stars.number", "decimals with words for missing")
    assert rows.labels.tolist() == [float(value == "true") for value in columns["clicked"]]
    seconds = [int(value) // 1000 for value in columns["ts"]]
    assert (log.timed, rows.times.tolist()) == (True, seconds)
    times = {
        "ts": [dt.datetime.fromtimestamp(value, dt.UTC) for value in seconds],
        "ISO": [dt.datetime.fromisoformat(value) for value in columns["ISO"]],
        "dates": [dt.datetime.fromisoformat(value) for value in columns["dates"]],
    }
    expected = {f"{name}.hour": [str(time.hour) for time in of] for name, of in times.items()}
    expected |= {f"{name}.weekday": [str(time.isoweekday()) for time in of] for name, of in times.items()}
    expected["stars"] = [str(float(value)).removesuffix(".0") for value in columns["stars"]]
    expected["yes and no"] = [{"yes": "1", "no": "0", "": ""}[value] for value in columns["yes and no"]]
    expected |= {name: columns[name] for name in ("words", "mixed")}
    single = [name for name in fields if name not in log.lists]
    for place, name in enumerate(single):
        assert rows.keys[:, place].tolist() == keys_of(expected[name], fields.index(name)).tolist(), name
    prices = [math.nan if value == "NA" else float(value) for value in columns["decimals with words for missing"]]
    np.testing.assert_array_equal(rows.numbers[:, 1], np.float32(prices))
    np.testing.assert_array_equal(rows.numbers[:, 0], np.float32([float(value) for value in columns["stars"]]))
    bags = next(log.batches(0, len(log), len(log))).bags
    lists = [[value.split("|") for value in columns["lists"]], [json.loads(value) or [""] for value in columns["JSON"]]]
    for name, bag, values in zip(log.lists, bags, lists, strict=True):
        assert np.diff(bag.offsets).tolist() == [len(one) for one in values]
        flat = [value for one in values for value in one]
        assert bag.keys.tolist() == keys_of(flat, fields.index(name)).tolist()
    vocabulary = pl.read_parquet(tmp_path / "out" / "vocabulary.parquet")
    for name in log.lists:
        kept = vocabulary.filter(pl.col("field") == name)
        assert keys_of(kept["value"], fields.index(name)).tolist() == kept["key"].to_list()


def test_times_have_the_hour_of_the_zone_that_is_written_and_seconds_in_utc() -> None:
    texts = ["2024-03-01T00:30:00+02:00", "2024-02-29 22:30:00Z", "2024-02-29T22:30", "2024-02-29T17:00:59.9-0530",
             "1969-12-31 23:59:59", ""]  # fmt: skip
    hashed = hash_keys(pl.DataFrame({"t": texts}), {"t": "timestamp iso"})
    parsed = [dt.datetime.fromisoformat(text) for text in texts[:-1]]
    assert hashed.keys[:, 0].tolist() == keys_of([*(str(time.hour) for time in parsed), ""], 0).tolist()
    assert hashed.keys[:, 1].tolist() == keys_of([*(str(time.isoweekday()) for time in parsed), ""], 1).tolist()


@pytest.mark.parametrize("seconds", [0, -1, 86_399, 86_400, -86_400, 951_782_400, 4_102_444_799])
@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_hours_and_weekdays_are_those_of_the_calendar(seconds: int, unit: str, scale: int) -> None:
    time = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)
    hashed = hash_keys(pl.DataFrame({"t": [seconds * scale + scale // 2]}), {"t": f"timestamp {unit}"})
    assert hashed.keys[0].tolist() == [*keys_of([str(time.hour)], 0), *keys_of([str(time.isoweekday())], 1)]


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y %H:%M", "%b %d, %Y", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %I:%M %p"])
def test_times_of_a_format_are_those_of_strptime(form: str) -> None:
    times = [dt.datetime(2024, 1, 1) + dt.timedelta(hours=173 * i, minutes=7 * i, seconds=i) for i in range(60)]
    texts = [time.strftime(form) for time in times]
    hashed = hash_keys(pl.DataFrame({"t": [*texts, "NA"]}), {"t": f"timestamp {form}"})
    parsed = [dt.datetime.strptime(text, form) for text in texts]
    weekdays = [*(str(time.isoweekday()) for time in parsed), ""]
    assert hashed.keys[:, -1].tolist() == keys_of(weekdays, len(hashed.fields) - 1).tolist()
    if "%H" in form or "%I" in form:
        assert hashed.fields == ("t.hour", "t.weekday")
        assert hashed.keys[:, 0].tolist() == keys_of([*(str(time.hour) for time in parsed), ""], 0).tolist()
    else:
        assert hashed.fields == ("t.weekday",)
    with pytest.raises(ClickLogError, match=r"row 1: 't' cannot be read: 't=soon'"):
        hash_keys(pl.DataFrame({"t": [texts[0], "soon"]}), {"t": f"timestamp {form}"})


AMOUNTS = {
    "amount": {
        "$1,234.50": 1234.5, "30 %": 30, "-7.5%": -7.5, "USD 12": 12, "1 234 567 kr": 1234567, "£.5": 0.5, "3": 3,
        "1'000.25 CHF": 1000.25, "-$5.00": -5, "R$ 10.00": 10, "+4 zł": 4, "NULL": math.nan, "": math.nan,
    },
    "amount comma": {
        "9,84 €": 9.84, "1.234,50 EUR": 1234.5, "-0,5%": -0.5, "1 234,5 Kč": 1234.5, "12": 12, "€ 3,00": 3,
        "-": math.nan,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", AMOUNTS)
def test_amounts_are_the_numbers_in_them(kind: str) -> None:
    texts = list(AMOUNTS[kind])
    hashed = hash_keys(pl.DataFrame({"a": pl.Series(texts).replace("", None), "b": "x"}), {"a": kind, "b": "category"})
    np.testing.assert_array_equal(hashed.numbers[:, 0], np.float32(list(AMOUNTS[kind].values())))
    for wrong in ("12 apples", "1,2,3.4", "€", "1..2", "12-13", "$1 $2 3"):
        with pytest.raises(ClickLogError, match="row 0: 'a' cannot be read"):
            hash_keys(pl.DataFrame({"a": [wrong]}), {"a": kind})


def test_words_and_domains() -> None:
    titles = ["The red car, the RED one!", "Über-Größe 42", "", "...", " ".join(map(str, range(100)))]
    hashed = hash_keys(pl.DataFrame({"t": titles}), {"t": "words"})
    words = [["the", "red", "car", "one"], ["über", "größe", "42"], [""], [""], [str(i) for i in range(64)]]
    assert hashed.bags["t"].keys.tolist() == keys_of([word for one in words for word in one], 0).tolist()
    assert hashed.bags["t"].offsets.diff().tolist() == [len(one) for one in words]
    mails = ["Ann@Site.COM", "https://user@Shop.example:80/a?b@c", "ftp://x.org", "nothing", "", "NA"]
    hashed = hash_keys(pl.DataFrame({"m": mails}), {"m": "category, domain"})
    assert hashed.fields == ("m", "m.domain")
    assert hashed.keys[:, 0].tolist() == keys_of(mails, 0).tolist()
    domains = ["site.com", "shop.example", "x.org", "nothing", "", ""]
    assert hashed.keys[:, 1].tolist() == keys_of(domains, 1).tolist()


def test_structs_are_opened(tmp_path: Path) -> None:
    """A field of a struct is a column, of a list of structs a list: in Parquet, in Arrow, and in frames."""
    days = [dt.date(2024, 1, 1 + i % 28) for i in range(ROWS)]
    users = [{"name": f"u{i % 9}", "place": {"city": f"c{i % 4}", "when": day}} for i, day in enumerate(days)]
    items = [[{"sku": f"s{i * j % 7}", "n": j} for j in range(i % 4)] for i in range(ROWS)]
    nested = pl.DataFrame({"label": [i % 2 for i in range(ROWS)], "user": users, "items": items})
    flat = pl.DataFrame({
        "label": nested["label"],
        "user.name": [user["name"] for user in users],
        "user.place.city": [user["place"]["city"] for user in users],
        "user.place.when": [user["place"]["when"] for user in users],
        "items.sku": [[item["sku"] for item in one] for one in items],
        "items.n": pl.Series([[item["n"] for item in one] for one in items], dtype=pl.List(pl.Int64)),
    })  # fmt: skip
    flat.write_parquet(tmp_path / "flat.parquet")
    nested.write_parquet(tmp_path / "nested.parquet")
    nested.write_ipc(tmp_path / "nested.arrow")
    expected = open_log(tmp_path / "flat.parquet")
    assert expected.fields == ("user.name", "user.place.city", "user.place.when.weekday", "items.sku", "items.n")
    assert expected.lists == ("items.sku", "items.n")
    for name in ("nested.parquet", "nested.arrow"):
        log = open_log(tmp_path / name, chunk_bytes=1_000)
        assert (log.fields, log.columns) == (expected.fields, expected.columns)
        (ours,), (theirs,) = (one.batches(100, ROWS, ROWS) for one in (log, expected))
        assert ours.keys.tolist() == theirs.keys.tolist()
        assert [bags.keys.tolist() for bags in ours.bags] == [bags.keys.tolist() for bags in theirs.bags]
    features = {name: kind for name, kind in expected.columns.items() if kind != "label"}
    ours, theirs = (hash_keys(frame.drop("label"), features) for frame in (nested, flat))
    assert ours.keys.tolist() == theirs.keys.tolist()
    assert ours.bags["items.n"].keys.tolist() == theirs.bags["items.n"].keys.tolist()
    assert open_log(tmp_path / "nested.parquet", columns="categorical", exclude=["items.sku", "items.n"]).fields == (
        "user.name", "user.place.city", "user.place.when",
    )  # fmt: skip
    nested.with_columns(pl.lit("x").alias("user.name")).write_parquet(tmp_path / "twice.parquet")
    with pytest.raises(ClickLogError, match=r"column 'user\.name' appears 2 times"):
        open_log(tmp_path / "twice.parquet")


TYPED = {
    "clicked": pl.Series([i % 3 == 0 for i in range(ROWS)]),
    "ts": pl.Series([dt.datetime(2024, 3, 30) + dt.timedelta(minutes=7 * i) for i in range(ROWS)]),
    "zoned": pl.Series([dt.datetime(2024, 3, 30) + dt.timedelta(minutes=7 * i) for i in range(ROWS)])
    .dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin"),
    "day": pl.Series([dt.date(2024, 1, 1) + dt.timedelta(days=i * 7 % 90) for i in range(ROWS)]),
    "price": pl.Series([None if i % 11 == 0 else i * 37 % 501 / 8 for i in range(ROWS)]),
    "narrow": pl.Series([i * 37 % 501 / 8 for i in range(ROWS)], dtype=pl.Float32),
    "gap": pl.Series([math.nan if i % 11 == 0 else float(i * 7919 % 211) for i in range(ROWS)]),
    "whole": pl.Series([i * 7919 % 211 for i in range(ROWS)], dtype=pl.Int16),
    "mobile": pl.Series([None if i % 5 == 0 else i % 2 == 0 for i in range(ROWS)]),
    "amount": pl.Series([f"{i % 300}.25" for i in range(ROWS)]).cast(pl.Decimal(10, 2)),
    "word": pl.Series([f"w{i % 9}" for i in range(ROWS)], dtype=pl.Categorical),
    "tags": pl.Series([[f'a"{j},' for j in range(i % 3)] for i in range(ROWS)]),
    "numbers": pl.Series([list(range(i % 3 + 1)) for i in range(ROWS)]),
}  # fmt: skip


def twin(path: Path) -> Path:
    """The CSV that people write of typed columns."""
    texts = dict(TYPED)
    for name in ("tags", "numbers"):
        texts[name] = pl.Series([json.dumps(value) for value in TYPED[name].to_list()])
    texts["gap"] = TYPED["gap"].fill_nan(None)
    pl.DataFrame(texts).write_csv(path, datetime_format="%Y-%m-%d %H:%M:%S%:z".replace("%:z", ""))
    zoned = TYPED["zoned"].dt.strftime("%Y-%m-%d %H:%M:%S%:z")
    pl.DataFrame(texts | {"zoned": zoned}).write_csv(path, datetime_format="%Y-%m-%d %H:%M:%S")
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_typed_columns_give_what_their_csv_gives(suffix: str, tmp_path: Path) -> None:
    path = write(pl.DataFrame(TYPED), tmp_path / f"log{suffix}")
    typed, text = chosen(path), chosen(twin(tmp_path / "log.csv"))
    assert typed.fields == text.fields
    assert typed.numbers == text.numbers == ("price", "narrow", "gap.number", "whole.number", "amount")
    assert (typed.time, typed.lists) == (text.time, text.lists)
    ours, theirs = (prepare([log], tmp_path / log.suffix[1:])[0] for log in (path, tmp_path / "log.csv"))
    assert_equal(rows_of(ours), rows_of(theirs))
    for one, other in zip(ours.batches(0, ROWS, ROWS), theirs.batches(0, ROWS, ROWS), strict=True):
        assert all(
            a.keys.equal(b.keys) and a.offsets.equal(b.offsets) for a, b in zip(one.bags, other.bags, strict=True)
        )
    # and the one is read as the other was
    crossed = open_log(path, columns=theirs.columns)
    np.testing.assert_array_equal(rows_of(crossed).keys, rows_of(theirs).keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["polars", "pandas", "arrow", "capsule"])
def test_the_keys_of_a_frame_are_those_of_its_log(kind: str, tmp_path: Path) -> None:
    frame = pl.DataFrame(TYPED)
    frame.write_parquet(tmp_path / "log.parquet")
    log = open_log(tmp_path / "log.parquet")

    class Capsule:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return frame.to_arrow().__arrow_c_stream__(requested_schema)

    given: Any = {"polars": frame, "arrow": frame.to_arrow(), "capsule": Capsule()}.get(kind)
    if kind == "pandas":
        given = pytest.importorskip("pandas") and frame.drop("clicked").to_pandas().set_axis(range(7, 7 + ROWS))
    hashed, rows = hash_keys(given, log.columns), rows_of(log)  # type: ignore[arg-type]
    np.testing.assert_array_equal(hashed.keys, rows.keys)
    np.testing.assert_array_equal(hashed.numbers, rows.numbers)
    (batch,) = log.batches(0, ROWS, ROWS)
    assert (tuple(hashed.bags), hashed.fields, hashed.numbers_of) == (log.lists, log.fields, log.numbers)
    assert all(a.keys.equal(b.keys) for a, b in zip(hashed.bags.values(), batch.bags, strict=True))
    kinds = kinds_of(columns_of(frame.drop("clicked")))
    assert {"clicked": "label", **kinds} == log.columns
    by_itself = hash_keys(frame.drop("clicked"))  # whose kinds it finds itself
    np.testing.assert_array_equal(by_itself.keys, rows.keys)
    np.testing.assert_array_equal(by_itself.numbers, rows.numbers)


def test_frames_and_values_that_do_not_fit_are_named(tmp_path: Path) -> None:
    kinds = {"a": "category", "n": "number"}
    for frame, message in (
        (pl.DataFrame({"a": ["x"]}), "no column 'n' in the frame; the columns are a"),
        (pl.DataFrame({"a": ["x", "y"], "n": ["1", "dear"]}), "row 1: 'n' cannot be read: 'n=dear'"),
        (object(), "a data frame is expected"),
    ):
        with pytest.raises(ClickLogError, match=message):
            hash_keys(frame, kinds)
    np.testing.assert_array_equal(hash_keys(pa.table({"a": ["x"], "n": [None]}), kinds).numbers, [[math.nan]])
    rows = [f"{i % 2},{i / 7},{iso(i)},c{i % 3}" for i in range(200)]
    rows += ["1,dear,2024-01-01,c1", "1,2.5,soon,c1", "1,,,c1"]
    path = written(tmp_path / "log.csv", "\n".join(["label,price,seen,c", *rows]))
    kinds = {"label": "label", "price": "number", "seen": "timestamp iso", "c": "category"}
    with pytest.raises(ClickLogError, match=r"log.csv:202: 'price' cannot be read: 'price=dear'"):
        list(open_log(path, columns=kinds).batches(0, 203, 203))
    log = open_log(path, columns=kinds, on_bad_row="skip", max_bad=0.1)
    assert (len(log), log.bad_rows) == (201, {"'price' cannot be read": 1, "'seen' cannot be read": 1})


def test_labels_in_words_hold_for_every_format(tmp_path: Path) -> None:
    words = ["true", "False", "YES", "no", "1.0", "0", "1", "TRUE"]
    expected = [1, 0, 1, 0, 1, 0, 1, 1]
    path = written(tmp_path / "log.csv", "label,a\n" + "\n".join(f"{word},x{i}" for i, word in enumerate(words)))
    logs = [
        open_log(path),
        open_log(path, columns="categorical"),
        open_log(path, format=LogFormat("log", "label", ("a",))),
    ]
    for log in logs:
        assert rows_of(log).labels.tolist() == expected  # type: ignore[arg-type]
    criteo = written(tmp_path / "train.txt", "\n".join(f"{i % 2}" + "\t" * 39 for i in range(3)).replace("1", "true"))
    assert rows_of(open_log(criteo, dataset="criteo")).labels.tolist() == [0, 1, 0]  # type: ignore[arg-type]
