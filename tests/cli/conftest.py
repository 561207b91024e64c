from pathlib import Path

import pytest

from cli_cases import click_log
from command import call, without_pictures
from endings import ok, refused

__all__ = ["ok", "refused"]


@pytest.fixture(autouse=True)
def _few_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "pictures" not in request.fixturenames:
        without_pictures(monkeypatch)


@pytest.fixture
def pictures() -> None:
    """For a test that looks at the report of a run that it trains."""


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `log.csv`, a run on it, `run`, and its export, `served`; tests only read them."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        log = click_log(folder / "log.csv", 1_000)
        learning = ("--lr", 0.05, "--l21", 1e-4, "--batch-size", 64)
        assert call(patch, "train", log, "--out", "run", *learning) == 0
        assert call(patch, "export", "run", "served", "--no-onnx") == 0
    return folder
