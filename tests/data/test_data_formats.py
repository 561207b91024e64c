"""Keys; raw logs of every format, and what is made of them; schemas and options that say how a log is read."""

import csv
import io
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_cases import (
    AGENTS,
    AVAZU,
    INTEGERS,
    PRICES,
    SCHEMA,
    avazu_log,
    compress,
    criteo_log,
    ipinyou_log,
    keys,
    rows_of,
    written,
)
from over import over
from sparsegroup.data import ClickLogError, LogOptionError, open_log, prepare
from sparsegroup.data.formats import avazu, criteo, ipinyou
from sparsegroup.data.keys import MOST_FIELDS, expected_collisions, fields_of, keys_of
from sparsegroup.data.open import format_of
from sparsegroup.data.raw.files import raw_file
from sparsegroup.data.schema import LogFormat, read_schema

# Keys

XXH3_64 = {
    "": 0x2D06800538D394C2,
    "abc": 0x78AF5F94892F3950,
    "a" * 17: 0x39127B6816C5F92A,
    "日本": 0x2C17FB837F1A1BC0,
    "x" * 200: 0x50EF124FB1E4DE53,
    "0123456789abcdef" * 20: 0x40C383CC89D2F624,
}


def key(value: str, field: int) -> int:
    """The format, in Python's integers."""
    unsigned = field << 56 | XXH3_64[value] & (1 << 56) - 1
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def test_a_key_is_the_field_over_the_hash_of_the_value() -> None:
    every = [keys_of(list(XXH3_64), field) for field in range(MOST_FIELDS)]
    for field, found in enumerate(every):
        assert found.dtype == np.int64
        assert found.tolist() == [key(value, field) for value in XXH3_64]
        assert fields_of(found).tolist() == [field] * len(XXH3_64)
    assert len(np.unique(np.concatenate(every))) == len(XXH3_64) * 256  # no two fields share a key


def test_a_missing_value_is_the_empty_string_and_containers_make_no_difference() -> None:
    missing, empty = keys_of([None, ""], 3)
    assert missing == empty == keys_of([None], 3) == keys_of(pl.Series([None], dtype=pl.Null), 3)
    values = ["a", None, "b", "a"]
    series = pl.Series(values)
    assert keys_of(series, 2).tolist() == keys_of(values, 2).tolist() == keys_of(series.to_arrow(), 2).tolist()
    assert len(keys_of([], 2)) == 0


def test_expected_collisions_are_those_of_the_birthday_problem() -> None:
    assert expected_collisions({}) == 0
    assert expected_collisions({"a": 1}) == 0
    assert expected_collisions({"a": 2, "b": 2}) == 2 / 2**56
    assert expected_collisions({"a": 1 << 28}) == pytest.approx(0.5, rel=1e-6)


# Public logs, CSV, and columnar logs


def test_avazu(tmp_path: Path) -> None:
    hours = ["14102100", "14102100", "14102123", "14102200", "14102205"]
    path = avazu_log(tmp_path / "train.csv", hours)
    log, _ = prepare([path], tmp_path / "hour")
    manifest = log.manifest
    assert (manifest.dataset, len(manifest.fields), manifest.rows, manifest.train_rows) == ("avazu", 22, 5, 3)
    assert manifest.positives == 2
    rows = rows_of(log)
    assert rows.keys[:, 0].tolist() == keys_of(["00", "00", "23", "00", "05"], 0).tolist()
    assert rows.keys[:, 21].tolist() == keys_of([f"c{i % 21}" for i in range(5)], 21).tolist()
    assert rows.times[0] == 1413849600  # 2014-10-21 00:00 UTC
    assert rows.times[4] - rows.times[0] == 29 * 3600

    two, _ = prepare([path], tmp_path / "two", avazu("weekday-hour"))
    assert two.manifest.fields[:2] == ("weekday", "hour")
    assert rows_of(two).keys[:, :2].tolist() == keys([["2", "00"], ["2", "00"], ["2", "23"], ["3", "00"], ["3", "05"]])
    raw, _ = prepare([path], tmp_path / "raw", avazu("raw"))
    assert rows_of(raw).keys[:, 0].tolist() == keys_of(hours, 0).tolist()


