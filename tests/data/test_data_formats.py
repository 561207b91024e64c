"""Raw logs of every format, and what is made of them."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data_cases import (
    AGENTS,
    INTEGERS,
    PRICES,
    SCHEMA,
    assert_equal,
    avazu_log,
    criteo_log,
    ipinyou_log,
    keys,
    rows_of,
    write,
    written,
)
from over import over
from sparsegroup.data.formats import avazu, criteo, ipinyou
from sparsegroup.data.keys import keys_of
from sparsegroup.data.preparation import prepare
from sparsegroup.data.schema import LogFormat, read_schema
from sparsegroup.errors import ClickLogError


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
    with pytest.raises(ClickLogError, match="read in another way"):
        prepare([path], tmp_path / "raw", avazu("hour"))
    unordered = avazu_log(tmp_path / "unordered.csv", ["14102100", "14102200", "14102123"])
    with pytest.raises(ClickLogError, match="order of time"):  # of which its last day is the test set
        prepare([unordered], tmp_path / "unordered", chunk_bytes=200)


def test_criteo_numbers_as_logarithms(tmp_path: Path) -> None:
    path = criteo_log(tmp_path / "train.txt", INTEGERS, rows=15)
    log, _ = prepare([path], tmp_path / "out")
    manifest = log.manifest
    assert (manifest.dataset, len(manifest.fields), len(manifest.numbers)) == ("criteo", 26, 13)
    assert (manifest.rows, manifest.train_rows) == (15, 12)
    rows = rows_of(log)
    expected = [math.copysign(math.log1p(abs(int(x or 0))), int(x or 0)) for x in INTEGERS]
    np.testing.assert_allclose(rows.numbers[7], expected, rtol=1e-6)
    assert rows.times.tolist() == list(range(1, 16))
    assert rows.keys[10].tolist() == keys([[f"a{j}" for j in range(25)] + [""]])[0]
    assert manifest.features["C26"] == (1, 1)
    assert manifest.features["C1"] == (15, 12)


def test_criteo_numbers_as_buckets(tmp_path: Path) -> None:
    log, _ = prepare([criteo_log(tmp_path / "train.txt", INTEGERS)], tmp_path / "out", criteo("buckets"))
    assert (len(log.manifest.fields), log.manifest.numbers) == (39, ())
    buckets = [x if not x or int(x) <= 2 else str(math.floor(math.log(int(x)) ** 2)) for x in INTEGERS]
    assert buckets[4] == "1"
    assert rows_of(log).keys[0].tolist() == keys([buckets + [f"0{j}" for j in range(25)] + [""]])[0]


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


def test_csv_with_a_header(tmp_path: Path) -> None:
    lines = ["label,id,ts,color,size,split", "0,7,3,red,,0", "1,8,4,blue,2,1", "1,9,5,green,2,2", "0,9,6,red,1,2"]
    log, _ = prepare([written(tmp_path / "a.csv", "\n".join(lines))], tmp_path / "out")
    manifest = log.manifest
    assert (manifest.fields, manifest.rows, manifest.train_rows, manifest.positives) == (("color", "size"), 4, 2, 2)
    assert manifest.features == {"color": (3, 2), "size": (3, 2)}
    rows = rows_of(log)
    assert rows.times.tolist() == [3, 4, 5, 6]
    assert rows.labels.tolist() == [0, 1, 1, 0]
    assert rows.keys.tolist() == keys([["red", ""], ["blue", "2"], ["green", "2"], ["red", "1"]])

    mixed = written(tmp_path / "mixed.csv", "\n".join([*lines, "0,9,7,red,1,1"]))
    with pytest.raises(ClickLogError, match=r"split=2 \(test\) must come last"):
        prepare([mixed], tmp_path / "mixed", chunk_bytes=40)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label: click\ncategorial: [a]", "no setting 'categorial'; did you mean 'categorical'?"),
        ("categorical: [a]", "label is missing"),
        ("", "label is missing"),
        ("label: [", "not YAML"),
        (b"label: \xff", "not YAML"),
        ("label: a\ncategorical: b", "categorical: input should be a valid list"),
        ("label: a\nseparator: ab", "separator: string should have at most 1 character"),
        ('label: a\nmulti: {b: ""}', "multi.b: string should have at least 1 character"),
        ("label: a\nseparator: é", "separator: string should match pattern"),
        ("label: a\ncategorical: [b, b]", "column 'b' appears twice"),
        ("label: a\ncategorical: [b]\nnumeric: [b]", "column 'b' appears twice"),
        ("label: a\ncategorical: [a]", "column 'a' appears twice"),
    ],
)
def test_a_wrong_schema_is_named(text: str | bytes, message: str, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columnar_logs_equal_the_csv_of_the_same_content(suffix: str, tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "label": [True, False, True, False],
            "ts": [1, 2, 3, 4],
            "word": ["a", "", None, "日本"],
            "number": [1, None, 3, -4],
            "category": pl.Series(["x", "y", "x", None], dtype=pl.Categorical),
            "real": [1.0, 2.5, None, -3.0],
        }
    )
    csv = "label,ts,word,number,category,real\n1,1,a,1,x,1\n0,2,,,y,2.5\n1,3,,3,x,\n0,4,日本,-4,,-3\n"
    path = write(frame, tmp_path / f"log{suffix}")
    log_format = LogFormat("log", "label", ("word", "number", "category"), numbers=("real",), time="ts")
    columnar, _ = prepare([path], tmp_path / "columnar", log_format)
    text, _ = prepare([written(tmp_path / "log.csv", csv)], tmp_path / "text", log_format)
    assert_equal(rows_of(columnar), rows_of(text))
    assert columnar.manifest.features == text.manifest.features
    told, _ = prepare([path], tmp_path / "told", columns="categorical")
    assert told.manifest.fields == ("word", "number", "category", "real")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_damaged_columnar_log_is_named(suffix: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"label": [0, 1] * 5000, "a": [str(i) for i in range(10_000)]})
    path = write(frame, tmp_path / f"log{suffix}")
    whole = path.read_bytes()
    middle = bytearray(whole)
    middle[200 : len(whole) - 2000] = bytes(len(whole) - 2200)
    for damaged in (whole[: len(whole) // 2], b"", b"rubbish" * 100, bytes(middle)):
        path.write_bytes(damaged)
        with pytest.raises(ClickLogError, match=path.name):
            prepare([path], tmp_path / "out")


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
    pl.DataFrame({"label": [0, 1], "a": ["x", "y"], "n": [1e20, -1.0]}).write_parquet(path)
    log, _ = prepare([path], tmp_path / "large", LogFormat("log", "label", ("a",), numbers=("n",)))
    assert rows_of(log).numbers[:, 0].tolist() == [np.float32(1e20), -1.0]  # no integer is that large


def test_a_column_that_appears_twice_is_refused_if_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "label,a,b,b\n0,x,y,z\n")
    with pytest.raises(ClickLogError, match=r"log.csv:1: column 'b' appears 2 times"):
        prepare([path], tmp_path / "out", LogFormat("log", "label", ("a", "b")))
    assert len(prepare([path], tmp_path / "out", LogFormat("log", "label", ("a",)))[0]) == 1


@pytest.mark.parametrize(("separator", "value"), [(",", "b"), ("\t", '"b"')])
def test_quotes_enclose_a_value_in_csv_and_are_part_of_it_between_tabs(
    tmp_path: Path, separator: str, value: str
) -> None:
    content = f'y{separator}a\n1{separator}"b"\n0{separator}c\n'
    log_format = LogFormat("log", "y", ("a",), separator=separator)
    log, _ = prepare([written(tmp_path / "log.txt", content)], tmp_path / "out", log_format)
    assert rows_of(log).keys.tolist() == keys([[value], ["c"]])
