"""Raw logs to prepared ones: every format, every kind of bad row, and every moment at which a run can be cut off."""

import gzip
import itertools
import json
import lzma
import math
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparsegroup.data import preparation
from sparsegroup.data.formats.log_format import LogFormat, avazu, criteo, ipinyou
from sparsegroup.data.formats.schema_file import read_schema
from sparsegroup.data.keys import keys_of
from sparsegroup.data.log_errors import BadRows, ClickLogError
from sparsegroup.data.preparation import prepare
from sparsegroup.data.prepared_log import MANIFEST, PreparedLog
from sparsegroup.data.raw.encoding import encode_chunk
from sparsegroup.data.raw.text_file import read_chunks

DATA = Path(__file__).parents[2] / "shared" / "data"
CSV = LogFormat("log", "label", ("a", "b"), numbers=("n",), time="t")
HEADER = b"label,a,b,n,t\n"


@dataclass
class Whole:
    """All rows of a prepared log."""

    keys: np.ndarray
    numbers: np.ndarray
    labels: np.ndarray
    times: np.ndarray


def rows_of(log: PreparedLog, start: int = 0, stop: int | None = None, size: int = 1 << 20) -> Whole:
    parts = list(log.batches(start, len(log) if stop is None else stop, size))
    assert all(len(part) == size for part in parts[:-1])
    return Whole(
        *(
            np.concatenate([np.asarray(getattr(p, name)) for p in parts])
            for name in ("keys", "numbers", "labels", "times")
        )
    )


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def keys(values: list[list[str]]) -> list[list[int]]:
    """Of rows of values."""
    return np.stack(
        [keys_of(list(column), field) for field, column in enumerate(zip(*values, strict=True))], 1
    ).tolist()


def good_rows(count: int) -> list[bytes]:
    return [f"{i % 2},v{i % 7},日{i % 3},{i}.5,{i // 2}".encode() for i in range(count)]


# Formats


AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
    "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)


def avazu_log(path: Path, hours: list[str], newline: str = "\n") -> Path:
    lines = [AVAZU] + [
        f"{i},{i % 2},{hour}," + ",".join(f"c{i % (j + 1)}" for j in range(21)) for i, hour in enumerate(hours)
    ]
    return written(path, newline.join(lines) + newline)


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


@pytest.mark.parametrize("hour", ["", "1410210", "14102124", "14133100", "today"])
def test_an_avazu_hour_that_is_none_is_a_bad_row(hour: str, tmp_path: Path) -> None:
    path = avazu_log(tmp_path / "train.csv", ["14102100", "14102101", hour])
    with pytest.raises(ClickLogError) as raised:
        prepare([path], tmp_path / "out")
    assert str(raised.value) == f"{path}:4: 'hour' cannot be read: 'hour={hour}'"


def test_a_log_whose_last_day_is_the_test_set_must_be_in_the_order_of_time(tmp_path: Path) -> None:
    path = avazu_log(tmp_path / "train.csv", ["14102100", "14102200", "14102123"])
    with pytest.raises(ClickLogError, match="order of time"):
        prepare([path], tmp_path / "out", chunk_bytes=200)


def criteo_log(path: Path, integers: list[str], rows: int = 1) -> Path:
    lines = ["\t".join([str(i % 2), *integers, *(f"{i:x}{j}" for j in range(25)), ""]) for i in range(rows)]
    return written(path, "\n".join(lines) + "\n")


INTEGERS = ["", "0", "1", "2", "3", "-1", "-3", "10", "100", "54321", "7", "8", "9"]


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


@pytest.mark.parametrize("numbers", ["log", "buckets"])
def test_a_criteo_integer_that_is_none_is_a_bad_row(numbers: Any, tmp_path: Path) -> None:
    path = criteo_log(tmp_path / "train.txt", ["x", *INTEGERS[1:]])
    with pytest.raises(ClickLogError) as raised:
        prepare([path], tmp_path / "out", criteo(numbers))
    assert str(raised.value) == f"{path}:1: 'I1' cannot be read: 'I1=x'"


IPINYOU = (
    "click weekday hour bidid timestamp logtype ipinyouid useragent IP region city adexchange domain url urlid "
    "slotid slotwidth slotheight slotvisibility slotformat slotprice creative bidprice payprice keypage "
    "advertiser usertag"
)


def ipinyou_log(path: Path, agents_and_prices: list[tuple[str, str]]) -> Path:
    lines = [IPINYOU.replace(" ", "\t")]
    for i, (agent, price) in enumerate(agents_and_prices):
        row = {name: f"{name}{i}" for name in IPINYOU.split()}
        row |= {"click": str(i % 2), "timestamp": f"2013060600{i:07}", "useragent": agent, "slotprice": price}
        lines.append("\t".join(row.values()))
    return written(path, "\n".join(lines) + "\n")


