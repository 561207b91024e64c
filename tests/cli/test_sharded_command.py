"""`torchrun -m sparsegroup train`: killed anywhere, it ends with the same bits; resumed on another number of ranks."""

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli_cases import summary_of
from kill_runs import differences
from rank_run_cases import EPOCHS, SETTINGS, outcome, write_log
from sparsegroup.training import Config, load_run

TRAINED = EPOCHS * 648
"""Samples."""

PATIENCE = 500


def started(folder: Path) -> tuple[str, ...]:
    """The arguments of a run on a log with everything that has state, of which both are written to a folder."""
    write_log(folder)
    config = Config.of(log="log.csv", schema="schema.yaml", **SETTINGS)
    (folder / "config.yaml").write_text(config.as_yaml())
    return "config.yaml", "--out", "run"


def torchrun(
    folder: Path, ranks: int, *arguments: str, killed: str = "", by: str = "SIGKILL", restarts: int = 0
) -> subprocess.CompletedProcess[str]:
    """`train` on so many ranks, in a folder; what it prints."""
    tests = Path(__file__).parents[1] / "support"
    path = os.pathsep.join([str(tests), *sys.path])
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
            *("--max-restarts", str(restarts), "--monitor-interval", "0.1"),
            *(str(tests / "killed_train.py"), "train", *arguments),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "KILLED": killed, "BY": by, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def told(done: subprocess.CompletedProcess[str]) -> str:
    """What is wrong, without what torchrun says."""
    return "\n".join(line for line in done.stderr.splitlines() if "error" in line.lower())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that nobody has killed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = torchrun(folder, 2, *started(folder), "--json")
    assert done.returncode == 0, told(done)
    assert json.loads(done.stdout)["samples"] == TRAINED
    return folder / "run"


def test_a_run_of_two_ranks(undisturbed: Path) -> None:
    summary = summary_of(undisturbed)
    assert sum(rank["rows"] for rank in summary["ranks"]) == TRAINED
    assert sum(rank["features"] for rank in summary["ranks"]) <= summary["features_seen"]
    assert all(rank["sent"] > 0 for rank in summary["ranks"])
    assert summary["test"]["auc"] > 0.6
    assert ">waited<" in (undisturbed / "report.html").read_text()
    run = load_run(undisturbed)  # on one process
    assert run.model.embedding.num_seen == summary["features_seen"]


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("killed", "by"),
    [
        ("exchange-31:1", "SIGKILL"),
        slow("batch-14:1", "SIGSTOP"),  # the others miss it
        *(slow(at, "SIGKILL") for at in ("batch-1:0", "batch-14:0", "batch-22:1", "exchange-38:0", "save-1:1")),
        slow("save-4:0", "SIGKILL"),
    ],
)
def test_a_rank_that_is_killed_anywhere_is_started_again(
    undisturbed: Path, tmp_path: Path, killed: str, by: str
) -> None:
    options = ("--rank-timeout", "0.2") if by == "SIGSTOP" else ()
    done = torchrun(tmp_path, 2, *started(tmp_path), *options, killed=killed, by=by, restarts=1)
    assert done.returncode == 0, told(done)
    if killed in ("exchange-31:1", "batch-14:1"):
        assert "resumed at row" in done.stderr
    assert not differences(outcome(undisturbed), outcome(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "then", "killed"),
    [(2, 3, "save-3:0,1"), (3, 1, "batch-17:2"), (1, 3, "batch-17:0"), (4, 2, "batch-17:3")],
)
def test_a_run_is_resumed_on_another_number_of_ranks(tmp_path: Path, ranks: int, then: int, killed: str) -> None:
    assert torchrun(tmp_path, ranks, *started(tmp_path), killed=killed).returncode != 0
    done = torchrun(tmp_path, then, "--resume", "run")
    assert done.returncode == 0, told(done)
    summary = summary_of(tmp_path / "run")
    assert summary["samples"] == TRAINED
    if then > 1:
        resumed = re.search(r"resumed at row (\d+)", done.stderr)
        assert resumed is not None
        assert sum(rank["rows"] for rank in summary["ranks"]) + int(resumed[1]) == TRAINED
        assert len(summary["ranks"]) == then


_PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
_RANK = """
import time
from sparsegroup.cli.app import end_with_parent
end_with_parent(0.02)
print("waits", flush=True)
time.sleep(99)
"""


def test_a_rank_ends_when_the_process_that_has_started_it_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT, _RANK], stdout=-1, stderr=-1, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        assert parent.stdout.readline() == "waits\n"
        parent.kill()
        # Both streams end with the last process that has them.
        assert parent.stdout.read() == ""
        assert "torchrun" in parent.stderr.read()


@pytest.mark.slow
def test_no_rank_remains_after_torchrun_is_killed(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    arguments = ("-m", "sparsegroup", "train", *started(tmp_path), "--set", "training.epochs=10000", "--verbose")
    with subprocess.Popen([*command, *arguments], cwd=tmp_path, stdout=-3, stderr=-1, text=True) as agent:
        assert agent.stderr is not None
        assert any("checkpoint at" in line for line in agent.stderr)
        agent.kill()
        assert "torchrun" in agent.stderr.read()
