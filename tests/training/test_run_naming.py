"""Runs named by time: their folders, the link to the latest, and what a folder of runs stands for."""

import os
import re
from datetime import datetime
from pathlib import Path

import pytest

from cli_cases import click_log
from command import Run
from run_folders import state_of
from sparsegroup.training.run_folder import RunFolder, find_run, new_run_folder, point_latest, run_name

NOON = datetime(2026, 11, 22, 12, 0, 5)


def begin(parent: Path, when: datetime = NOON) -> Path:
    with new_run_folder(parent, when) as folder:
        pass
    return folder


def test_runs_of_one_second_are_numbered(tmp_path: Path) -> None:
    names = [begin(tmp_path / "log").name for _ in range(12)]
    assert names == ["2026-11-22_12-00-05", *(f"2026-11-22_12-00-05-{number}" for number in range(2, 13))]
    assert find_run(tmp_path / "log") == tmp_path / "log" / names[-1]  # though -9 sorts behind -12


def test_a_folder_that_was_not_begun_in_is_removed_with_its_parents(tmp_path: Path) -> None:
    def fail(parent: Path) -> None:
        with new_run_folder(parent, NOON):
            raise KeyError

    with pytest.raises(KeyError):
        fail(tmp_path / "runs" / "log")
    assert not any(tmp_path.iterdir())
    begin(tmp_path / "runs" / "log")
    with pytest.raises(KeyError):
        fail(tmp_path / "runs" / "log")
    assert [path.name for path in (tmp_path / "runs" / "log").iterdir()] == ["2026-11-22_12-00-05"]


def test_the_latest_is_the_one_that_was_pointed_to_last_or_is_named_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = begin(tmp_path), begin(tmp_path, NOON.replace(hour=13))
    for folder in (first, second):
        point_latest(folder)
        assert find_run(tmp_path) == find_run(tmp_path / "latest") == folder
    assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name, "latest"}
    second.rmdir()  # the link leads nowhere
    assert find_run(tmp_path) == first
    assert find_run(tmp_path / "no") == tmp_path / "no"

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("a required privilege is not held")

    monkeypatch.setattr(os, "symlink", refuse)
    point_latest(begin(tmp_path / "linkless"))
    newer = begin(tmp_path / "linkless", NOON.replace(day=23))
    assert find_run(tmp_path / "linkless") == newer
    assert not (tmp_path / "linkless" / "latest").is_symlink()


def test_names_for_other_places(tmp_path: Path) -> None:
    assert run_name(tmp_path / "criteo" / "2026-11-22_12-00-05-2") == "criteo/2026-11-22_12-00-05-2"
    assert run_name(tmp_path / "mine") == run_name(RunFolder.replacing(tmp_path / "mine").path) == "mine"


def test_each_run_has_a_folder_and_commands_take_the_latest(tmp_path: Path, ok: Run) -> None:
    log = click_log(tmp_path / "log.csv", 600)
    ok("train", log)
    done = ok("train", log, "--seed", 1)
    runs = tmp_path / "runs" / "log"
    first, second = sorted(path for path in runs.iterdir() if not path.is_symlink())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", first.name)
    assert (runs / "latest").readlink() == Path(second.name)
    assert re.search(rf"^ *written to +runs/log/{second.name} *$", done.stdout, re.MULTILINE)
    assert state_of(first) != state_of(second)
    assert all(find_run(runs / below) == second for below in ("", "latest", second.name))
    ok("export", "runs/log", "served", "--no-onnx")
    ok("train", log, "--continue", "runs/log", "--out", "next")
    (second / "summary.json").unlink()
    ok("train", "--resume", "runs/log")
    assert (second / "summary.json").is_file()


def test_a_run_that_holds_runs_is_meant_itself(tmp_path: Path, ok: Run) -> None:
    log = click_log(tmp_path / "log.csv", 600)
    ok("train", log, "--out", "runs/log")
    ok("train", log, "--seed", 1)
    old, new = (ok("predict", f"runs/log{below}", log).stdout for below in ("", "/latest"))
    assert old != new
    assert find_run(tmp_path / "runs" / "log") == tmp_path / "runs" / "log"