@pytest.mark.parametrize("numbers", ["log", "buckets"])
def test_criteo(numbers: Literal["log", "buckets"], tmp_path: Path) -> None:
    log, _ = prepare([criteo_log(tmp_path / "train.txt", INTEGERS, rows=15)], tmp_path / "out", criteo(numbers))
    manifest, rows = log.manifest, rows_of(log)
    assert (manifest.dataset, manifest.rows, manifest.train_rows) == ("criteo", 15, 12)
    assert rows.times.tolist() == list(range(1, 16))
    assert (manifest.features["C26"], manifest.features["C1"]) == ((1, 1), (15, 12))
    texts = [f"a{j}" for j in range(25)] + [""]
    if numbers == "log":
        assert (len(manifest.fields), len(manifest.numbers)) == (26, 13)
        expected = [math.copysign(math.log1p(abs(int(x or 0))), int(x or 0)) for x in INTEGERS]
        np.testing.assert_allclose(rows.numbers[7], expected, rtol=1e-6)
        assert rows.keys[10].tolist() == keys([texts])[0]
    else:
        assert (len(manifest.fields), manifest.numbers) == (39, ())
        buckets = [x if not x or int(x) <= 2 else str(math.floor(math.log(int(x)) ** 2)) for x in INTEGERS]
        assert buckets[4] == "1"
        assert rows.keys[10].tolist() == keys([buckets + texts])[0]


AVAZU_HOURS = ["14102100", "14102101"]
UNREADABLE: list[tuple[Callable[[Path], Path], LogFormat | None, str]] = [
    *(
        (lambda at, hour=hour: avazu_log(at, [*AVAZU_HOURS, hour]), None, f"4: 'hour' cannot be read: 'hour={hour}'")
        for hour in ("", "1410210", "14102124", "14133100", "today")
    ),
    *(
        (lambda at: criteo_log(at, ["x", *INTEGERS[1:]]), criteo(numbers), "1: 'I1' cannot be read: 'I1=x'")  # type: ignore[arg-type]
        for numbers in ("log", "buckets")
    ),
    (lambda at: ipinyou_log(at, [("curl", "dear")]), ipinyou(), "2: 'slotprice' cannot be read: 'slotprice=dear'"),
]


@over(("make", "log_format", "message"), UNREADABLE)
def test_a_value_that_its_format_cannot_read_is_a_bad_row(
    make: Callable[[Path], Path], log_format: LogFormat | None, message: str, tmp_path: Path
) -> None:
    path = make(tmp_path / "log.txt")
    with pytest.raises(ClickLogError) as raised:
        prepare([path], tmp_path / "out", log_format)
    assert str(raised.value) == f"{path}:{message}"


def test_ipinyou(tmp_path: Path) -> None:
    train = ipinyou_log(tmp_path / "train.log.txt", list(zip(AGENTS, PRICES, strict=True)))
    test = ipinyou_log(tmp_path / "test.log.txt", [("curl", "100")] * 2)
    log, _ = prepare([train, test], tmp_path / "out")
    assert (log.manifest.dataset, len(log.manifest.fields)) == ("ipinyou", 16)
    assert (log.manifest.rows, log.manifest.train_rows) == (9, 7)
    column = {name: number for number, name in enumerate(log.manifest.fields)}
    rows = rows_of(log)
    agents = [*AGENTS.values(), "other_other", "other_other"]
    prices = [*PRICES.values(), "51-100", "51-100"]
    assert rows.keys[:, column["useragent"]].tolist() == keys_of(agents, column["useragent"]).tolist()
    assert rows.keys[:, column["slotprice"]].tolist() == keys_of(prices, column["slotprice"]).tolist()
    assert rows.times[3] == 20130606000000003


