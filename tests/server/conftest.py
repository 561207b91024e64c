"""A model in service, which the tests of this folder share."""

from pathlib import Path

import pytest

from server_cases import exported, typed_rows, untrained, write_rows
from sparsegroup.server import ExportFolder, LoadedModel, Metrics, ReleaseFollower


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("served") / "log.csv", typed_rows())


@pytest.fixture(scope="session")
def folder(log: Path) -> Path:
    return exported(untrained(log), log.parent / "export", onnx=True)


@pytest.fixture(scope="session")
def model(folder: Path) -> LoadedModel:
    follower = ReleaseFollower(ExportFolder(folder), Metrics())
    assert follower.load_newest()
    assert follower.model is not None
    return follower.model