AGENTS = {
    "Mozilla/5.0 (Windows NT 6.1) Chrome/17 Safari/535": "windows_chrome",
    "Mozilla/4.0 (compatible; MSIE 8.0; Windows NT 5.1)": "windows_ie",
    'Mozilla/5.0 "(Macintosh; Intel Mac OS X) Safari': "mac_safari",
    "Mozilla/5.0 (iPad; CPU OS 6 iOS) Safari": "ios_safari",
    "Mozilla/5.0 (Linux; Android 4) Opera": "android_opera",
    "Mozilla/5.0 (X11; Linux) Firefox": "linux_firefox",
    "curl": "other_other",
}
PRICES = {"0": "0", "1": "1-10", "10": "1-10", "11": "11-50", "50": "11-50", "51": "51-100", "101": "101+"}


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
    bad = ipinyou_log(tmp_path / "bad.txt", [("curl", "dear")])
    with pytest.raises(ClickLogError, match=r"bad.txt:2: 'slotprice' cannot be read"):
        prepare([bad], tmp_path / "bad", ipinyou())


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


def test_without_a_split_the_last_tenth_is_the_test_set(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", HEADER + b"\n".join(good_rows(99)))
    log, _ = prepare([path], tmp_path / "out", chunk_bytes=100)
    assert (log.manifest.rows, log.manifest.train_rows) == (99, 89)
    assert rows_of(log).times.tolist() == list(range(2, 101))  # `t` is not a time's name: the line is


@pytest.mark.parametrize("name", ["avazu", "log"])
def test_a_log_of_its_own_for_the_test_set_is_the_test_set(name: str, tmp_path: Path) -> None:
    if name == "avazu":
        logs = [avazu_log(tmp_path / f"{i}.csv", ["14102100", "14102200", "14102200"]) for i in range(2)]
    else:
        logs = [written(tmp_path / f"{i}.csv", "label,a,split\n0,x,2\n1,y,1\n0,z,0\n") for i in range(2)]
    log, _ = prepare(logs, tmp_path / "out")
    assert (log.manifest.rows, log.manifest.train_rows) == (6, 3)


def test_a_test_log_may_have_its_columns_in_another_order_but_must_have_them(tmp_path: Path) -> None:
    train = written(tmp_path / "train.csv", "label,a,b\n0,x,y\n")
    test = written(tmp_path / "test.csv", "b,label,a\nv,1,u\n")
    log, _ = prepare([train, test], tmp_path / "out")
    assert rows_of(log).keys.tolist() == keys([["x", "y"], ["u", "v"]])
    with pytest.raises(ClickLogError, match=r"less.csv:1: no column 'b'; the columns are label, a"):
        prepare([train, written(tmp_path / "less.csv", "label,a\n0,1\n")], tmp_path / "less")


SCHEMA = """
label: click
time: when
categorical: [color]
numeric: [price]
multi: {tags: "|"}
split: part
"""


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
    path = tmp_path / f"log{suffix}"
    frame.write_parquet(path) if suffix == ".parquet" else frame.write_ipc(path)
    log_format = LogFormat("log", "label", ("word", "number", "category"), numbers=("real",), time="ts")
    columnar, _ = prepare([path], tmp_path / "columnar", log_format)
    text, _ = prepare([written(tmp_path / "log.csv", csv)], tmp_path / "text", log_format)
    assert vars(rows_of(columnar)).keys() == vars(rows_of(text)).keys()
    for name, values in vars(rows_of(text)).items():
        np.testing.assert_array_equal(values, getattr(rows_of(columnar), name))
    assert columnar.manifest.features == text.manifest.features
    told, _ = prepare([path], tmp_path / "told")
    assert told.manifest.fields == ("word", "number", "category", "real")


def test_bad_rows_of_a_columnar_log_are_named_by_their_number(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"label": [0, 1, 2, None], "a": ["x"] * 4}).write_parquet(path)
    with pytest.raises(ClickLogError, match=r"log.parquet:3: label 'label' must be 0 or 1: 'label=2'"):
        prepare([path], tmp_path / "out")
    log, (bad,) = prepare([path], tmp_path / "skip", on_bad_row="skip", max_bad=0.5)
    assert (len(log), bad.count) == (2, 2)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_damaged_columnar_log_is_named(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"log{suffix}"
    frame = pl.DataFrame({"label": [0, 1] * 5000, "a": [str(i) for i in range(10_000)]})
    frame.write_parquet(path) if suffix == ".parquet" else frame.write_ipc(path)
    whole = path.read_bytes()
    middle = bytearray(whole)
    middle[200 : len(whole) - 2000] = bytes(len(whole) - 2200)
    for damaged in (whole[: len(whole) // 2], b"", b"rubbish" * 100, bytes(middle)):
        path.write_bytes(damaged)
        with pytest.raises(ClickLogError, match=path.name):
            prepare([path], tmp_path / "out")


def test_a_columnar_log_with_lists_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"label": [0, 1], "a": [["x"], ["y", "z"]]}).write_parquet(path)
    with pytest.raises(ClickLogError, match=r"log.parquet: column 'a' is .*list.*; write it as text"):
        prepare([path], tmp_path / "out")


def test_numbers_of_a_columnar_log_too_large_for_an_integer_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"label": [0, 1], "a": ["x", "y"], "n": [1e20, -1.0]}).write_parquet(path)
    log, _ = prepare([path], tmp_path / "out", LogFormat("log", "label", ("a",), numbers=("n",)))
    assert rows_of(log).numbers[:, 0].tolist() == [np.float32(1e20), -1.0]