@pytest.mark.parametrize("prefix", ["", "{i}:"])
def test_libsvm_and_libffm(prefix: str, tmp_path: Path) -> None:
    def line(label: int, numbers: list[int], end: str = "") -> str:
        return f"{label} " + " ".join(f"{prefix.format(i=i)}{number}:1" for i, number in enumerate(numbers)) + end

    path = written(
        tmp_path / "train.txt", "\n".join([line(0, [1, 5, 9]), line(1, [2, 5, 10], " "), line(1, [1, 6, 9])])
    )
    test = written(tmp_path / "test.txt", line(0, [1, 6, 11]) + "\n")
    log, _ = prepare([path, test], tmp_path / "out")
    assert log.manifest.dataset == ("libffm" if prefix else "libsvm")
    assert (log.manifest.rows, log.manifest.train_rows, log.manifest.fields) == (4, 3, ("1", "2", "3"))
    expected = keys([["1", "5", "9"], ["2", "5", "10"], ["1", "6", "9"], ["1", "6", "11"]])
    assert rows_of(log).keys.tolist() == expected
    assert log.manifest.features == {"1": (2, 2), "2": (2, 2), "3": (3, 2)}

    for wrong, why in ((":1 ", ":0.5 "), ("1 ", "1 x"), (":1 ", " ")):
        rows = [line(0, [1, 5, 9]), line(1, [1, 5, 9]).replace(wrong, why, 1)]
        bad = written(tmp_path / "bad.txt", "\n".join(rows))
        with pytest.raises(ClickLogError, match=r"bad.txt:2: '1' cannot be read"):
            prepare([bad], tmp_path / "bad")
    few = written(tmp_path / "few.txt", line(0, [1, 5, 9]) + "\n" + line(0, [1, 5]) + "\n")
    with pytest.raises(ClickLogError, match=r"few.txt:2: 3 columns where 4 are expected"):
        prepare([few], tmp_path / "few")


@pytest.mark.parametrize("signs", [("1", "-1"), ("+1", "-1"), ("-1", "+1"), ("-1.0", "1.0")])
def test_labels_of_libsvm_may_be_1_and_minus_1(signs: tuple[str, str], tmp_path: Path) -> None:
    text = "".join(f"{signs[i % 2]} {i % 5}:1 {i % 3}:1\n" for i in range(20))
    is_sign = signs[0] != "1"  # a first label 1 may also be that of a log with labels 0 and 1
    log = written(tmp_path / "log.svm", text)
    if is_sign:
        assert rows_of(open_log(log)).labels.tolist() == [float(float(signs[i % 2]) > 0) for i in range(20)]
    else:
        with pytest.raises(ClickLogError, match=r"log.svm:2: .*'label=-1'"):
            open_log(log)
    with pytest.raises(ClickLogError, match="must be"):
        open_log(written(tmp_path / "log.svm", text + "2 1:1 2:1\n"))


def test_a_log_of_its_own_for_the_test_set(tmp_path: Path) -> None:
    days = [avazu_log(tmp_path / f"{i}.txt", ["14102100", "14102200", "14102200"]) for i in range(2)]
    splits = [written(tmp_path / f"{i}.csv", "label,a,split\n0,x,2\n1,y,1\n0,z,0\n") for i in range(2)]
    for name, logs in (("days", days), ("splits", splits)):
        log, _ = prepare(logs, tmp_path / name)
        assert (log.manifest.rows, log.manifest.train_rows) == (6, 3)  # neither days nor splits count
    train = written(tmp_path / "train.csv", "label,a,b\n0,x,y\n")
    test = written(tmp_path / "test.csv", "b,label,a\nv,1,u\n")
    log, _ = prepare([train, test], tmp_path / "out")
    assert rows_of(log).keys.tolist() == keys([["x", "y"], ["u", "v"]])
    with pytest.raises(ClickLogError, match=r"less.csv:1: no column 'b'; the columns are label, a"):
        prepare([train, written(tmp_path / "less.csv", "label,a\n0,1\n")], tmp_path / "less")


def test_a_schema_file(tmp_path: Path) -> None:
    log_format = read_schema(written(tmp_path / "schema.yaml", SCHEMA))
    lines = ["junk,click,when,color,price,tags,part", "j,1,10,red,2.5,x|y|x,0", "j,0,11,,,,0", "j,0,12,blue,-1,y,2"]
    path = written(tmp_path / "a.csv", "\n".join(lines))
    log, _ = prepare([path], tmp_path / "out", log_format, vocabulary=True)
    manifest = log.manifest
    assert (manifest.fields, manifest.numbers, manifest.lists) == (("color", "tags"), ("price",), ("tags",))
    assert (manifest.rows, manifest.train_rows) == (3, 2)
    frame = pl.read_parquet(tmp_path / "out" / "part-*.parquet")
    expected = [keys_of(values, 1).tolist() for values in (["x", "y", "x"], [""], ["y"])]
    assert frame["tags"].to_list() == expected
    assert frame["price"].to_list() == [2.5, 0.0, -1.0]
    assert frame["time"].to_list() == [10, 11, 12]
    assert manifest.features == {"color": (3, 2), "tags": (3, 3)}
    (batch,) = log.batches(0, 3, 3)
    assert batch.keys.tolist() == keys_of(["red", "", "blue"], 0)[:, None].tolist()
    assert batch.bags[0].keys.tolist() == [key for keys in expected for key in keys]
    assert batch.bags[0].offsets.tolist() == [0, 3, 4, 5]
    vocabulary = pl.read_parquet(tmp_path / "out" / "vocabulary.parquet")
    assert set(vocabulary.select("field", "value").rows()) == {
        *(("color", value) for value in ("red", "", "blue")),
        *(("tags", value) for value in ("x", "y", "")),
    }


