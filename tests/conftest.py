import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():  # Triton's kernels are interpreted; it looks at this when it is first imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

from command import Done, Run, call
from distributed_cases import Ranks
from sparsegroup.kernels.cpu import threads
from sparsegroup.reporting import page

collect_ignore = ["installed"]
"""Tests of the wheel, for `make test-wheel`."""


settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("nightly", derandomize=False, deadline=None, database=None, print_blob=True)
settings.load_profile("repeatable")  # before a test module is imported: its @settings start from this profile


def pytest_configure() -> None:
    # Tensors this small are slower on several threads, and sums must not depend on how many cores there are.
    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is imported is not searched for garbage again: a search would take a third of a second


@pytest.fixture(scope="session", autouse=True)
def _templates() -> Iterator[None]:
    """The templates of reports are compiled once, not for each report."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "page_environment", cache(page.page_environment))
        yield


@pytest.fixture(scope="session", autouse=True)
def _translations() -> Iterator[None]:
    """The translations of torch's operators to ONNX are listed once, not for each export: a third of a second."""
    with pytest.MonkeyPatch.context() as patch:
        with suppress(ImportError):  # of another torch
            from torch.onnx._internal._lazy_import import onnxscript_apis as apis

            name = "get_torchlib_ops"
            patch.setitem(vars(apis), name, cache(lambda: apis.__getattr__(name)()))
        yield


WHOLE = {"run", "ranks", "four_ranks", "driver", "originals", "folders"}
"""Fixtures of tests that run commands or start processes, which take seconds."""

LONG = (
    *("bfloat16", "gpu_kernels", "table_equivalence", "serving_model", "compiled_step", "objective_option"),
    *("module_export", "multi_task", "kill", "experiments", "sharded_command", "tutorial", "cli", "sharded_trainer"),
    *("network_step", "model", "sharded_checkpoints", "damage", "trials", "epoch_resume", "estimator_tools"),
    *("continuous_page", "follow_command", "serve_command", "publisher_kills", "message_sources", "joined_source"),
    *("sharded_training", "autograd", "interrupted_runs", "gpu_optimizer", "cli_size", "estimator", "cli_columns"),
)
"""Files of tests that take the most seconds: they begin first, so that no worker is left with one at the end.

The first compiles kernels while the second, of another worker, needs none.
"""
_BEGINS = {f"test_{name}": number for number, name in enumerate(LONG)}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _BEGINS.get(item.path.stem, len(LONG)))
    for item in items:
        if WHOLE & set(getattr(item, "fixturenames", ())):
            item.add_marker("whole")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`sparsegroup` with some arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: Done(call(monkeypatch, *arguments), *capsys.readouterr())


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Two ranks of a distributed world."""
    started = Ranks()
    yield started
    started.end()


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four ranks of another one."""
    started = Ranks(4)
    yield started
    started.end()


@pytest.fixture
def two_threads() -> Iterator[None]:
    """With one thread, a table looks up nothing ahead."""
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(None)