def test_a_column_that_appears_twice_is_refused_if_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "label,a,b,b\n0,x,y,z\n")
    with pytest.raises(ClickLogError, match=r"log.csv:1: column 'b' appears 2 times"):
        prepare([path], tmp_path / "out", LogFormat("log", "label", ("a", "b")))
    assert len(prepare([path], tmp_path / "out", LogFormat("log", "label", ("a",)))[0]) == 1


def test_a_real_log_prepares(tmp_path: Path) -> None:
    path = DATA / "avazu_sample.csv.xz"
    if not path.exists():
        pytest.skip(f"{path.name} is not at hand")
    log, _ = prepare([path], tmp_path / "out", chunk_bytes=1 << 20)
    assert (len(log), len(log.manifest.fields)) == (33_261, 22)
    assert log.manifest.positives / len(log) == pytest.approx(0.171, abs=5e-4)


# Bad rows


@dataclass
class Line:
    """A line of a log, and what becomes of it: a row, a bad one for a reason, or nothing."""

    raw: bytes
    row: tuple[int, str, str, float, int] | None = None
    reason: str | None = None


LONGEST = 300
LONG = f"a line of more than {LONGEST:,} bytes"
KINDS = [
    Line("1,ä,日本,2.5,7".encode(), row=(1, "ä", "日本", 2.5, 7)),
    Line(b"1,,,,", row=(1, "", "", 0.0, 0)),
    Line(b"0,a,b,1,2\r", row=(0, "a", "b", 1.0, 2)),
    Line(b'0,"p,q",b,1,2', row=(0, "p,q", "b", 1.0, 2)),
    Line(b'0,"p""q",,"1",2\r', row=(0, 'p"q', "", 1.0, 2)),
    Line(b'0,p"q,r"s,1,2', row=(0, 'p"q', 'r"s', 1.0, 2)),
    Line(b"0,a\0b,\0,1,2", row=(0, "a\0b", "\0", 1.0, 2)),
    Line(b"0," + b"x" * (LONGEST - 8) + b",b,1,2", row=(0, "x" * (LONGEST - 8), "b", 1.0, 2)),
    Line(b""),
    Line(b"\r"),
    Line(b"  "),
    Line(b"0," + b"x" * (LONGEST - 7) + b",b,1,2", reason=LONG),
    Line(b"0," + b"x" * 777 + b",b,1,2", reason=LONG),
    Line(b",," * 500, reason=LONG),
    Line(b"1,a", reason="2 columns where 5 are expected"),
    Line(b"1,a,b,1,2,", reason="6 columns where 5 are expected"),
    Line(b"1,\xff,b,1,2", reason="invalid UTF-8"),
    Line("1,日,b,1,2".encode()[:-8], reason="invalid UTF-8"),
    Line(b"2,a,b,1,2", reason="label 'label' must be 0 or 1"),
    Line(b",a,b,1,2", reason="label 'label' must be 0 or 1"),
    Line(b",,,,", reason="label 'label' must be 0 or 1"),
    Line(b"1\0,a,b,1,2", reason="label 'label' must be 0 or 1"),
    Line(b'1,"a,b,1,2', reason="a quote that is not closed"),
    Line(b'1,"a"",b,1,2', reason="a quote that is not closed"),
    Line(b'1,a,b,1,"2\r', reason="a quote that is not closed"),
    Line(b'1,a",b,1,2,"', reason="a quote that is not closed"),
    Line(b"1,a\rb,b,1,2", reason="a carriage return within the line"),
    Line(b"1,a,b,one,2", reason="'n' cannot be read"),
    Line(b"1,a,b,nan,2", reason="'n' cannot be read"),
    Line(b"1,a,b,1e99,2", reason="'n' cannot be read"),
    Line(b"1,a,b,1\0,2", reason="'n' cannot be read"),
    Line(b"1,a,b,1,soon", reason="'t' cannot be read"),
    Line(b"1,a,b,1,2.5", reason="'t' cannot be read"),
]
BAD = [kind for kind in KINDS if kind.reason]


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegroup.data.raw.text_file.LONGEST_LINE", LONGEST)
    monkeypatch.setattr("sparsegroup.data.raw.encoding.LONGEST_LINE", LONGEST)


