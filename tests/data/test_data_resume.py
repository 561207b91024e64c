"""Preparing that is cut off at any moment is completed by the same call; other folders are refused."""

import io
import itertools
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from data_cases import CSV, HEADER, LONGEST, assert_equal, avazu_log, good_rows, mixed_lines, rows_of, write, written
from sparsegroup.data import preparation
from sparsegroup.data.preparation import prepare
from sparsegroup.data.prepared_log import MANIFEST, PreparedLog
from sparsegroup.data.schema import LogFormat
from sparsegroup.errors import ClickLogError


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsegroup.data.raw.text.LONGEST_LINE", LONGEST)


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

    monkeypatch.setattr("sparsegroup.artifact.folder.os.fsync", wrap("fsync", os.fsync))
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
    assert len(whole.manifest.parts) >= 4
    expected = content_of(tmp_path / "whole")
    assert set(expected) == {MANIFEST, "vocabulary.parquet", *whole.manifest.parts}
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


def columnar_log(path: Path) -> Path:
    rows = range(1000)
    frame = pl.DataFrame({"label": [i % 2 for i in rows], "a": [f"v{i % 700}" for i in rows]})
    return write(frame, path.with_suffix(".parquet"), 100)


@pytest.mark.parametrize(
    ("make", "train_rows"),
    [
        (lambda path: avazu_log(path, [f"141021{i // 10:02}" for i in range(100)] + ["14102200"] * 20), 100),
        (columnar_log, 900),
    ],
    ids=["avazu", "parquet"],
)
def test_a_run_cut_off_again_and_again_comes_to_its_end(
    make: Callable[[Path], Path], train_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 1)
    path = make(tmp_path / "log.csv")
    whole, _ = prepare([path], tmp_path / "whole", chunk_bytes=700)
    assert len(whole.manifest.parts) >= 10
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
    assert log.manifest.train_rows == whole.manifest.train_rows == train_rows


def test_a_killed_process_leaves_a_folder_to_go_on_with(tmp_path: Path) -> None:
    path = written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(20_000)))
    program = (
        "import importlib, sys; from pathlib import Path\n"
        "from sparsegroup.data import preparation as p; p.PART_CHUNKS = 1\n"
        "from sparsegroup.data.schema import LogFormat\n"
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
    with pytest.raises(ClickLogError, match=r"unfinished.*run the same `prepare` again"):
        PreparedLog(folder)
    seen: list[int] = []
    log, _ = prepare([path], folder, CSV, chunk_bytes=2000, on_progress=lambda done: seen.append(done.rows))
    assert seen[0] > 3 * 50  # what was written is not read again
    whole, _ = prepare([path], tmp_path / "whole", CSV)
    assert_equal(rows_of(log), rows_of(whole))
    assert log.manifest.features == whole.manifest.features
    assert not list(folder.glob(".*"))


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
    other = io.BytesIO()
    pl.DataFrame({"a": [1]}).write_parquet(other)
    for damaged in (whole[:-10], b"", b"PAR1", other.getvalue()):
        part.write_bytes(damaged)
        with pytest.raises(ClickLogError, match=r"part-00001.parquet: not a part of a prepared log"):
            prepare([path], folder, CSV, chunk_bytes=500)
    part.unlink()
    with pytest.raises(ClickLogError, match="parts of a prepared log are missing"):
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
    manifest.write_text(json.dumps(json.loads(text) | {"version": 99}))
    with pytest.raises(ClickLogError, match=r"log.json: written by a newer version .* update sparsegroup"):
        PreparedLog(folder)
    manifest.write_text(text)
    part = folder / "part-00001.parquet"
    whole = part.read_bytes()
    for damaged_part in (whole[: len(whole) // 2], b"", whole[:100] + bytes(200) + whole[300:]):
        part.write_bytes(damaged_part)
        with pytest.raises(ClickLogError, match=r"part-00001.parquet: (missing or )?damaged"):
            rows_of(PreparedLog(folder))
        with pytest.raises(ClickLogError, match=r"part-00001.parquet: damaged"):
            log.verify()
    part.unlink()
    with pytest.raises(ClickLogError, match=r"part-00001.parquet: missing or damaged"):
        rows_of(log)
    with pytest.raises(ClickLogError, match=r"nowhere: no such log \(log.json is missing\)"):
        PreparedLog(tmp_path / "nowhere")
