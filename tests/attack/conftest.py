"""A folder of every kind, written once."""

import shutil
from pathlib import Path

import pytest
from attack_targets import write_folders


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders, for tests that only read them."""
    folder = tmp_path_factory.mktemp("attacked") / "folders"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        write_folders(folder)
    return folder


@pytest.fixture
def written(folders: Path, tmp_path: Path) -> Path:
    """A copy of the folders, in `tmp_path`."""
    return shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
