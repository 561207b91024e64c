"""Whatever happens to the files of a checkpoint, loading it ends well or with an error that names it."""

import pickle
import random
import shutil
from pathlib import Path

import pytest

from checkpoint_cases import Training, fresh_facts, unchanged
from checkpoint_damage import MANIFEST, forge, last, refuse_pickles, trained_otherwise, write_chain
from sparsegroup.checkpoint import CheckpointError, Checkpoints
from sparsegroup.checkpoint.manifest import CHECKPOINT


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture(autouse=True)
def no_pickle(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_pickles(monkeypatch, chain)


@pytest.fixture
def folder(chain: Path, tmp_path: Path) -> Path:
    return shutil.copytree(chain, tmp_path / "checkpoints")


@pytest.fixture
def victim() -> Training:
    return trained_otherwise()


def all_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def is_refused(folder: Path, training: Training, damaged: Path) -> None:
    """The last checkpoint is not loaded, and the error says which file is wrong; the last good one still is found."""
    with unchanged(training), pytest.raises(CheckpointError) as refused:
        training.load(last(folder))
    assert damaged.name in str(refused.value)
    assert damaged.parent.name in str(refused.value)
    checkpoints = Checkpoints(folder)
    good = checkpoints.latest()
    expected = [path for path in checkpoints.paths() if path.name < damaged.parent.name]
    assert good == (expected[-1] if expected else None)
    assert len(checkpoints.skipped) == len(checkpoints.paths()) - len(expected)


def test_truncated_files(folder: Path, victim: Training) -> None:
    draw = random.Random(0)
    for path in all_files(folder):
        content = path.read_bytes()
        for length in {0, 1, 7, 8, 9, len(content) // 2, len(content) - 1, *draw.sample(range(len(content)), 4)}:
            if content[length:].isspace():  # after the JSON
                continue
            path.write_bytes(content[:length])
            is_refused(folder, victim, path)
        path.write_bytes(content)


def test_files_with_something_more(folder: Path, victim: Training) -> None:
    for path in all_files(folder):
        content = path.read_bytes()
        for more in (b"\0", b"x", b"\n}", content):
            path.write_bytes(content + more)
            is_refused(folder, victim, path)
        path.write_bytes(content)


def flip_bits(folder: Path, training: Training, times: int, seed: int) -> None:
    draw = random.Random(seed)
    expected = fresh_facts(last(folder))
    for number in range(times):
        path = all_files(folder)[number % len(all_files(folder))]
        content = bytearray(path.read_bytes())
        whole = bytes(content)
        for _ in range(draw.choice([1, 1, 1, 2, 20])):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            found = fresh_facts(last(folder))
        except CheckpointError:
            is_refused(folder, training, path)
        else:  # 1e-08 and 1E-08 are the same in JSON
            assert path.name == MANIFEST
            assert found == expected
        path.write_bytes(whole)


def test_flipped_bits(folder: Path, victim: Training) -> None:
    flip_bits(folder, victim, 200, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_thousands_of_flipped_bits(folder: Path, victim: Training, seed: int) -> None:
    flip_bits(folder, victim, 2_000, seed)


def test_missing_and_exchanged_files(folder: Path, victim: Training, tmp_path: Path) -> None:
    for path in all_files(folder):
        content = path.read_bytes()
        path.unlink()
        with unchanged(victim), pytest.raises(CheckpointError, match=path.parent.name):
            victim.load(last(folder))
        path.mkdir()
        with unchanged(victim), pytest.raises(CheckpointError, match=path.parent.name):
            victim.load(last(folder))
        path.rmdir()
        path.symlink_to(tmp_path / "nowhere")
        with unchanged(victim), pytest.raises(CheckpointError, match=path.parent.name):
            victim.load(last(folder))
        path.unlink()
        path.write_bytes(pickle.dumps({"weight": [1.0]}))
        is_refused(folder, victim, path)
        for other in all_files(folder):
            if other != path and other.read_bytes() != content and other.name != MANIFEST:
                path.write_bytes(other.read_bytes())
                is_refused(folder, victim, path)
        path.write_bytes(content)
    victim.load(last(folder))


def test_checkpoints_in_the_place_of_others(folder: Path, victim: Training) -> None:
    one, two, three = Checkpoints(folder).paths()
    for taken, put in [(one, two), (one, three), (two, one), (two, three)]:
        kept = taken.rename(folder / "kept")
        shutil.copytree(put, taken)
        with unchanged(victim), pytest.raises(CheckpointError, match=three.name):
            victim.load(three)
        shutil.rmtree(taken)
        kept.rename(taken)
    shutil.rmtree(one)
    with unchanged(victim), pytest.raises(CheckpointError, match=rf"{three.name}: .*{one.name}.*is missing"):
        victim.load(three)


def test_another_format(folder: Path, victim: Training) -> None:
    path = last(folder) / MANIFEST
    for other in (0, 1, 2, "export", None, [1], 1.5):
        forge(last(folder), lambda content, other=other: content.update(format=other))
        is_refused(folder, victim, path)


def test_another_version(folder: Path, victim: Training) -> None:
    path = last(folder) / MANIFEST
    for newer in (CHECKPOINT.version + 1, 99):
        forge(last(folder), lambda content, newer=newer: content.update(version=newer))
        written = rf"{MANIFEST}: written by a newer version .* in version {newer} "
        message = rf"{written}.*up to version {CHECKPOINT.version}: update sparsegroup"
        with unchanged(victim), pytest.raises(CheckpointError, match=message):
            victim.load(last(folder))
        is_refused(folder, victim, path)
    for impossible in (0, -1, "2", None, [2], 2.0, True):
        forge(last(folder), lambda content, impossible=impossible: content.update(version=impossible))
        is_refused(folder, victim, path)
