"""Logs of many files, on a disk and in an object store, through every command that takes a log."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from cli_cases import click_log, summary_of
from command import Run
from kill_runs import KILLED, Driver
from object_store import ObjectStore, object_store
from run_folders import state_of
from sparsegroup.data import open_log

SMALL = ("--model", "mlp", "--dim", 2, "--set", "model.hidden=[4]", "--lr", 0.05)


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


def in_parts(log: Path, folder: Path, cuts: tuple[int, ...] = (700, 701, 1_500)) -> Path:
    """A folder with the log in files whose names are in the order of its rows, as numbers are."""
    header, *rows = log.read_text().splitlines()
    folder.mkdir()
    for number, (begin, end) in enumerate(zip((0, *cuts), (*cuts, len(rows)), strict=True), 8):
        (folder / f"part-{number}.csv").write_text("\n".join([header, *rows[begin:end]]) + "\n")
    return folder


def test_a_folder_a_pattern_and_a_list_train_to_the_bits_of_the_one_file(tmp_path: Path, run: Run) -> None:
    one = click_log(tmp_path / "log.csv")
    in_parts(one, tmp_path / "logs")
    assert run("train", one, *SMALL).returncode == 0
    expected = state_of(tmp_path / "runs" / "log" / "latest")
    asked = {"folder": ["logs"], "pattern": ["logs/*.csv"], "list": [f"logs/part-{n}.csv" for n in (10, 8, 11, 9)]}
    for name, paths in asked.items():
        done = run("train", *paths, *SMALL, "--out", name)
        assert done.returncode == 0, done.stderr
        assert state_of(tmp_path / name) == expected
    assert summary_of(tmp_path / "list")["log"] == "logs/part-10.csv and 3 more"
    assert run("train", "logs/*", *SMALL).returncode == 0
    assert (tmp_path / "runs" / "logs" / "latest" / "summary.json").exists()
    again = run("train", "list/config.yaml", "--out", "again")  # which names several files
    assert again.returncode == 0, again.stderr
    assert state_of(tmp_path / "again") == expected


def test_every_command_takes_a_folder_of_files(tmp_path: Path, run: Run) -> None:
    in_parts(click_log(tmp_path / "one.csv"), tmp_path / "logs")
    parts = sorted((tmp_path / "logs").iterdir())
    prepared = run("prepare", *parts, "prepared", "--test", "logs/part-[89].csv")
    assert prepared.returncode == 0, prepared.stderr
    assert "2,701: 2,000 for training, 701 for testing" in prepared.stdout
    path = run("path", "logs/*", "--rates", ".3", "--out", "path", *SMALL[:2])
    assert path.returncode == 0, path.stderr
    assert run("train", "logs", *SMALL, "--test", "logs/part-8.csv", "--out", "run").returncode == 0
    assert summary_of(tmp_path / "run")["test_rows"] == 700
    predicted = run("predict", "run", *parts, "--out", "scores.csv")
    assert predicted.returncode == 0, predicted.stderr
    scores = pl.read_csv(tmp_path / "scores.csv")
    assert scores["row"].to_list() == list(range(2_000))
    assert run("predict", "run", "one.csv", "--out", "one-scores.csv").returncode == 0
    assert (tmp_path / "one-scores.csv").read_bytes() == (tmp_path / "scores.csv").read_bytes()
    exported = run("export", "run", "served", "--no-onnx", "--test", tmp_path / "logs")
    assert exported.returncode == 0, exported.stderr
    assert "700 rows of" in exported.stdout  # of the run's own log, the test rows
    other = run("export", "run", "served", "--no-onnx", "--overwrite", "--test", "logs/part-1*")
    assert "1,299 rows of logs/part-1*" in other.stdout, other.stderr
    gone_on = run("train", *parts[:2], "--continue", "run", "--out", "next")
    assert gone_on.returncode == 0, gone_on.stderr


def test_files_sorted_by_time_are_resumed_and_tested_in_that_order(tmp_path: Path, run: Run) -> None:
    in_parts(click_log(tmp_path / "one.csv"), tmp_path / "logs")
    for number in range(8, 12):  # now the last rows are in the first file
        (tmp_path / "logs" / f"part-{number}.csv").rename(tmp_path / "logs" / f"{20 - number}.csv")
    assert run("train", "one.csv", *SMALL, "--out", "one").returncode == 0
    done = run("train", "logs", *SMALL, "--sort-files", "time", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert state_of(tmp_path / "run") == state_of(tmp_path / "one")
    exported = run("export", "run", "served", "--no-onnx", "--test", "logs")
    assert exported.returncode == 0, exported.stderr
    (tmp_path / "run" / "summary.json").unlink()
    assert run("train", "--resume", "run").returncode == 0
    assert state_of(tmp_path / "run") == state_of(tmp_path / "one")


def test_a_run_is_not_resumed_on_a_log_with_another_file(tmp_path: Path, run: Run) -> None:
    logs = in_parts(click_log(tmp_path / "one.csv"), tmp_path / "logs")
    assert run("train", "logs", *SMALL, "--out", "run").returncode == 0
    (tmp_path / "run" / "summary.json").unlink()
    shutil.copy(logs / "part-8.csv", logs / "part-12.csv")
    refused = run("train", "--resume", "run")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: logs: has changed since the run began")
    (logs / "part-12.csv").unlink()
    (logs / "part-8.csv").rename(logs / "part-7.csv")  # the same rows in the same order, of another name
    assert run("train", "--resume", "run").returncode == 2
    (logs / "part-7.csv").rename(logs / "part-8.csv")
    assert run("train", "--resume", "run").returncode == 0


def test_partitions_of_a_store_are_trained_on_predicted_and_gone_on_with(
    tmp_path: Path, run: Run, server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    frame = pl.read_csv(click_log(tmp_path / "log.csv"))
    for day in range(4):
        folder = tmp_path / "logs" / f"day=d{day + 8}"
        folder.mkdir(parents=True)
        frame[day * 500 : day * 500 + 500].write_parquet(folder / "part-0.parquet")
    uri = server.put(tmp_path / "logs", "clicks")
    assert run("train", "logs", *SMALL, "--out", "here").returncode == 0
    there = run("train", f"{uri}/day=*/", *SMALL)
    assert there.returncode == 0, there.stderr
    assert state_of(tmp_path / "runs" / "clicks" / "latest") == state_of(tmp_path / "here")
    content = json.loads((tmp_path / "runs" / "clicks" / "latest" / "columns.json").read_text())
    assert content["fields"] == ["color", "size", "day"]
    for log, rows in ((f"{uri}/day=d11", 500), (f"{uri}/", 2_000)):
        done = run("predict", "here", log, "--out", "scores.parquet")
        assert done.returncode == 0, done.stderr
        assert len(pl.read_parquet(tmp_path / "scores.parquet")) == rows
    next_day = run(
        "train", f"{uri}/day=d11/", "--continue", "here", "--out", "next", "--test", f"{uri}/day=d10/*.parquet"
    )
    assert next_day.returncode == 0, next_day.stderr
    assert summary_of(tmp_path / "next")["test_rows"] == 500
    assert run("prepare", f"{uri}/day=*/", "prepared").returncode == 0
    assert len(open_log(tmp_path / "prepared")) == 2_000
    exported = run("export", "here", "served", "--no-onnx", "--test", f"{uri}/day=d9/")
    assert exported.returncode == 0, exported.stderr
    assert f"500 rows of {uri}/day=d9/" in exported.stdout
    missing = run("train", f"{uri}/day=d99/part-0.parquet", *SMALL)
    assert (missing.returncode, missing.stderr) == (2, f"error: {uri}/day=d99/part-0.parquet: no such file\n")


@pytest.mark.parametrize("where", ["disk", "store"])
def test_a_run_that_is_killed_within_a_log_of_many_files_resumes_to_the_same_bits(
    where: str, tmp_path: Path, server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    place = tmp_path / "place"
    place.mkdir()
    in_parts(click_log(tmp_path / "log.csv"), place / "logs")
    log = "logs" if where == "disk" else server.put(place / "logs", "killed")
    command = ("train", log, *SMALL, "--batch-size", 100, "--checkpoint-steps", 2)
    driver = Driver(tmp_path)
    try:
        whole = driver.run(place, *command, "--out", "whole")
        assert whole.code == 0, whole.output
        assert whole.operations is not None
        for share in (0.3, 0.6):
            killed = driver.run(place, *command, "--out", "run", "--overwrite", at=int(share * len(whole.operations)))
            assert killed.code == KILLED
            resumed = driver.run(place, "train", "--resume", "run")
            assert resumed.code == 0, resumed.output
            assert "resumed at row" in resumed.output
            assert state_of(place / "run") == state_of(place / "whole")
            shutil.rmtree(place / "run")
    finally:
        driver.close()
