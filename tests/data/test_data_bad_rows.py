"""Rows that cannot be read: which they are, and that the others are read as if they were not there."""

import gzip
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from data_cases import (
    BAD,
    CSV,
    HEADER,
    LONGEST,
    assert_rows,
    compress,
    good_rows,
    keys,
    mixed_lines,
    read,
    rows_of,
    written,
)
from over import over
from sparsegroup.data import preparation
from sparsegroup.data.preparation import prepare
from sparsegroup.data.prepared_log import MANIFEST
from sparsegroup.data.schema import LogFormat
from sparsegroup.errors import ClickLogError


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegroup.data.raw.text.LONGEST_LINE", LONGEST)


@pytest.mark.usefixtures("short_lines")
@pytest.mark.parametrize("seed", [0, 1])
def test_what_is_read_does_not_depend_on_chunks_or_threads(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 50)
    lines = mixed_lines(seed)
    content = HEADER + b"\n".join(line.raw for line in lines) + b"\n" * seed
    path = written(tmp_path / "log.csv", content)
    rows, bad_lines = read(lines)
    line, reason = bad_lines[0]
    for number, size in enumerate([40, 97, 299, 300, 301, 800, *(len(content) + more for more in (-1, 0, 1))]):
        options: dict[str, Any] = {"threads": 1 + number % 3, "chunk_bytes": size}
        log, (bad,) = prepare([path], tmp_path / f"out{number}", CSV, on_bad_row="skip", max_bad=0.9, **options)
        assert_rows(rows_of(log), rows)
        assert bad.reasons == Counter(reason for _, reason in bad_lines) == log.manifest.bad_rows
        assert [sample[:2] for sample in bad.samples] == bad_lines[:5]
        with pytest.raises(ClickLogError) as raised:
            prepare([path], tmp_path / f"error{number}", CSV, **options)
        assert str(raised.value).startswith(f"{path}:{line}: {reason}: ")


@pytest.mark.usefixtures("short_lines")
def test_a_bad_row_stops_with_file_and_line_however_far_into_the_log(tmp_path: Path) -> None:
    good = good_rows(200)
    for bad in BAD:
        path = written(tmp_path / "log.csv", HEADER + b"\n".join([*good[:150], bad.raw, *good[150:]]))
        with pytest.raises(ClickLogError) as raised:
            prepare([path], tmp_path / "out", CSV, chunk_bytes=900)
        assert str(raised.value).startswith(f"{path}:152: {bad.reason}: "), bad
        assert len(str(raised.value)) < len(str(path)) + 400
        assert not (tmp_path / "out" / MANIFEST).exists()
        for part in (tmp_path / "out").iterdir():
            part.unlink()


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_an_empty_a_truncated_and_a_joined_log(suffix: str, tmp_path: Path) -> None:
    def pack(content: bytes) -> bytes:
        return compress(suffix, content) if suffix else content

    path = tmp_path / f"log.csv{suffix}"
    for content in (pack(b""), pack(HEADER), pack(HEADER[:-1]), pack(HEADER + b"\n\r\n"), b""):
        written(path, content)
        with pytest.raises(ClickLogError, match=rf"^{path}: (the file is empty|no rows)|^{path}:.*damaged"):
            prepare([path], tmp_path / "out")
    pieces = [HEADER, *(row + b"\n" for row in good_rows(10))]
    written(path, b"".join(map(pack, pieces)))  # a stream each
    assert len(prepare([path], tmp_path / "joined", CSV)[0]) == 10
    whole = pack(HEADER + b"\n".join(good_rows(5000)))
    for length in (len(whole) - 1, len(whole) - 9, len(whole) // 2, 30, 7) if suffix else ():
        written(path, whole[:length])
        with pytest.raises(ClickLogError, match=rf"^{path}:\d+: damaged or truncated compressed file"):
            prepare([path], tmp_path / f"cut{length}", CSV, chunk_bytes=9999)
        assert not (tmp_path / f"cut{length}" / MANIFEST).exists()


def test_a_byte_order_mark_and_carriage_returns_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "\ufefflabel,a\r\n0,x\r\n1,\ufeffx\r\n")
    assert rows_of(prepare([path], tmp_path / "out")[0]).keys.tolist() == keys([["x"], ["\ufeffx"]])


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


@over(
    ("header", "message"),
    [
        ("a,b,c", "no label column 'label' or 'click'; name it with `label`. The columns are a, b, c"),
        ("label,a,a", "column 'a' appears 2 times"),
        ("label,a,", "column 3 has no name"),
        (",label,a", "column 1 has no name"),
        ("label,id,ts", "0 fields; there must be 1 to 256"),
        ("label," + ",".join(f"f{i}" for i in range(257)), "257 fields; there must be 1 to 256"),
        ("label,time,a", "a field cannot be named 'time'; rename it"),
        ("0 " + " ".join(f"{i}:1" for i in range(300)), "300 fields; there must be 1 to 256"),
    ],
)
def test_a_header_that_cannot_be_used_is_refused(header: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", header + "\n")
    with pytest.raises(ClickLogError) as raised:
        prepare([path], tmp_path / "out", columns="categorical")
    assert str(raised.value).startswith(f"{path}:1: {message}")


def test_a_column_that_appears_twice_is_refused_if_it_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", "label,a,b,b\n0,x,y,z\n")
    with pytest.raises(ClickLogError, match=r"log.csv:1: column 'b' appears 2 times"):
        prepare([path], tmp_path / "out", LogFormat("log", "label", ("a", "b")))
    assert len(prepare([path], tmp_path / "out", LogFormat("log", "label", ("a",)))[0]) == 1