@over(
    ("text", "message"),
    [
        ("label: click\ncategorial: [a]", "no setting 'categorial'; did you mean 'categorical'?"),
        ("categorical: [a]", "label is missing"),
        ("label: [", "not YAML"),
        ("label: a\ncategorical: b", "categorical: input should be a valid list"),
        ("label: a\nseparator: ab", "separator: string should have at most 1 character"),
        ('label: a\nmulti: {b: ""}', "multi.b: string should have at least 1 character"),
        ("label: a\nseparator: é", "separator: string should match pattern"),
        ("label: a\ncategorical: [b]\nnumeric: [b]", "column 'b' appears twice"),
        ("columns: {a: category}", "label is missing"),
        ("columns: {a: float, y: label}", "a column is one of"),
        ("label: y\ncategorical: [a]\ncolumns: {a: category}", "categorical and columns cannot both be given"),
        ("columns: {a: label, y: label}", "columns 'a' and 'y' cannot both be the label"),
        ("label: a\ncategorical: [b]\nsplit: c\ntest_fraction: 0.3", "split and test_fraction cannot both be given"),
        ("label: a\ntest_fraction: 1.0", "test_fraction: input should be"),
        ("label: a\ntest_fraction: .nan", "test_fraction: input should be"),
        ("label: a\ncategorical: [a]", "column 'a' appears twice"),
    ],
)
def test_a_wrong_schema_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "schema.yaml", text)
    with pytest.raises(ClickLogError) as raised:
        read_schema(path)
    assert str(raised.value).startswith(f"{path}: {message}")


def test_a_schema_names_the_columns_of_a_log_without_a_header(tmp_path: Path) -> None:
    text = 'label: y\ncategorical: [a]\nseparator: "\\t"\ncolumns: [a, y, c]'
    log_format = read_schema(written(tmp_path / "schema.yaml", text))
    log, _ = prepare([written(tmp_path / "a.tsv", "p\t1\t\nq\t0\tz\n")], tmp_path / "out", log_format)
    assert rows_of(log).keys.tolist() == keys([["p"], ["q"]])
    assert rows_of(log).times.tolist() == [1, 2]
    wrong = read_schema(written(tmp_path / "wrong.yaml", text.replace("[a]", "[d]")))
    with pytest.raises(ClickLogError, match=r"a.tsv:1: no column 'd'; the columns are a, y, c"):
        prepare([tmp_path / "a.tsv"], tmp_path / "wrong", wrong)


def test_what_a_columnar_log_may_hold(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"label": [0, 1, 2, None], "a": ["x"] * 4}).write_parquet(path)
    with pytest.raises(ClickLogError, match=r"parquet:3: label 'label' must be 0 or 1, .*: 'label=2'"):  # rows from 1
        prepare([path], tmp_path / "out")
    log, (bad,) = prepare([path], tmp_path / "skip", on_bad_row="skip", max_bad=0.5)
    assert (len(log), bad.count) == (2, 2)
    pl.DataFrame({"label": [0, 1], "a": [["x"], ["y", "z"]]}).write_parquet(path)
    with pytest.raises(ClickLogError, match=r"log.parquet: column 'a' is .*list.*; write it as text"):
        prepare([path], tmp_path / "out", columns="categorical")
    pl.DataFrame({"label": [False, True], "a": ["x", "y"], "n": [1e20, -1.0]}).write_parquet(path)
    log, _ = prepare([path], tmp_path / "large", LogFormat("log", "label", ("a",), numbers=("n",)))
    assert rows_of(log).labels.tolist() == [0, 1]
    assert rows_of(log).numbers[:, 0].tolist() == [np.float32(1e20), -1.0]  # no integer is that large


