"""A folder of every kind, and what the command line makes of a log, written once."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from attack_targets import write_folders
from originals import Originals

from command import call
from endings import ok, refused

__all__ = ["ok", "refused"]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders, for tests that only read them."""
    folder = tmp_path_factory.mktemp("attacked") / "folders"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        write_folders(folder)
    return folder


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Originals]:
    with pytest.MonkeyPatch.context() as patch:
        yield Originals(tmp_path_factory.mktemp("originals"), lambda *arguments: call(patch, *arguments))


@pytest.fixture
def written(folders: Path, tmp_path: Path) -> Path:
    """A copy of the folders, in `tmp_path`."""
    return shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