def mixed_lines(seed: int, good: int = 40) -> list[Line]:
    lines = [*KINDS, *(Line(b"1,g,h,%d,9" % i, row=(1, "g", "h", float(i), 9)) for i in range(good))]
    random.Random(seed).shuffle(lines)
    return lines


def read(lines: list[Line]) -> tuple[list[Any], list[tuple[int, str]]]:
    """Line by line: the rows and (line, reason) of the bad ones; the header is line 1."""
    rows = [line.row for line in lines if line.row]
    return rows, [(number, line.reason) for number, line in enumerate(lines, 2) if line.reason]


def assert_rows(whole: Whole, rows: list[Any]) -> None:
    assert whole.keys.tolist() == keys([[a, b] for _, a, b, _, _ in rows])
    assert whole.labels.tolist() == [row[0] for row in rows]
    assert whole.numbers[:, 0].tolist() == [row[3] for row in rows]
    assert whole.times.tolist() == [row[4] for row in rows]


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("last_newline", [True, False])
def test_what_is_read_does_not_depend_on_chunks_or_threads(
    seed: int, last_newline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 50)
    lines = mixed_lines(seed)
    content = HEADER + b"\n".join(line.raw for line in lines) + b"\n" * last_newline
    path = written(tmp_path / "log.csv", content)
    rows, bad_lines = read(lines)
    sizes = [
        40,
        53,
        97,
        150,
        299,
        300,
        301,
        302,
        409,
        800,
        1500,
        3000,
        len(content) - 1,
        len(content),
        len(content) + 1,
    ]
    for number, size in enumerate(sizes):
        log, (bad,) = prepare(
            [path],
            tmp_path / f"out{number}",
            CSV,
            on_bad_row="skip",
            max_bad=0.9,
            threads=1 + number % 3,
            chunk_bytes=size,
        )
        assert_rows(rows_of(log), rows)
        assert bad.reasons == Counter(reason for _, reason in bad_lines) == log.manifest.bad_rows
        assert [sample[:2] for sample in bad.samples] == bad_lines[:5]
        with pytest.raises(ClickLogError) as raised:
            prepare([path], tmp_path / f"error{number}", CSV, threads=1 + number % 3, chunk_bytes=size)
        line, reason = bad_lines[0]
        assert str(raised.value).startswith(f"{path}:{line}: {reason}: ")


@pytest.mark.usefixtures("short_lines")
def test_chunks_begin_anew_where_one_has_ended(tmp_path: Path) -> None:
    lines = [line.raw for line in mixed_lines(5)] + [b"x" * 777, b"y" * 500]
    path = written(tmp_path / "log.csv", b"\n".join(lines))
    for size in (40, 77, 299, 301, 1000, 5000, 100_000):
        chunks = list(read_chunks(path, chunk_bytes=size))
        for number, chunk in enumerate(chunks):
            again = list(read_chunks(path, chunk.end_offset, chunk.end_line, size))
            assert again == chunks[number + 1 :]
        assert chunks[-1].end_offset == path.stat().st_size


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.reason}-{bad.raw[:12]!r}")
def test_a_bad_row_stops_with_file_and_line_however_far_into_the_log(bad: Line, tmp_path: Path) -> None:
    good = good_rows(200)
    path = written(tmp_path / "log.csv", HEADER + b"\n".join([*good[:150], bad.raw, *good[150:]]))
    with pytest.raises(ClickLogError) as raised:
        prepare([path], tmp_path / "out", CSV, chunk_bytes=100)
    assert str(raised.value).startswith(f"{path}:152: {bad.reason}: ")
    assert len(str(raised.value)) < len(str(path)) + 400
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_the_first_of_many_bad_rows_is_named_whatever_their_kinds(tmp_path: Path) -> None:
    lines = [b"0,a,b,1,2", b"0,a,b,x,2", *[b"0,\xff,b,1,2"] * 10, *[b"short"] * 10, *[b"7,a,b,1,2"] * 10]
    path = written(tmp_path / "log.csv", HEADER + b"\n".join(lines))
    with pytest.raises(ClickLogError, match=r"log.csv:3: 'n' cannot be read"):
        prepare([path], tmp_path / "out", CSV)


