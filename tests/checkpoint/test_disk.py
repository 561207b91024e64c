"""A disk that is full: what there is stays, the error says which file, and nothing of what was begun counts."""

import errno
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint_cases import Training, bits, clicks, fresh_facts, unchanged
from full_disk import FullDisk
from sparsegroup.checkpoint import Checkpoints


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


@pytest.mark.parametrize("whole", [False, True])
def test_full_at_every_operation(tmp_path: Path, disk: FullDisk, whole: bool) -> None:
    training = clicks()
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    training.step()
    first = checkpoints.save(1, training.model, training.optimizers)
    expected = bits(training.facts())
    training.step()
    now = bits(training.facts())
    for allowed in range(100):
        disk.left = allowed
        error = None
        try:
            with unchanged(training):
                saved = checkpoints.save(2, training.model, training.optimizers, whole=whole)
        except OSError as raised:
            error = raised
        disk.left = float("inf")
        if error is None:
            break
        assert error.errno == errno.ENOSPC
        assert str(error.filename).startswith(str(checkpoints.folder))
        if checkpoints.paths() != [first]:  # full when all was written
            assert fresh_facts(checkpoints.folder / "step-000000000002") == now
            saved = checkpoints.save(3, training.model, training.optimizers)
            break
        assert checkpoints.latest() == first
        assert not checkpoints.skipped
        assert list(checkpoints.folder.iterdir()) == [first]
        assert fresh_facts(first) == expected
    assert allowed > 10
    assert fresh_facts(saved) == now
    assert checkpoints.latest() == saved


@pytest.fixture
def small_files() -> Iterator[Any]:
    """No file may become larger than so many bytes: the system itself refuses, as it does when a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_systems_own_refusal_names_the_file(tmp_path: Path, small_files: Any) -> None:
    training = clicks()
    training.step()
    checkpoints = Checkpoints(tmp_path)
    first = checkpoints.save(1, training.model, training.optimizers)
    training.step()
    sizes = {path.name: path.stat().st_size for path in first.iterdir()}
    assert len(set(sizes.values())) == len(sizes)
    named = set()
    for size in sorted({1, *(size - 1 for size in sizes.values())}):
        small_files(size)
        with pytest.raises(OSError, match="step-000000000002") as refused:
            checkpoints.save(2, training.model, training.optimizers, whole=True)
        small_files(1 << 40)
        named |= {name for name in sizes if name in str(refused.value)}
        assert list(tmp_path.iterdir()) == [first]
    assert len(named) > 1
    checkpoints.save(2, training.model, training.optimizers)


def test_a_save_that_failed_is_made_up_for_by_the_next_one(tmp_path: Path, disk: FullDisk) -> None:
    training = clicks()
    checkpoints = Checkpoints(tmp_path)
    training.step()
    for step in range(1, 20):
        disk.left = step % 7 if step % 2 else float("inf")
        try:
            checkpoints.save(step, training.model, training.optimizers)
        except OSError:
            assert step % 2
        disk.left = float("inf")
        if not step % 2:
            assert checkpoints.latest() == tmp_path / f"step-{step:012d}"
            assert fresh_facts(tmp_path / f"step-{step:012d}") == bits(training.facts())
        training.step()


def test_a_training_goes_on_when_a_save_has_failed(tmp_path: Path, disk: FullDisk) -> None:
    def trained(saved: bool) -> Training:
        training = clicks()
        for step in range(1, 6):
            training.step()
            if saved:
                disk.left = 5
                with pytest.raises(OSError, match="No space"):
                    training.save(tmp_path / str(step))
        return training

    assert bits(trained(False).facts()) == bits(trained(True).facts())