TABLE = pa.table({"label": [0, 1] * 20, "a": ["x", "y,z", "", 'q"u;o|te'] * 10})
TEXT = "label,a\n" + "0,x\n1,y\n" * 20


def contents() -> dict[str, bytes]:
    """Kind of content → the bytes of a log of 40 rows."""
    parquet, arrow, archive = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pq.write_table(TABLE, parquet)
    with pa.ipc.new_file(arrow, TABLE.schema) as writer:
        writer.write_table(TABLE)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("log.csv", TEXT)
    lines = "".join(f'{{"label": {i % 2}, "a": "x"}}\n' for i in range(40))
    encoded = {name: TEXT.encode(name) for name in ("utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-16-le", "utf-32")}
    packed = {suffix: compress(suffix, TEXT.encode()) for suffix in (".gz", ".bz2", ".xz", ".zst", ".lz4")}
    kinds = {".parquet": parquet.getvalue(), ".arrow": arrow.getvalue(), "zip": archive.getvalue()}
    others = {
        "json": lines.encode(), "json array": f"[{lines}]".encode(), "latin": TEXT.replace("a", "ä").encode("latin-1"),
        "carriage return": TEXT.replace("\n", "\r").encode(), "nul": bytes(40), "blank": b"\n" + TEXT.encode(),
    }  # fmt: skip
    return {**encoded, **packed, **kinds, **others}


@pytest.mark.parametrize("content", contents())
def test_a_file_is_read_or_its_content_is_named_whatever_its_suffix(content: str, tmp_path: Path) -> None:
    data = contents()[content]
    for suffix in ("", ".csv", ".parquet", ".PARQUET", ".pq", ".GZ", ".bz2", ".xz", ".Zst", ".lz4", ".arrow", ".zip"):
        path = written(tmp_path / f"log{suffix}", data)
        is_text = suffix in ("", ".csv", ".zip")
        alias = {".pq": ".parquet"}.get(suffix, suffix.lower())
        if content == alias or (is_text and content in ("utf-8", "utf-8-sig")):
            assert len(open_log(path)) == 40
            continue
        with pytest.raises(ClickLogError) as raised:
            open_log(path)
        message = str(raised.value)
        assert message.startswith(f"{path}:")
        assert message.isprintable()
        assert len(message) < len(str(path)) + 300
        words = {"json array": "JSON", "utf-16-be": "NUL", "utf-16-le": "NUL", "latin": "UTF-8", "blank": "empty"}
        if is_text:
            assert words.get(content, content.lstrip(".")).lower() in message.lower(), message


@pytest.mark.parametrize("separator", [",", ";", "|", "\t"])
def test_the_header_names_columns_as_a_csv_reader_does(separator: str, tmp_path: Path) -> None:
    names = ["label", "plain", f"a{separator}b", 'the "id"', "x"]
    if separator in "|\t":  # a quote is part of a value between these
        names = ["label", "plain", "x"]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow(names)
    for i in range(40):
        writer.writerow([i % 2, *(f"{name} {i % 3}" for name in names[1:])])
    log = open_log(written(tmp_path / "log.csv", text.getvalue()))
    assert list(log.columns) == names
    keys = rows_of(log).keys[:3].flatten().numpy()
    assert set(log.values_of(keys, 40).values()) == {f"{name} {i}" for name in names[1:] for i in range(3)}


def test_a_header_may_be_as_long_as_a_line(tmp_path: Path) -> None:
    names = [f"a column of a rather long name, number {i}".replace(",", "") for i in range(2500)]
    path = written(tmp_path / "log.csv", ",".join(["label", *names]) + "\n" + ",".join(["1"] * 2501))
    assert path.stat().st_size > 1 << 16
    assert len(raw_file(path).head.columns) == 2501


@over(("separator", "value"), [(",", "b"), ("\t", '"b"')])
def test_quotes_enclose_a_value_in_csv_and_are_part_of_it_between_tabs(
    tmp_path: Path, separator: str, value: str
) -> None:
    content = f'y{separator}a\n1{separator}"b"\n0{separator}c\n'
    log_format = LogFormat("log", "y", ("a",), separator=separator)
    log = open_log(written(tmp_path / "log.txt", content), format=log_format)
    assert rows_of(log).keys.tolist() == keys([[value], ["c"]])


# What a log's header and options make of it

COLUMNS = "id, clicked, color, size, ts, label"