def test_more_bad_rows_than_max_bad_raise_all_the_same(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", HEADER + b"\n".join([*good_rows(97), b"1", b"2,a,b,1,2", b"3,a,b,1,2"]))
    with pytest.raises(ClickLogError) as raised:
        prepare([path], tmp_path / "out", CSV, on_bad_row="skip", max_bad=0.029)
    message = str(raised.value)
    assert message.startswith("3 of 100 rows are bad, more than max_bad=0.029\n")
    assert "  2 × label 'label' must be 0 or 1" in message
    assert "  line 99: 1 columns where 5 are expected: '1'" in message
    log, _ = prepare([path], tmp_path / "out", CSV, on_bad_row="skip", max_bad=0.03)
    assert log.manifest.bad_rows == {"label 'label' must be 0 or 1": 2, "1 columns where 5 are expected": 1}


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_an_empty_log_and_one_of_a_header_alone_are_refused(suffix: str, tmp_path: Path) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path = tmp_path / f"log.csv{suffix}"
    for content in (pack(b""), pack(HEADER), pack(HEADER[:-1]), pack(HEADER + b"\n\r\n"), b""):
        written(path, content)
        with pytest.raises(ClickLogError, match=rf"^{path}: (the file is empty|no rows)|^{path}:.*damaged"):
            prepare([path], tmp_path / "out")


def compress(suffix: str, data: bytes) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data)
    if suffix == ".xz":
        return lzma.compress(data)
    return pa.compress(data, codec={".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}[suffix], asbytes=True)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_compressed_log_is_as_the_plain_one_and_a_truncated_one_is_refused(suffix: str, tmp_path: Path) -> None:
    content = HEADER + b"\n".join(good_rows(5000))
    packed = compress(suffix, content)
    path = written(tmp_path / f"log.csv{suffix}", packed)
    log, _ = prepare([path], tmp_path / "packed", CSV, chunk_bytes=9999)
    plain, _ = prepare([written(tmp_path / "log.csv", content)], tmp_path / "plain", CSV, chunk_bytes=7777)
    np.testing.assert_array_equal(rows_of(log).keys, rows_of(plain).keys)
    for length in (len(packed) - 1, len(packed) - 9, len(packed) // 2, 30, 7):
        written(path, packed[:length])
        with pytest.raises(ClickLogError, match=rf"^{path}:\d+: damaged or truncated compressed file"):
            prepare([path], tmp_path / f"cut{length}", CSV, chunk_bytes=9999)
        assert not (tmp_path / f"cut{length}" / MANIFEST).exists()


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_compressed_log_of_several_streams_is_read_whole(suffix: str, tmp_path: Path) -> None:
    pieces = [HEADER, *(row + b"\n" for row in good_rows(10))]
    path = written(tmp_path / f"log.csv{suffix}", b"".join(compress(suffix, piece) for piece in pieces))
    assert len(prepare([path], tmp_path / "out", CSV)[0]) == 10


def test_crlf_is_read_as_lf(tmp_path: Path) -> None:
    hours = ["14102100", "14102101", "14102200"]
    logs = [
        prepare([avazu_log(tmp_path / f"{name}.csv", hours, newline)], tmp_path / name)[0]
        for name, newline in (("lf", "\n"), ("crlf", "\r\n"))
    ]
    np.testing.assert_array_equal(rows_of(logs[0]).keys, rows_of(logs[1]).keys)
    assert logs[0].manifest.features == logs[1].manifest.features


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    log, _ = prepare([written(tmp_path / "log.csv", "\ufefflabel,a\n0,x\n1,\ufeffx\n")], tmp_path / "out")
    assert rows_of(log).keys.tolist() == keys([["x"], ["\ufeffx"]])


def test_a_line_of_100_mb_is_a_bad_row_and_is_not_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(HEADER + b"0,a,b,1,2\n")
        for _ in range(100):
            file.write(b"x" * 1_000_000)
        file.write(b"\n1,c,d,1,2\n")
    tracemalloc.start()
    try:
        log, (bad,) = prepare([path], tmp_path / "out", CSV, on_bad_row="skip", max_bad=0.5, chunk_bytes=4 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40e6
    assert_rows(rows_of(log), [(0, "a", "b", 1.0, 2), (1, "c", "d", 1.0, 2)])
    assert bad.samples == [(3, "a line of more than 1,048,576 bytes", "x" * 80)]


def test_many_bad_rows_take_no_longer_than_as_many_good_ones(tmp_path: Path) -> None:
    bad = [b"0,\xff,b,1,2\n", b"0\n", b"7,a,b,1,2\n", b'0,"a,b,1,2\n']
    path = written(tmp_path / "log.csv", HEADER + b"0,a,b,1,2\n" + b"".join(bad) * 20_000)
    begin = time.perf_counter()
    _, (rows,) = prepare([path], tmp_path / "out", CSV, on_bad_row="skip", max_bad=0.99999)
    assert rows.count == 80_000
    assert time.perf_counter() - begin < 5  # half a second; where each costs a pass over the others, minutes


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("a,b,c", ":1: no label column 'label' or 'click'; name it with --label. The columns are a, b, c"),
        ("label,a,a", ":1: column 'a' appears 2 times"),
        ("label,a,", ":1: column 3 has no name"),
        (",label,a", ":1: column 1 has no name"),
        ("label,id,ts", ":1: 0 fields; there must be 1 to 256"),
        ("label," + ",".join(f"f{i}" for i in range(257)), ":1: 257 fields; there must be 1 to 256"),
        ("label,time,a", ":1: a field cannot be named 'time'; rename it"),
        ("0 " + " ".join(f"{i}:1" for i in range(300)), ":1: 300 fields; there must be 1 to 256"),
    ],
)
def test_a_header_that_cannot_be_used_is_refused(header: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", header + "\n")
    with pytest.raises(ClickLogError) as raised:
        prepare([path], tmp_path / "out")
    assert str(raised.value).startswith(f"{path}{message}")


def test_encoding_keeps_bad_rows_apart_from_good_ones(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", b"0,a,b,1,2\n9,a,b,1,2\n1,c,d,3,4\n")
    (chunk,) = read_chunks(path)
    encoded = encode_chunk(chunk, CSV, ["label", "a", "b", "n", "t"], "log.csv", keep_raw=True)
    assert encoded.bad == BadRows(
        "log.csv", Counter({"label 'label' must be 0 or 1": 1}), [(2, "label 'label' must be 0 or 1", "label=9")]
    )
    assert encoded.raw is not None
    assert encoded.raw.rows() == [("a", "b"), ("c", "d")]


# Cut off and gone on with


class Cut(BaseException):
    """Stands for the process's end: nothing may catch it."""


def cut_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> list[str]:
    """End the run at the moment-th write to disk: before or after fsync, replace and unlink."""
    passed: list[str] = []

    def wrap(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            for when in ("before", "after"):
                passed.append(f"{when} {name}")
                if len(passed) == moment:
                    raise Cut
                if when == "before":
                    result = original(*arguments, **options)
            return result

        return wrapped

    monkeypatch.setattr("sparsegroup.artifact.disk.os.fsync", wrap("fsync", os.fsync))
    monkeypatch.setattr(Path, "replace", wrap("replace", Path.replace))
    monkeypatch.setattr(Path, "unlink", wrap("unlink", Path.unlink))
    return passed


def content_of(folder: Path) -> dict[str, Any]:
    """All files; the vocabulary as rows."""
    return {
        path.name: pl.read_parquet(path).rows() if path.name == "vocabulary.parquet" else path.read_bytes()
        for path in folder.iterdir()
    }


@pytest.mark.usefixtures("short_lines")
def test_a_run_cut_off_at_any_moment_goes_on_to_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 4)
    body = b"\n".join(line.raw for line in mixed_lines(1, good=5))
    logs = [
        written(tmp_path / "train.csv", HEADER + body),
        written(tmp_path / "test.csv.xz", lzma.compress(HEADER + body)),
    ]

    def run(folder: Path) -> PreparedLog:
        return prepare(logs, folder, CSV, on_bad_row="skip", max_bad=0.9, vocabulary=True, chunk_bytes=1500)[0]

    whole = run(tmp_path / "whole")
    assert len(whole.manifest.files) >= 4
    expected = content_of(tmp_path / "whole")
    assert set(expected) == {MANIFEST, "vocabulary.parquet", *whole.manifest.files}
    assert whole.manifest.train_rows * 2 == whole.manifest.rows
    for moment in itertools.count(1):
        folder = tmp_path / f"cut{moment}"
        with monkeypatch.context() as patch:
            cut_at(patch, moment)
            try:
                run(folder)
            except Cut:
                pass
            else:
                break
        if not (folder / MANIFEST).exists():
            with pytest.raises(ClickLogError, match=MANIFEST):
                PreparedLog(folder)
        again = run(folder)
        assert content_of(folder) == expected
        assert again.manifest == whole.manifest
    assert moment > 40


def test_a_run_cut_off_again_and_again_comes_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 1)
    path = avazu_log(tmp_path / "log.csv.", [f"141021{i // 10:02}" for i in range(100)] + ["14102200"] * 20)
    whole, _ = prepare([path], tmp_path / "whole", chunk_bytes=700)
    runs = 0
    while True:
        runs += 1
        with monkeypatch.context() as patch:
            cut_at(patch, 9)
            try:
                log, _ = prepare([path], tmp_path / "out", chunk_bytes=700)
                break
            except Cut:
                pass
    assert runs > 3
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")
    assert log.manifest.train_rows == whole.manifest.train_rows == 100


def test_a_killed_process_leaves_a_folder_to_go_on_with(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(20_000)))
    program = (
        "import importlib, sys; from pathlib import Path\n"
        "from sparsegroup.data import preparation as p; p.PART_CHUNKS = 1\n"
        "from sparsegroup.data.formats.log_format import LogFormat\n"
        "log = LogFormat('log', 'label', ('a', 'b'), numbers=('n',), time='t')\n"
        "p.prepare([Path(sys.argv[1])], Path(sys.argv[2]), log, chunk_bytes=2000)"
    )
    folder = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", program, path, folder])
    try:
        deadline = time.monotonic() + 60
        while len(list(folder.glob("part-*.parquet"))) < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    parts = len(list(folder.glob("part-*.parquet")))
    assert 3 <= parts < 150
    with pytest.raises(ClickLogError, match=r"unfinished.*run the same `sparsegroup prepare` again"):
        PreparedLog(folder)
    seen: list[int] = []
    log, _ = prepare([path], folder, CSV, chunk_bytes=2000, on_progress=lambda done: seen.append(done.rows))
    assert seen[0] > 3 * 50  # what was written is not read again
    whole, _ = prepare([path], tmp_path / "whole", CSV)
    for name, values in vars(rows_of(whole)).items():
        np.testing.assert_array_equal(values, getattr(rows_of(log), name))
    assert log.manifest.features == whole.manifest.features
    assert not list(folder.glob(".*"))


def test_a_columnar_log_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 1)
    path = tmp_path / "log.parquet"
    rows = 1000
    pl.DataFrame({"label": [i % 2 for i in range(rows)], "a": [f"v{i}" for i in range(rows)]}).write_parquet(
        path, row_group_size=100
    )
    whole, _ = prepare([path], tmp_path / "whole")
    assert len(whole.manifest.files) == 10
    with monkeypatch.context() as patch:
        cut_at(patch, 9)
        with pytest.raises(Cut):
            prepare([path], tmp_path / "out")
    prepare([path], tmp_path / "out")
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")


def test_a_finished_folder_is_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(50)))
    first, _ = prepare([path], tmp_path / "out", CSV)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()}
    called: list[Any] = []
    again, bads = prepare([path], tmp_path / "out", CSV, on_progress=called.append)
    assert again.manifest == first.manifest
    assert (bads, called) == ([], [])
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").iterdir()} == before


