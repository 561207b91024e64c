"""Raw logs of every format, and lines of every kind, for the tests of `data`."""

import bz2
import gzip
import lzma
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

from sparsegroup.data import Log
from sparsegroup.data.batches import Batch, concatenated
from sparsegroup.data.keys import keys_of
from sparsegroup.data.schema import LogFormat

DATA = Path(__file__).parents[3] / "shared" / "data"
CSV = LogFormat("log", "label", ("a", "b"), numbers=("n",), time="t")
HEADER = b"label,a,b,n,t\n"


def rows_of(log: Log, start: int = 0, stop: int | None = None, size: int = 1 << 20) -> Batch:
    """The rows of a log as one batch, of batches of which all but the last have `size` rows."""
    parts = list(log.batches(start, len(log) if stop is None else stop, size))
    assert all(len(part) == size for part in parts[:-1])
    return concatenated(parts)


PARTS = ("keys", "numbers", "labels", "times", "weights")


def assert_same(ours: Batch, theirs: Batch, parts: Iterable[str] = PARTS) -> None:
    """To the bit; their bags always."""
    for name in parts:
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=0, equal_nan=True, msg=name)
    for a, b in zip(ours.bags, theirs.bags, strict=True):
        assert (a.keys.tolist(), a.offsets.tolist()) == (b.keys.tolist(), b.offsets.tolist())


def log_at(name: str) -> Path:
    """A public log, where the folder with them lies beside the checkout."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not at hand")
    return path


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write(frame: pl.DataFrame, path: Path, rows: int | None = None) -> Path:
    """A file of the suffix's kind; in Parquet and Arrow, groups or batches of so many rows."""
    if path.suffix == ".csv":
        frame.write_csv(path)
    elif path.suffix == ".parquet":
        frame.write_parquet(path, row_group_size=rows)
    else:
        frame.write_ipc(path, record_batch_size=rows)
    return path


def keys(values: list[list[str]]) -> list[list[int]]:
    """Of rows of values."""
    return np.stack(
        [keys_of(list(column), field) for field, column in enumerate(zip(*values, strict=True))], 1
    ).tolist()


def good_rows(count: int) -> list[bytes]:
    return [f"{i % 2},v{i % 7},日{i % 3},{i}.5,{i // 2}".encode() for i in range(count)]


AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
    "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
)


def avazu_log(path: Path, hours: list[str], newline: str = "\n") -> Path:
    lines = [AVAZU] + [
        f"{i},{i % 2},{hour}," + ",".join(f"c{i % (j + 1)}" for j in range(21)) for i, hour in enumerate(hours)
    ]
    return written(path, newline.join(lines) + newline)


def criteo_log(path: Path, integers: list[str], rows: int = 1) -> Path:
    lines = ["\t".join([str(i % 2), *integers, *(f"{i:x}{j}" for j in range(25)), ""]) for i in range(rows)]
    return written(path, "\n".join(lines) + "\n")


INTEGERS = ["", "0", "1", "2", "3", "-1", "-3", "10", "100", "54321", "7", "8", "9"]
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
SCHEMA = """
label: click
time: when
categorical: [color]
numeric: [price]
multi: {tags: "|"}
split: part
"""


@dataclass
class Line:
    """A line of a log, and what becomes of it: a row, a bad one for a reason, or nothing."""

    raw: bytes
    row: tuple[int, str, str, float, int] | None = None
    reason: str | None = None


LONGEST = 300
LONG = f"a line of more than {LONGEST:,} bytes"
QUOTE = "a quote that is not closed, or text after a closing quote"
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
    Line(b"2,a,b,1,2", reason="label 'label' must be 0 or 1, true or false, yes or no"),
    Line(b",a,b,1,2", reason="label 'label' must be 0 or 1, true or false, yes or no"),
    Line(b",,,,", reason="label 'label' must be 0 or 1, true or false, yes or no"),
    Line(b"1\0,a,b,1,2", reason="label 'label' must be 0 or 1, true or false, yes or no"),
    Line(b'1,"a,b,1,2', reason=QUOTE),
    Line(b'1,"a"",b,1,2', reason=QUOTE),
    Line(b'1,a,b,1,"2\r', reason=QUOTE),
    Line(b'1,a",b,1,2,"', reason=QUOTE),
    Line(b'1,"a"b,b,1,2', reason=QUOTE),
    Line(b'1,a,"b" ,1,2', reason=QUOTE),
    Line(b'1,"a""b"c,"b",1,2\r', reason=QUOTE),
    Line(b'1,"a"b"c,d",1,2', reason=QUOTE),
    Line(b"1,a\rb,b,1,2", reason="a carriage return within the line"),
    Line(b"1,a,b,one,2", reason="'n' cannot be read"),
    Line(b"1,a,b,nan,2", reason="'n' cannot be read"),
    Line(b"1,a,b,1e99,2", reason="'n' cannot be read"),
    Line(b"1,a,b,1\0,2", reason="'n' cannot be read"),
    Line(b"1,a,b,1,soon", reason="'t' cannot be read"),
    Line(b"1,a,b,1,2.5", reason="'t' cannot be read"),
]
BAD = [kind for kind in KINDS if kind.reason]


def mixed_lines(seed: int, good: int = 40) -> list[Line]:
    lines = [*KINDS, *(Line(b"1,g,h,%d,9" % i, row=(1, "g", "h", float(i), 9)) for i in range(good))]
    random.Random(seed).shuffle(lines)
    return lines


def read(lines: list[Line]) -> tuple[list[Any], list[tuple[int, str]]]:
    """Line by line: the rows and (line, reason) of the bad ones; the header is line 1."""
    rows = [line.row for line in lines if line.row]
    return rows, [(number, line.reason) for number, line in enumerate(lines, 2) if line.reason]


def assert_rows(whole: Batch, rows: list[Any]) -> None:
    assert whole.keys.tolist() == keys([[a, b] for _, a, b, _, _ in rows])
    assert whole.labels.tolist() == [row[0] for row in rows]
    assert whole.numbers[:, 0].tolist() == [row[3] for row in rows]
    assert whole.times.tolist() == [row[4] for row in rows]


def compress(suffix: str, data: bytes) -> bytes:
    if suffix == ".gz":
        return gzip.compress(data)
    if suffix == ".xz":
        return lzma.compress(data)
    if suffix == ".bz2":
        return bz2.compress(data)
    return pa.compress(data, codec={".zst": "zstd", ".lz4": "lz4"}[suffix], asbytes=True)
