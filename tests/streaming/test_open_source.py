"""Which source a text names; rows of standard input, and rows that are JSON objects."""

import io
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from data_cases import CSV, HEADER
from over import over
from sparsegroup.data import open_log
from sparsegroup.data.frames import feature_format
from sparsegroup.data.raw.encode import encode_frame
from sparsegroup.data.raw.files import LINE, BadRow, raw_file
from sparsegroup.streaming import sources
from sparsegroup.streaming.sources import EndOfStream, StdinSource, StreamError, open_source, stdin
from sparsegroup.streaming.sources.records import frame_of, record_of
from stream_cases import drained, numbers_of, record, row


@over(
    ("text", "options", "kind", "name"),
    [
        ("-", {}, "StdinSource", "standard input"),
        ("logs/", {}, "FilesSource", "logs/"),
        (["a.csv", "b.csv"], {}, "FilesSource", "a.csv and 1 more"),
        ("s3://key:secret@bucket/day=*/", {}, "FilesSource", "s3://bucket/day=*/"),
        ("kafka://a:9092,b:9092/c?group=me&client.id=x&lost=skip", {}, "KafkaSource", "kafka://a:9092,b:9092/c"),
        ("redis://u:secret@host:6379/2/clicks", {}, "RedisSource", "redis://host:6379/2/clicks"),
        ("redis://host/clicks", {}, "RedisSource", "redis://host/0/clicks"),
        ("redis://host/1?stream=a/b", {}, "RedisSource", "redis://host/1/a/b"),
        (
            "i/",
            {"clicks": "-", "on": "user,ad", "window": 60.0, "joined_label": "y", "settle": 1.0, "sort": "time"},
            "JoinedSource",
            "i/ with clicks of standard input",
        ),
    ],
)
def test_the_source_that_a_text_names(text: Any, options: Any, kind: str, name: str) -> None:
    source = open_source(text, **options)
    assert (type(source), source.name) == (getattr(sources, kind), name)
    assert source.is_replayable == ("standard input" not in name)