def unfinished(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "PART_CHUNKS", 1)
        cut_at(patch, 20)
        with pytest.raises(Cut):
            prepare([path], folder, CSV, chunk_bytes=500, **options)


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_another_log_is_refused(finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(200)))
    folder = tmp_path / "out"
    if finished:
        prepare([path], folder, CSV)
    else:
        unfinished(path, folder, monkeypatch)
    before = content_of(folder)
    other = written(tmp_path / "other.csv", path.read_bytes())
    another_way = LogFormat("log", "label", ("a", "b"), numbers=("n",))
    for log, log_format, options in (
        (other, CSV, {}),
        (path, another_way, {}),
        (path, CSV, {"vocabulary": True}),
    ):
        with pytest.raises(ClickLogError, match="another log, or one read in another way; give an empty folder"):
            prepare([log], folder, log_format, **options)  # type: ignore[arg-type]
    path.write_bytes(path.read_bytes() + b"0,a,b,1,2\n")
    with pytest.raises(ClickLogError, match="another log"):
        prepare([path], folder, CSV)
    assert content_of(folder) == before


def test_a_folder_with_damaged_or_missing_parts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(200)))
    folder = tmp_path / "out"
    unfinished(path, folder, monkeypatch)
    part = folder / "part-00001.parquet"
    whole = part.read_bytes()
    for damaged in (whole[:-10], b"", b"PAR1"):
        part.write_bytes(damaged)
        with pytest.raises(ClickLogError, match=r"part-00001.parquet: not a part of a prepared log"):
            prepare([path], folder, CSV, chunk_bytes=500)
    part.unlink()
    with pytest.raises(ClickLogError, match="parts of a prepared log are missing"):
        prepare([path], folder, CSV, chunk_bytes=500)
    pl.DataFrame({"a": [1]}).write_parquet(part)
    with pytest.raises(ClickLogError, match=r"part-00001.parquet: not a part of a prepared log"):
        prepare([path], folder, CSV, chunk_bytes=500)


