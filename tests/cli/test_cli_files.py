"""Logs that are prepared, and logs of many files, on a disk and in an object store, through all commands."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from cli_cases import click_log, summary_of
from command import Run
from endings import Refused
from object_store import ObjectStore, object_store
from run_folders import state_of
from sparsegroup.data import PreparedLog, open_log

SMALL = ("--model", "mlp", "--dim", 2, "--set", "model.hidden=[4]", "--lr", 0.05)
SMALL += ("--selection", "never", "--no-baseline")
ROWS = 600


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        yield store


def in_parts(log: Path, folder: Path, cuts: tuple[int, ...] = (200, 201, 450)) -> Path:
    """A folder with the log in files whose names are in the order of its rows, as numbers are."""
    header, *rows = log.read_text().splitlines()
    folder.mkdir()
    for number, (begin, end) in enumerate(zip((0, *cuts), (*cuts, len(rows)), strict=True), 8):
        (folder / f"part-{number}.csv").write_text("\n".join([header, *rows[begin:end]]) + "\n")
    return folder


def test_every_command_takes_a_folder_of_files(tmp_path: Path, ok: Run) -> None:
    in_parts(click_log(tmp_path / "one.csv", ROWS), tmp_path / "logs")
    parts = sorted((tmp_path / "logs").iterdir())
    prepared = ok("prepare", *parts, "prepared", "--test", "logs/part-[89].csv")
    assert "801: 600 for training, 201 for testing" in prepared.stdout
    ok("path", "logs/*", "--rates", ".3", "--out", "path", *SMALL[:2])
    ok("train", "logs", *SMALL, "--test", "logs/part-8.csv", "--out", "run")
    assert summary_of(tmp_path / "run")["test_rows"] == 200
    ok("predict", "run", *parts, "--out", "scores.csv")
    assert pl.read_csv(tmp_path / "scores.csv")["row"].to_list() == list(range(ROWS))
    ok("predict", "run", "one.csv", "--out", "one-scores.csv")
    assert (tmp_path / "one-scores.csv").read_bytes() == (tmp_path / "scores.csv").read_bytes()
    own = ok("export", "run", "served", "--no-onnx", "--test", tmp_path / "logs")
    assert "200 rows of" in own.stdout  # the test rows
    other = ok("export", "run", "served", "--no-onnx", "--overwrite", "--test", "logs/part-1*")
    assert "399 rows of logs/part-1*" in other.stdout
    ok("train", *parts[:2], "--continue", "run", "--out", "next")
    ok("train", "next/config.yaml", "--out", "again")  # which names several files
    logs = [summary_of(tmp_path / name)["log"] for name in ("next", "again")]
    assert logs == [f"{parts[0]} and 1 more"] * 2


def test_files_sorted_by_time_are_resumed_and_tested_in_that_order(tmp_path: Path, ok: Run, refused: Refused) -> None:
    logs, run = in_parts(click_log(tmp_path / "one.csv", ROWS), tmp_path / "logs"), tmp_path / "run"
    for number in range(8, 12):  # now the last rows are in the first file
        (logs / f"part-{number}.csv").rename(logs / f"{20 - number}.csv")
    ok("train", "one.csv", *SMALL, "--out", "one")
    ok("train", "logs", *SMALL, "--sort-files", "time", "--out", "run")
    assert state_of(run) == state_of(tmp_path / "one")
    ok("export", "run", "served", "--no-onnx", "--test", "logs")
    (run / "summary.json").unlink()
    shutil.copy(logs / "12.csv", logs / "13.csv")
    assert refused("train", "--resume", "run").startswith("error: logs: has changed since the run began")
    (logs / "13.csv").unlink()
    (logs / "12.csv").rename(logs / "14.csv")  # the same rows in the same order, of another name
    assert "has changed" in refused("train", "--resume", "run")
    (logs / "14.csv").rename(logs / "12.csv")
    ok("train", "--resume", "run")
    assert state_of(run) == state_of(tmp_path / "one")


def test_partitions_of_a_store_are_trained_on_resumed_predicted_and_continued(
    tmp_path: Path, ok: Run, refused: Refused, server: ObjectStore
) -> None:
    frame = pl.read_csv(click_log(tmp_path / "log.csv", ROWS))
    for day in range(4):
        folder = tmp_path / "logs" / f"day=d{day + 8}"
        folder.mkdir(parents=True)
        frame[day * 150 : day * 150 + 150].write_parquet(folder / "part-0.parquet")
    uri = server.put(tmp_path / "logs", "clicks")
    steps = ("--batch-size", 60, "--checkpoint-steps", 2, "--keep-checkpoints", 9)
    ok("train", "logs", *SMALL, *steps, "--out", "here")
    ok("train", f"{uri}/day=*/", *SMALL, *steps)
    there = tmp_path / "runs" / "clicks" / "latest"
    assert state_of(there) == state_of(tmp_path / "here")
    for late in sorted((there / "checkpoints").iterdir())[2:]:  # as if it had been cut off within the log
        shutil.rmtree(late)
    (there / "summary.json").unlink()
    assert "resumed at row" in ok("train", "--resume", there).stderr
    assert state_of(there) == state_of(tmp_path / "here")
    assert json.loads((there / "columns.json").read_text())["fields"] == ["color", "size", "day"]
    for log, rows in ((f"{uri}/day=d11", 150), (f"{uri}/", ROWS)):
        ok("predict", "here", log, "--out", "scores.parquet", "--overwrite")
        assert len(pl.read_parquet(tmp_path / "scores.parquet")) == rows
    ok("train", f"{uri}/day=d11/", "--continue", "here", "--out", "next", "--test", f"{uri}/day=d10/*.parquet")
    assert summary_of(tmp_path / "next")["test_rows"] == 150
    ok("prepare", f"{uri}/day=*/", "prepared")
    assert len(open_log(tmp_path / "prepared")) == ROWS
    exported = ok("export", "here", "served", "--no-onnx", "--test", f"{uri}/day=d9/")
    assert f"150 rows of {uri}/day=d9/" in exported.stdout
    missing = f"{uri}/day=d99/part-0.parquet"
    assert refused("train", missing, *SMALL) == f"error: {missing}: no such file\n"


def test_prepare_takes_a_log_and_says_what_it_holds(tmp_path: Path, ok: Run) -> None:
    log, folder = click_log(tmp_path / "log.csv"), tmp_path / "out"
    done = ok("prepare", log, "out", "--vocabulary")
    for line in (
        "rows 2,000: 1,800 for training, 200 for testing",
        "positives 28.600%",
        "fields 2 categorical, 0 numeric",
        "features 104, of which 104 in the training rows",
        "pairs of features are expected to share a key",
        "written to out",
    ):
        assert line in " ".join(done.stdout.split())
    assert "bad" not in done.stdout + done.stderr
    assert {path.name for path in folder.iterdir()} == {"log.json", "part-00000.parquet", "vocabulary.parquet"}
    assert len(PreparedLog(folder)) == 2_000
    before = (folder / "log.json").stat().st_mtime_ns
    again = ok("prepare", log, "out", "--vocabulary")
    assert again.stdout.split("positives")[1] == done.stdout.split("positives")[1]
    assert (folder / "log.json").stat().st_mtime_ns == before
    ok("prepare", log, "bare")
    for name in ("out", "bare"):  # features are named by the vocabulary
        ok("train", name, "--out", f"run-{name}", "--l21", 0, "--selection", "never", "--model", "lr")
        largest = summary_of(tmp_path / f"run-{name}")["largest"]
        assert [one["value"] is not None for one in largest] == [name == "out"] * 10
    log.write_text(log.read_text().replace("label", "clicked", 1) + "1,x\n")
    options = ("--label", "clicked", "--exclude", "size", "--exclude", "id", "--test-fraction", 0.25)
    done = ok("prepare", log, "other", *options, "--on-bad-row", "skip", "--max-bad", "0.1%")
    assert "2,000: 1,500 for training, 500 for testing" in done.stdout
    assert f"{log}: skipped 1 bad row\n" in done.stderr
    assert "  line 2002: 2 columns where 5 are expected: '1,x'\n" in done.stderr
    assert PreparedLog(tmp_path / "other").fields == ("color",)
