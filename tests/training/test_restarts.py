"""A job that torchrun restarts resumes the run that it had begun, and no other job's."""

from collections.abc import Callable
from datetime import timedelta
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
from sparsegroup.training.run_folder import point_latest

TRAIN = ("--model", "lr", "--no-baseline", "--batch-size", 200, "--checkpoint-steps", 1, "--json")
Job = Callable[..., Done]


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
                return run("train", *arguments, *TRAIN)

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
    own = runs / (runs / "latest").readlink()
    ok("train", "clicks.csv", *TRAIN, "--seed", 1)
    later = runs / (runs / "latest").readlink()
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
    assert len([path for path in runs.iterdir() if not path.is_symlink()]) == 3


def test_a_run_that_replaces_the_latest_stays_in_its_folder(
    tmp_path: Path, ok: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    click_log(tmp_path / "clicks.csv", 600)
    for seed in (0, 1):
        ok("train", "clicks.csv", *TRAIN, "--seed", seed)
    first, second = sorted(path for path in (tmp_path / "runs" / "clicks").iterdir() if not path.is_symlink())
    before, real = state_of(first), Session.checkpoint

    def moved(self: Session, **keywords: Any) -> Path:
        point_latest(first)  # as if another run began
        return real(self, **keywords)

    monkeypatch.setattr(Session, "checkpoint", moved)
    ok("train", "clicks.csv", *TRAIN, "--seed", 2, "--out", "runs/clicks/latest", "--overwrite")
    assert state_of(first) == before
    assert "seed: 2" in (second / "config.yaml").read_text()


def test_a_run_that_cannot_be_read_is_none_of_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("model: {names: lr}\n")
    (tmp_path / "other" / "provenance.json").write_text("{}")
    assert _run_of_job("a job", [tmp_path / "other"]) is None