def test_a_damaged_prepared_log_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 1)
    path = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(200)))
    folder = tmp_path / "out"
    log, _ = prepare([path], folder, CSV, chunk_bytes=1000)
    manifest = folder / MANIFEST
    text = manifest.read_text()
    for damaged in (
        text[:-5],
        "",
        "[]",
        "{}",
        '"x"',
        text.replace('"rows"', '"rovs"'),
        '{"format": 1, "fields": [], "numbers": [], "lists": [], "features": []}',
        "\udcff",
    ):
        manifest.write_bytes(damaged.encode("utf-8", "surrogateescape"))
        with pytest.raises(ClickLogError, match=rf"{MANIFEST}: damaged"):
            PreparedLog(folder)
    manifest.write_text(json.dumps(json.loads(text) | {"format": 99}))
    with pytest.raises(ClickLogError, match=r"log.json: format 99, this version reads 1"):
        PreparedLog(folder)
    manifest.write_text(text)
    part = folder / "part-00001.parquet"
    whole = part.read_bytes()
    for damaged_part in (whole[: len(whole) // 2], b"", whole[:100] + bytes(200) + whole[300:]):
        part.write_bytes(damaged_part)
        with pytest.raises(ClickLogError, match=r"part-00001.parquet: missing or damaged"):
            rows_of(PreparedLog(folder))
    part.unlink()
    with pytest.raises(ClickLogError, match=r"part-00001.parquet: missing or damaged"):
        rows_of(log)
    with pytest.raises(ClickLogError, match=r"nowhere: no such log \(log.json is missing\)"):
        PreparedLog(tmp_path / "nowhere")


# Reading


def test_batches_are_the_rows_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 3)
    path = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(103)))
    log, _ = prepare([path], tmp_path / "out", CSV, chunk_bytes=250)
    groups = [pq.ParquetFile(tmp_path / "out" / name).num_row_groups for name in log.manifest.files]
    assert len(groups) >= 3
    assert max(groups) == 3
    whole = rows_of(log)
    assert whole.numbers[:, 0].tolist() == [i + 0.5 for i in range(103)]
    assert whole.keys.tolist() == keys([[f"v{i % 7}", f"日{i % 3}"] for i in range(103)])
    random_ = random.Random(0)
    borders = [0, 1, 34, 35, 102, 103]
    cases = [(start, stop, size) for start in borders for stop in borders for size in (1, 8, 35, 200)]
    cases += [(random_.randrange(104), random_.randrange(104), random_.randrange(1, 60)) for _ in range(60)]
    for start, stop, size in cases:
        batches = list(log.batches(start, stop, size))
        lengths = [len(batch) for batch in batches]
        count = max(stop - start, 0)
        assert lengths == [size] * (count // size) + [count % size] * (count % size > 0)
        for name, values in vars(whole).items():
            if batches:
                got = np.concatenate([np.asarray(getattr(batch, name)) for batch in batches])
                np.testing.assert_array_equal(got, values[start:stop])
    assert sum(map(len, log.batches(90, 1000, 7))) == 13


def test_the_vocabulary_names_every_feature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 2)
    lines = ["label,a,b"] + [f"{i % 2},{'' if i % 5 == 0 else i % 13},日{i % 7}" for i in range(200)]
    log, _ = prepare([written(tmp_path / "a.csv", "\n".join(lines))], tmp_path / "out", vocabulary=True, chunk_bytes=99)
    vocabulary = pl.read_parquet(tmp_path / "out" / "vocabulary.parquet")
    assert vocabulary["key"].is_unique().all()
    assert vocabulary.height == sum(count for count, _ in log.manifest.features.values())
    meaning = {key: (field, value) for key, field, value in vocabulary.select("key", "field", "value").iter_rows()}
    for line, (a, b) in zip(lines[1:], rows_of(log).keys.tolist(), strict=True):
        assert [meaning[a], meaning[b]] == list(zip("ab", line.split(",")[1:], strict=True))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        MANIFEST,
        "vocabulary.parquet",
        *log.manifest.files,
    }


def test_a_log_of_test_rows_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("label,a,split\n" + "1,x,2\n" * 20)
    with pytest.raises(ClickLogError, match=r"log.csv: no training rows; all 20 are for testing"):
        prepare([path], tmp_path / "out")
