"""Rows of a pipe, and rows that are JSON objects."""

import io
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from over import over
from sparsegroup.data import open_log
from sparsegroup.data.raw.files import LINE, BadRow, raw_file
from sparsegroup.data.schema import LogFormat
from sparsegroup.streaming.sources import EndOfStream, StdinSource, StreamError
from sparsegroup.streaming.sources.records import frame_of, record_of
from stream_cases import FORMAT, HEADER, drained, numbers_of, record, row


def opened(data: bytes, format: LogFormat = FORMAT) -> StdinSource:
    source = StdinSource(io.BytesIO(data))
    source.open(format)
    return source


def test_csv_is_read_to_its_end() -> None:
    source = opened(HEADER + b"".join(map(row, range(20_000)))[:-1])
    blocks = drained(source, rows=30_000)
    assert numbers_of(blocks) == list(range(20_000))
    assert blocks[-1].position == {"rows": 20_001}
    assert sum(block.span["rows"] for block in blocks) == 20_000
    with pytest.raises(EndOfStream):
        source.read(1.0)
    with pytest.raises(StreamError, match="can be read once"):
        source.again(blocks[0].span)


def test_bad_rows_have_their_line() -> None:
    content = HEADER + row(1) + b"2,a,b,1,1\n\n1,a\n" + b"x" * 3_000_000 + b"\n" + row(2)
    blocks = drained(opened(content), rows=5)
    assert numbers_of(blocks) == [1, 2]
    assert [line for block in blocks for line, _, _ in block.encode().bad] == [3, 5, 6]


def test_json_lines_are_the_rows_that_csv_has() -> None:
    lines = b"".join(json.dumps(record(number)).encode() + b"\n" for number in range(5000))
    blocks = drained(opened(b"\n" + lines), rows=5000)
    assert numbers_of(blocks) == list(range(5000))
    theirs = numbers_of(drained(opened(HEADER + b"".join(map(row, range(5000)))), rows=5000))
    assert theirs == list(range(5000))
    bad = drained(opened(b'{"n": 1}\n[1]\n{"label": 1}\nnull\n{"label": 1, "a": "\\ud800"}\n'), rows=5)
    assert [(line, reason) for line, reason, _ in bad[0].encode().bad] == [
        (1, "label 'label' must be 0 or 1, true or false, yes or no"),
        (2, "no JSON object"),
        (4, "no JSON object"),
        (5, "half of a surrogate pair"),
    ]


@over("is_json", [True, False])
def test_the_first_rows_are_given_again(is_json: bool, tmp_path: Path) -> None:
    lines = [json.dumps(record(n)).encode() + b"\n" for n in range(100)] if is_json else [*map(row, range(100))]
    source = StdinSource(io.BytesIO(b"".join(lines if is_json else [HEADER, *lines])))
    log = open_log(source.first_rows(tmp_path / str(is_json), 40, 60.0), columns="categorical")
    assert (len(log), log.fields) == (40, ("a", "b", "n", "t"))
    source.open(FORMAT)
    assert numbers_of(drained(source, rows=100)) == list(range(100))
    with pytest.raises(StreamError, match="ended before its first row"):
        StdinSource(io.BytesIO(HEADER)).first_rows(tmp_path, 10, 0.0)


def test_a_writer_waits_for_the_reader() -> None:
    end, begin = os.pipe()
    line = row(7)
    written = 0
    os.set_blocking(begin, False)
    with open(end, "rb") as stream, open(begin, "wb", buffering=0) as pipe:
        source = StdinSource(stream)
        source.open(FORMAT)
        pipe.write(HEADER + line)
        assert numbers_of(drained(source, rows=1)) == [7]
        block, full = line * 200, 0
        while full < 50:  # the pipe was full for half a second
            sent = pipe.write(block[written % len(line) :])
            written += sent or 0
            full = 0 if sent else full + 1
            if not sent:
                time.sleep(0.01)
            assert written < 50_000_000, "the source keeps it all"
        os.set_blocking(begin, True)
        rest = line[written % len(line) :] if written % len(line) else b""
        threading.Thread(target=pipe.write, args=(rest,)).start()
        rows = (written + len(rest)) // len(line)
        assert numbers_of(drained(source, rows=rows)) == [7] * rows
        source.close()


VALUES: dict[str, list[Any]] = {
    "text": ["a", "", None, 'q"ö', "1.0"],
    "whole": [1, -5, None, 2**40, 0],
    "float": [1.0, 2.5, None, 1e-9, -3.0],
    "flag": [True, False, None, True, False],
    "list": [["a", "b"], [], None, ["c"], ["ä", ""]],
    "inner": [{"x": 1, "y": "p"}, {"x": None, "y": ""}, {"x": 3, "y": None}, {"x": 4, "y": "q"}, {"x": 5, "y": "r"}],
    "items": [[{"k": 1}, {"k": 2}], [], [{"k": 3}], [{"k": None}], [{"k": 5}]],
}


def test_values_are_the_texts_that_a_parquet_file_of_them_has(tmp_path: Path) -> None:
    typed = pl.DataFrame(VALUES)
    typed.write_parquet(tmp_path / "a.parquet")
    names = ("text", "whole", "float", "flag", "list", "inner.x", "inner.y", "items.k")
    format = LogFormat("log", "", names, labelled=False, kinds=dict.fromkeys(names, "category"))
    file, bad = raw_file(tmp_path / "a.parquet"), list[BadRow]()
    assert set(file.head.columns) == set(names)
    (chunk,) = file.chunks(format, 0, 1, 1 << 20)
    theirs = file.full_frame(chunk, format, [])
    texts = [json.dumps(value).encode() for value in typed.iter_rows(named=True)]
    ours = frame_of([(line, record_of(text), text) for line, text in enumerate(texts, 1)], format, bad)
    assert not bad
    for name in (*names, LINE):
        expected = theirs[name].to_list()
        if name == "items.k":  # of an empty list it is not known that it would have objects
            expected[1] = None
        assert ours[name].to_list() == expected, name
