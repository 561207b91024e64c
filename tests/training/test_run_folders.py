"""Runs named by time, the link to the latest, what a folder of runs stands for; the run that a job resumes."""

import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from cli_cases import click_log
from command import Done, Run
from following import CutOffError, cut_off_at
from run_folders import state_of
from sparsegroup.cli.runs import _run_of_job
from sparsegroup.training import Session
from sparsegroup.training.run_folder import RunFolder, find_run, new_run_folder, point_latest, run_name

NOON = datetime(2026, 11, 22, 12, 0, 5)
TRAIN = ("--model", "lr", "--no-baseline", "--batch-size", 200, "--checkpoint-steps", 1)
Job = Callable[..., Done]


def begin(parent: Path, when: datetime = NOON) -> Path:
    with new_run_folder(parent, when) as folder:
        pass
    return folder


def runs_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.is_symlink())


def test_runs_of_one_second_are_numbered(tmp_path: Path) -> None:
    names = [begin(tmp_path / "log").name for _ in range(12)]
    assert names == ["2026-11-22_12-00-05", *(f"2026-11-22_12-00-05-{number}" for number in range(2, 13))]
    assert find_run(tmp_path / "log") == tmp_path / "log" / names[-1]  # though -9 sorts behind -12
    assert run_name(tmp_path / "log" / names[1]) == f"log/{names[1]}"
    assert run_name(tmp_path / "mine") == run_name(RunFolder.replacing(tmp_path / "mine").path) == "mine"


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
    (tmp_path / "linkless" / "config.yaml").touch()  # a run that holds runs
    assert find_run(tmp_path / "linkless") == tmp_path / "linkless"


def test_each_run_has_a_folder_commands_take_the_latest_and_one_that_replaces_it_stays_there(
    tmp_path: Path, ok: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = click_log(tmp_path / "log.csv", 600)
    ok("train", log, *TRAIN)
    done = ok("train", log, *TRAIN, "--seed", 1)
    runs = tmp_path / "runs" / "log"
    first, second = runs_in(runs)
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
    before, real = state_of(first), Session.checkpoint

    def moved(self: Session, **keywords: Any) -> Path:
        point_latest(first)  # as if another run began
        return real(self, **keywords)

    monkeypatch.setattr(Session, "checkpoint", moved)
    ok("train", log, *TRAIN, "--seed", 2, "--out", "runs/log/latest", "--overwrite")
    assert state_of(first) == before
    assert "seed: 2" in (second / "config.yaml").read_text()


@pytest.fixture
def job(run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Job]:
    """Starts torchrun jobs of one process, each with a store as torchrun's agent has one."""

    def started() -> Job:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
        names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

        def train(*arguments: object, restarts: int = 0) -> Done:
            environment = dict(zip(names, (0, 1, 1, "127.0.0.1", store.port), strict=True))  # it lives as long
            environment |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": True}
            with monkeypatch.context() as patch:
                for name, value in (environment | {"TORCHELASTIC_RESTART_COUNT": restarts}).items():
                    patch.setenv(name, str(value))
                return run("train", *arguments, *TRAIN, "--json")

        return train

    return started


def test_a_restarted_job_resumes_its_run_though_a_later_one_is_the_latest_and_no_other_jobs(
    tmp_path: Path, ok: Run, job: Callable[[], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    click_log(tmp_path / "clicks.csv", 600)
    first, runs = job(), tmp_path / "runs" / "clicks"
    with monkeypatch.context() as patch:
        cut_off_at(patch, Session, "checkpoint", after=True)
        with pytest.raises(CutOffError):
            first("clicks.csv")
    own = find_run(runs)
    ok("train", "clicks.csv", *TRAIN, "--seed", 1)
    later = find_run(runs)
    before = state_of(later)
    resumed = first("clicks.csv", restarts=1)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed at row 200" in resumed.stderr
    assert f'"folder": "{own.relative_to(tmp_path)}"' in resumed.stdout
    assert state_of(later) == before != state_of(own)
    again = first("clicks.csv", restarts=2)  # another rank had failed in the end
    assert f'"folder": "{own.relative_to(tmp_path)}"' in again.stdout
    assert (runs / "latest").readlink() == Path(later.name)
    (tmp_path / "other").mkdir()
    click_log(tmp_path / "other" / "clicks.csv", 900)
    second = job()("other/clicks.csv", restarts=1)  # the first attempt failed before its run began
    assert second.returncode == 0, second.stderr
    assert '"samples": 810' in second.stdout
    assert len(runs_in(runs)) == 3


def test_a_run_that_cannot_be_read_is_none_of_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {names: lr}\n")
    (tmp_path / "provenance.json").write_text("{}")
    assert _run_of_job("a job", [tmp_path]) is None
