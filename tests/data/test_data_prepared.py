"""Prepared logs: their rows, and preparing that is cut off at any moment is completed by the same call."""

import io
import itertools
import json
import lzma
import multiprocessing
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
import torch

from data_cases import (
    CSV,
    HEADER,
    LONGEST,
    avazu_log,
    good_rows,
    mixed_lines,
    rows_of,
    write,
    written,
)
from sparsegroup.data import ClickLogError, Log, PreparedLog, preparation, prepare
from sparsegroup.data.prepared_log import MANIFEST, UNFINISHED
from sparsegroup.data.schema import LogFormat


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "log.csv", HEADER + b"\n".join(good_rows(200)))


def test_the_vocabulary_names_every_feature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 2)
    lines = ["label,a,b"] + [f"{i % 2},{'' if i % 5 == 0 else i % 13},日{i % 7}" for i in range(200)]
    path = written(tmp_path / "a.csv", "\n".join([*lines[:60], "2,bad,bad", *lines[60:]]))
    log, _ = prepare([path], tmp_path / "out", vocabulary=True, chunk_bytes=99, on_bad_row="skip", max_bad=0.1)
    groups = [pq.ParquetFile(tmp_path / "out" / name).num_row_groups for name in log.manifest.parts]
    assert (len(groups) >= 3, max(groups)) == (True, 2)
    vocabulary = pl.read_parquet(tmp_path / "out" / "vocabulary.parquet")
    assert vocabulary["key"].is_unique().all()
    assert vocabulary.height == sum(count for count, _ in log.manifest.features.values())
    meaning = {key: (field, value) for key, field, value in vocabulary.select("key", "field", "value").iter_rows()}
    for line, (a, b) in zip(lines[1:], rows_of(log).keys.tolist(), strict=True):
        assert [meaning[a], meaning[b]] == list(zip("ab", line.split(",")[1:], strict=True))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_a_worker_that_was_forked_reads_it(path: Path, tmp_path: Path) -> None:
    """As a DataLoader's workers are on Linux: threads of the process before, such as Polars', are not there."""
    log, _ = prepare([path], tmp_path / "out", CSV)
    expected = rows_of(log).keys.tolist()
    pl.DataFrame({"a": range(100_000)}).select(pl.col("a").sort(descending=True), b=pl.col("a").hash())
    loader = torch.utils.data.DataLoader(_Rows(log), batch_size=None, num_workers=1, timeout=60)
    assert [row for batch in loader for row in batch.tolist()] == expected


class _Rows(torch.utils.data.IterableDataset[torch.Tensor]):
    def __init__(self, log: Log) -> None:
        self.log = log

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (batch.keys for batch in self.log.batches(0, len(self.log), 3))


# Cut off


class Cut(BaseException):
    """Stands for the process's end: nothing may catch it."""


