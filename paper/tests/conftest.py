import sys
from pathlib import Path

import pytest
import torch

from experiment_cases import Command, Done, tiny_log
from sparsegroup.data import MemoryLog
from sparsegroup_paper.command_line import main
from sparsegroup_paper.lab import Worker


def pytest_configure() -> None:
    # Tensors this small are slower on several threads, and sums must not depend on how many cores there are.
    torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`sparsegroup-paper` with some arguments, in an empty folder and in this process: torch is imported once."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["sparsegroup-paper", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return tiny_log()


@pytest.fixture(scope="module")
def worker(log: MemoryLog) -> Worker:
    return Worker(log)