@over(
    ("text", "options", "message"),
    [
        ("kafka://broker:9092", {}, "name a broker and a topic, as in kafka://broker:9092/topic"),
        ("redis://host", {}, "name a stream, as in redis://host:6379/0/stream"),
        ("kafka://b/t?x", {}, "is no list of name=value with & between them"),
        (["-", "a"], {}, "-: only files can be several; give this source alone"),
        ("a", {"window": 5}, "`window` is for impressions that are joined with `clicks`"),
        ("a", {"clicks": "b", "on": "c"}, "`window` is missing"),
        ("a", {"sort": "size"}, "`sort` of files is name or time, got 'size'"),
        ("-", {"sort": "name"}, "`sort` is not for this source"),
        ("kafka://b/t", {"missing_columns": "empty"}, "`missing_columns` is not for this source"),
        ("a", {"lost": "skip"}, "`lost` is not for this source"),
        ([], {}, "got an empty list"),
        ("a", {"colour": 1}, "unexpected option 'colour'"),
    ],
)
def test_what_names_no_source_is_refused(text: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        open_source(text, **options)


JOIN = {"clicks": "clicks/", "on": "id", "window": 60.0}
GROUPS: list[list[tuple[Any, dict[str, Any]]]] = [
    [("logs/", {}), ("./logs", {"sort": "time", "settle": 1.0}), (os.path.abspath("logs"), {})],
    [("logs/*.csv", {})],
    [(["a.csv", "b.csv"], {}), (["./b.csv", "a.csv"], {})],
    [("s3://bucket/logs", {}), ("s3://key:secret@bucket/logs?secret=x", {})],
    [("s3://bucket/logs?endpoint_override=here", {})],
    [
        ("kafka://a:1,b:2/t", {}),
        ("kafka://b:2,a:1,c:3/t?group=x&security.protocol=SSL", {}),
        ("kafka://a:1/t", {"lost": "skip"}),
    ],
    [("kafka://d:1/t", {})],
    [("kafka://a:1/u", {})],
    [("redis://host/0/s", {}), ("redis://me:secret@host:6379/0/s?socket_timeout=5", {"lost": "skip"})],
    [("redis://host/1/s", {})],
    [("redis://host/0/r", {})],
    [("redis://other/0/s", {})],
    [("-", {})],
    [("logs/", JOIN), ("./logs", JOIN | {"late": "drop", "joined_label": "label"})],
    [("logs/", JOIN | {"clicks": "others/"})],
    [("clicks/", JOIN | {"clicks": "logs/"})],
    [("logs/", JOIN | {"window": 61.0})],
    [("logs/", JOIN | {"on": "id,user"})],
    [("logs/", JOIN | {"time": "ts"})],
    [("logs/", JOIN | {"late": "positive"})],
    [("logs/", JOIN | {"late": "positive", "late_window": 9.0})],
    [("logs/", JOIN | {"joined_label": "y"})],
]
"""Names of sources; those of one group name the same source."""


def test_sources_differ_unless_a_place_in_one_is_a_place_in_the_other() -> None:
    named = [(number, open_source(text, **options)) for number, group in enumerate(GROUPS) for text, options in group]
    for ours, source in named:
        recorded = json.loads(json.dumps(source.identity))
        assert "secret" not in str(recorded)
        for theirs, other in named:
            difference = other.difference_from(recorded)
            assert (not difference) == (ours == theirs), (source.name, other.name, difference)
            assert "secret" not in difference


def test_a_folder_is_the_same_from_wherever_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_bytes(HEADER + row(ord(name[0])))
    monkeypatch.chdir(tmp_path)
    source = open_source(["a.csv", "b.csv"], settle=0.0)
    source.open(CSV)
    position = drained(source, rows=2)[-1].position
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    again = open_source(["../a.csv", "../b.csv"], settle=0.0)
    assert not again.difference_from(source.identity)
    again.open(CSV, position)
    assert again.read(0.0) is None


def opened(data: bytes) -> StdinSource:
    source = StdinSource(io.BytesIO(data))
    source.open(CSV)
    return source


def test_csv_is_read_to_its_end_and_bad_rows_have_their_line() -> None:
    bad = b"2,a,b,1,1\n\n1,a\n" + b"x" * 3_000_000 + b"\n"
    source = opened(HEADER + row(0) + bad + b"".join(map(row, range(1, 20_000)))[:-1])
    blocks = drained(source, rows=20_003)
    assert numbers_of(blocks) == list(range(20_000))
    assert [line for block in blocks for line, _, _ in block.encode().bad] == [3, 5, 6]
    assert blocks[-1].position == {"rows": 20_005}
    assert sum(block.span["rows"] for block in blocks) == 20_004
    with pytest.raises(EndOfStream):
        source.read(1.0)
    with pytest.raises(StreamError, match="can be read once"):
        source.again(blocks[0].span)


def test_json_lines_are_rows() -> None:
    lines = b"".join(json.dumps(record(number)).encode() + b"\n" for number in range(5000))
    assert numbers_of(drained(opened(b"\n" + lines), rows=5000)) == list(range(5000))
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
    source.open(CSV)
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
        source.open(CSV)
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


def test_values_of_json_have_the_keys_that_a_parquet_file_of_them_has(tmp_path: Path) -> None:
    typed = pl.DataFrame(VALUES)
    typed.write_parquet(tmp_path / "a.parquet")
    names = ("text", "whole", "float", "flag", "list", "inner.x", "inner.y", "items.k")
    kinds = {name: "list json" if name in ("list", "items.k") else "category" for name in names}
    format = feature_format(kinds).for_scoring()
    file, bad = raw_file(tmp_path / "a.parquet"), list[BadRow]()
    assert set(file.head.columns) == set(names)
    (chunk,) = file.chunks(format, 0, 1, 1 << 20)
    theirs = encode_frame(file.full_frame(chunk, format, []), format, []).batch
    texts = [json.dumps(value).encode() for value in typed.iter_rows(named=True)]
    ours = encode_frame(
        frame_of([(line, record_of(text), text) for line, text in enumerate(texts, 1)], format, bad), format, bad
    ).batch
    assert not bad
    assert torch.equal(ours.keys, theirs.keys)
    for one, other in zip(ours.bags, theirs.bags, strict=True):
        assert torch.equal(one.keys, other.keys)


def test_an_object_or_list_that_turns_up_late_is_a_bad_row(tmp_path: Path) -> None:
    format, bad = feature_format({"a": "category", "b": "number"}).for_scoring(), list[BadRow]()
    texts = [json.dumps({"a": value, "b": 1}).encode() for value in ("x", {"k": 1}, ["y"], [{"k": 1}], None)]
    rows = frame_of([(line, record_of(text), text) for line, text in enumerate(texts, 1)], format, bad)
    assert rows[LINE].to_list() == [1, 5]
    assert [line for line, reason, _ in bad if "'a' takes" in reason] == [2, 3, 4]


def test_a_closed_standard_input_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(StreamError, match="standard input: is closed"):
        open_source("-")


def test_fields_that_rows_gain_or_lose_are_a_warning_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdin, "BLOCK_BYTES", 5_000)

    def rows(count: int, without: str = "", **fields: Any) -> bytes:
        record_of_all = {name: value for name, value in {**record(1), **fields}.items() if name != without}
        return json.dumps(record_of_all).encode() + b"\n" if count == 1 else rows(1, without, **fields) * count

    for data, words in (
        (rows(3_000), []),
        ((rows(99) + rows(1, rare="r")) * 30, []),
        (rows(2_000) + rows(900, "a") + rows(1) + rows(900, "a") + rows(500), []),
        ((rows(99, "a") + rows(1)) * 20 + rows(1_500, "a"), []),
        (rows(2_000) + rows(2_000, "a"), ["'a'"]),
        (rows(2_000) + rows(2_000, new="x", other="y"), ["'new', 'other'"]),
    ):
        caplog.clear()
        for block in drained(opened(data), rows=data.count(b"\n")):
            block.encode()
        assert len(caplog.messages) == len(words), caplog.messages
        assert all(word in message for word, message in zip(words, caplog.messages, strict=True))