def cut_at(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    """End the run at the moment-th write to disk: before or after fsync, replace and unlink."""
    passed = 0

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal passed
            for when in ("before", "after"):
                passed += 1
                if passed == moment:
                    raise Cut
                if when == "before":
                    result = original(*arguments, **options)
            return result

        return wrapped

    monkeypatch.setattr("sparsegroup.artifact.folder.os.fsync", wrap(lambda descriptor: None))
    monkeypatch.setattr(Path, "replace", wrap(Path.replace))
    monkeypatch.setattr(Path, "unlink", wrap(Path.unlink))


def content_of(folder: Path) -> dict[str, Any]:
    """All files; the vocabulary as rows."""
    return {
        path.name: pl.read_parquet(path).rows() if path.name == "vocabulary.parquet" else path.read_bytes()
        for path in folder.iterdir()
    }


def test_a_run_cut_off_at_any_moment_goes_on_to_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsegroup.data.raw.text.LONGEST_LINE", LONGEST)
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
    for moment in itertools.chain(range(1, 34), itertools.count(35, 9)):  # the later parts are written as the first
        folder = tmp_path / f"cut{moment}"
        with monkeypatch.context() as patch:
            cut_at(patch, moment)
            with suppress(Cut):
                run(folder)
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
    runs, log = 0, None
    while log is None:
        runs += 1
        with monkeypatch.context() as patch:
            cut_at(patch, 40)
            with suppress(Cut):
                log, _ = prepare([path], tmp_path / "out", chunk_bytes=700)
    assert runs > 3
    assert content_of(tmp_path / "out") == content_of(tmp_path / "whole")
    assert log.manifest.train_rows == whole.manifest.train_rows == train_rows


def test_a_finished_folder_is_left_alone_and_of_an_unfinished_one_no_row_is_read_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = tmp_path / "out", list[preparation.PreparationProgress]()
    unfinished(path, folder, monkeypatch)
    written_rows = sum(UNFINISHED.read(folder).parts.values())
    with pytest.raises(ClickLogError, match=r"unfinished.*run the same `prepare` again"):
        PreparedLog(folder)
    log, _ = prepare([path], folder, CSV, chunk_bytes=500, on_progress=seen.append)
    assert seen[0].rows > written_rows > 0
    assert seen[-1].bytes == seen[-1].total == path.stat().st_size
    assert rows_of(log).numbers[:, 0].tolist() == [i + 0.5 for i in range(200)]
    assert not list(folder.glob(".*"))
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    again, bads = prepare([path], folder, CSV, on_progress=lambda done: pytest.fail("reads"))
    assert (again.manifest, bads) == (log.manifest, [])
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before


# Other and damaged folders


def unfinished(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "PART_CHUNKS", 1)
        cut_at(patch, 60)
        with pytest.raises(Cut):
            prepare([path], folder, CSV, chunk_bytes=500)


@pytest.mark.parametrize("finished", [True, False])
def test_a_folder_of_another_log_is_refused(
    finished: bool, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_folder_with_damaged_or_missing_parts_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    unfinished(path, folder, monkeypatch)
    part = folder / "part-00001.parquet"
    whole, other, flipped = part.read_bytes(), io.BytesIO(), bytearray(part.read_bytes())
    pl.DataFrame({"a": [1]}).write_parquet(other)
    flipped[len(flipped) // 3] ^= 4
    for damaged in (whole[:-10], b"", b"PAR1", other.getvalue(), bytes(flipped)):
        part.write_bytes(damaged)
        with pytest.raises(ClickLogError, match=r"part-00001.parquet: damaged"):
            prepare([path], folder, CSV, chunk_bytes=500)
    part.unlink()
    with pytest.raises(ClickLogError, match=r"part-00001.parquet: missing"):
        prepare([path], folder, CSV, chunk_bytes=500)


def test_files_that_prepare_has_not_written_are_left_alone(path: Path, tmp_path: Path) -> None:
    """Spark writes folders with files of equal names."""
    for name in ("part-00000.parquet", "notes.txt"):
        (folder := tmp_path / name).mkdir()
        written(folder / name, "mine")
        with pytest.raises(ClickLogError, match=rf"holds {name}, of no unfinished prepared log; give an empty folder"):
            prepare([path], folder, CSV)
        assert content_of(folder) == {name: b"mine"}


def test_a_flipped_bit_anywhere_in_a_prepared_log_is_named_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 2)
    lines = [f"{i % 2},v{i % 7},日{i % 3},{i}.5,{i},t{i % 4}|t{i % 9}" for i in range(200)]
    source = written(tmp_path / "log.csv", "\n".join(["label,a,b,n,ts,tags", *lines]))
    folder = tmp_path / "out"
    log, _ = prepare([source], folder, vocabulary=True, chunk_bytes=2000)
    keys = rows_of(log).keys.flatten().numpy()

    def content(log: PreparedLog) -> Any:
        return rows_of(log), log.chunk_starts(), log.values_of(keys, 0)

    content(PreparedLog(folder))
    generator = random.Random(0)
    for path in sorted(folder.iterdir()) * 25:
        whole = path.read_bytes()
        place, bit = generator.randrange(len(whole)), 1 << generator.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        with pytest.raises(ClickLogError, match=rf"{path.name}: .*damaged"):
            content(PreparedLog(folder))
        path.write_bytes(whole)


def test_a_damaged_prepared_log_is_named(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PART_CHUNKS", 1)
    folder = tmp_path / "out"
    log, _ = prepare([path], folder, CSV, chunk_bytes=1000)
    manifest = folder / MANIFEST
    text = manifest.read_text()
    wrong = '{"format": 1, "fields": [], "numbers": [], "lists": [], "features": []}'
    for damaged in (text[:-5], "", "[]", "{}", '"x"', text.replace('"rows"', '"rovs"'), wrong, "\udcff"):
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
