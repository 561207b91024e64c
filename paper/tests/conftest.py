from pathlib import Path

import pytest
import torch

from experiment_cases import tiny_log
from paper_command import Done, Run, call
from sparsegroup.data import MemoryLog
from sparsegroup_paper.execution import Worker


def pytest_configure() -> None:
    # Tensors this small are slower on several threads, and sums must not depend on how many cores there are.
    torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`sparsegroup-paper` with some arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: Done(call(monkeypatch, *arguments), *capsys.readouterr())


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return tiny_log()


@pytest.fixture(scope="module")
def worker(log: MemoryLog) -> Worker:
    return Worker(log)