def chosen(log: Path, test: Path | None = None, **options: Any) -> LogFormat:
    return format_of([raw_file(log)], [] if test is None else [raw_file(test)], **options)


def header_log(path: Path, rows: int = 57) -> Path:
    lines = [COLUMNS.replace(" ", "")] + [f"{i},{i % 2},c{i % 5},{i % 3},{i},l{i}" for i in range(rows)]
    return written(path, "\n".join(lines))


def test_label_and_exclude_say_what_the_columns_of_a_header_are(tmp_path: Path) -> None:
    path = header_log(tmp_path / "log.csv")
    log = chosen(path, label="clicked", exclude=["label", "size"])
    assert (log.label, log.fields, log.time, log.split) == ("clicked", ("color",), "ts", "last-fraction")
    by_name = chosen(path)
    assert (by_name.label, by_name.fields) == ("label", ("color", "size"))  # clicked is another label
    split = written(tmp_path / "split.csv", "split,a,ts\n1,x,3\n")  # their names do not say that they are not the label
    assert chosen(split, label="split").split_column is None
    assert chosen(split, label="ts").time is None
    assert chosen(written(tmp_path / "none.csv", ",label,a\n0,1,x\n"), exclude=[""]).fields == ("a",)
    another = "such as `label` clicked (0 or 1 in each row). "
    for options, message in (
        ({"label": "click"}, f"no label column 'click'; name it with `label`, {another}The columns are {COLUMNS}"),
        ({"exclude": ["size", "sise"]}, f"no column 'sise' to exclude. The columns are {COLUMNS}"),
    ):
        with pytest.raises(ClickLogError) as raised:
            chosen(path, **options)
        assert str(raised.value) == f"{path}:1: {message}"
    # What is requested goes before what the log looks like.
    assert chosen(path, criteo_numbers="buckets").fields == criteo("buckets").fields
    assert chosen(path, avazu_hour="weekday-hour").variant == "weekday-hour"
    assert chosen(path, dataset="ipinyou").name == "ipinyou"
    assert chosen(written(tmp_path / "avazu.csv", AVAZU)).fields == avazu().fields


def test_the_test_set_is_the_fraction_of_the_rows(tmp_path: Path) -> None:
    path = header_log(tmp_path / "log.csv")
    for number, fraction in enumerate((0.0, 0.1, 0.25, 1e-9)):
        log = chosen(path, label="clicked", exclude=["label"], test_fraction=fraction)
        expected = 57 - round(57 * fraction)
        assert open_log(path, format=log).train_rows == expected
        assert prepare([path], tmp_path / f"{number}", log)[0].train_rows == expected
    with pytest.raises(ClickLogError, match="no training rows; all 57 are for testing"):
        open_log(path, label="clicked", test_fraction=0.999)
    for wrong in (1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"test_fraction must be in \[0, 1\), got "):
            chosen(path, test_fraction=wrong)
    for text, expected_fraction in (("", 0.1), ("test_fraction: 0.3", 0.3), ("test_fraction: 0", 0.0)):
        schema = written(tmp_path / "schema.yaml", "label: a\ncategorical: [b]\n" + text)
        log = chosen(Path("any.csv"), schema=schema)
        assert (log.split, log.test_fraction) == ("last-fraction", expected_fraction)


SPLIT_MARKS = {
    0: ["", "0", "0.0", " 0", "train", "Train", "TRAINING"],
    1: ["1", "1.0", "valid", "Validation", "val", "dev"],
    2: ["2", "2.0", " 2 ", "test", "TEST", "testing"],
}


def split_log(path: Path, marks: list[str], name: str = "split") -> Path:
    return written(path, f"label,a,{name}\n" + "".join(f"{i % 2},v{i % 3},{mark}\n" for i, mark in enumerate(marks)))


@settings(max_examples=25)
@given(st.data(), st.sampled_from(["split", "Split", "SPLIT"]))
def test_a_split_column_says_which_rows_are_for_testing_or_the_log_is_refused(data: st.DataObject, name: str) -> None:
    sets = sorted(data.draw(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=9)))
    marks = [data.draw(st.sampled_from(SPLIT_MARKS[one])) for one in sets]
    unknown = data.draw(st.sampled_from([None, None, "3", "-1", "2.5", "true", "control", "test set", "nan"]))
    if unknown is not None:
        marks[data.draw(st.integers(0, len(marks) - 1))] = unknown
    with TemporaryDirectory() as folder:
        path = split_log(Path(folder) / "log.csv", marks, name)
        for columns in (None, "categorical"):
            if unknown is not None:
                with pytest.raises(
                    ClickLogError, match=rf"{path}:\d+: '{name}' must mark a row as train, valid or test"
                ):
                    open_log(path, columns=columns)
            elif set(sets) == {2}:
                with pytest.raises(ClickLogError, match="no training rows"):
                    open_log(path, columns=columns)
            elif 1 in sets and 2 not in sets:
                with pytest.raises(ClickLogError, match=f"'{name}' marks .* for validation .* and none for testing"):
                    open_log(path, columns=columns)
            else:
                log = open_log(path, columns=columns)
                assert (log.train_rows, len(log), log.fields) == (len(sets) - sets.count(2), len(sets), ("a",))
                assert any("for validation" in note for note in log.notes) == (1 in sets)


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Float32, pl.Categorical])
def test_typed_marks_of_a_split_column_are_those_of_a_text(dtype: Any, tmp_path: Path) -> None:
    marks = pl.Series(["0"] * 5 + ["2"] * 3)
    frame = pl.DataFrame({"label": [0, 1] * 4, "a": ["x", "y"] * 4, "split": marks.cast(dtype)})
    frame.write_parquet(tmp_path / "log.parquet")
    assert open_log(tmp_path / "log.parquet").train_rows == 5
    assert prepare([tmp_path / "log.parquet"], tmp_path / "out")[0].train_rows == 5


def test_an_unknown_mark_of_a_split_column_makes_a_bad_row(tmp_path: Path) -> None:
    path = split_log(tmp_path / "log.csv", ["train", "train", "holdout", "train", "test"])
    log = open_log(path, on_bad_row="skip", max_bad=0.5)
    assert (log.train_rows, len(log)) == (3, 4)
    assert len(open_log(path, whole=True)) == 5


LABEL: dict[str, Any] = {"label": "click"}
EXCLUDE: dict[str, Any] = {"exclude": ["a"]}
FRACTION: dict[str, Any] = {"test_fraction": 0.1}
SCHEMA_GIVEN: dict[str, Any] = {"schema": Path("s.yaml")}
OF_A_HEADER = " is for logs whose columns come from a header; the format "


@over(
    ("log", "options", "message"),
    [
        ("log.csv", {**SCHEMA_GIVEN, "dataset": "criteo"}, "`schema` and `dataset` cannot both be given"),
        ("log.csv", {"test": Path("t.csv"), **FRACTION}, "`test_fraction` and `test` cannot both be given"),
        ("log.csv", {"criteo_numbers": "buckets", "dataset": "avazu"}, "`criteo_numbers` is for Criteo's log"),
        ("log.csv", {"criteo_numbers": "buckets", **SCHEMA_GIVEN}, "`criteo_numbers` is for Criteo's log"),
        ("log.csv", {"avazu_hour": "raw", "criteo_numbers": "buckets"}, "`avazu_hour` is for Avazu's log"),
        ("split.csv", FRACTION, "`test_fraction` is for logs without a column 'split', which marks the test rows of"),
        ("log.csv", {**SCHEMA_GIVEN, **LABEL}, "`label` and `schema` cannot both be given"),
        ("log.csv", {**SCHEMA_GIVEN, **EXCLUDE}, "`exclude` and `schema` cannot both be given"),
        ("log.csv", {"dataset": "criteo", **LABEL}, f"`label`{OF_A_HEADER}'criteo'"),
        ("log.csv", {"avazu_hour": "raw", **FRACTION}, f"`test_fraction`{OF_A_HEADER}'avazu'"),
        ("criteo.txt", EXCLUDE, f"`exclude`{OF_A_HEADER}'criteo'"),
        ("svm.txt", LABEL, f"`label`{OF_A_HEADER}'libsvm'"),
    ],
)
def test_options_that_do_not_go_together_are_both_named(
    log: str, options: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    header_log(tmp_path / "log.csv")
    written(tmp_path / "split.csv", "label,a,split\n")
    criteo_log(tmp_path / "criteo.txt", INTEGERS)
    written(tmp_path / "svm.txt", "1 2:1 3:1")
    with pytest.raises(LogOptionError, match=r"^`") as raised:
        chosen(Path(log), **options)
    assert message in str(raised.value)
    assert not isinstance(raised.value, ClickLogError)
